//! Which destinations stay this machine's own affair: its networks, private ranges, what the user
//! says.
//!
//! Owns that list as the interfaces are at the moment.

use anyhow::{Context, Result};
use tabane_base::Prefix;
use tabane_linux::{
    hooks::MAX_EXCLUDED,
    interfaces::{self, Interface},
};

use tabane_store::{DirectPrefix, PRIVATE};

/// Room that is left in the hooks' table for resolvers and peers.
const MAX_PREFIXES: usize = MAX_EXCLUDED - 256;

/// What the user wants left alone.
#[derive(Debug, Clone)]
pub struct DirectRanges {
    given: Vec<Prefix>,
    /// Private ranges and connected subnets are carried as well.
    all: bool,
}

impl DirectRanges {
    /// What was given; `all`: nothing beside it.
    pub fn new(given: &[DirectPrefix], all: bool) -> Self {
        Self {
            given: given.iter().map(|prefix| prefix.0).collect(),
            all,
        }
    }

    /// The ranges as the interfaces are now.
    pub async fn prefixes(&self) -> Result<Vec<Prefix>> {
        let interfaces = interfaces::list().await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        Ok(self.among(&interfaces))
    }

    /// Those of `ranges` that the user has not said to leave alone: private ones count, too, where
    /// they are known to lead to a machine that speaks tabane.
    pub(crate) fn not_given(&self, mut ranges: Vec<Prefix>) -> Vec<Prefix> {
        ranges.retain(|range| !self.given.iter().any(|given| given.contains(range.address)));
        ranges
    }

    /// The ranges that are the same whatever the interfaces are.
    fn fixed(&self) -> Vec<Prefix> {
        let private = PRIVATE.iter().filter(|_| !self.all).map(|text| {
            let prefix: DirectPrefix = text.parse().expect("the list has ranges only");
            prefix.0
        });
        self.given.iter().copied().chain(private).collect()
    }

    fn among(&self, interfaces: &[Interface]) -> Vec<Prefix> {
        let mut prefixes = self.fixed();
        if !self.all {
            let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
            for own in addresses {
                let connected = Prefix {
                    address: own.address,
                    bits: own.prefix_bits,
                };
                // A prefix without bits would be everything, and says nothing of who is near.
                if own.prefix_bits > 0 && !prefixes.contains(&connected) {
                    prefixes.push(connected);
                }
            }
        }
        if prefixes.len() > MAX_PREFIXES {
            tracing::warn!(
                ranges = prefixes.len(),
                "too many ranges are left alone; only the first {MAX_PREFIXES} count"
            );
            prefixes.truncate(MAX_PREFIXES);
        }
        prefixes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_linux::interfaces::{InterfaceAddress, Kind, Scope, State};

    fn interface(address: &str, prefix_bits: u8) -> Interface {
        Interface {
            index: 2,
            name: "eth0".to_owned(),
            kind: Kind::Ethernet,
            up: true,
            state: State::Up,
            carrier: true,
            mtu: 1500,
            controller: None,
            addresses: vec![InterfaceAddress {
                address: address.parse().unwrap(),
                prefix_bits,
                scope: Scope::Global,
                ready: true,
            }],
            default_routes: Vec::new(),
            gateways: Vec::new(),
            behind: None,
            advertised: tabane_linux::advertised::Advertised::default(),
        }
    }

    #[test]
    fn private_ranges_and_neighbours_stay_here_unless_all_is_carried() {
        let interfaces = [interface("192.0.2.7", 24), interface("198.51.100.1", 0)];
        let given = ["203.0.113.0/24".parse().unwrap()];
        let left = |all, address: &str| {
            let address = address.parse().unwrap();
            let ranges = DirectRanges::new(&given, all).among(&interfaces);
            ranges.iter().any(|prefix| prefix.contains(address))
        };
        for (address, by_default, with_all) in [
            ("192.0.2.200", true, false),
            ("192.168.3.4", true, false),
            ("fd00::1", true, false),
            ("203.0.113.9", true, true),
            ("198.51.100.2", false, false),
            ("2001:db8::1", false, false),
        ] {
            assert_eq!(left(false, address), by_default, "{address}");
            assert_eq!(left(true, address), with_all, "{address} with all");
        }
    }
}
