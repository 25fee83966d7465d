//! HTTP requests as a proxy gets them (RFC 9110, RFC 9112): `CONNECT host:port`, and absolute URLs
//! to forward.
//!
//! Pure: bytes to a value. A forwarded request is rewritten to origin form with one connection per
//! request (`Connection: close`), so that everything after its head can be passed on as it comes
//! and a program cannot reuse the connection for another host.

use tabane_base::{Destination, DestinationError};

/// Most bytes a request head may have. Twice the largest limit of common servers (nginx: 4 × 8 kB),
/// and what one connection can make us hold before it is told to go away.
pub const MAX_HEAD: usize = 64 * 1024;

/// Most header lines; browsers send about 20.
const MAX_HEADERS: usize = 128;

/// Headers that concern one hop only (RFC 9110 §7.6.1). `Transfer-Encoding` is missing on purpose:
/// the body is passed on as it comes, so its framing must be, too.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "upgrade",
    "host",
];

/// What a program asks an HTTP proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpRequest {
    /// Open a connection and pass bytes.
    Connect {
        /// Where to.
        destination: Destination,
        /// Bytes of the buffer that belong to the request; what follows is the program's data.
        consumed: usize,
    },
    /// Fetch a URL.
    Forward {
        /// Where to.
        destination: Destination,
        /// The head to send there.
        head: Vec<u8>,
        /// Bytes of the buffer that belong to the head; what follows is the request's body.
        consumed: usize,
    },
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// It is not HTTP.
    #[error("not an HTTP request: {0}")]
    Syntax(httparse::Error),
    /// The head has more than [`MAX_HEAD`] bytes.
    #[error("the HTTP request's head is longer than {MAX_HEAD} bytes")]
    TooLong,
    /// The head comes in so many pieces that reading it costs too much.
    #[error("the HTTP request's head comes in too many pieces")]
    Crumbs,
    /// The request target has no host, as a web server would get it.
    #[error("this is a proxy, not a web server: the request has no http:// URL")]
    NotForProxy,
    /// A scheme other than `http`; programs use `CONNECT` for everything else.
    #[error("only http:// URLs can be forwarded; use CONNECT for other schemes")]
    Scheme,
    /// The host or port is not valid.
    #[error("the request's host is not valid: {0}")]
    Destination(#[from] DestinationError),
}

/// Reads a request head; `Ok(None)` means that more bytes are needed.
pub fn parse_request(bytes: &[u8]) -> Result<Option<HttpRequest>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let consumed = match request.parse(bytes).map_err(HttpError::Syntax)? {
        httparse::Status::Complete(n) if n > MAX_HEAD => return Err(HttpError::TooLong),
        httparse::Status::Complete(n) => n,
        httparse::Status::Partial if bytes.len() >= MAX_HEAD => return Err(HttpError::TooLong),
        httparse::Status::Partial => return Ok(None),
    };
    let method = request.method.expect("a complete request has a method");
    let target = request.path.expect("a complete request has a target");
    if method == "CONNECT" {
        let destination = Destination::parse(target, None)?;
        return Ok(Some(HttpRequest::Connect {
            destination,
            consumed,
        }));
    }
    let (authority, path) = split_url(target)?;
    let destination = Destination::parse(authority, Some(80))?;
    let head = rewrite(method, authority, &path, request.headers);
    Ok(Some(HttpRequest::Forward {
        destination,
        head,
        consumed,
    }))
}

/// Splits `http://[user@]host[:port]/path?query` into authority (without user) and origin form.
fn split_url(target: &str) -> Result<(&str, String), HttpError> {
    let (scheme, rest) = target.split_once("://").ok_or(HttpError::NotForProxy)?;
    if !scheme
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    {
        return Err(HttpError::NotForProxy);
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HttpError::Scheme);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_user, host)| host);
    let path = path.split('#').next().unwrap_or_default();
    let origin = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    Ok((authority, origin))
}

fn rewrite(method: &str, authority: &str, path: &str, headers: &[httparse::Header<'_>]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
    let named: Vec<String> = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("connection"))
        .flat_map(|header| header.value.split(|&b| b == b','))
        .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
        .collect();
    for header in headers {
        let name = header.name.to_ascii_lowercase();
        if HOP_BY_HOP.contains(&name.as_str()) || named.contains(&name) {
            continue;
        }
        head.extend_from_slice(header.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn forwarded(text: &str) -> (String, String) {
        match parse_request(text.as_bytes()).unwrap().unwrap() {
            HttpRequest::Forward {
                destination,
                head,
                consumed,
            } => {
                assert_eq!(consumed, text.find("\r\n\r\n").unwrap() + 4);
                (destination.to_string(), String::from_utf8(head).unwrap())
            }
            other @ HttpRequest::Connect { .. } => panic!("{other:?}"),
        }
    }

    #[test]
    fn connect_says_where_to_and_leaves_what_follows() {
        let text = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n\x16\x03";
        let parsed = parse_request(text).unwrap().unwrap();
        let destination = Destination::parse("example.org:443", None).unwrap();
        assert_eq!(
            parsed,
            HttpRequest::Connect {
                destination,
                consumed: text.len() - 2
            }
        );
    }

    #[test]
    fn absolute_url_becomes_origin_form() {
        let (destination, head) = forwarded(
            "POST http://u:p@host.example:8080/a?b=1#frag HTTP/1.1\r\nHost: wrong\r\nX: 1\r\n\
             Content-Length: 3\r\nProxy-Connection: keep-alive\r\nConnection: x-hop, Keep-Alive\r\n\
             X-Hop: 2\r\nProxy-Authorization: Basic eA==\r\n\r\nabc",
        );
        assert_eq!(destination, "host.example:8080");
        assert_eq!(
            head,
            "POST /a?b=1 HTTP/1.1\r\nHost: host.example:8080\r\nX: 1\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n"
        );
    }

    #[test]
    fn url_without_path_or_port_gets_the_usual_ones() {
        let (destination, head) = forwarded("GET HTTP://[2001:db8::1]?q HTTP/1.1\r\n\r\n");
        assert_eq!(destination, "[2001:db8::1]:80");
        assert!(
            head.starts_with("GET /?q HTTP/1.1\r\nHost: [2001:db8::1]\r\n"),
            "{head}"
        );
    }

    #[test]
    fn every_truncation_waits() {
        let full = "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for n in 0..full.len() {
            assert_eq!(parse_request(&full.as_bytes()[..n]), Ok(None), "{n} bytes");
        }
    }

    #[test]
    fn names_the_fault() {
        let of = |text: &str| parse_request(text.as_bytes()).unwrap_err();
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), HttpError::NotForProxy);
        assert_eq!(of("GET ftp://a/ HTTP/1.1\r\n\r\n"), HttpError::Scheme);
        assert_eq!(
            of("CONNECT a HTTP/1.1\r\n\r\n"),
            HttpError::Destination(DestinationError::Port)
        );
        assert!(matches!(of("\u{1}\u{2}\r\n\r\n"), HttpError::Syntax(_)));
        let long = format!("GET http://a/ HTTP/1.1\r\nX: {}", "y".repeat(MAX_HEAD));
        assert_eq!(of(&long), HttpError::TooLong);
    }

    #[test]
    fn garbage_never_panics() {
        let mut rng = Seed(11).rng("http garbage");
        let model = b"GET http://[::1]:8/%2 HTTP/1.1\r\nConnection: a,b\r\nHost: x\r\n\r\nbody";
        for _ in 0..50_000 {
            let mut bytes = model.to_vec();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            let _ = parse_request(&bytes);
        }
    }
}
