//! The destinations that the hooks leave alone, as a table shared with them.
//!
//! Owns the table's form (one trie for both families, IPv4 in mapped form) and changing it while it
//! is in use: what is new goes in before what is old comes out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::Ebpf;
use aya::maps::MapData;
use aya::maps::lpm_trie::{Key, LpmTrie};

use tabane_base::Prefix;

use super::{HookError, MAX_EXCLUDED};

/// As `ebpf/socket.bpf.c` has them.
const LEAVE_ALL: u32 = 1;
const LEAVE_ALL_BUT_DNS: u32 = 2;
const LEAVE_NOTHING: u32 = 3;

/// A range in the trie's form: bits of the mapped address, and the address with the rest zero.
pub(super) type Range = (u32, [u8; 16]);

pub(super) struct Exclusions {
    trie: LpmTrie<MapData, [u8; 16], u32>,
    present: BTreeMap<Range, u32>,
}

impl Exclusions {
    pub(super) fn take_from(ebpf: &mut Ebpf) -> Result<Self, HookError> {
        let map = ebpf
            .take_map("excluded")
            .expect("the object defines `excluded`");
        Ok(Self {
            trie: LpmTrie::try_from(map).map_err(HookError::from_map)?,
            present: BTreeMap::new(),
        })
    }

    pub(super) fn replace(
        &mut self,
        prefixes: &[Prefix],
        resolvers: &[IpAddr],
        captured: &[Prefix],
    ) -> Result<(), HookError> {
        let wanted = wanted(prefixes, resolvers, captured)?;
        for ((bits, address), what) in &wanted {
            if self.present.get(&(*bits, *address)) != Some(what) {
                self.trie
                    .insert(&Key::new(*bits, *address), what, 0)
                    .map_err(HookError::from_map)?;
            }
        }
        for (bits, address) in self.present.keys() {
            if !wanted.contains_key(&(*bits, *address)) {
                self.trie
                    .remove(&Key::new(*bits, *address))
                    .map_err(HookError::from_map)?;
            }
        }
        self.present = wanted;
        Ok(())
    }
}

fn wanted(
    prefixes: &[Prefix],
    resolvers: &[IpAddr],
    captured: &[Prefix],
) -> Result<BTreeMap<Range, u32>, HookError> {
    let mut wanted = BTreeMap::new();
    for prefix in prefixes {
        let range = range(*prefix).ok_or(HookError::InvalidPrefix { prefix: *prefix })?;
        wanted.insert(range, LEAVE_ALL);
    }
    for &address in resolvers {
        let excluded = prefixes.iter().any(|prefix| prefix.contains(address));
        if excluded && let Some(range) = range(Prefix::host(address)) {
            wanted.insert(range, LEAVE_ALL_BUT_DNS);
        }
    }
    for prefix in captured {
        let range = range(*prefix).ok_or(HookError::InvalidPrefix { prefix: *prefix })?;
        wanted.insert(range, LEAVE_NOTHING);
    }
    if wanted.len() > MAX_EXCLUDED {
        return Err(HookError::TooManyExclusions {
            count: wanted.len(),
        });
    }
    Ok(wanted)
}

/// A prefix in the tries' form; `None` for one longer than its address.
pub(super) fn range(prefix: Prefix) -> Option<Range> {
    let (bits, most, mapped) = match prefix.address {
        IpAddr::V4(v4) => (96 + u32::from(prefix.bits), 128, v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => (u32::from(prefix.bits), 128, v6),
    };
    if bits > most {
        return None;
    }
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    Some((bits, (mapped.to_bits() & mask).to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: &str, bits: u8) -> Prefix {
        Prefix {
            address: address.parse().unwrap(),
            bits,
        }
    }

    #[test]
    fn a_resolver_counts_only_where_its_range_is_left_alone() {
        let prefixes = [prefix("192.168.7.9", 16), prefix("fd00::", 8)];
        let resolvers = ["192.168.1.1", "8.8.8.8", "fd00::53"].map(|text| text.parse().unwrap());
        let captured = [prefix("192.168.7.7", 32)];
        let wanted = wanted(&prefixes, &resolvers, &captured).unwrap();
        let dns: Vec<u32> = wanted
            .iter()
            .filter(|(_, what)| **what == LEAVE_ALL_BUT_DNS)
            .map(|((bits, _), _)| *bits)
            .collect();
        assert_eq!((wanted.len(), dns), (5, vec![128, 128]));
        assert_eq!(wanted[&range(captured[0]).unwrap()], LEAVE_NOTHING);
        // The bits beyond the prefix are nothing.
        let same = range(prefix("192.168.0.0", 16));
        assert_eq!(range(prefixes[0]), same);
        assert!(wanted.contains_key(&same.unwrap()));
        assert_eq!(range(prefix("0.0.0.0", 33)), None);
        assert_eq!(range(prefix("::", 0)), Some((0, [0; 16])));
    }
}
