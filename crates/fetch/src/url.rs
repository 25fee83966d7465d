//! URLs as far as fetching needs them (RFC 3986; RFC 9110 §4.2).

use std::fmt;
use std::net::Ipv6Addr;

use thiserror::Error;

/// Where requests go: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// TLS, else plain HTTP.
    pub is_https: bool,
    /// Name or address, in lower case, IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// An `http` or `https` URL, without its fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where to ask.
    pub origin: Origin,
    /// What to ask for: begins with a slash, holds visible ASCII only.
    pub target: String,
    /// User and password, as written.
    pub user: Option<String>,
}

/// Why a text is no URL for us.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("{0:?} does not begin with http:// or https://")]
    Scheme(String),
    /// The host is missing or has characters that no host has.
    #[error("{0:?} has no valid host; names beyond ASCII are written as xn--…")]
    Host(String),
    /// The port is no number from 1 to 65535.
    #[error("{0:?} has no valid port")]
    Port(String),
}

impl Origin {
    const fn default_port(is_https: bool) -> u16 {
        if is_https { 443 } else { 80 }
    }

    /// As it stands in `Host`: without the port that is understood.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = self.bracketed();
        if self.port == Self::default_port(self.is_https) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }

    /// As `CONNECT` wants it: always with the port.
    #[must_use]
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    fn bracketed(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Url {
    /// Reads a whole URL. Characters that may not stand in one are escaped, as browsers do.
    ///
    /// # Errors
    /// It has another scheme, or no valid host or port.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let scheme = || UrlError::Scheme(text.to_owned());
        let (word, rest) = text.split_once("://").ok_or_else(scheme)?;
        let is_https = match word {
            word if word.eq_ignore_ascii_case("https") => true,
            word if word.eq_ignore_ascii_case("http") => false,
            _ => return Err(scheme()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        let (host, port) = split_port(host_port).ok_or_else(|| UrlError::Port(text.to_owned()))?;
        let host = valid_host(host).ok_or_else(|| UrlError::Host(text.to_owned()))?;
        let port = port.unwrap_or_else(|| Origin::default_port(is_https));
        Ok(Self {
            origin: Origin {
                is_https,
                host,
                port,
            },
            target: escape(target),
            user: user.filter(|user| !user.is_empty()),
        })
    }

    /// What a reference of this URL's document means, RFC 3986 §5.2.
    ///
    /// # Errors
    /// As [`Url::parse`].
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let reference = reference.trim();
        let scheme_end = reference.find(':').unwrap_or(0);
        let has_scheme = scheme_end > 0
            && reference[..scheme_end]
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
        if has_scheme {
            return Self::parse(reference);
        }
        let word = if self.origin.is_https {
            "https"
        } else {
            "http"
        };
        if let Some(rest) = reference.strip_prefix("//") {
            return Self::parse(&format!("{word}://{rest}"));
        }
        let path = self.target.split('?').next().unwrap_or("/");
        let target = match reference.chars().next() {
            Some('/') => without_dots(reference),
            Some('?') => format!("{path}{reference}"),
            None | Some('#') => self.target.clone(),
            Some(_) => {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                without_dots(&format!("{folder}/{reference}"))
            }
        };
        Ok(Self {
            origin: self.origin.clone(),
            target: escape(&target),
            user: None,
        })
    }

    /// The last part of the path, decoded, where it can be a file's name.
    #[must_use]
    pub fn file_name(&self) -> Option<String> {
        let path = self.target.split('?').next()?;
        let name = unescape(path.rsplit('/').next()?)?;
        let is_name = !name.is_empty()
            && name != "."
            && name != ".."
            && !name.contains(['/', '\0'])
            && !name.chars().any(char::is_control);
        is_name.then_some(name)
    }
}

impl fmt::Display for Url {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.target)
    }
}

/// `None` where the port is not valid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, ""),
        Some((host, rest)) => (host, rest.strip_prefix(':')?),
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if port.is_empty() {
        return Some((host, None));
    }
    let is_number = port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse().ok().filter(|port| is_number && *port > 0)?;
    Some((host, Some(port)))
}

fn valid_host(host: &str) -> Option<String> {
    let is_v6 = host.parse::<Ipv6Addr>().is_ok();
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    (is_v6 || is_name).then(|| host.to_ascii_lowercase())
}

/// A target in visible ASCII, from its first slash, without a fragment.
fn escape(target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let mut escaped = String::with_capacity(target.len() + 1);
    if !target.starts_with('/') {
        escaped.push('/');
    }
    for byte in target.bytes() {
        match byte {
            0x21..=0x7e
                if !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{'..=b'}') =>
            {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if let (b'%', [a, b, tail @ ..]) = (byte, tail)
            && let (Some(a), Some(b)) = (char::from(*a).to_digit(16), char::from(*b).to_digit(16))
        {
            bytes.push((a * 16 + b) as u8);
            rest = tail;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// RFC 3986 §5.2.4, leaving the query alone.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    let mut parts: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for part in path.split('/').skip(1) {
        is_folder = matches!(part, "" | "." | "..");
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if is_folder && parts.last().is_none_or(|last| !last.is_empty()) {
        parts.push("");
    }
    format!("/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let url = Url::parse("HTTPS://me:pw@Example.org:8443/a b/ü?q=1#frag").unwrap();
        assert_eq!(url.origin.to_string(), "https://example.org:8443");
        assert_eq!(url.target, "/a%20b/%C3%BC?q=1");
        assert_eq!(url.user.as_deref(), Some("me:pw"));
        assert_eq!(url.to_string(), "https://example.org:8443/a%20b/%C3%BC?q=1");
        assert_eq!(url.file_name().as_deref(), Some("ü"));
        let url = Url::parse("http://[2001:DB8::1]").unwrap();
        assert_eq!(url.origin.host, "2001:db8::1");
        assert_eq!(url.origin.host_and_port(), "[2001:db8::1]:80");
        assert_eq!((url.target.as_str(), url.file_name()), ("/", None));
        assert_eq!(Url::parse("http://a/x%2Fy").unwrap().file_name(), None);
    }

    #[test]
    fn refuses_what_leads_nowhere() {
        for wrong in [
            "example.org/a",
            "ftp://a/",
            "http://",
            "http:///a",
            "http://a:0/",
            "http://a:99999/",
            "http://a:+1/",
            "http://ex ample/",
            "http://exämple/",
            "http://[::1/",
        ] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn references_are_resolved_as_the_rfc_says() {
        let base = Url::parse("http://a/b/c/d;p?q").unwrap();
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("https://x:444/y", "https://x:444/y"),
        ] {
            let joined = base.join(reference).unwrap();
            assert_eq!(joined.to_string(), expected, "{reference}");
        }
        assert!(base.join("ftp://x/").is_err());
    }
}
