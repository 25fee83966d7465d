//! The pairs of addresses by which one link may reach each relay: a socket of ours, and an address
//! and UDP port of the relay's.
//!
//! Owns which are tried at once and which only when those are silent. Networks that let little UDP
//! through often spare the ports of HTTP/3 and IPsec.

use std::net::SocketAddr;

use tabane_core::{FourTuple, SocketId};

/// One pair.
#[derive(Clone, Copy, Debug)]
struct Pair {
    tuple: FourTuple,
    /// The relay's, where it is another than its own.
    port: Option<u16>,
}

/// All pairs of a link.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// By relay, the preferred address first.
    relays: Vec<Vec<Pair>>,
    /// What was answered last.
    port: Option<u16>,
}

impl Pairs {
    /// None yet; what was answered last is known.
    pub(super) fn beginning_with(port: Option<u16>) -> Self {
        let relays = Vec::new();
        Self { relays, port }
    }

    /// Begins anew, with no pair for so many relays; the port that was answered stays.
    pub(super) fn clear(&mut self, relays: usize) {
        self.relays = vec![Vec::new(); relays];
    }

    /// Adds a relay's next address, at its own port and at others.
    pub(super) fn add(
        &mut self,
        relay: usize,
        socket: SocketId,
        remote: SocketAddr,
        others: &[u16],
    ) {
        let others = others.iter().filter(|port| **port != remote.port());
        let ports = std::iter::once(None).chain(others.map(|port| Some(*port)));
        self.relays[relay].extend(ports.map(|port| Pair {
            tuple: FourTuple {
                socket,
                local_ip: None,
                remote: SocketAddr::new(remote.ip(), port.unwrap_or_else(|| remote.port())),
            },
            port,
        }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.relays.iter().all(Vec::is_empty)
    }

    fn of(&self, relay: usize) -> impl Iterator<Item = &Pair> {
        self.relays.get(relay).into_iter().flatten()
    }

    /// What is tried at once: every address, at the port that was answered last, if the relay is
    /// hoped to have that.
    pub(super) fn first(&self, relay: usize) -> impl Iterator<Item = FourTuple> {
        let first = self.first_port(relay);
        let pairs = self.of(relay).filter(move |pair| pair.port == first);
        pairs.map(|pair| pair.tuple)
    }

    fn first_port(&self, relay: usize) -> Option<u16> {
        let is_there = |port: &u16| self.of(relay).any(|pair| pair.port == Some(*port));
        self.port.filter(is_there)
    }

    /// Every address at the relay's own port.
    pub(super) fn own(&self, relay: usize) -> impl Iterator<Item = FourTuple> {
        let pairs = self.of(relay).filter(|pair| pair.port.is_none());
        pairs.map(|pair| pair.tuple)
    }

    /// What is tried when those are silent: the other ports of one address of each family.
    pub(super) fn others(&self, relay: usize) -> impl Iterator<Item = FourTuple> {
        let mut seen = Vec::new();
        let first = self.first_port(relay);
        let others = self.of(relay).filter(move |pair| pair.port != first);
        let others = others.filter(move |pair| {
            let key = (pair.port, pair.tuple.remote.is_ipv6());
            let is_new = !seen.contains(&key);
            seen.push(key);
            is_new
        });
        others.map(|pair| pair.tuple)
    }

    /// A relay answered by this pair.
    pub(super) fn on_answer(&mut self, tuple: FourTuple) {
        let (mut all, remote) = (self.relays.iter().flatten(), tuple.remote);
        if let Some(pair) = all.find(|pair| pair.tuple.remote == remote) {
            self.port = pair.port;
        }
    }

    /// The relay's port in use, where it is not its own.
    pub(super) const fn port(&self) -> Option<u16> {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_comes_first_and_other_ports_of_one_of_each_family_later() {
        let mut pairs = Pairs::default();
        pairs.clear(2);
        assert!(pairs.is_empty());
        let [v4, v6] = [SocketId(1), SocketId(2)];
        for (socket, remote) in [
            (v4, "192.0.2.1:4510"),
            (v4, "192.0.2.2:4510"),
            (v6, "[2001:db8::1]:4510"),
        ] {
            pairs.add(1, socket, remote.parse().unwrap(), &[443, 4510]);
        }
        let text = |tuples: &mut dyn Iterator<Item = FourTuple>| {
            tuples.map(|it| it.remote.to_string()).collect::<Vec<_>>()
        };
        assert!(text(&mut pairs.first(0)).is_empty());
        let own = ["192.0.2.1:4510", "192.0.2.2:4510", "[2001:db8::1]:4510"];
        let others = ["192.0.2.1:443", "[2001:db8::1]:443"];
        assert_eq!(text(&mut pairs.first(1)), own);
        assert_eq!(text(&mut pairs.others(1)), others);
        // One of the others answers: it comes first, and the relay's own port when it is silent.
        let answered = pairs.others(1).next().unwrap();
        pairs.on_answer(answered);
        assert_eq!(pairs.port(), Some(443));
        let first = ["192.0.2.1:443", "192.0.2.2:443", "[2001:db8::1]:443"];
        assert_eq!(text(&mut pairs.first(1)), first);
        assert_eq!(text(&mut pairs.others(1)), [own[0], own[2]]);
        assert_eq!(text(&mut pairs.own(1)), own);
        pairs.clear(2);
        assert_eq!(pairs.port(), Some(443));
        // Another relay listens there itself, or not at all.
        pairs.add(0, v4, "192.0.2.9:443".parse().unwrap(), &[443, 4500]);
        assert_eq!(text(&mut pairs.first(0)), ["192.0.2.9:443"]);
        assert_eq!(text(&mut pairs.others(0)), ["192.0.2.9:4500"]);
    }
}
