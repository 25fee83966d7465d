//! The addresses that a relay gives a client for packets of its own [P-T.5], as they travel.
//!
//! Pure; parsing is total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::echo::{Echo, Kind};
use crate::icmp_error;
use crate::ip_packet::{IpPacket, protocol};

/// Bytes on the wire behind the length byte.
const LENGTH: usize = 1 + 2 + 4 + 16;

/// IPv6 asks as much of every link (RFC 8200 §5).
pub(crate) const MIN_MTU: u16 = 1_280;

/// What the relay gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Why there are addresses, or none.
    pub lodging: Lodging,
    /// The source of all IPv4 packets but pings; `None`: only pings are served.
    pub v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The largest packet that the relay takes, in bytes.
    pub mtu: u16,
}

/// Whether a client has addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Lodging {
    /// The relay has no pool.
    #[default]
    NoPool = 0,
    /// It has.
    Given = 1,
    /// All addresses of the pool are in use.
    Full = 2,
}

impl Assignment {
    /// The addresses there are.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Whether a packet from the relay may be one that was asked for: of a family with an address
    /// what is for that and neither TCP nor UDP, of another what answers a ping. A relay in other
    /// hands could reach what listens on this machine, or behind it, by any other.
    #[must_use]
    pub fn expects(&self, packet: &[u8]) -> bool {
        let Ok(header) = IpPacket::parse(packet) else {
            return false;
        };
        let is_v4 = header.destination.is_ipv4();
        match self.addresses().find(|own| own.is_ipv4() == is_v4) {
            Some(own) => {
                header.destination == own
                    && !matches!(header.protocol, protocol::TCP | protocol::UDP)
            }
            None => {
                let is_reply = Echo::parse(packet).is_some_and(|echo| echo.kind == Kind::Reply);
                is_reply || icmp_error::asked(packet).is_some()
            }
        }
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = vec![LENGTH as u8, self.lodging as u8];
        out.extend(self.mtu.to_be_bytes());
        out.extend(self.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        out.extend(self.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        out
    }

    /// Reads an assignment from the front of `bytes` and gives it with the number of bytes it
    /// took; `None` where more are needed. What later versions put behind is skipped.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (&length, rest) = bytes.split_first()?;
        let body = rest.get(..usize::from(length))?;
        Some((Self::parse_body(body).unwrap_or_default(), 1 + body.len()))
    }

    /// A body that makes no sense gives nothing.
    fn parse_body(body: &[u8]) -> Option<Self> {
        let (&[lodging, high, low], rest) = body.split_first_chunk()?;
        let (v4, rest) = rest.split_first_chunk::<4>()?;
        let v6 = rest.first_chunk::<16>()?;
        let (v4, v6) = (Ipv4Addr::from(*v4), Ipv6Addr::from(*v6));
        Some(Self {
            lodging: match lodging {
                1 => Lodging::Given,
                2 => Lodging::Full,
                _ => return None,
            },
            v4: (!v4.is_unspecified()).then_some(v4),
            v6: (!v6.is_unspecified()).then_some(v6),
            mtu: u16::from_be_bytes([high, low]).max(MIN_MTU),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    #[test]
    fn what_is_emitted_parses_back_and_waits_for_its_last_byte() {
        let given = Assignment {
            lodging: Lodging::Given,
            v4: Some("100.64.16.7".parse().unwrap()),
            v6: None,
            mtu: 1_400,
        };
        let both = Assignment {
            v6: Some("fd00::7".parse().unwrap()),
            ..given
        };
        let full = Assignment {
            lodging: Lodging::Full,
            v4: None,
            ..given
        };
        for assignment in [given, both, full] {
            let bytes = assignment.emit();
            assert_eq!(Assignment::parse(&bytes), Some((assignment, bytes.len())));
            for len in 0..bytes.len() {
                assert_eq!(Assignment::parse(&bytes[..len]), None);
            }
        }
        let none = Assignment::default();
        assert_eq!(Assignment::parse(&none.emit()).map(|it| it.0), Some(none));
    }

    #[test]
    fn only_what_may_have_been_asked_for_is_expected() {
        let echo = |kind, source: &str, destination: &str| {
            let echo = Echo {
                kind,
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                identifier: 7,
                sequence: 1,
                hop_limit: 64,
                data: b"data",
            };
            echo.emit().unwrap()
        };
        let given = Assignment {
            lodging: Lodging::Given,
            v4: Some("100.64.16.7".parse().unwrap()),
            v6: None,
            mtu: 1_400,
        };
        let none = Assignment::default();
        // From the LAN, by its address, to this machine there.
        let near = echo(Kind::Request, "192.168.1.9", "192.168.1.7");
        let reply = echo(Kind::Reply, "192.0.2.1", "192.168.1.7");
        assert!(!given.expects(&near) && !given.expects(&reply));
        assert!(!none.expects(&near) && none.expects(&reply));
        let mut ours = echo(Kind::Request, "192.0.2.1", "100.64.16.7");
        assert!(given.expects(&ours) && !none.expects(&ours));
        for protocol in [protocol::TCP, protocol::UDP] {
            ours[9] = protocol;
            assert!(!given.expects(&ours) && !none.expects(&ours));
            // Later fragments are what the first one is.
            ours[7] = 9;
            assert!(!given.expects(&ours));
        }
        ours[9] = 47;
        assert!(given.expects(&ours) && !none.expects(&ours));
        let v6 = |kind| echo(kind, "2001:db8::1", "fe80::7");
        assert!(given.expects(&v6(Kind::Reply)) && !given.expects(&v6(Kind::Request)));
        assert!(!none.expects(b"") && !none.expects(b"\x45") && !given.expects(&[0; 40]));
    }

    #[test]
    fn later_versions_may_say_more_and_garbage_gives_nothing() {
        let mut bytes = Assignment {
            lodging: Lodging::Given,
            v4: Some("100.64.16.7".parse().unwrap()),
            v6: None,
            mtu: 0,
        }
        .emit();
        bytes[0] += 2;
        bytes.extend([1, 2]);
        let (read, used) = Assignment::parse(&bytes).unwrap();
        assert_eq!((read.mtu, used), (MIN_MTU, bytes.len()));
        assert_eq!(Assignment::parse(&[0]), Some((Assignment::default(), 1)));
        let seed = Seed(3);
        let mut rng = seed.rng("garbage");
        for _ in 0..20_000 {
            let mut bytes = vec![0; rng.below(60) as usize];
            rng.fill(&mut bytes);
            if let Some((_, used)) = Assignment::parse(&bytes) {
                assert!(used <= bytes.len(), "{seed}");
            }
        }
    }
}
