//! Two TCP hosts, and between them a wired link, perhaps the gateway, and a radio link.
//!
//! Owns the four link directions and what may befall packets beside what a link does: some come
//! twice, some change places. Hosts are the caller's.

use tabane_base::{Bytes, Duration, Instant, Rng, Seed};
use tabane_gateway::{Checksum, Gateway, Side, Verdict, probe_length_max};
use tabane_netem::{Counters, Link, LinkConfig};

/// A host that speaks TCP over IP packets. Driven as everything here is.
pub trait TcpHost {
    /// A packet for it arrived.
    fn handle_packet(&mut self, now: Instant, packet: &[u8]);
    /// The next packet it sends.
    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>>;
    /// When its timer is due. One that is late is due at once.
    fn poll_timeout(&mut self, now: Instant) -> Option<Instant>;
}

/// What befalls packets at the entrance of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairments {
    /// Share of packets that go in twice.
    pub duplicated: f64,
    /// Share of packets that wait until the next one has gone in.
    pub overtaken: f64,
}

/// Links from the server to the mobile host, and back.
#[derive(Clone, Debug)]
pub struct PassageLinks {
    /// Server to gateway.
    pub wired_down: LinkConfig,
    /// Gateway to mobile host.
    pub radio_down: LinkConfig,
    /// Mobile host to gateway.
    pub radio_up: LinkConfig,
    /// Gateway to server.
    pub wired_up: LinkConfig,
}

#[derive(Debug)]
struct Direction {
    link: Link<Vec<u8>>,
    impairments: Impairments,
    waiting: Option<Vec<u8>>,
    rng: Rng,
}

impl Direction {
    fn new(config: LinkConfig, impairments: Impairments, seed: Seed) -> Self {
        Self {
            link: Link::new(config, seed, Instant::EPOCH),
            impairments,
            waiting: None,
            rng: seed.rng("mishaps"),
        }
    }

    fn send(&mut self, now: Instant, packet: Vec<u8>) {
        let twice = self.rng.chance(self.impairments.duplicated);
        if self.waiting.is_none() && self.rng.chance(self.impairments.overtaken) {
            self.waiting = Some(packet);
            return;
        }
        if twice {
            self.put(now, packet.clone());
        }
        self.put(now, packet);
        if let Some(late) = self.waiting.take() {
            self.put(now, late);
        }
    }

    fn put(&mut self, now: Instant, packet: Vec<u8>) {
        let size = Bytes::new(packet.len() as u64);
        // What does not fit is counted by the link.
        let _ = self.link.handle_packet(now, packet, size);
    }
}

/// The passage between two hosts.
#[derive(Debug)]
pub struct Passage {
    now: Instant,
    wired_down: Direction,
    radio_down: Direction,
    radio_up: Direction,
    wired_up: Direction,
    /// In the middle; without one packets pass straight on.
    pub gateway: Option<Gateway>,
}

impl Passage {
    /// A passage whose packets meet `impairments` on all links.
    #[must_use]
    pub fn new(
        way: PassageLinks,
        impairments: Impairments,
        gateway: Option<Gateway>,
        seed: Seed,
    ) -> Self {
        let direction = |config, label| Direction::new(config, impairments, seed.split(label));
        Self {
            now: Instant::EPOCH,
            wired_down: direction(way.wired_down, "wired down"),
            radio_down: direction(way.radio_down, "radio down"),
            radio_up: direction(way.radio_up, "radio up"),
            wired_up: direction(way.wired_up, "wired up"),
            gateway,
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// What the link to the mobile host has carried.
    #[must_use]
    pub fn radio_down(&self) -> Counters {
        self.radio_down.link.snapshot()
    }

    /// Changes the radio link's delay, both ways.
    pub fn set_radio_delay(&mut self, delay: Duration) {
        self.radio_down.link.set_delay(self.now, delay);
        self.radio_up.link.set_delay(self.now, delay);
    }

    /// Cuts the radio link both ways, or ends that.
    pub fn set_radio_outage(&mut self, cut: bool) {
        self.radio_down.link.set_outage(self.now, cut);
        self.radio_up.link.set_outage(self.now, cut);
    }

    /// A packet from outside reaches the gateway.
    pub fn inject(&mut self, from: Side, packet: Vec<u8>) {
        self.arrive(from, packet);
    }

    fn arrive(&mut self, from: Side, packet: Vec<u8>) {
        // As `tabane gateway` has the kernel do it.
        let is_ipv6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
        let waits = from == Side::Radio || packet.len() <= usize::from(probe_length_max(is_ipv6));
        let verdict = match &mut self.gateway {
            Some(gateway) if waits => {
                gateway.handle_packet(self.now, from, &packet, Checksum::Unknown)
            }
            Some(gateway) => {
                gateway.handle_copy(self.now, &packet);
                Verdict::Accept
            }
            None => Verdict::Accept,
        };
        let onward = match from {
            Side::Wired => &mut self.radio_down,
            Side::Radio => &mut self.wired_up,
        };
        match verdict {
            Verdict::Accept => onward.send(self.now, packet),
            Verdict::Replace(other) => onward.send(self.now, other),
            Verdict::Drop => {}
        }
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.gateway.as_mut().and_then(Gateway::poll_transmit) {
            match transmit.to {
                Side::Radio => self.radio_down.send(self.now, transmit.packet),
                Side::Wired => self.wired_up.send(self.now, transmit.packet),
            }
        }
    }

    /// Moves everything that can be moved at this time, then time on to the next event, no farther
    /// than `end`. Returns whether there is time left.
    pub fn step(
        &mut self,
        server: &mut impl TcpHost,
        mobile: &mut impl TcpHost,
        end: Instant,
    ) -> bool {
        let now = self.now;
        while let Some(packet) = self.wired_down.link.poll_output(now) {
            self.arrive(Side::Wired, packet);
        }
        while let Some(packet) = self.radio_up.link.poll_output(now) {
            self.arrive(Side::Radio, packet);
        }
        while let Some(packet) = self.radio_down.link.poll_output(now) {
            mobile.handle_packet(now, &packet);
        }
        while let Some(packet) = self.wired_up.link.poll_output(now) {
            server.handle_packet(now, &packet);
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.handle_timeout(now);
        }
        self.flush();
        while let Some(packet) = server.poll_transmit(now) {
            self.wired_down.send(now, packet);
        }
        while let Some(packet) = mobile.poll_transmit(now) {
            self.radio_up.send(now, packet);
        }
        let links = [
            &self.wired_down,
            &self.radio_down,
            &self.radio_up,
            &self.wired_up,
        ];
        let due = links
            .into_iter()
            .filter_map(|direction| direction.link.poll_timeout())
            .chain(server.poll_timeout(now))
            .chain(mobile.poll_timeout(now))
            .chain(self.gateway.as_ref().and_then(Gateway::poll_timeout))
            .min()
            .unwrap_or(end);
        self.now = due.max(now).min(end);
        due < end
    }
}
