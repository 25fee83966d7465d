//! One request: which URL a source has come to by redirects, what is told to whom, the answer.

use std::cell::RefCell;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, IF_RANGE,
    PROXY_AUTHORIZATION, RANGE, USER_AGENT,
};
use hyper::{Method, Request, Response};
use tabane_ranges::{ByteRange, EntityTag};

use crate::connection::{Client, RequestError, Sender, http_error};
use crate::head::{self, Head};
use crate::links::Link;
use crate::upload::Upload;
use crate::url::Url;

/// Redirects followed in a row: as many as browsers do.
const MOST_REDIRECTS: usize = 20;

/// A place to have the file from.
pub(crate) struct Source {
    /// As the user gave it.
    url: Url,
    /// Where redirects have led.
    found: RefCell<Option<Url>>,
    /// For the user's own origin only.
    headers: HeaderMap,
}

/// What to ask for.
pub(crate) struct Wish {
    pub(crate) method: Method,
    pub(crate) range: Option<ByteRange>,
    pub(crate) if_range: Option<EntityTag>,
}

/// An answer that is no redirect.
pub(crate) struct Answered {
    pub(crate) response: Response<Incoming>,
    pub(crate) head: head::Head,
    /// Whose connection it is.
    pub(crate) sender: Sender,
    pub(crate) url: Url,
}

impl Source {
    pub(crate) fn new(url: Url, headers: HeaderMap) -> Self {
        Self {
            url,
            found: RefCell::new(None),
            headers,
        }
    }

    /// Asks, following redirects.
    pub(crate) async fn ask(
        &self,
        client: &Client,
        link: &Rc<Link>,
        wish: &Wish,
    ) -> Result<Answered, RequestError> {
        let known = self.found.borrow().clone();
        let is_found = known.is_some();
        let mut url = known.unwrap_or_else(|| self.url.clone());
        let mut is_fresh = !is_found;
        for _ in 0..=MOST_REDIRECTS {
            let answered = self.ask_at(client, link, wish, &url).await?;
            if let Head::Redirect(location) = &answered.head {
                url = follow(&url, location)?;
                continue;
            }
            if !is_fresh && head::is_stale(answered.response.status()) {
                // What redirects lead to may be valid for a while only.
                is_fresh = true;
                url = self.url.clone();
                continue;
            }
            if url != self.url {
                self.found.replace(Some(url));
            }
            return Ok(answered);
        }
        let what = format!(
            "{}: more than {MOST_REDIRECTS} redirects in a row",
            self.url
        );
        Err(RequestError::Redirect(what))
    }

    async fn ask_at(
        &self,
        client: &Client,
        link: &Rc<Link>,
        wish: &Wish,
        url: &Url,
    ) -> Result<Answered, RequestError> {
        let mut tries = 0;
        loop {
            let mut sender = client.connection(link, &url.origin).await?;
            let request = self.request(client, wish, url, sender.is_http2());
            match sender.send(request).await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    let head = head::read(&parts);
                    return Ok(Answered {
                        response: Response::from_parts(parts, body),
                        head,
                        sender,
                        url: url.clone(),
                    });
                }
                // An idle connection may have been closed while our request was on its way.
                Err(error) if tries < 2 && (error.is_canceled() || error.is_closed()) => {
                    tracing::debug!(%error, "asking again");
                    tries += 1;
                }
                Err(error) => return Err(http_error(&url.origin, error)),
            }
        }
    }

    fn request(&self, client: &Client, wish: &Wish, url: &Url, is_http2: bool) -> Request<Upload> {
        let mut request = Request::new(Upload::default());
        *request.method_mut() = wish.method.clone();
        let proxy = client.plain_proxy(&url.origin);
        let whole = is_http2 || proxy.is_some();
        let target = match whole {
            true => format!("{}{}", url.origin, url.target),
            false => url.target.clone(),
        };
        // The URL was checked when it was read.
        *request.uri_mut() = target.parse().unwrap_or_default();
        let headers = request.headers_mut();
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(ACCEPT, "*/*");
        set(USER_AGENT, concat!("tabane/", env!("CARGO_PKG_VERSION")));
        if url.origin == self.url.origin {
            if let Some(user) = &self.url.user {
                set(AUTHORIZATION, &head::basic(user));
            }
            for name in self.headers.keys() {
                headers.remove(name);
            }
            for (name, value) in &self.headers {
                headers.append(name, value.clone());
            }
        }
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(ACCEPT_ENCODING, "identity");
        if !is_http2 {
            set(HOST, &url.origin.authority());
        }
        if let Some(credentials) = proxy.and_then(|proxy| proxy.credentials.as_deref()) {
            set(PROXY_AUTHORIZATION, credentials);
        }
        if let Some(span) = wish.range {
            set(
                RANGE,
                &match span.end {
                    u64::MAX => format!("bytes={}-", span.start),
                    end => format!("bytes={}-{}", span.start, end - 1),
                },
            );
            if let Some(tag) = &wish.if_range {
                set(IF_RANGE, tag.as_str());
            }
        }
        request
    }
}

fn follow(url: &Url, location: &str) -> Result<Url, RequestError> {
    let next = url.join(location);
    let next = next.map_err(|error| RequestError::Redirect(format!("{url} redirects: {error}")))?;
    if url.origin.is_https && !next.origin.is_https {
        let what = format!("{url} redirects to {next}, which is not encrypted; not followed");
        return Err(RequestError::Redirect(what));
    }
    Ok(next)
}
