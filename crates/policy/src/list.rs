//! Lists of names and of ranges of addresses that stand in files of their own, an entry to a line.
//!
//! Owns their form, and that a look into a long one costs little. Reading the files is others'.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tabane_base::Prefix;

/// Entries of one list; one more is a fault. Ten times what lists of trackers have is not needed.
const MAX_ENTRIES: usize = 200_000;
/// The longest name there is (RFC 1035 §2.3.4), without its last dot.
const MAX_NAME: usize = 253;

/// Names, and with `*.` before them all names below one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameList {
    names: BTreeSet<String>,
    below: BTreeSet<String>,
}

/// Addresses and ranges of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeList {
    /// By length, the leading bits of each range: those of IPv4 and those of IPv6.
    v4: BTreeMap<u8, BTreeSet<u128>>,
    v6: BTreeMap<u8, BTreeSet<u128>>,
}

/// What is wrong with a list: where, and what.
pub(crate) type ListFault = (usize, String);

impl NameList {
    pub(crate) fn parse(text: &str) -> Result<Self, ListFault> {
        let mut list = Self::default();
        for (line, entry) in entries(text)? {
            let entry = entry.trim_end_matches('.').to_ascii_lowercase();
            let (name, is_below) = match entry.strip_prefix("*.") {
                Some(name) => (name, true),
                None => (&*entry, false),
            };
            if !is_name(name) {
                let expected = "a name such as ads.example, or *.ads.example for what is below it";
                return Err((line, format!("{entry:?}: expected {expected}")));
            }
            let names = if is_below {
                &mut list.below
            } else {
                &mut list.names
            };
            names.insert(name.to_owned());
        }
        Ok(list)
    }

    /// Whether it has `name`, which is in small letters.
    pub(crate) fn contains(&self, name: &str) -> bool {
        if self.names.contains(name) {
            return true;
        }
        let mut rest = name;
        while let Some((_, above)) = rest.split_once('.') {
            if self.below.contains(above) {
                return true;
            }
            rest = above;
        }
        false
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || !c.is_ascii();
    let is_address = name.parse::<IpAddr>().is_ok();
    let has_labels = name.split('.').all(|label| !label.is_empty());
    name.len() <= MAX_NAME && has_labels && name.chars().all(fits) && !is_address
}

impl RangeList {
    pub(crate) fn parse(text: &str) -> Result<Self, ListFault> {
        let mut list = Self::default();
        for (line, entry) in entries(text)? {
            let range = Prefix::parse(entry).ok_or_else(|| {
                let expected = "an address, or a range such as 192.0.2.0/24";
                (line, format!("{entry:?}: expected {expected}"))
            })?;
            let lengths = match range.address {
                IpAddr::V4(_) => &mut list.v4,
                IpAddr::V6(_) => &mut list.v6,
            };
            let ranges = lengths.entry(range.bits).or_default();
            ranges.insert(leading(range.address, range.bits));
        }
        Ok(list)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let lengths = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        let has =
            |(bits, ranges): (&u8, &BTreeSet<u128>)| ranges.contains(&leading(address, *bits));
        lengths.iter().any(has)
    }
}

/// The first bits of an address.
fn leading(address: IpAddr, bits: u8) -> u128 {
    let (whole, width) = match address {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    whole.checked_shr(width - u32::from(bits)).unwrap_or(0)
}

/// What is not empty and no comment, with its line.
fn entries(text: &str) -> Result<Vec<(usize, &str)>, ListFault> {
    let mut entries = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let entry = text.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        if entries.len() == MAX_ENTRIES {
            return Err((line, format!("more than {MAX_ENTRIES} entries")));
        }
        entries.push((line, entry));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_is_below_them_are_found() {
        let text = "# trackers\nAds.Example.\n\n*.metrics.example # and below\n_dns.a.example\n";
        let list = NameList::parse(text).unwrap();
        for name in ["ads.example", "a.metrics.example", "a.b.metrics.example"] {
            assert!(list.contains(name), "{name}");
        }
        for name in ["a.ads.example", "metrics.example", "xmetrics.example", ""] {
            assert!(!list.contains(name), "{name}");
        }
        for (bad, line) in [
            ("a.example\n0.0.0.0 ads.example", 2),
            ("192.0.2.1", 1),
            ("*", 1),
            ("*.*.example", 1),
            ("a..example", 1),
        ] {
            assert_eq!(NameList::parse(bad).unwrap_err().0, line, "{bad}");
        }
    }

    #[test]
    fn addresses_are_found_in_ranges_of_every_length() {
        let text = "192.0.2.7\n198.51.100.0/22\n2001:db8:5::9/48\n10.0.0.0/8\n";
        let list = RangeList::parse(text).unwrap();
        let has = |text: &str| list.contains(text.parse().unwrap());
        for text in ["192.0.2.7", "198.51.101.9", "2001:db8:5:9::1", "10.9.9.9"] {
            assert!(has(text), "{text}");
        }
        for text in ["192.0.2.8", "198.51.104.1", "2001:db8:6::1", "::a00:1"] {
            assert!(!has(text), "{text}");
        }
        let all = RangeList::parse("::/0\n0.0.0.0/0").unwrap();
        assert!(all.contains([1, 2, 3, 4].into()) && all.contains("::1".parse().unwrap()));
        assert_eq!(RangeList::parse("# a\n\nads.example").unwrap_err().0, 3);
    }

    #[test]
    fn a_list_has_an_end() {
        let text = "192.0.2.1\n".repeat(MAX_ENTRIES + 1);
        let (line, what) = RangeList::parse(&text).unwrap_err();
        assert_eq!(line, MAX_ENTRIES + 1);
        assert!(what.contains("200000 entries"), "{what}");
    }
}
