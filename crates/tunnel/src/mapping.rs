//! What the datagrams and the stream of a UDP mapping look like [P-T.7].
//!
//! Owns both wire forms: the address in front of each datagram, and the notices on the stream that
//! tell what could not be delivered. Parsing is total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;

use crate::request::Status;

/// The longest form of an address: type, IPv6 address, port.
pub(crate) const MAX_HEADER: usize = 1 + 16 + 2;

const USUAL: u8 = 0;
const V4: u8 = 4;
const V6: u8 = 6;

/// Writes the form of `remote` to the end of `room`, and gives its length. `usual` needs one byte.
pub(crate) fn emit_remote(
    remote: SocketAddr,
    usual: Option<SocketAddr>,
    room: &mut [u8; MAX_HEADER],
) -> usize {
    if usual == Some(remote) {
        room[MAX_HEADER - 1] = USUAL;
        return 1;
    }
    room[MAX_HEADER - 2..].copy_from_slice(&remote.port().to_be_bytes());
    match remote.ip() {
        IpAddr::V4(ip) => {
            room[MAX_HEADER - 7] = V4;
            room[MAX_HEADER - 6..MAX_HEADER - 2].copy_from_slice(&ip.octets());
            7
        }
        IpAddr::V6(ip) => {
            room[0] = V6;
            room[1..17].copy_from_slice(&ip.octets());
            MAX_HEADER
        }
    }
}

/// Reads an address from the front of `bytes`, with its length; `None` where there is none.
fn parse_remote(bytes: &[u8], usual: Option<SocketAddr>) -> Option<(SocketAddr, usize)> {
    let (kind, rest) = bytes.split_first()?;
    let (ip, rest, used) = match *kind {
        USUAL => return Some((usual?, 1)),
        V4 => {
            let (octets, rest) = rest.split_first_chunk::<4>()?;
            (IpAddr::from(Ipv4Addr::from(*octets)), rest, 7)
        }
        V6 => {
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            let ip = Ipv6Addr::from(*octets).to_canonical();
            (ip, rest, MAX_HEADER)
        }
        _ => return None,
    };
    let port = u16::from_be_bytes(*rest.first_chunk::<2>()?);
    Some((SocketAddr::new(ip, port), used))
}

/// A datagram's other end and what it carries; `None` for one that names none.
pub(crate) fn split(mut datagram: Bytes, usual: SocketAddr) -> Option<(SocketAddr, Bytes)> {
    let (remote, used) = parse_remote(&datagram, Some(usual))?;
    let payload = datagram.split_off(used);
    (remote.port() != 0).then_some((remote, payload))
}

/// What became of a datagram to `remote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) status: Status,
    pub(crate) remote: SocketAddr,
}

impl Notice {
    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        let mut room = [0; MAX_HEADER];
        let len = emit_remote(self.remote, None, &mut room);
        out.push(self.status.emit());
        out.extend_from_slice(&room[MAX_HEADER - len..]);
    }

    /// Reads one from the front of `bytes`, with its length: `Ok(None)` where more are needed.
    ///
    /// # Errors
    /// The bytes are none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ()> {
        let needed = match bytes {
            [] | [_] => return Ok(None),
            [_, V4, ..] => 1 + 7,
            [_, V6, ..] => 1 + MAX_HEADER,
            _ => return Err(()),
        };
        if bytes.len() < needed {
            return Ok(None);
        }
        let status = Status::parse(bytes[0]).ok_or(())?;
        let (remote, _) = parse_remote(&bytes[1..], None).ok_or(())?;
        Ok(Some((Self { status, remote }, needed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn addresses() -> [SocketAddr; 3] {
        ["192.0.2.1:7", "[2001:db8::1]:53", "198.51.100.2:65535"].map(|text| text.parse().unwrap())
    }

    #[test]
    fn what_is_emitted_parses_back_and_the_usual_address_takes_one_byte() {
        let usual = addresses()[0];
        for remote in addresses() {
            let mut room = [0xee; MAX_HEADER];
            let len = emit_remote(remote, Some(usual), &mut room);
            let mut datagram = room[MAX_HEADER - len..].to_vec();
            datagram.extend(b"data");
            let (from, payload) = split(datagram.into(), usual).unwrap();
            assert_eq!((from, &payload[..]), (remote, &b"data"[..]));
            assert_eq!(len == 1, remote == usual);

            let notice = Notice {
                status: Status::Refused,
                remote,
            };
            let mut bytes = Vec::new();
            notice.emit(&mut bytes);
            for short in 0..bytes.len() {
                assert_eq!(Notice::parse(&bytes[..short]), Ok(None));
            }
            let len = bytes.len();
            bytes.push(9);
            assert_eq!(Notice::parse(&bytes), Ok(Some((notice, len))));
        }
    }

    #[test]
    fn nonsense_names_nobody() {
        let usual = addresses()[0];
        for bytes in [
            &b""[..],
            &[1],
            &[4, 1, 2, 3, 4, 0],
            &[6, 0],
            &[4, 1, 2, 3, 4, 0, 0],
        ] {
            assert_eq!(
                split(Bytes::copy_from_slice(bytes), usual),
                None,
                "{bytes:?}"
            );
        }
        assert_eq!(Notice::parse(&[1, 0]), Err(()));
        assert_eq!(Notice::parse(&[99, 4, 1, 2, 3, 4, 0, 9]), Err(()));
        let mut rng = Seed(5).rng("notices");
        for _ in 0..10_000 {
            let mut bytes = vec![0; rng.below(40) as usize];
            rng.fill(&mut bytes);
            if let Ok(Some((_, used))) = Notice::parse(&bytes) {
                assert!(used <= bytes.len());
            }
            split(bytes.into(), usual);
        }
    }
}
