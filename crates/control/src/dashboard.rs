//! The dashboard's files, which are in the program.
//!
//! Owns what the browser may do with them. They hold nothing secret, so whoever reaches the door
//! may have them; what they show is asked for with the token, which stays in the browser's tab.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// Its own files and nothing else, and in nobody's frame.
const MAY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                   img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; \
                   frame-ancestors 'none'";

/// The file at `path`, where there is one.
pub(crate) fn file(path: &str) -> Option<Response<Full<Bytes>>> {
    let (kind, text) = match path {
        "/" => (
            "text/html; charset=utf-8",
            include_str!("dashboard/index.html"),
        ),
        "/dashboard.css" => (
            "text/css; charset=utf-8",
            include_str!("dashboard/dashboard.css"),
        ),
        "/dashboard.js" => (
            "text/javascript; charset=utf-8",
            include_str!("dashboard/dashboard.js"),
        ),
        "/chart.js" => (
            "text/javascript; charset=utf-8",
            include_str!("dashboard/chart.js"),
        ),
        "/policy.js" => (
            "text/javascript; charset=utf-8",
            include_str!("dashboard/policy.js"),
        ),
        "/icon.svg" => ("image/svg+xml", include_str!("dashboard/icon.svg")),
        _ => return None,
    };
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, MAY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another version of the program has another page.
        (CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(answer)
}
