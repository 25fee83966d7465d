//! What a request to the proxy asks for (RFC 9112 §3.2): a tunnel, a URL, or something of ours.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap};
use hyper::{Method, StatusCode, Uri};
use tabane_fetch::{Origin, Url};

use crate::map::Map;
use crate::refusal::Refusal;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Bytes to and from a host.
    Tunnel {
        /// Name or address, IPv6 without brackets.
        host: String,
        port: u16,
    },
    /// What the URL stands for, as any proxy is asked.
    Url(Url),
    /// What stands behind a local address, and the authority that the program used for us.
    Mapped(Url, String),
}

impl Target {
    pub(crate) fn of(
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        maps: &[Map],
    ) -> Result<Self, Refusal> {
        if *method == Method::CONNECT {
            let authority = uri.authority();
            let to = authority.and_then(|to| Some((to.host(), to.port_u16()?)));
            let (host, port) = to
                .filter(|(host, port)| !host.is_empty() && *port > 0)
                .ok_or_else(|| Refusal::bad("CONNECT wants a host and a port"))?;
            let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
            return Ok(Self::Tunnel { host, port });
        }
        if uri.scheme().is_some() {
            let url = Url::parse(&uri.to_string());
            let mut url = url.map_err(|error| Refusal::bad(error.to_string()))?;
            url.user = None;
            return Ok(Self::Url(url));
        }
        let own = own_authority(headers)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let far = maps.iter().filter_map(|map| Some((map, map.far(path)?)));
        let longest = far.max_by_key(|(map, _)| map.prefix().len());
        match longest {
            Some((_, url)) => Ok(Self::Mapped(url, own)),
            None => Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!("this is a proxy, not a web server: set http_proxy=http://{own}/"),
            )),
        }
    }
}

/// The URL that a request within an intercepted tunnel to `origin` asks for. Whoever was told to
/// answer for one host answers for no other.
pub(crate) fn within(
    origin: &Origin,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Url, Refusal> {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    if *method == Method::CONNECT || !path.starts_with('/') {
        return Err(Refusal::bad("within a tunnel only paths can be asked for"));
    }
    let named = match (uri.authority(), headers.get(HOST)) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(host)) => host.to_str().unwrap_or_default(),
        // HTTP/1.0.
        (None, None) => &origin.host,
    };
    match Url::parse(&format!("https://{named}/")) {
        Ok(url) if url.origin == *origin && url.user.is_none() => Ok(Url {
            origin: url.origin,
            target: path.to_owned(),
            user: None,
        }),
        _ => {
            let text = format!("'{named}' was asked for in a tunnel to {}", origin.host);
            Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, text))
        }
    }
}

/// What the program calls us. A web page of somebody else's, whose name has been made to mean this
/// machine, must not reach anything through us.
fn own_authority(headers: &HeaderMap) -> Result<String, Refusal> {
    let host = headers.get(HOST).and_then(|value| value.to_str().ok());
    let host = host.unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']);
    let is_loopback = |address: IpAddr| address.is_loopback();
    let is_ours = name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback);
    if is_ours {
        Ok(host.to_owned())
    } else {
        let text = format!("'{host}' is not what this proxy is called: use 127.0.0.1");
        Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn target(method: &str, uri: &str, host: &'static str) -> Result<Target, u16> {
        let maps = ["a=https://one.example/x", "a/b=https://two.example"];
        let maps: Vec<Map> = maps.iter().map(|text| text.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        let method = method.parse().unwrap();
        Target::of(&method, &uri.parse().unwrap(), &headers, &maps)
            .map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn tunnels_urls_and_local_addresses_are_told_apart() {
        let tunnel = |host: &str, port| {
            let host = host.to_owned();
            Ok(Target::Tunnel { host, port })
        };
        assert_eq!(
            target("CONNECT", "A.example:443", "x"),
            tunnel("a.example", 443)
        );
        assert_eq!(target("CONNECT", "[::1]:8443", "x"), tunnel("::1", 8443));
        assert_eq!(target("CONNECT", "a.example", "x"), Err(400));
        let url = |text: &str| Url::parse(text).unwrap();
        // The host of the target counts, not the one of the header: RFC 9112 §3.2.2.
        let wanted = Ok(Target::Url(url("http://a.example:81/b?c")));
        assert_eq!(
            target("GET", "http://me:pw@a.example:81/b?c", "evil"),
            wanted
        );
        assert_eq!(target("GET", "ftp://a.example/", "x"), Err(400));
        let mapped = |text| Ok(Target::Mapped(url(text), "127.0.0.1:4512".to_owned()));
        let local = |path| target("GET", path, "127.0.0.1:4512");
        assert_eq!(local("/a/c?d"), mapped("https://one.example/x/c?d"));
        assert_eq!(local("/a/b/c"), mapped("https://two.example/c"));
        assert_eq!(local("/"), Err(404));
    }

    #[test]
    fn within_a_tunnel_there_is_its_host_alone() {
        let origin = Url::parse("https://a.example/").unwrap().origin;
        let target = |method: &str, uri: &str, host: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(HOST, HeaderValue::from_static(host));
            }
            let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
            let url = within(&origin, &method, &uri, &headers);
            url.map(|url| url.to_string())
                .map_err(|refusal| refusal.status.as_u16())
        };
        let wanted = Ok("https://a.example/b?c".to_owned());
        for host in [None, Some("a.example"), Some("A.example:443")] {
            assert_eq!(target("GET", "/b?c", host), wanted, "{host:?}");
        }
        assert_eq!(target("GET", "https://a.example/b?c", Some("x")), wanted);
        for host in ["b.example", "a.example:8443", "me@a.example", "", "a b"] {
            assert_eq!(target("GET", "/b?c", Some(host)), Err(421), "{host}");
        }
        assert_eq!(target("GET", "https://b.example/", None), Err(421));
        assert_eq!(target("CONNECT", "a.example:443", None), Err(400));
        assert_eq!(target("OPTIONS", "*", Some("a.example")), Err(400));
    }

    #[test]
    fn other_names_for_this_machine_are_refused() {
        for host in ["evil.example:4512", "", "10.0.0.1:4512", "localhost.evil:1"] {
            assert_eq!(target("GET", "/a/c", host), Err(421), "{host}");
        }
        for host in ["localhost", "LOCALHOST:1", "[::1]:4512", "127.0.0.1"] {
            assert!(target("GET", "/a/c", host).is_ok(), "{host}");
        }
    }
}
