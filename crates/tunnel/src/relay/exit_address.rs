//! Addresses of the relay's by which a user's connections leave, as they are granted.
//!
//! Owns their form as text, and which address a grant comes to for a client. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use tabane_base::Prefix;
use tabane_core::PublicKey;

use crate::range::canonical;

/// The largest range: what a provider routes to a customer at the most.
const MIN_RANGE_BITS: u8 = 32;

/// An address to leave by, or an IPv6 range of which each client has one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitAddress(Prefix);

/// Text that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no address to leave by; write 203.0.113.7, 2001:db8::7, or a routed range of IPv6 \
     such as 2001:db8:5::/64"
)]
pub struct ExitAddressError(String);

impl ExitAddress {
    /// Whether it is of IPv4.
    #[must_use]
    pub const fn is_ipv4(self) -> bool {
        self.0.address.is_ipv4()
    }

    /// Whether there are several, one for each client.
    #[must_use]
    pub const fn is_range(self) -> bool {
        self.0.bits < if self.is_ipv4() { 32 } else { 128 }
    }

    /// Whether a host that takes what goes to these ranges has all of it.
    #[must_use]
    pub fn is_of(self, local: &[Prefix]) -> bool {
        let covers = |it: &Prefix| it.bits <= self.0.bits && it.contains(self.0.address);
        local.iter().any(covers)
    }

    /// The client's: of a range always the same, which tells others nothing of its key.
    pub(super) fn of(self, client: PublicKey) -> IpAddr {
        let IpAddr::V6(first) = self.0.address else {
            return self.0.address;
        };
        let hosts = u128::MAX.checked_shr(self.0.bits.into()).unwrap_or(0);
        let mut text = b"tabane exit address ".to_vec();
        text.extend(client.0);
        let hash = digest(&SHA256, &text);
        let number = hash.as_ref().first_chunk().copied();
        let number = u128::from_be_bytes(number.unwrap_or_default()) & hosts;
        // The first is every router's (RFC 4291 §2.6.1).
        let number = if hosts > 0 { number.max(1) } else { 0 };
        Ipv6Addr::from_bits(first.to_bits() | number).into()
    }
}

impl FromStr for ExitAddress {
    type Err = ExitAddressError;

    fn from_str(text: &str) -> Result<Self, ExitAddressError> {
        let parsed = Prefix::parse(text).map(canonical);
        let fits = |it: &Prefix| {
            let is_range = it.address.is_ipv6() && it.bits >= MIN_RANGE_BITS;
            let is_nowhere = match it.address {
                IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
                IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
            };
            let ip = it.address;
            let is_special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            (!Self(*it).is_range() || is_range) && !is_nowhere && !is_special
        };
        let found = parsed.filter(fits);
        found
            .map(Self)
            .ok_or_else(|| ExitAddressError(text.to_owned()))
    }
}

impl fmt::Display for ExitAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_range() {
            true => self.0.fmt(f),
            false => self.0.address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: PublicKey = PublicKey([1; 32]);
    const BOB: PublicKey = PublicKey([2; 32]);

    #[test]
    fn addresses_and_ranges_are_read_and_what_leads_nowhere_is_not() {
        for text in ["203.0.113.7", "10.0.0.7", "2001:db8::7", "2001:db8:5::/64"] {
            let read: ExitAddress = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        let same: ExitAddress = "2001:db8:5::9/64".parse().unwrap();
        assert_eq!(same.to_string(), "2001:db8:5::/64");
        for text in [
            "",
            "none of them",
            "203.0.113.0/24",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "169.254.1.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:203.0.113.7",
            "2001::/16",
            "2001:db8::/129",
        ] {
            let error = text.parse::<ExitAddress>().unwrap_err();
            assert!(error.to_string().contains("203.0.113.7"), "{text}");
        }
    }

    #[test]
    fn each_client_has_an_address_of_a_range_and_always_the_same() {
        for text in ["2001:db8:5::/64", "2001:db8:5::/48", "2001:db8:5::/120"] {
            let range: ExitAddress = text.parse().unwrap();
            let (ann, bob) = (range.of(ANN), range.of(BOB));
            assert!(ann != bob && ann == range.of(ANN), "{text}");
            assert!(range.0.contains(ann) && range.0.contains(bob), "{text}");
            assert_ne!(ann, range.0.address);
        }
        let last: ExitAddress = "2001:db8:5::/127".parse().unwrap();
        assert_eq!(last.of(ANN), "2001:db8:5::1".parse::<IpAddr>().unwrap());
        let one: ExitAddress = "2001:db8::7".parse().unwrap();
        assert_eq!(one.of(ANN), one.of(BOB));
    }

    #[test]
    fn a_range_is_the_host_s_where_all_of_it_is_led_there() {
        let local = ["127.0.0.0/8", "203.0.113.7", "2001:db8:5::/64"];
        let local = local.map(|text| Prefix::parse(text).unwrap());
        for (text, is_there) in [
            ("203.0.113.7", true),
            ("203.0.113.8", false),
            ("2001:db8:5::/64", true),
            ("2001:db8:5::9", true),
            ("2001:db8:5::/65", true),
            ("2001:db8:5::/63", false),
        ] {
            let exit: ExitAddress = text.parse().unwrap();
            assert_eq!(exit.is_of(&local), is_there, "{text}");
        }
    }
}
