//! Where a fleet's etcd is: `etcd://[USER@]HOST[:PORT][,HOST…][/PREFIX][?ca=FILE…]`.
//!
//! Owns the text form. Secrets stand in files that it names, never in it: command lines are seen by
//! everybody on the machine.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use tabane_base::Destination;

/// Where etcd listens for its clients if nothing else is said (IANA).
const PORT: u16 = 2379;
const SCHEME: &str = "etcd://";
/// More members than a cluster of etcd should have (7).
const MAX_MEMBERS: usize = 9;

/// A fleet's place in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetAddress {
    /// At least one.
    pub(crate) members: Vec<Destination>,
    /// What all keys begin with; ends with a slash.
    pub(crate) prefix: String,
    /// Name and password, read from their file.
    pub(crate) user: Option<(String, String)>,
    /// With it, TLS is spoken: who signs the members' certificates (PEM).
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key (PEM), where etcd asks for one.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// As it was written.
    text: String,
}

impl FleetAddress {
    /// Reads the password, where one is named.
    pub(crate) fn with_password(mut self) -> Result<Self> {
        if let Some((_, password)) = &mut self.user {
            let path = std::mem::take(password);
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read the password of etcd in {path}"))?;
            *password = text.trim_end_matches('\n').to_owned();
        }
        Ok(self)
    }
}

impl fmt::Display for FleetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for FleetAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| {
            format!("a fleet's etcd is written {SCHEME}HOST:2379,HOST:2379/NAME, not '{text}'")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match hosts.split_once('@') {
            Some((user, hosts)) => (Some(user.to_owned()), hosts),
            None => (None, hosts),
        };
        let member = |text: &str| {
            Destination::parse(text, Some(PORT)).map_err(|error| format!("'{text}': {error}"))
        };
        let members: Vec<_> = hosts.split(',').map(member).collect::<Result<_, _>>()?;
        if members.len() > MAX_MEMBERS {
            return Err(format!("more than {MAX_MEMBERS} members of etcd"));
        }
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { "tabane" } else { prefix };
        if !prefix.split('/').all(tabane_fleet::is_name) {
            return Err(format!(
                "'{prefix}' is no name for a fleet: letters, digits and -_."
            ));
        }
        let (mut ca, mut cert, mut key, mut password) = (None, None, None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let slot = match part.split_once('=') {
                Some(("ca", _)) => &mut ca,
                Some(("cert", _)) => &mut cert,
                Some(("key", _)) => &mut key,
                Some(("password-file", _)) => &mut password,
                _ => {
                    return Err(format!(
                        "'{part}' is none of ca=, cert=, key=, password-file="
                    ));
                }
            };
            *slot = part.split_once('=').map(|(_, file)| file.to_owned());
        }
        let user = match (user, password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            (Some(_), None) => return Err("a user of etcd needs ?password-file=FILE".into()),
            (None, Some(_)) => return Err("password-file needs a user: etcd://USER@HOST".into()),
        };
        if (cert.is_some() || key.is_some()) && (cert.is_none() || key.is_none() || ca.is_none()) {
            return Err("cert=, key= and ca= are needed together".into());
        }
        Ok(Self {
            members,
            prefix: format!("{prefix}/"),
            user,
            ca: ca.map(PathBuf::from),
            certificate: cert.map(PathBuf::from).zip(key.map(PathBuf::from)),
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_shown_the_same() {
        let text = "etcd://ann@10.0.0.1,[2001:db8::1]:9,c.example/eu/one?ca=/ca&cert=/c&key=/k\
                    &password-file=/p";
        let address: FleetAddress = text.parse().unwrap();
        let members: Vec<String> = address.members.iter().map(ToString::to_string).collect();
        assert_eq!(
            members,
            ["10.0.0.1:2379", "[2001:db8::1]:9", "c.example:2379"]
        );
        assert_eq!(address.prefix, "eu/one/");
        assert_eq!(address.user, Some(("ann".to_owned(), "/p".to_owned())));
        assert_eq!(address.to_string(), text);
        let short: FleetAddress = "etcd://a".parse().unwrap();
        assert_eq!((short.prefix.as_str(), short.ca), ("tabane/", None));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("http://a:2379", "etcd://"),
            ("etcd://", "host name"),
            ("etcd://a:0", "port"),
            ("etcd://a,,b", "host name"),
            ("etcd://a/b c", "no name for a fleet"),
            ("etcd://a/../b", "no name for a fleet"),
            ("etcd://ann@a", "password-file"),
            ("etcd://a?password-file=/p", "needs a user"),
            ("etcd://a?cert=/c&key=/k", "together"),
            ("etcd://a?pass=x", "none of ca="),
        ] {
            let error = text.parse::<FleetAddress>().unwrap_err();
            assert!(
                error.contains(word) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }
}
