//! The variables that point programs at a proxy, and us.
//!
//! There is no standard; the names and spellings are what curl, Go, Python and most others read.
//! `socks5h` leaves the resolving of names to the proxy. Loopback is excepted: "this machine" must
//! not become the relay's.

use tabane_tunnel::carrier::Proxy;

/// The proxy by which the environment wants TLS to go, read by `variable`. One on this machine is
/// none: nothing that is bound to a link gets there, and it is as likely one of ours.
pub(crate) fn tls_proxy(variable: impl Fn(&str) -> Option<String>) -> Option<Proxy> {
    let names = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let mut named = names
        .iter()
        .filter_map(|name| Some((name, variable(name)?)));
    let (name, value) = named.find(|(_, value)| !value.is_empty())?;
    let url = match value.contains("://") {
        true => value,
        false => format!("http://{value}"),
    };
    let parsed = url.parse::<Proxy>();
    // Not the value, which may hold a password.
    let complain = |error| tracing::warn!("{name} names no proxy for TLS: {error}");
    let proxy = parsed.map_err(complain).ok()?;
    Some(proxy).filter(|proxy| !proxy.is_loopback())
}

/// What to set for a program whose proxy listens on `port` of 127.0.0.1.
pub fn proxy_variables(port: u16) -> Vec<(&'static str, String)> {
    let http = format!("http://127.0.0.1:{port}");
    let socks = format!("socks5h://127.0.0.1:{port}");
    let none = "localhost,127.0.0.1,::1";
    vec![
        ("http_proxy", http.clone()),
        ("HTTP_PROXY", http.clone()),
        ("https_proxy", http.clone()),
        ("HTTPS_PROXY", http.clone()),
        ("ftp_proxy", socks.clone()),
        ("FTP_PROXY", socks.clone()),
        ("all_proxy", socks.clone()),
        ("ALL_PROXY", socks),
        ("no_proxy", none.to_owned()),
        ("NO_PROXY", none.to_owned()),
    ]
}

/// What to set for a program whose web proxy listens on `port` of 127.0.0.1. `excepted` is what it
/// was told before to reach without a proxy.
pub fn web_variables(port: u16, excepted: Option<&str>) -> Vec<(&'static str, String)> {
    let mut variables = proxy_variables(port);
    let is_http = |name: &str| name.to_ascii_lowercase().starts_with("http");
    variables.retain(|(name, _)| is_http(name) || name.eq_ignore_ascii_case("no_proxy"));
    for (name, value) in &mut variables {
        if let Some(excepted) = excepted.filter(|hosts| !hosts.is_empty() && !is_http(name)) {
            *value = format!("{value},{excepted}");
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_may_name_a_proxy_elsewhere() {
        let named = |variables: &[(&str, &str)]| {
            let proxy = tls_proxy(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            proxy.map(|proxy| proxy.to_string())
        };
        for (variables, proxy) in [
            (&[][..], None),
            (&[("http_proxy", "http://web:1")], None),
            (
                &[("HTTPS_PROXY", "http://u:p@hotel:3128")],
                Some("http://hotel:3128"),
            ),
            (&[("https_proxy", "hotel:3128/")], Some("http://hotel:3128")),
            (
                &[("ALL_PROXY", "socks5h://hotel")],
                Some("socks5://hotel:1080"),
            ),
            (
                &[
                    ("all_proxy", "socks5://a"),
                    ("https_proxy", ""),
                    ("HTTPS_PROXY", "b:2"),
                ],
                Some("http://b:2"),
            ),
            (&[("https_proxy", "https://hotel")], None),
            (&[("https_proxy", "http://127.0.0.1:1080")], None),
            (&[("https_proxy", "http://localhost:1080")], None),
            (&[("https_proxy", "http://[::1]:1080")], None),
        ] {
            assert_eq!(named(variables).as_deref(), proxy, "{variables:?}");
        }
    }

    #[test]
    fn both_spellings_agree() {
        let variables = proxy_variables(1080);
        for (name, value) in &variables {
            let other = if name.chars().all(|c| c.is_uppercase() || c == '_') {
                name.to_lowercase()
            } else {
                name.to_uppercase()
            };
            assert!(
                variables.iter().any(|(n, v)| *n == other && v == value),
                "{name}"
            );
        }
    }

    #[test]
    fn a_web_proxy_is_for_the_web_and_keeps_exceptions() {
        let variables = web_variables(4512, Some("nas.lan"));
        let value = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("https_proxy"), Some("http://127.0.0.1:4512"));
        assert_eq!(value("no_proxy"), Some("localhost,127.0.0.1,::1,nas.lan"));
        assert_eq!((value("all_proxy"), variables.len()), (None, 6));
    }
}
