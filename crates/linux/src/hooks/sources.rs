//! The addresses that connected sockets would have without us, as a table shared with the hooks.
//!
//! A captured socket is connected on loopback, and is called so. What it would have been called,
//! the routing table says: for each range that it tells apart, one address of that range is asked
//! for with a socket of ours, so rules, tables and the preferences of RFC 6724 are the kernel's
//! own. This machine's own addresses and broadcast ones, which are left alone, are noted beside
//! them. Owns which addresses are asked for, and renewing the table when interfaces, addresses or
//! routes change. A change is known here a moment after it was made.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use aya::Ebpf;
use aya::maps::MapData;
use aya::maps::lpm_trie::{Key, LpmTrie};

use tabane_base::Prefix;

use super::HookError;
use super::exclusions::{Range, range};
use crate::interfaces::{self, InterfaceError, Watch};

/// The most ranges that are told apart (`MAX_SOURCES` in `ebpf/socket.bpf.c`); of more, the largest
/// are.
const MAX_SOURCES: usize = 1024;

/// Ranges that no captured socket is connected to, and one in which hosts choose another address
/// than elsewhere (RFC 6724 §2.1: unique local ones).
const NEVER: [(&str, u8); 8] = [
    ("0.0.0.0", 8),
    ("127.0.0.0", 8),
    ("169.254.0.0", 16),
    ("224.0.0.0", 3),
    ("::", 96),
    ("100::", 64),
    ("fe80::", 10),
    ("ff00::", 8),
];
const UNIQUE_LOCAL: (&str, u8) = ("fc00::", 7);
/// What is noted instead of a source of what is left alone.
const STAYS_HERE: [u8; 16] = [0; 16];

pub(super) struct Sources {
    trie: LpmTrie<MapData, [u8; 16], [u8; 16]>,
    present: BTreeMap<Range, [u8; 16]>,
}

impl Sources {
    pub(super) fn take_from(ebpf: &mut Ebpf) -> Result<Self, HookError> {
        let map = ebpf
            .take_map("sources")
            .expect("the object defines `sources`");
        Ok(Self {
            trie: LpmTrie::try_from(map).map_err(HookError::from_map)?,
            present: BTreeMap::new(),
        })
    }

    /// Keeps the table true from here on, until the kernel tells no more. It is so already when
    /// this returns the future that does.
    pub(super) async fn follow(
        mut self,
    ) -> Result<impl Future<Output = ()> + Send + 'static, InterfaceError> {
        let mut watch = Watch::start()?;
        self.renew().await?;
        Ok(async move {
            while watch.changed().await.is_some() {
                if let Err(error) = self.renew().await {
                    tracing::warn!(%error, "programs may be told an old address of their own");
                }
            }
        })
    }

    async fn renew(&mut self) -> Result<(), InterfaceError> {
        let (elsewhere, here) = interfaces::routed_ranges().await?;
        let mut wanted = wanted(&elsewhere, plain_source);
        let here = here.into_iter().filter_map(range);
        let room = MAX_SOURCES - wanted.len();
        wanted.extend(here.map(|range| (range, STAYS_HERE)).take(room));
        for ((bits, address), source) in &wanted {
            if self.present.get(&(*bits, *address)) != Some(source)
                && let Err(error) = self.trie.insert(&Key::new(*bits, *address), source, 0)
            {
                tracing::warn!(%error, "a range of addresses is not noted");
            }
        }
        for (bits, address) in self.present.keys() {
            if !wanted.contains_key(&(*bits, *address)) {
                // It is there: nobody else removes any.
                let _ = self.trie.remove(&Key::new(*bits, *address));
            }
        }
        self.present = wanted;
        Ok(())
    }
}

/// The source for each of `routed`, as `ask` gives it for an address; not again for a range within
/// one that has the same.
fn wanted(routed: &[Prefix], ask: impl Fn(IpAddr) -> Option<IpAddr>) -> BTreeMap<Range, [u8; 16]> {
    let fixed = |(address, bits): &(&str, u8)| Prefix {
        address: address.parse().expect("an address"),
        bits: *bits,
    };
    let never: Vec<Block> = NEVER.iter().map(fixed).filter_map(Block::of).collect();
    let mut blocks: Vec<Block> = routed.iter().copied().filter_map(Block::of).collect();
    blocks.extend(Block::of(fixed(&UNIQUE_LOCAL)));
    let is_never = |block: &Block| {
        let mut around = never.iter().filter(|never| never.bits <= block.bits);
        around.any(|never| never.contains(block.first))
    };
    blocks.retain(|block| !is_never(block));
    // The largest first: what is within another comes behind it.
    blocks.sort_unstable();
    blocks.dedup();
    blocks.truncate(MAX_SOURCES);
    let mut found: Vec<(Block, [u8; 16])> = Vec::new();
    for block in &blocks {
        let within = blocks.iter().chain(&never);
        let Some(source) = block.address_outside(within).and_then(&ask) else {
            continue;
        };
        let source = mapped(source).octets();
        let around = found.iter().rfind(|(other, _)| other.contains(block.first));
        if around.is_none_or(|(_, other)| *other != source) {
            found.push((*block, source));
        }
    }
    let entry = |(block, source): (Block, _)| ((block.bits, block.first.to_be_bytes()), source);
    found.into_iter().map(entry).collect()
}

/// A range, both families in one: IPv4 in mapped form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    bits: u32,
    first: u128,
}

impl Block {
    fn of(prefix: Prefix) -> Option<Self> {
        let (bits, first) = range(prefix)?;
        let first = u128::from_be_bytes(first);
        Some(Self { bits, first })
    }

    fn last(self) -> u128 {
        self.first | u128::MAX.checked_shr(self.bits).unwrap_or(0)
    }

    fn contains(self, address: u128) -> bool {
        (self.first..=self.last()).contains(&address)
    }

    /// An address that is in none of `others` that are smaller; `None` where they fill it.
    fn address_outside<'a>(self, others: impl Iterator<Item = &'a Self>) -> Option<IpAddr> {
        let is_within = |other: &&Self| other.bits > self.bits && self.contains(other.first);
        let mut within: Vec<_> = others.filter(is_within).collect();
        within.sort_unstable_by_key(|other| other.first);
        // The first address is the network's own where there is a second one beside two ends.
        let mut address = self.first + u128::from(self.bits < 127);
        for other in within {
            if other.contains(address) {
                address = other.last().checked_add(1)?;
            }
        }
        let found = Ipv6Addr::from_bits(address).to_canonical();
        self.contains(address).then_some(found)
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// What a socket is called that is connected to `dest`; to port 0, which no hook captures and
/// nothing is sent to.
fn plain_source(dest: IpAddr) -> Option<IpAddr> {
    let any = match dest {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((dest, 0)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    let says_nothing = source.is_unspecified() || source.is_loopback();
    (!says_nothing).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(routed: &[&str], ask: impl Fn(IpAddr) -> Option<IpAddr>) -> Vec<(u32, String)> {
        let routed: Vec<_> = routed
            .iter()
            .map(|text| Prefix::parse(text).unwrap())
            .collect();
        let name = |source| Ipv6Addr::from_octets(source).to_canonical().to_string();
        let wanted = wanted(&routed, ask).into_iter();
        wanted
            .map(|((bits, _), source)| (bits, name(source)))
            .collect()
    }

    #[test]
    fn each_range_is_asked_for_by_an_address_that_no_smaller_one_has() {
        let asked = asked(
            &[
                "0.0.0.0/0",
                "1.0.0.0/24",
                "192.168.7.0/24",
                "192.168.7.0/31",
                "127.0.0.1/32",
            ],
            Some,
        );
        let expected = [
            (7, "fc00::1"),
            // 0/8 is never asked for, and 1.0.0.0/24 for itself.
            (96, "1.0.1.0"),
            (120, "1.0.0.1"),
            (120, "192.168.7.2"),
            (127, "192.168.7.0"),
        ];
        assert_eq!(
            asked,
            expected.map(|(bits, source)| (bits, source.to_owned()))
        );
    }

    #[test]
    fn what_says_the_same_as_what_is_around_it_is_left_out() {
        let ask = |address: IpAddr| match address {
            IpAddr::V4(v4) if v4.octets()[0] == 10 => Some("10.0.0.7".parse().unwrap()),
            IpAddr::V4(_) => Some("192.0.2.7".parse().unwrap()),
            IpAddr::V6(_) => None,
        };
        let routed = [
            "0.0.0.0/0",
            "192.0.2.0/24",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3/32",
        ];
        let expected = [(96, "192.0.2.7"), (104, "10.0.0.7")];
        let expected = expected.map(|(bits, source)| (bits, source.to_owned()));
        assert_eq!(asked(&routed, ask), expected);
        // Filled by its halves, a range is not asked for.
        let halves = ["10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"];
        assert_eq!(asked(&halves, ask).len(), 2);
    }
}
