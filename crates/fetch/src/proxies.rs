//! Proxies of the environment: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`, as curl reads
//! them.

use thiserror::Error;

use crate::url::{Origin, Url};

/// Which proxy leads to which origin. By default none does.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    /// Hosts, or ends of hosts' names; `*` is all.
    direct: Vec<String>,
}

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// For `Proxy-Authorization`.
    pub(crate) credentials: Option<String>,
}

/// A proxy that the environment names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the proxy in {variable} cannot be used: {value:?}; only http:// proxies can")]
pub struct ProxyError {
    variable: String,
    value: String,
}

impl Proxies {
    /// Reads the environment by `variable`.
    ///
    /// # Errors
    /// A proxy is named that is no HTTP proxy.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        // HTTP_PROXY in capitals is left alone, because web servers set it from a request's header.
        let first = |names: &[&str]| -> Result<Option<Proxy>, ProxyError> {
            for name in names {
                let value = variable(name).filter(|value| !value.is_empty());
                if let Some(value) = value {
                    return Proxy::parse(&value).map(Some).ok_or_else(|| ProxyError {
                        variable: (*name).to_owned(),
                        value,
                    });
                }
            }
            Ok(None)
        };
        let direct = variable("no_proxy").or_else(|| variable("NO_PROXY"));
        let direct = direct.unwrap_or_default();
        let direct = direct.split(',').map(|host| host.trim().to_lowercase());
        Ok(Self {
            http: first(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            direct: direct.filter(|host| !host.is_empty()).collect(),
        })
    }

    /// The proxy that leads to an origin, if any does.
    pub(crate) fn proxy_for(&self, origin: &Origin) -> Option<&Proxy> {
        let is_direct = self.direct.iter().any(|entry| {
            let name = entry.trim_start_matches('.');
            let host = origin.host.strip_suffix(name);
            entry == "*" || host.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        let proxy = match origin.is_https {
            true => &self.https,
            false => &self.http,
        };
        proxy.as_ref().filter(|_| !is_direct)
    }
}

impl Proxy {
    fn parse(value: &str) -> Option<Self> {
        let text = match value.contains("://") {
            true => value.to_owned(),
            false => format!("http://{value}"),
        };
        let url = Url::parse(&text).ok().filter(|url| !url.origin.is_https)?;
        let has_port = text
            .trim_end_matches('/')
            .rsplit(':')
            .next()?
            .parse::<u16>();
        Some(Self {
            host: url.origin.host,
            // curl's default for proxies.
            port: has_port.unwrap_or(1080),
            credentials: url.user.as_deref().map(crate::head::basic),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
        Proxies::from_environment(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn origin(text: &str) -> Origin {
        Url::parse(text).unwrap().origin
    }

    #[test]
    fn the_environment_is_read_as_curl_reads_it() {
        let proxies = proxies(&[
            ("http_proxy", "http://me:pw@proxy:3128/"),
            ("ALL_PROXY", "other"),
            ("HTTP_PROXY", "http://never:1"),
            ("no_proxy", "localhost, .example.org"),
        ])
        .unwrap();
        let http = proxies.proxy_for(&origin("http://a/")).unwrap();
        assert_eq!((http.host.as_str(), http.port), ("proxy", 3128));
        assert_eq!(http.credentials.as_deref(), Some("Basic bWU6cHc="));
        let https = proxies.proxy_for(&origin("https://a/")).unwrap();
        assert_eq!((https.host.as_str(), https.port), ("other", 1080));
        for direct in [
            "http://localhost/",
            "https://www.example.org/",
            "http://example.org/",
        ] {
            assert_eq!(proxies.proxy_for(&origin(direct)), None, "{direct}");
        }
        assert!(
            proxies
                .proxy_for(&origin("http://notexample.org/"))
                .is_some()
        );
    }

    #[test]
    fn other_kinds_of_proxies_are_refused() {
        for value in ["socks5://a:1", "https://a:1"] {
            let error = proxies(&[("all_proxy", value)]).unwrap_err();
            assert!(error.to_string().contains("all_proxy"), "{error}");
        }
    }
}
