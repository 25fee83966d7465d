//! Which of this host's addresses the peer knows.
//!
//! A packet from an address that the peer was not told of is nobody's to it: it answers by an
//! ABORT that takes the whole association with it (RFC 9260 §8.4). The stack sends nothing from an
//! address before the peer has agreed to it (RFC 5061 §5.1.1), but it does not know by which link a
//! path leaves. So what is asked and answered is read from the packets, and a link whose address
//! the peer has not agreed to carries nothing but the question.
//!
//! Pure: packets are bytes.

use std::net::Ipv4Addr;

use crate::packet;
use crate::path::LinkId;

/// Questions that may be open; the stack has one or two.
const REQUESTS_MAX: usize = 64;

/// Of one association.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Links that came since the beginning, until the peer has agreed to their address.
    waiting: Vec<(LinkId, Ipv4Addr)>,
    /// What was asked, by the number of the ASCONF chunk.
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    number: u32,
    /// By correlation identifier.
    addresses: Vec<(u32, Ipv4Addr)>,
}

impl Told {
    /// A link has come with an address that is new to the peer.
    pub(crate) fn wait_for(&mut self, link: LinkId, local: Ipv4Addr) {
        self.waiting.push((link, local));
    }

    /// A link has come with an address that this host had before.
    pub(crate) fn come_again(&mut self, link: LinkId, local: Ipv4Addr) {
        if self.waiting.iter().any(|(_, waiting)| *waiting == local) {
            self.wait_for(link, local);
        }
    }

    /// Whether a packet may leave by a link.
    pub(crate) fn lets_pass(&self, link: LinkId, packet: &[u8]) -> bool {
        let is_waiting = self.waiting.iter().any(|(waiting, _)| *waiting == link);
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
        let agreed: Vec<Ipv4Addr> = addresses
            .filter(|(correlation, _)| !refused.contains(correlation))
            .map(|(_, address)| address)
            .collect();
        let freed = |(_, local): &mut (LinkId, Ipv4Addr)| agreed.contains(local);
        self.waiting
            .extract_if(.., freed)
            .map(|(link, _)| link)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    const DATA: &[u8] = &[0; 40];

    fn asconf(number: u8, added: &[(u8, Ipv4Addr)]) -> Vec<u8> {
        let mut chunk = vec![0xc1, 0, 0, 0, 0, 0, 0, number];
        // By which address the peer finds the association.
        chunk.extend([0, 5, 0, 8, 10, 0, 0, 1]);
        for (correlation, address) in added {
            chunk.extend([0xc0, 1, 0, 16, 0, 0, 0, *correlation, 0, 5, 0, 8]);
            chunk.extend(address.octets());
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
        assert!(told.lets_pass(first, DATA));
        told.wait_for(first, HERE);
        told.wait_for(other, THERE);
        let question = asconf(7, &[(1, HERE), (2, THERE)]);
        assert!(!told.lets_pass(first, DATA) && told.lets_pass(first, &question));
        told.on_transmit(&question);
        told.on_transmit(&question);
        // It goes and comes back before there is an answer.
        told.come_again(again, HERE);
        assert!(told.on_packet(&answer(6, &[])).is_empty());
        assert!(told.on_packet(DATA).is_empty() && !told.lets_pass(again, DATA));
        assert_eq!(told.on_packet(&answer(7, &[2])), [first, again]);
        assert!(told.lets_pass(again, DATA) && told.lets_pass(first, DATA));
        assert!(!told.lets_pass(other, DATA), "the peer refused that one");
        told.come_again(LinkId(6), HERE);
        assert!(told.lets_pass(LinkId(6), DATA));
    }
}
