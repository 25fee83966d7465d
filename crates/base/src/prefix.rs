//! A range of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that share their leading bits with one of them (RFC 4632 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of the range.
    pub address: IpAddr,
    /// How many leading bits the range shares: at most 32 for IPv4, 128 for IPv6.
    pub bits: u8,
}

impl Prefix {
    /// Reads `192.168.0.0/16`, `2001:db8::/32`, or one address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most)?,
            None => most,
        };
        Some(Self { address, bits })
    }

    /// One address alone.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { address, bits }
    }

    /// Whether `address` lies in the range. An IPv4 address within IPv6 is none of IPv4: who takes
    /// it for one gives its canonical form.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// The address with this number in the range, from 0 on; `None` beyond its end.
    #[must_use]
    pub fn nth(&self, number: u64) -> Option<IpAddr> {
        let nth = match self.address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                let first = u64::from(ip.to_bits() & mask);
                let bits = u32::try_from(first.checked_add(number)?).ok()?;
                Ipv4Addr::from_bits(bits).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.bits))
                    .unwrap_or(0);
                let bits = (ip.to_bits() & mask).checked_add(u128::from(number))?;
                IpAddr::from(Ipv6Addr::from_bits(bits))
            }
        };
        self.contains(nth).then_some(nth)
    }

    /// Whether there are addresses in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_addresses_are_read() {
        let bits = |text: &str| Prefix::parse(text).map(|prefix| prefix.bits);
        assert_eq!(bits("10.0.0.0/8"), Some(8));
        assert_eq!(bits("192.0.2.1"), Some(32));
        assert_eq!(bits("2001:db8::/32"), Some(32));
        for bad in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10/8",
            "::/129",
            "a/1",
            "10.0.0.0/-1",
        ] {
            assert_eq!(bits(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_range_has_so_many_addresses_and_ranges_meet_or_not() {
        let nth = |text: &str, number| Prefix::parse(text).unwrap().nth(number);
        let ip = |text: &str| Some(text.parse().unwrap());
        assert_eq!(nth("100.64.16.9/29", 0), ip("100.64.16.8"));
        assert_eq!(nth("100.64.16.9/29", 7), ip("100.64.16.15"));
        assert_eq!(nth("100.64.16.9/29", 8), None);
        assert_eq!(nth("255.255.255.255", 1), None);
        assert_eq!(nth("0.0.0.0/0", 1 << 32), None);
        assert_eq!(nth("fd00::/64", 1 << 40), ip("fd00::100:0:0"));
        assert_eq!(nth("fd00::/126", 4), None);
        let meet = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| Prefix::parse(text).unwrap());
            assert_eq!(one.overlaps(&other), other.overlaps(&one));
            one.overlaps(&other)
        };
        assert!(meet("10.0.0.0/8", "10.9.1.0/24") && meet("0.0.0.0/0", "192.0.2.1"));
        assert!(!meet("10.0.0.0/9", "10.128.0.0/9") && !meet("10.0.0.0/8", "fd00::/8"));
    }

    #[test]
    fn leading_bits_decide_and_families_do_not_mix() {
        let contains = |prefix: &str, address: &str| {
            let prefix = Prefix::parse(prefix).unwrap();
            prefix.contains(address.parse().unwrap())
        };
        assert!(contains("10.1.0.0/15", "10.0.3.4") && !contains("10.1.0.0/16", "10.0.3.4"));
        assert!(contains("0.0.0.0/0", "203.0.113.9") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "2001:db8::1") && contains("192.0.2.1", "192.0.2.1"));
        assert!(
            !contains("192.0.2.1", "192.0.2.2") && !contains("2001:db8::/33", "2001:db8:8000::")
        );
    }
}
