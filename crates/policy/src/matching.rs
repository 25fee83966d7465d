//! Which connections a rule is for.

use std::net::IpAddr;
use std::sync::Arc;

use tabane_base::{Prefix, Protocol};
use toml::de::DeValue;

use crate::glob;
use crate::list::{NameList, RangeList};
use crate::reader::{Fields, Reader, number};
use crate::source::{Sender, Source};

const NAME_EXPECTED: &str = "a name or a pattern such as \"*.example.org\"";
const PORT_EXPECTED: &str = "a port, or a range such as \"8000-8100\"";
const PREFIX_EXPECTED: &str = "an address or a range such as \"192.0.2.0/24\"";
const DSCP_EXPECTED: &str = "0 to 63, or a name such as \"ef\", \"af41\" or \"cs5\"";

/// What there is to know of a connection or a UDP flow when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFacts {
    /// Names of the destination: the one that was asked for, or those that its address was the
    /// answer for.
    pub domains: Vec<String>,
    /// Its address, where that is known here.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The name of the program's file, where the kernel tells.
    pub process: Option<String>,
    /// The service class the program has marked its packets with, where it can be seen.
    pub dscp: Option<u8>,
    /// Who sends it, where that is a host behind this machine.
    pub sender: Option<Sender>,
    /// Somebody came to a port of the relay that leads here: the name and the port are those that
    /// were asked for there, the address is the visitor's.
    pub inbound: bool,
}

/// Which connections a rule is for; what is missing fits all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Match {
    source: Option<Vec<Source>>,
    domain: Option<Names>,
    pub(crate) address: Option<Ranges>,
    port: Option<Vec<(u16, u16)>>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) process: Option<Vec<String>>,
    pub(crate) dscp: Option<Vec<u8>>,
    /// For visitors, or for what begins here.
    pub(crate) inbound: bool,
}

/// Names that are wanted: patterns, and lists by the names of their files.
#[derive(Clone, Debug, PartialEq)]
struct Names {
    patterns: Vec<String>,
    lists: Vec<(String, Arc<NameList>)>,
}

/// The same of addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ranges {
    ranges: Vec<Prefix>,
    lists: Vec<(String, Arc<RangeList>)>,
}

impl Match {
    pub(crate) const KEYS: [&str; 10] = [
        "source",
        "domain",
        "domain-file",
        "address",
        "address-file",
        "port",
        "protocol",
        "process",
        "dscp",
        "inbound",
    ];

    pub(crate) fn read(reader: &mut Reader<'_>, fields: &mut Fields<'_>) -> Self {
        let fits = Self {
            source: reader.list(fields, "source", Source::EXPECTED, Source::read),
            domain: Names::read(reader, fields),
            address: Ranges::read(reader, fields),
            port: reader.list(fields, "port", PORT_EXPECTED, ports),
            protocol: reader.value(
                fields,
                "protocol",
                "\"tcp\" or \"udp\"",
                |value| match value.as_str()? {
                    "tcp" => Some(Protocol::Tcp),
                    "udp" => Some(Protocol::Udp),
                    _ => None,
                },
            ),
            process: reader.list(fields, "process", "a program's name", text),
            dscp: reader.list(fields, "dscp", DSCP_EXPECTED, dscp),
            inbound: reader.flag(fields, "inbound").unwrap_or(false),
        };
        if fits.source.is_some() && (fits.inbound || fits.process.is_some()) {
            let other = if fits.inbound { "inbound" } else { "process" };
            let what = format!(
                "source and {other} contradict each other: source is for hosts behind this machine"
            );
            reader.fault(fields.line, what);
        }
        fits
    }

    pub(crate) fn fits(&self, flow: &FlowFacts) -> bool {
        let source = |sources: &Vec<Source>| {
            let fits = |sender: &Sender| sources.iter().any(|source| source.fits(sender));
            flow.sender.as_ref().is_some_and(fits)
        };
        let address = |ranges: &Ranges| flow.address.is_some_and(|it| ranges.fits(it));
        let port = |ports: &Vec<(u16, u16)>| {
            let mut ports = ports.iter();
            ports.any(|(first, last)| (*first..=*last).contains(&flow.port))
        };
        let process = |patterns: &Vec<String>| {
            let fits = |name| patterns.iter().any(|pattern| glob::fits(pattern, name));
            flow.process.as_deref().is_some_and(fits)
        };
        let dscp = |marks: &Vec<u8>| flow.dscp.is_some_and(|mark| marks.contains(&mark));
        self.inbound == flow.inbound
            && self.source.as_ref().is_none_or(source)
            && self.port.as_ref().is_none_or(port)
            && self.protocol.is_none_or(|wanted| wanted == flow.protocol)
            && self.process.as_ref().is_none_or(process)
            && self.dscp.as_ref().is_none_or(dscp)
            && self.address.as_ref().is_none_or(address)
            && self.domain.as_ref().is_none_or(|it| it.fits(&flow.domains))
    }

    /// Whether everything that `other` fits, this fits as well; where in doubt, not.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let sources = |own: &Vec<Source>, others: &Vec<Source>| {
            let is_covered = |other: &Source| own.iter().any(|source| source.covers(other));
            others.iter().all(is_covered)
        };
        let ports = |own: &Vec<(u16, u16)>, others: &Vec<(u16, u16)>| {
            let is_covered = |port| own.iter().any(|(a, b)| (*a..=*b).contains(&port));
            others.iter().all(|(a, b)| (*a..=*b).all(is_covered))
        };
        let marks = |own: &Vec<u8>, others: &Vec<u8>| others.iter().all(|mark| own.contains(mark));
        let patterns = |own: &Vec<String>, others: &Vec<String>| cover_names(own, others);
        self.inbound == other.inbound
            && key_covers(&self.source, &other.source, sources)
            && key_covers(&self.domain, &other.domain, Names::covers)
            && key_covers(&self.address, &other.address, Ranges::covers)
            && key_covers(&self.port, &other.port, ports)
            && key_covers(&self.protocol, &other.protocol, |own, other| own == other)
            && key_covers(&self.process, &other.process, patterns)
            && key_covers(&self.dscp, &other.dscp, marks)
    }
}

impl Names {
    fn read(reader: &mut Reader<'_>, fields: &mut Fields<'_>) -> Option<Self> {
        let patterns = reader.list(fields, "domain", NAME_EXPECTED, |value| {
            let name = value.as_str()?.trim_end_matches('.').to_ascii_lowercase();
            (!name.is_empty()).then_some(name)
        });
        let lists = reader.listed(fields, "domain-file", NameList::parse);
        (patterns.is_some() || lists.is_some()).then(|| Self {
            patterns: patterns.unwrap_or_default(),
            lists: lists.unwrap_or_default(),
        })
    }

    fn fits(&self, names: &[String]) -> bool {
        names.iter().any(|name| {
            let name = name.to_ascii_lowercase();
            let mut patterns = self.patterns.iter();
            patterns.any(|pattern| glob::fits(pattern, &name))
                || self.lists.iter().any(|(_, list)| list.contains(&name))
        })
    }

    fn covers(&self, other: &Self) -> bool {
        cover_names(&self.patterns, &other.patterns) && cover_lists(&self.lists, &other.lists)
    }
}

impl Ranges {
    fn read(reader: &mut Reader<'_>, fields: &mut Fields<'_>) -> Option<Self> {
        let ranges = reader.list(fields, "address", PREFIX_EXPECTED, |value| {
            Prefix::parse(value.as_str()?)
        });
        let lists = reader.listed(fields, "address-file", RangeList::parse);
        (ranges.is_some() || lists.is_some()).then(|| Self {
            ranges: ranges.unwrap_or_default(),
            lists: lists.unwrap_or_default(),
        })
    }

    fn fits(&self, address: IpAddr) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.contains(address))
            || self.lists.iter().any(|(_, list)| list.contains(address))
    }

    fn covers(&self, other: &Self) -> bool {
        let is_covered = |other: &Prefix| {
            let mut own = self.ranges.iter();
            own.any(|range| range.bits <= other.bits && range.contains(other.address))
        };
        other.ranges.iter().all(is_covered) && cover_lists(&self.lists, &other.lists)
    }
}

fn cover_names(own: &[String], others: &[String]) -> bool {
    let is_covered = |other| own.iter().any(|pattern| covers_name(pattern, other));
    others.iter().all(|other| is_covered(other))
}

fn cover_lists<T>(own: &[(String, T)], others: &[(String, T)]) -> bool {
    let has = |name| own.iter().any(|(own, _)| own == name);
    others.iter().all(|(name, _)| has(name))
}

fn key_covers<T>(own: &Option<T>, other: &Option<T>, covers: impl Fn(&T, &T) -> bool) -> bool {
    match (own, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(other)) => covers(own, other),
    }
}

/// A star of the other pattern is covered as any character is, by a star.
pub(crate) fn covers_name(pattern: &str, other: &str) -> bool {
    pattern == other || !pattern.contains('?') && glob::fits(pattern, other)
}

pub(crate) fn text(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn ports(value: &DeValue<'_>) -> Option<(u16, u16)> {
    if let Some(port) = number::<u16>(value) {
        return (port > 0).then_some((port, port));
    }
    let (first, last) = value.as_str()?.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some((first, last))
}

/// By number, or by the names of RFC 2474, 2597 and 3246.
fn dscp(value: &DeValue<'_>) -> Option<u8> {
    if let Some(mark) = number::<u8>(value) {
        return (mark < 64).then_some(mark);
    }
    let name = value.as_str()?.to_ascii_lowercase();
    let digit = |text: &str, last: u8| {
        let digit = text.parse::<u8>().ok()?;
        (digit <= last).then_some(digit)
    };
    match (name.as_str(), name.get(..2)?) {
        ("ef", _) => Some(46),
        ("be", _) => Some(0),
        (_, "cs") => digit(&name[2..], 7).map(|class| class * 8),
        (_, "af") => {
            let class = digit(name.get(2..3)?, 4).filter(|class| *class > 0)?;
            let drop = digit(name.get(3..)?, 3).filter(|drop| *drop > 0)?;
            Some(class * 8 + drop * 2)
        }
        _ => None,
    }
}
