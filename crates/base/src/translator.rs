//! IPv4 addresses within IPv6, as a network's own translator writes them (NAT64, RFC 6052).
//!
//! Owns how they are found there. The well-known prefix 64:ff9b::/96 needs no finding; who asks the
//! resolver for [`Translator::NAME`] is elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Prefix;

/// Bits that a prefix may have (RFC 6052 §2.2), the longest first: what is found by chance behind a
/// shorter one is zero bits.
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
/// The octet that no IPv4 address is written to.
const RESERVED: usize = 8;
/// The addresses of [`Translator::NAME`] (RFC 7050 §8.2).
const SHOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// A translator, by its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translator(Prefix);

impl Translator {
    /// Has IPv4 addresses alone, so that an IPv6 address for it is a translator's (RFC 7050).
    pub const NAME: &str = "ipv4only.arpa";

    /// Whose address this is, an answer for [`NAME`](Self::NAME).
    #[must_use]
    pub fn shown_by(answer: Ipv6Addr) -> Option<Self> {
        let address = IpAddr::from(answer);
        let any = LENGTHS.map(|bits| Self(Prefix { address, bits }));
        let shows = |it: &Self| it.within(answer).is_some_and(|v4| SHOWN.contains(&v4));
        any.into_iter().find(shows)
    }

    /// One with this prefix, as routers tell of it (RFC 8781); `None` where no translator has such
    /// a prefix.
    #[must_use]
    pub fn advertised(prefix: Ipv6Addr, bits: u8) -> Option<Self> {
        let is_length = LENGTHS.contains(&bits) && prefix.octets()[RESERVED] == 0;
        let leads_on = !prefix.is_multicast() && !prefix.is_unicast_link_local();
        let address = IpAddr::from(prefix);
        (is_length && leads_on).then_some(Self(Prefix { address, bits }))
    }

    /// The address by which it leads to this one; `None` where that is no address of the internet:
    /// what is private here is somebody else's there.
    #[must_use]
    pub fn lead_to(&self, v4: Ipv4Addr) -> Option<Ipv6Addr> {
        let [first, second, ..] = v4.octets();
        let is_shared = first == 100 && (64..128).contains(&second);
        let is_local = v4.is_private() || v4.is_loopback() || v4.is_link_local() || is_shared;
        if is_local || first == 0 || first >= 224 {
            return None;
        }
        let IpAddr::V6(prefix) = self.0.nth(0)? else {
            return None;
        };
        let mut octets = prefix.octets();
        let places = (usize::from(self.0.bits / 8)..octets.len()).filter(|at| *at != RESERVED);
        places
            .zip(v4.octets())
            .for_each(|(at, octet)| octets[at] = octet);
        Some(octets.into())
    }

    /// The IPv4 address that it makes of this one; `None` where it is another's.
    #[must_use]
    pub fn within(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = address.octets();
        let after = usize::from(self.0.bits / 8)..octets.len();
        let mut found = after.filter(|at| *at != RESERVED).map(|at| octets[at]);
        let mut next = || found.next();
        let v4 = [next()?, next()?, next()?, next()?];
        self.0.contains(address.into()).then(|| v4.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6052 §2.4, for 192.0.2.33.
    const WRITTEN: [(&str, u8); 6] = [
        ("2001:db8:c000:221::", 32),
        ("2001:db8:1c0:2:21::", 40),
        ("2001:db8:122:c000:2:2100::", 48),
        ("2001:db8:122:3c0:0:221::", 56),
        ("2001:db8:122:344:c0:2:2100::", 64),
        ("2001:db8:122:344::192.0.2.33", 96),
    ];

    /// An address of the same translator for another IPv4 address.
    fn rewritten(text: &str, bits: u8, v4: Ipv4Addr) -> Ipv6Addr {
        let mut octets = text.parse::<Ipv6Addr>().unwrap().octets();
        let places = (usize::from(bits / 8)..16).filter(|at| *at != RESERVED);
        places
            .zip(v4.octets())
            .for_each(|(at, octet)| octets[at] = octet);
        octets.into()
    }

    #[test]
    fn a_translator_is_found_and_read_at_every_length() {
        for (text, bits) in WRITTEN {
            for shown in SHOWN {
                let found = Translator::shown_by(rewritten(text, bits, shown));
                let found = found.unwrap_or_else(|| panic!("{text} shows none"));
                let written: Ipv6Addr = text.parse().unwrap();
                assert_eq!(found.0.bits, bits, "{text}");
                assert_eq!(found.within(written), Some(Ipv4Addr::new(192, 0, 2, 33)));
                let private = Ipv4Addr::new(10, 0, 0, 1);
                assert_eq!(found.within(rewritten(text, bits, private)), Some(private));
                assert_eq!(
                    found.within("2a00:1450::1".parse().unwrap()),
                    None,
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_translator_leads_to_the_internet_and_to_nothing_private() {
        for (text, bits) in WRITTEN {
            let written: Ipv6Addr = text.parse().unwrap();
            let shown = Translator::shown_by(rewritten(text, bits, SHOWN[0])).unwrap();
            let led = shown.lead_to(Ipv4Addr::new(192, 0, 2, 33)).unwrap();
            assert_eq!(shown.within(led), Some(Ipv4Addr::new(192, 0, 2, 33)));
            assert_eq!(led, written, "{text}");
            let said = Translator::advertised(written, bits).unwrap();
            assert_eq!(said.lead_to(Ipv4Addr::new(192, 0, 2, 33)), Some(written));
            for local in [
                "10.0.0.1",
                "127.0.0.1",
                "169.254.1.1",
                "100.64.0.1",
                "0.0.0.0",
            ] {
                assert_eq!(shown.lead_to(local.parse().unwrap()), None, "{local}");
            }
        }
        for (prefix, bits) in [("64:ff9b::", 95), ("ff02::", 96), ("fe80::", 64)] {
            assert_eq!(Translator::advertised(prefix.parse().unwrap(), bits), None);
        }
    }

    #[test]
    fn an_address_of_somebody_s_shows_none() {
        for text in ["::", "2001:db8::1", "2001:db8:122:344::192.0.2.33"] {
            assert_eq!(Translator::shown_by(text.parse().unwrap()), None, "{text}");
        }
    }
}
