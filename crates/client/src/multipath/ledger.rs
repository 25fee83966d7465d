//! What each link has carried of one connection.
//!
//! Pure. The kernel tells what a subflow has carried so far, and forgets it with the subflow.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tabane_linux::mptcp::Subflow;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    subflows: BTreeMap<SocketAddr, u64>,
    links: BTreeMap<String, u64>,
    /// The link of the first subflow.
    first: Option<String>,
}

impl Ledger {
    /// What is new since the last time, by link. What leaves by an address of no link is no link's.
    pub(super) fn count<'a>(
        &mut self,
        present: &[Subflow],
        link_of: impl Fn(IpAddr) -> Option<&'a str>,
    ) -> Vec<(String, u64)> {
        let mut fresh = Vec::new();
        for subflow in present {
            let Some(link) = link_of(subflow.local.ip()) else {
                continue;
            };
            self.first.get_or_insert_with(|| link.to_owned());
            let before = self.subflows.insert(subflow.local, subflow.bytes);
            let bytes = subflow.bytes.saturating_sub(before.unwrap_or(0));
            if bytes > 0 {
                *self.links.entry(link.to_owned()).or_default() += bytes;
                fresh.push((link.to_owned(), bytes));
            }
        }
        fresh
    }

    /// What is left of `moved` when the connection is over: every link has as much of it as of the
    /// rest.
    pub(super) fn rest(&self, moved: u64) -> Vec<(String, u64)> {
        let seen: u64 = self.links.values().sum();
        let left = moved.saturating_sub(seen);
        match (left, &self.first) {
            (0, _) | (_, None) => Vec::new(),
            (_, Some(first)) if seen == 0 => vec![(first.clone(), left)],
            (_, Some(_)) => {
                let share = |bytes: u64| u128::from(left) * u128::from(bytes) / u128::from(seen);
                let links = self.links.iter();
                links
                    .map(|(link, bytes)| (link.clone(), share(*bytes) as u64))
                    .collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subflow(host: u8, bytes: u64) -> Subflow {
        Subflow {
            local: SocketAddr::new([192, 0, 2, host].into(), 40_000),
            remote: "203.0.113.2:443".parse().unwrap(),
            is_established: true,
            is_closed: false,
            bytes,
        }
    }

    fn link_of(address: IpAddr) -> Option<&'static str> {
        match address.to_string().as_str() {
            "192.0.2.1" => Some("wlan0"),
            "192.0.2.2" => Some("usb0"),
            _ => None,
        }
    }

    fn named(of: &[(&str, u64)]) -> Vec<(String, u64)> {
        let named = of.iter().map(|(link, bytes)| ((*link).to_owned(), *bytes));
        named.collect()
    }

    #[test]
    fn every_byte_is_counted_once_and_by_its_link() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.count(&[subflow(1, 0)], link_of), named(&[]));
        // Over before it was looked at.
        assert_eq!(ledger.rest(90), named(&[("wlan0", 90)]));
        let both = [subflow(1, 100), subflow(2, 300), subflow(3, 7)];
        let expected = named(&[("wlan0", 100), ("usb0", 300)]);
        assert_eq!(ledger.count(&both, link_of), expected);
        assert_eq!(ledger.count(&both, link_of), named(&[]));
        // The second one has gone.
        let left = [subflow(1, 200)];
        assert_eq!(ledger.count(&left, link_of), named(&[("wlan0", 100)]));
        // What was repeated is more than what was moved.
        assert_eq!(ledger.rest(450), named(&[]));
        let rest = named(&[("usb0", 60), ("wlan0", 40)]);
        assert_eq!(ledger.rest(600), rest);
    }
}
