//! A plain GET whose answer is a file that other links can bring parts of.
//!
//! The request has gone out as it came, by one link; only the head of its answer tells. From there
//! on that answer is the first of a transfer, which asks for parts under the same entity tag.

use std::rc::Rc;

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, RANGE,
};
use hyper::http::response::Parts;
use tabane_base::Bytes;
use tabane_fetch::{Client, Download, Job, Links, Opened, Url, go_on, stream};
use tabane_ranges::{Order, Rule};

use crate::body::AnswerBody;
use crate::journal::Entry;
use crate::passage::Wish;

/// What of a file may wait in memory for the program to read it: a second of 128 Mbit/s.
const WINDOW: Bytes = Bytes::mega(16);
/// Files that are split at a time, which bounds the memory; others come by one link each.
pub(crate) const MOST_SPLIT: usize = 16;
/// A file below this is here as soon as it was asked for; above it, rates tell.
const LEAST: u64 = 16 * 1024;

/// Whether a request says nothing that only its own answer could be right for: no part of a file,
/// no condition, and no credentials, whose use may be counted.
pub(crate) fn may_be_split(wish: &Wish) -> bool {
    let names = [RANGE, AUTHORIZATION, EXPECT];
    let is_conditional = |name: &HeaderName| name.as_str().starts_with("if-");
    let headers = &wish.headers;
    wish.method == hyper::Method::GET
        && !names.iter().any(|name| headers.contains_key(name))
        && !headers.keys().any(is_conditional)
}

/// An answer that a transfer can go on from; else its body as it was.
pub(crate) fn open(
    head: &Parts,
    body: Download,
    latency: std::time::Duration,
) -> Result<(Opened, u64), Box<Download>> {
    let length = head.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    match length.filter(|length| *length >= LEAST) {
        Some(length) => body.open(head, latency).map(|opened| (opened, length)),
        None => Err(Box::new(body)),
    }
}

/// Fetches the rest of a file for the program, over all links.
pub(crate) fn body(
    client: &Rc<Client>,
    links: &Links,
    wish: &Wish,
    (opened, length): (Opened, u64),
    entry: Entry,
    place: impl Sized + 'static,
) -> AnswerBody {
    let job = Job {
        urls: vec![Url {
            user: None,
            ..wish.url.clone()
        }],
        headers: headers_of_parts(&wish.headers),
        rule: Rule::Tabane,
        order: Order::Stream { window: WINDOW },
        by_digest: false,
        begun: None,
    };
    let (mut sink, reader) = stream();
    let (client, links, noted) = (client.clone(), links.clone(), entry.clone());
    let task = tokio::task::spawn_local(async move {
        let fetched = go_on(&client, &links, job, opened, &mut sink, |progress| {
            for link in progress.links.iter().filter(|link| link.carried > 0) {
                noted.set(&link.name, link.carried);
            }
        });
        if let Err(error) = fetched.await {
            noted.failed(error);
        }
        drop(place);
    });
    AnswerBody::split(reader, length, task, entry)
}

/// What the program said goes with every part, but for what the transfer says itself.
fn headers_of_parts(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in [HOST, ACCEPT_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Method;
    use hyper::header::HeaderValue;

    #[test]
    fn only_plain_gets_are_split() {
        let wish = |method, name: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", HeaderValue::from_static("*/*"));
            if let Some(name) = name {
                headers.insert(name, HeaderValue::from_static("x"));
            }
            Wish {
                method,
                url: Url::parse("http://a/").unwrap(),
                headers,
                near: None,
            }
        };
        assert!(may_be_split(&wish(Method::GET, None)));
        assert!(may_be_split(&wish(Method::GET, Some("cookie"))));
        assert!(!may_be_split(&wish(Method::POST, None)));
        for name in ["range", "if-none-match", "if-range", "authorization"] {
            assert!(!may_be_split(&wish(Method::GET, Some(name))), "{name}");
        }
    }
}
