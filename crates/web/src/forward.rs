//! What of a message's head is passed on by a proxy, RFC 9110 §7.6.

use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::{Method, Version};

/// Headers that concern one hop, beside those that `Connection` names. `Content-Length` is checked
/// and written anew by the library, chunks are made anew.
const OF_ONE_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Takes out what concerns one hop only, and says by whom the message has come.
pub(crate) fn pass_on(headers: &mut HeaderMap, received: Version, name: &str) {
    let listed = headers.get_all(CONNECTION).into_iter();
    let listed = listed.filter_map(|value| value.to_str().ok());
    let listed: Vec<HeaderName> = listed
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed.iter().chain(&OF_ONE_HOP) {
        headers.remove(name);
    }
    let version = match received {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{version} {name}")) {
        headers.append(VIA, value);
    }
}

/// The protocol that a request would change to, RFC 9110 §7.8. Not HTTP/2, which would be spoken
/// with us.
pub(crate) fn wanted_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let words = headers.get_all(CONNECTION).into_iter();
    let mut words = words
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let protocol = headers.get(UPGRADE)?;
    let is_http2 = protocol.as_bytes().to_ascii_lowercase().starts_with(b"h2c");
    let is_meant = words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    (is_meant && !is_http2).then(|| protocol.clone())
}

/// Has a message that was made fit to be passed on change the protocol none the less.
pub(crate) fn change_protocol(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Whether a request has been here already, RFC 9110 §7.6.3.
pub(crate) fn has_passed(headers: &HeaderMap, name: &str) -> bool {
    let values = headers.get_all(VIA).into_iter();
    let mut entries = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    entries.any(|entry| entry.split_whitespace().nth(1) == Some(name))
}

/// Counts a hop of a request that is to go so far only, RFC 9110 §7.6.2; `false`: it ends here.
pub(crate) fn count_hop(method: &Method, headers: &mut HeaderMap) -> bool {
    if *method != Method::TRACE && *method != Method::OPTIONS {
        return true;
    }
    let hops = headers.get(MAX_FORWARDS);
    let hops: Option<u32> = hops.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    match hops {
        None => true,
        Some(0) => false,
        Some(hops) => {
            headers.insert(MAX_FORWARDS, HeaderValue::from(hops - 1));
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn one_hops_headers_stay_behind() {
        let mut sent = headers(&[
            ("connection", "keep-alive, X-Mine"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eDp5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-mine", "1"),
            ("x-theirs", "2"),
            ("authorization", "Basic eDp5"),
            ("via", "1.0 before"),
        ]);
        pass_on(&mut sent, Version::HTTP_11, "me");
        let left = headers(&[
            ("x-theirs", "2"),
            ("authorization", "Basic eDp5"),
            ("via", "1.0 before"),
            ("via", "1.1 me"),
        ]);
        assert_eq!(sent, left);
        assert!(has_passed(&sent, "me") && has_passed(&sent, "before"));
        assert!(!has_passed(&sent, "m"));
    }

    #[test]
    fn only_a_protocol_that_is_meant_is_changed_to() {
        let wanted = |connection, upgrade| {
            let sent = headers(&[("connection", connection), ("upgrade", upgrade)]);
            wanted_protocol(&sent).is_some()
        };
        assert!(wanted("keep-alive, Upgrade", "websocket"));
        assert!(!wanted("keep-alive", "websocket"));
        assert!(!wanted("upgrade, http2-settings", "h2c"));
        assert!(!wanted("x-upgrade", "websocket"));
    }

    #[test]
    fn hops_are_counted_where_they_are_limited() {
        let mut limited = headers(&[("max-forwards", "1")]);
        assert!(count_hop(&Method::GET, &mut limited));
        assert!(count_hop(&Method::OPTIONS, &mut limited));
        assert!(!count_hop(&Method::TRACE, &mut limited));
        assert!(count_hop(&Method::TRACE, &mut HeaderMap::new()));
    }
}
