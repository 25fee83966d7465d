//! A range of IP addresses.

use std::fmt;
use std::net::IpAddr;

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
