//! Which of this host's addresses the peer knows.
//!
//! A packet from an address that the peer was not told of is nobody's to it: it answers by an
//! ABORT that takes the whole association with it (RFC 9260 §8.4). The stack sends nothing from an
//! address before the peer has agreed to it (RFC 5061 §5.1.1), but it does not know by which link a
//! path leaves. So what is asked and answered is read from the packets, and a link whose address
//! the peer has not agreed to carries nothing but the question.
//!
//! Pure: packets are bytes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::packet;
use crate::path::LinkId;

/// Questions that may be open; the stack has one or two.
const REQUESTS_MAX: usize = 64;

/// Of one association.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Links that came since the beginning, until the peer has agreed to their address: one of each
    /// family at most.
    waiting: Vec<(LinkId, IpAddr)>,
    /// Addresses that the peer has not agreed to.
    unknown: BTreeSet<IpAddr>,
    /// What was asked, by the number of the ASCONF chunk.
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    number: u32,
    /// By correlation identifier.
    addresses: Vec<(u32, IpAddr)>,
}

impl Told {
    /// A link has come with an address that is new to the peer.
    pub(crate) fn wait_for(&mut self, link: LinkId, local: IpAddr) {
        self.unknown.insert(local);
        self.come_again(link, local);
    }

    /// A link has come with an address that this host had before.
    pub(crate) fn come_again(&mut self, link: LinkId, local: IpAddr) {
        let is_its =
            |(at, other): &(LinkId, IpAddr)| *at == link && other.is_ipv6() == local.is_ipv6();
        self.waiting.retain(|waiting| !is_its(waiting));
        if self.unknown.contains(&local) {
            self.waiting.push((link, local));
        }
    }

    /// Whether a packet may leave by a link, from its address of one family.
    pub(crate) fn lets_pass(&self, link: LinkId, is_v6: bool, packet: &[u8]) -> bool {
        let mut waiting = self.waiting.iter();
        let is_waiting = waiting.any(|(at, local)| *at == link && local.is_ipv6() == is_v6);
        !is_waiting || packet::added_addresses(packet).is_some()
    }

    /// A packet leaves.
    pub(crate) fn on_transmit(&mut self, packet: &[u8]) {
        // Repeated ones are known, and most have nothing to do with it.
        if self.waiting.is_empty() {
            return;
        }
        let Some((number, addresses)) = packet::added_addresses(packet) else {
            return;
        };
        let is_known = self.requests.iter().any(|known| known.number == number);
        if !is_known && self.requests.len() < REQUESTS_MAX {
            self.requests.push(Request { number, addresses });
        }
    }

    /// A packet has come; gives the links that may be used from now on.
    pub(crate) fn on_packet(&mut self, packet: &[u8]) -> Vec<LinkId> {
        if self.requests.is_empty() {
            return Vec::new();
        }
        let Some((number, refused)) = packet::address_answer(packet) else {
            return Vec::new();
        };
        let answered = |request: &Request| request.number == number;
        let Some(at) = self.requests.iter().position(answered) else {
            return Vec::new();
        };
        let addresses = self.requests.swap_remove(at).addresses.into_iter();
        let agreed: Vec<IpAddr> = addresses
            .filter(|(correlation, _)| !refused.contains(correlation))
            .map(|(_, address)| address)
            .collect();
        self.unknown.retain(|address| !agreed.contains(address));
        let freed = |(_, local): &mut (LinkId, IpAddr)| agreed.contains(local);
        self.waiting
            .extract_if(.., freed)
            .map(|(link, _)| link)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));
    const NEW: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));
    const DATA: &[u8] = &[0; 40];

    fn asconf(number: u8, added: &[(u8, IpAddr)]) -> Vec<u8> {
        let mut chunk = vec![0xc1, 0, 0, 0, 0, 0, 0, number];
        // By which address the peer finds the association.
        chunk.extend([0, 5, 0, 8, 10, 0, 0, 1]);
        for (correlation, address) in added {
            match address {
                IpAddr::V4(v4) => {
                    chunk.extend([0xc0, 1, 0, 16, 0, 0, 0, *correlation, 0, 5, 0, 8]);
                    chunk.extend(v4.octets());
                }
                IpAddr::V6(v6) => {
                    chunk.extend([0xc0, 1, 0, 28, 0, 0, 0, *correlation, 0, 6, 0, 20]);
                    chunk.extend(v6.octets());
                }
            }
        }
        packet(chunk)
    }

    fn answer(number: u8, refused: &[u8]) -> Vec<u8> {
        let mut chunk = vec![0x80, 0, 0, 0, 0, 0, 0, number];
        for correlation in refused {
            chunk.extend([0xc0, 3, 0, 12, 0, 0, 0, *correlation, 0, 0xa0, 0, 4]);
        }
        packet(chunk)
    }

    fn packet(mut chunk: Vec<u8>) -> Vec<u8> {
        let len = u16::try_from(chunk.len()).unwrap();
        chunk[2..4].copy_from_slice(&len.to_be_bytes());
        [vec![0; packet::COMMON_HEADER], chunk].concat()
    }

    #[test]
    fn a_link_waits_for_the_answer_to_its_address() {
        let mut told = Told::default();
        let [first, again, other] = [LinkId(3), LinkId(4), LinkId(5)];
        assert!(told.lets_pass(first, false, DATA));
        told.wait_for(first, HERE);
        told.wait_for(other, THERE);
        assert!(!told.lets_pass(other, true, DATA));
        assert!(
            told.lets_pass(other, false, DATA),
            "its other address is known"
        );
        let question = asconf(7, &[(1, HERE), (2, THERE)]);
        assert!(!told.lets_pass(first, false, DATA) && told.lets_pass(first, false, &question));
        told.on_transmit(&question);
        told.on_transmit(&question);
        // It goes and comes back before there is an answer.
        told.come_again(again, HERE);
        assert!(told.on_packet(&answer(6, &[])).is_empty());
        assert!(told.on_packet(DATA).is_empty() && !told.lets_pass(again, false, DATA));
        assert_eq!(told.on_packet(&answer(7, &[2])), [first, again]);
        assert!(told.lets_pass(again, false, DATA) && told.lets_pass(first, false, DATA));
        assert!(
            !told.lets_pass(other, true, DATA),
            "the peer refused that one"
        );
        told.come_again(LinkId(6), HERE);
        assert!(told.lets_pass(LinkId(6), false, DATA));
        // It gets an address that the peer does not know, and the one before again.
        told.wait_for(LinkId(6), NEW);
        assert!(!told.lets_pass(LinkId(6), false, DATA));
        told.come_again(LinkId(6), HERE);
        assert!(told.lets_pass(LinkId(6), false, DATA));
    }
}
