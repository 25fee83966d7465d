//! Local addresses for origins: what a package manager asks of `http://127.0.0.1:PORT/PREFIX/…` is
//! asked of an origin over TLS, so that we see which file it is and can split it.

use std::fmt;
use std::str::FromStr;

use tabane_fetch::{Url, UrlError};
use thiserror::Error;

/// One prefix and the origin that stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// With a slash in front, none behind.
    prefix: String,
    /// Its target is without a slash behind.
    base: Url,
}

/// Why a text is no map.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// There is no `=`.
    #[error("'{0}' is no PREFIX=URL; write it like debian=https://deb.debian.org/debian")]
    Form(String),
    /// The prefix cannot stand in a path.
    #[error("'{0}' is no prefix: letters, digits, '.', '-', '_' and '/' only")]
    Prefix(String),
    /// The URL is none.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The URL has a user, or a query.
    #[error("{0}: a mapped URL has neither user nor query; programs log in by themselves")]
    TooMuch(String),
}

impl FromStr for Map {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let (prefix, url) = text
            .split_once('=')
            .ok_or_else(|| MapError::Form(text.to_owned()))?;
        let prefix = prefix.trim_matches('/');
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/');
        let is_dots = |part: &str| matches!(part, "" | "." | "..");
        if !prefix.bytes().all(is_plain) || prefix.split('/').any(is_dots) {
            return Err(MapError::Prefix(prefix.to_owned()));
        }
        let mut base = Url::parse(url)?;
        if base.user.is_some() || base.target.contains('?') {
            return Err(MapError::TooMuch(url.to_owned()));
        }
        base.target = base.target.trim_end_matches('/').to_owned();
        Ok(Self {
            prefix: format!("/{prefix}"),
            base,
        })
    }
}

impl fmt::Display for Map {
    /// What it leads to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)
    }
}

impl Map {
    /// The local path, with a slash in front and none behind.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What a local path and query stand for, if they are below the prefix.
    pub(crate) fn far(&self, local: &str) -> Option<Url> {
        let rest = below(local, &self.prefix)?;
        let target = format!("{}{rest}", self.base.target);
        let target = match target.starts_with('/') {
            true => target,
            false => format!("/{target}"),
        };
        Some(Url {
            origin: self.base.origin.clone(),
            target,
            user: None,
        })
    }

    /// The local path and query of a URL, if it is behind the prefix.
    pub(crate) fn local(&self, far: &Url) -> Option<String> {
        let is_here = far.origin == self.base.origin;
        let rest = is_here.then(|| below(&far.target, &self.base.target))??;
        Some(format!("{}{rest}", self.prefix))
    }
}

/// What follows a prefix that ends where a part of the path does.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_mapped_both_ways() {
        let map: Map = "deb/main=https://Deb.example.org/debian/".parse().unwrap();
        assert_eq!(map.prefix(), "/deb/main");
        for (local, far) in [
            ("/deb/main/pool/a_1.deb?x=/", "/debian/pool/a_1.deb?x=/"),
            ("/deb/main/", "/debian/"),
            ("/deb/main", "/debian"),
            ("/deb/main?y", "/debian?y"),
        ] {
            let url = map.far(local).unwrap();
            assert_eq!(url.to_string(), format!("https://deb.example.org{far}"));
            assert_eq!(map.local(&url).as_deref(), Some(local));
        }
        for other in ["/deb/mainly/x", "/deb", "/", "/x/deb/main"] {
            assert_eq!(map.far(other), None, "{other}");
        }
        for other in [
            "https://deb.example.org/other",
            "http://deb.example.org/debian/",
        ] {
            assert_eq!(map.local(&Url::parse(other).unwrap()), None, "{other}");
        }
        let whole: Map = "x=http://a".parse().unwrap();
        assert_eq!(whole.far("/x").unwrap().target, "/");
        assert_eq!(whole.far("/x/b").unwrap().target, "/b");
        assert_eq!(
            whole.local(&Url::parse("http://a/b").unwrap()).unwrap(),
            "/x/b"
        );
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for wrong in [
            "debian",
            "=https://a/",
            "a b=https://a/",
            "a/../b=https://a/",
            "a=ftp://a/",
            "a=https://me:pw@a/",
            "a=https://a/?q",
        ] {
            assert!(wrong.parse::<Map>().is_err(), "{wrong}");
        }
    }
}
