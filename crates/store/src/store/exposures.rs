//! `expose.toml`: which ports of the relay lead to this machine or beyond, as `tabane expose`
//! writes it, and how that is typed.

use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_base::{Destination, Host, PortRange, Protocol};

use super::{Store, read_toml};
use crate::atomic_file;

/// The file's name in the directory.
pub const EXPOSURES_FILE_NAME: &CStr = c"expose.toml";

/// More would be a slip: a range is one.
const MAX_ENTRIES: usize = 256;

/// Ports of the relay, and whom those who come there are led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ExposureFile", into = "ExposureFile")]
pub struct ExposureEntry {
    /// How visitors come.
    pub protocol: Protocol,
    /// Where at the relay.
    pub ports: PortRange,
    /// The only name of which visitors are wanted.
    pub host: Option<String>,
    /// Who serves the first port; the others are served by the ports that follow.
    pub target: Destination,
    /// Servers are told in front of each connection who it is from (PROXY protocol, version 2).
    pub proxy_protocol: bool,
    /// Connections come from the visitors' own addresses, where this machine is the target's
    /// router.
    pub transparent: bool,
}

/// The same as text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExposureFile {
    port: String,
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    proxy_protocol: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    transparent: bool,
}

/// The whole file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExposuresFile {
    #[serde(default)]
    expose: Vec<ExposureEntry>,
}

impl ExposureEntry {
    /// The same for visitors of one name, and servers that are told who comes.
    ///
    /// # Errors
    /// The name is none, or datagrams are to have one.
    pub fn refined(self, host: Option<String>, proxy_protocol: bool) -> Result<Self, String> {
        if self.protocol == Protocol::Udp && (host.is_some() || proxy_protocol) {
            return Err("names and the PROXY protocol are for TCP".to_owned());
        }
        let host = host.map(|host| match Host::parse(&host) {
            Ok(Host::Name(name)) => Ok(name.to_ascii_lowercase()),
            Ok(Host::Ip(_)) | Err(_) => Err(format!("'{host}' is no name of a host")),
        });
        Ok(Self {
            host: host.transpose()?,
            proxy_protocol,
            ..self
        })
    }

    /// The same for servers that see visitors' own addresses as the source.
    ///
    /// # Errors
    /// The target is this machine, which they cannot be led to from outside.
    pub fn made_transparent(self, transparent: bool) -> Result<Self, String> {
        let is_here = match &self.target.host {
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => name == "localhost",
        };
        if transparent && is_here {
            return Err(format!(
                "'{self}': --transparent is for hosts behind this machine; a server on it is told \
                 who comes by --proxy-protocol"
            ));
        }
        Ok(Self {
            transparent,
            ..self
        })
    }

    /// Who serves a port of the relay.
    #[must_use]
    pub fn target_of(&self, port: u16) -> Destination {
        let step = port.saturating_sub(self.ports.first());
        Destination {
            port: self.target.port.saturating_add(step),
            ..self.target.clone()
        }
    }

    /// `tcp:443`, as it is typed before the target.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}:{}", self.protocol, self.ports)
    }

    /// Whether both are wanted by the same visitors.
    #[must_use]
    pub fn is_at_the_same(&self, other: &Self) -> bool {
        let place = |it: &Self| (it.protocol, it.ports, it.host.clone());
        place(self) == place(other)
    }
}

/// `8080`, `tcp:443=192.168.1.5:8443`, `udp:27015-27020=nas.lan`.
impl FromStr for ExposureEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no port to expose; write 8080, 8000-8100, 443=8443, \
                 tcp:443=192.168.1.5:443 or udp:27015=nas.lan"
            )
        };
        let (place, target) = match text.split_once('=') {
            Some((place, target)) => (place, Some(target)),
            None => (text, None),
        };
        let (protocol, ports) = match place.split_once(':') {
            Some(("tcp", ports)) => (Protocol::Tcp, ports),
            Some(("udp", ports)) => (Protocol::Udp, ports),
            Some(_) => return Err(wrong()),
            None => (Protocol::Tcp, place),
        };
        let ports = PortRange::parse(ports).ok_or_else(wrong)?;
        let here = Host::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let target = match target {
            None => Destination {
                host: here,
                port: ports.first(),
            },
            Some(target) => match PortRange::parse(target) {
                Some(port) if port.count() == 1 => Destination {
                    host: here,
                    port: port.first(),
                },
                Some(_) => return Err(wrong()),
                None => {
                    let first = Some(ports.first());
                    let target = Destination::parse(target, first);
                    target.map_err(|error| format!("'{text}': {error}"))?
                }
            },
        };
        if usize::from(target.port) + ports.count() > 1 + usize::from(u16::MAX) {
            return Err(format!("'{text}': {target} and what follows is no range"));
        }
        Ok(Self {
            protocol,
            ports,
            host: None,
            target,
            proxy_protocol: false,
            transparent: false,
        })
    }
}

/// As it is typed, without its name.
impl fmt::Display for ExposureEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.place(), self.target)
    }
}

impl From<ExposureEntry> for ExposureFile {
    fn from(entry: ExposureEntry) -> Self {
        Self {
            port: entry.place(),
            target: entry.target.to_string(),
            host: entry.host,
            proxy_protocol: entry.proxy_protocol,
            transparent: entry.transparent,
        }
    }
}

impl TryFrom<ExposureFile> for ExposureEntry {
    type Error = String;

    fn try_from(file: ExposureFile) -> Result<Self, String> {
        let entry: Self = format!("{}={}", file.port, file.target).parse()?;
        let entry = entry.refined(file.host, file.proxy_protocol)?;
        entry.made_transparent(file.transparent)
    }
}

impl Store {
    fn exposures_path(&self) -> PathBuf {
        self.root().join("expose.toml")
    }

    /// What is exposed whenever `tabane up` runs.
    pub fn exposures(&self) -> Result<Vec<ExposureEntry>> {
        let file: Option<ExposuresFile> = read_toml(&self.exposures_path())?;
        Ok(file.unwrap_or_default().expose)
    }

    /// One more, or in the place of what the same visitors were led to.
    pub fn put_exposure(&self, entry: ExposureEntry) -> Result<()> {
        let mut entries = self.exposures()?;
        entries.retain(|other| !other.is_at_the_same(&entry));
        if entries.len() >= MAX_ENTRIES {
            bail!("there are already {MAX_ENTRIES}; a range of ports is one");
        }
        entries.push(entry);
        self.write_exposures(entries)
    }

    /// Takes away what is exposed at a place, for this name or without one; false if nothing is.
    pub fn remove_exposure(&self, place: &ExposureEntry) -> Result<bool> {
        let mut entries = self.exposures()?;
        let before = entries.len();
        entries.retain(|other| !other.is_at_the_same(place));
        let is_less = entries.len() < before;
        if is_less {
            self.write_exposures(entries)?;
        }
        Ok(is_less)
    }

    fn write_exposures(&self, expose: Vec<ExposureEntry>) -> Result<()> {
        let text = toml::to_string(&ExposuresFile { expose }).context("cannot write TOML")?;
        atomic_file::replace(&self.exposures_path(), text.as_bytes(), atomic_file::PUBLIC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn entry(text: &str) -> ExposureEntry {
        text.parse().unwrap()
    }

    #[test]
    fn ports_lead_to_this_machine_unless_another_is_named() {
        for (text, whole) in [
            ("8080", "tcp:8080=127.0.0.1:8080"),
            ("443=8443", "tcp:443=127.0.0.1:8443"),
            ("udp:27015", "udp:27015=127.0.0.1:27015"),
            ("tcp:443=192.168.1.5:443", "tcp:443=192.168.1.5:443"),
            ("443=192.168.1.5", "tcp:443=192.168.1.5:443"),
            ("8000-8100=nas.lan:9000", "tcp:8000-8100=nas.lan:9000"),
            ("22=[fd00::5]:2222", "tcp:22=[fd00::5]:2222"),
        ] {
            assert_eq!(entry(text).to_string(), whole);
            assert_eq!(entry(whole), entry(text));
        }
        for bad in [
            "",
            "0",
            "x",
            "sctp:9",
            "443=",
            "443=a b",
            "8000-8100=9000-9100",
            "1-100=65500",
            "tcp:",
            "443=h:0",
        ] {
            assert!(bad.parse::<ExposureEntry>().is_err(), "{bad}");
        }
        let range = entry("8000-8100=nas.lan:9000");
        assert_eq!(range.target_of(8042).to_string(), "nas.lan:9042");
    }

    #[test]
    fn names_are_for_connections() {
        let named = entry("443").refined(Some("Www.Example.org".to_owned()), true);
        assert_eq!(named.unwrap().host.as_deref(), Some("www.example.org"));
        assert!(
            entry("443")
                .refined(Some("192.0.2.1".to_owned()), false)
                .is_err()
        );
        assert!(
            entry("udp:53")
                .refined(Some("a.example".to_owned()), false)
                .is_err()
        );
        assert!(entry("udp:53").refined(None, true).is_err());
    }

    #[test]
    fn only_hosts_behind_this_one_are_shown_where_visitors_come_from() {
        let shown = entry("443=192.168.1.5").made_transparent(true).unwrap();
        assert!(shown.transparent);
        for here in ["443", "443=[::1]:443", "443=localhost:443"] {
            let refused = entry(here).made_transparent(true).unwrap_err();
            assert!(refused.contains("--proxy-protocol"), "{refused}");
            assert!(entry(here).made_transparent(false).is_ok());
        }
    }

    #[test]
    fn what_is_kept_is_read_again_and_one_place_leads_to_one_target() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
        assert_eq!(store.exposures().unwrap(), []);
        let named = |text: &str, name: &str| {
            let named = entry(text).refined(Some(name.to_owned()), true);
            named.unwrap()
        };
        for kept in [
            entry("443"),
            named("443", "a.example"),
            named("443", "b.example"),
        ] {
            store.put_exposure(kept).unwrap();
        }
        let shown = || entry("443=192.168.1.5").made_transparent(true).unwrap();
        store.put_exposure(shown()).unwrap();
        assert_eq!(
            store.exposures().unwrap(),
            [
                named("443", "a.example"),
                named("443", "b.example"),
                shown()
            ]
        );
        assert!(store.remove_exposure(&named("443=1", "b.example")).unwrap());
        assert!(!store.remove_exposure(&named("443", "b.example")).unwrap());
        assert_eq!(store.exposures().unwrap().len(), 2);
        let path = store.root().join("expose.toml");
        for (text, word) in [
            ("[[expose]]\nport = \"443\"\n", "target"),
            (
                "[[expose]]\nport = \"x\"\ntarget = \"h\"\n",
                "no port to expose",
            ),
            (
                "[[expose]]\nport = \"1\"\ntarget = \"h\"\nproxy = true\n",
                "proxy",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", store.exposures().unwrap_err());
            assert!(
                error.contains("expose.toml") && error.contains(word),
                "{error}"
            );
        }
    }
}
