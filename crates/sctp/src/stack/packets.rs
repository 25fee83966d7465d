//! Packets: which path each belongs to, both ways, and what is done to it on the way.

use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;

use super::Stack;
use crate::association::{PathState, Transmit};
use crate::correspondents::Place;
use crate::ffi;
use crate::identity::EndpointId;
use crate::output::{self, Outgoing};
use crate::own::Own;
use crate::packet;
use crate::path::{LinkId, PathId, PathTuple};
use crate::settings::Families;

/// Beyond one and a half round trips: the receiver's delay of acknowledgements, and the stack's own
/// repetition.
const RESCUE_MARGIN: Duration = Duration::from_millis(60);
/// Associations that peers have begun and nobody has taken yet. Anybody may begin some, each takes
/// memory of the stack's, and whoever listens may be busy; who comes then asks again after a while.
const UNTAKEN_MAX: u32 = 128;

impl Stack {
    /// A UDP datagram has come over `link` to `local`. What is no SCTP, or damaged, is dropped.
    pub fn handle_packet(
        &mut self,
        link: LinkId,
        local: IpAddr,
        remote: SocketAddr,
        payload: &[u8],
    ) {
        let Some((source_port, port)) = packet::ports(payload) else {
            return;
        };
        let mut bytes = payload.to_vec();
        let sum: [u8; 4] = [bytes[8], bytes[9], bytes[10], bytes[11]];
        bytes[packet::CHECKSUM].fill(0);
        if self.library.checksum(&mut bytes) != sum {
            self.bad_checksums += 1;
            return;
        }
        if !packet::has_whole_lists(&bytes) {
            self.bad_lists += 1;
            return;
        }
        let host = remote.ip();
        // The stack knows no scopes, so an answer would go nowhere.
        if [local, host].iter().any(is_link_local) {
            return;
        }
        let mut echoes = Vec::new();
        let source = match self.own_path(port, source_port, link, host) {
            // One that begins an association has no tag, and nothing is believed of it.
            Some(path) if packet::asked_tag(&bytes).is_some() => path.0,
            Some(path) => {
                let own = self.own_at(port).map(|(_, own)| own);
                if own.is_some_and(|own| !own.is_of_it(&bytes)) {
                    self.bad_tags += 1;
                    return;
                }
                self.learn_addresses(port, link, host, &mut bytes);
                if !self.take_note(port, path, &bytes) {
                    return;
                }
                echoes = self.echoes(port, &bytes);
                path.0
            }
            // Nobody but ourselves may speak in the name of an address that we made up.
            None if self.paths.is_invented(host) => return,
            None if packet::is_cookie(&bytes) && self.is_crowded(port) => return,
            None => {
                let place = Place {
                    link,
                    local,
                    remote,
                    heard_at: self.clock,
                };
                let key = (host, source_port);
                self.correspondents.on_packet(key, place, &bytes);
                host
            }
        };
        let source = SocketAddr::new(source, source_port);
        let destination = SocketAddr::new(local, port);
        for packet in echoes.iter().chain([&bytes]) {
            self.library.input(packet, source, destination);
        }
    }

    /// Whether nobody more may begin an association on a port of ours at present.
    fn is_crowded(&self, port: u16) -> bool {
        // Who listens was there before those whose associations were taken.
        let mut listening = self.endpoints.values();
        let listening = listening.find(|it| it.port == port && it.own.is_none());
        let untaken = listening.and_then(|listening| {
            let name = ffi::SCTP_GET_ASSOC_NUMBER;
            self.library.ask(&listening.socket, name, 0_u32)
        });
        untaken.is_some_and(|untaken| untaken >= UNTAKEN_MAX)
    }

    /// What the stack is to hear of congestion, as packets from the peer; this one is.
    fn echoes(&mut self, port: u16, like: &[u8]) -> Vec<Vec<u8>> {
        let own = self.own_at(port).map(|(_, own)| own);
        let Some(own) = own.filter(|_| packet::acknowledged(like).is_some()) else {
            return Vec::new();
        };
        let numbers = std::mem::take(&mut own.congested).into_iter();
        let numbers = numbers.filter(|_| self.brakes);
        let echoes = numbers.filter_map(|number| packet::congestion_echo(like, number));
        echoes.collect()
    }

    /// The path of an association of ours that a packet came by. A peer may answer from an address
    /// that no path leads to; then it counts for a path of the same link, or for any.
    fn own_path(&self, port: u16, peer_port: u16, link: LinkId, host: IpAddr) -> Option<PathId> {
        let own = self.endpoints.values().filter(|e| e.port == port);
        let mut own = own.filter_map(|endpoint| endpoint.own.as_ref());
        let own = own.find(|own| own.port == peer_port)?;
        // Until the INIT ACK the stack knows the first path alone, whichever way was answered.
        if own.listed.is_none() {
            return own.paths.first().copied();
        }
        let leads = |path: &&PathId| self.paths.way(**path).is_some();
        let by_link = |path: &&PathId| self.paths.way(**path).is_some_and(|way| way.link == link);
        self.paths
            .find(&own.paths, link, host)
            .or_else(|| own.paths.iter().find(by_link).copied())
            .or_else(|| own.paths.iter().find(leads).copied())
    }

    /// What a packet of an association of ours tells. `false`: the stack must not see it.
    fn take_note(&mut self, port: u16, path: PathId, bytes: &[u8]) -> bool {
        let clock = self.clock;
        let Some((id, own)) = self.own_at(port) else {
            return true;
        };
        let freed = own.on_packet(clock, path, bytes);
        if !freed.is_empty() {
            for status in self.paths(id) {
                if freed.contains(&status.way.link) {
                    let _ = self.ask_path(id, status.path);
                }
            }
        }
        !packet::is_disowning(bytes) || self.is_disowned(id)
    }

    /// Whether the peer knows of no association any more. A host that says so may only not know the
    /// address that it heard us from, such as that of a translator on the way; when every path that
    /// works is answered like that, it has gone.
    fn is_disowned(&self, id: EndpointId) -> bool {
        let own = self.endpoints.get(&id).and_then(|e| e.own.as_ref());
        let mut paths = self.paths(id);
        paths.retain(|status| status.state == PathState::Active);
        own.is_none_or(|own| {
            own.listed.is_none() || paths.iter().all(|p| own.pulses.is_disowned(p.path))
        })
    }

    /// The INIT ACK: what the peer lists, and by which way it came, which is the first path's from
    /// now on.
    fn learn_addresses(&mut self, port: u16, link: LinkId, host: IpAddr, bytes: &mut Vec<u8>) {
        let Some((_, own)) = self.own_at(port) else {
            return;
        };
        let ours = own.paths.iter().map(|path| path.0);
        if let Some(listed) = packet::replace_addresses(bytes, ours) {
            // Every copy of the INIT is answered; the stack takes the first answer.
            if own.listed.is_some() {
                return;
            }
            own.listed = Some(listed);
            let (first, paths) = (own.paths[0], own.paths);
            if let Some(answered) = self.paths.find(&paths, link, host) {
                let (way, other) = (self.paths.way(answered), self.paths.way(first));
                self.paths.set(answered, other);
                self.paths.set(first, way);
            }
        }
    }

    /// The association of ours on a port.
    pub(super) fn own_at(&mut self, port: u16) -> Option<(EndpointId, &mut Own)> {
        let mut endpoints = self.endpoints.iter_mut().filter(|(_, e)| e.port == port);
        endpoints.find_map(|(id, endpoint)| Some((*id, endpoint.own.as_mut()?)))
    }

    /// Looks what has arrived, and has what the stack leaves lying sent by the path that answers
    /// fastest.
    pub(super) fn rescue(&mut self) {
        let ids: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for id in ids {
            let mut paths = self.paths(id);
            paths.retain(|path| path.state == PathState::Active);
            let Some(own) = self.endpoints.get_mut(&id).and_then(|e| e.own.as_mut()) else {
                continue;
            };
            let answering = paths.iter().filter(|p| !own.left_alone.contains(&p.path));
            let best = answering.min_by_key(|path| path.srtt);
            let best = best.filter(|_| self.rescues);
            let patience = |id: PathId| {
                let path = paths.iter().find(|path| path.path == id);
                let srtt = path.map_or(Duration::ZERO, |path| path.srtt);
                srtt * 3 / 2 + RESCUE_MARGIN
            };
            let by = best.map(|best| best.path);
            let given_up = &own.left_alone;
            let missing = own.rescue.poll(self.clock, by, given_up, patience);
            own.note_arrivals(self.clock);
            let Some(best) = best else { continue };
            let transmit = |payload| Transmit {
                path: Some(best.path),
                link: Some(best.way.link),
                local: None,
                remote: best.way.remote,
                payload,
            };
            self.again.extend(missing.into_iter().map(transmit));
        }
    }

    /// Whether there is a packet to send.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        !self.again.is_empty() || output::waits()
    }

    /// The next packet to send, to whichever endpoint it belongs.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if let Some(transmit) = self.again.pop_front() {
            return Some(transmit);
        }
        while let Some(outgoing) = output::take() {
            if let Some(transmit) = self.transmit(outgoing) {
                return Some(transmit);
            }
        }
        for paths in std::mem::take(&mut self.closed) {
            self.paths.forget(&paths);
        }
        None
    }

    fn transmit(&mut self, outgoing: Outgoing) -> Option<Transmit> {
        let Outgoing {
            source,
            destination,
            packet: mut payload,
        } = outgoing;
        if self.paths.is_invented(destination) {
            // The peer has sent no echo.
            if let Some(is_left) = packet::strip_echo_answer(&mut payload) {
                if !is_left {
                    return None;
                }
                payload[packet::CHECKSUM].fill(0);
                let sum = self.library.checksum(&mut payload);
                payload[packet::CHECKSUM].copy_from_slice(&sum);
            }
            let path = PathId(destination);
            let port = packet::ports(&payload).map(|(port, _)| port);
            self.list_addresses(port, &mut payload);
            if let Some((_, own)) = port.and_then(|port| self.own_at(port)) {
                own.learn_tags(&payload);
            }
            if let Some(port) = port.filter(|_| packet::is_setup(&payload)) {
                return self.everywhere(path, port, payload);
            }
            let (path, way) = self.way_of(path, &payload)?;
            let clock = self.clock;
            if let Some((_, own)) = port.and_then(|port| self.own_at(port))
                && !own.on_transmit(clock, path, way, &payload)
            {
                return None;
            }
            return Some(Transmit {
                path: Some(path),
                link: Some(way.link),
                local: None,
                remote: way.remote,
                payload,
            });
        }
        let (_, port) = packet::ports(&payload)?;
        let known = self
            .correspondents
            .on_transmit((destination, port), &payload);
        let (link, local, remote) = match known {
            Some(known) => (Some(known.link), Some(known.local), known.remote),
            // An address that the peer listed and was not heard from yet. Its UDP port is likely
            // the one that the peer uses elsewhere (RFC 6951 §5.4).
            None => {
                let other = self.correspondents.by_port(port)?;
                let remote = SocketAddr::new(destination, other.remote.port());
                (None, Some(source), remote)
            }
        };
        Some(Transmit {
            path: None,
            link,
            local,
            remote,
            payload,
        })
    }

    /// The stack lists no addresses in an INIT where only one of ours reaches as far as the peer's:
    /// for the sake of translators, that is the one it would be seen from. It is not where another
    /// path is of IPv4 with a private address, as behind a translator.
    fn list_addresses(&self, port: Option<u16>, payload: &mut Vec<u8>) {
        let begins = self.endpoints.values().find(|e| Some(e.port) == port);
        let begins = begins.filter(|e| e.families == Families::Both && e.locals.len() > 1);
        let Some(begins) = begins.filter(|_| packet::asked_tag(payload).is_some()) else {
            return;
        };
        let mut ours = begins.locals.clone();
        ours.retain(|local| !is_private(*local));
        if !ours.is_empty() && packet::list_addresses(payload, &ours) {
            payload[packet::CHECKSUM].fill(0);
            let sum = self.library.checksum(payload);
            payload[packet::CHECKSUM].copy_from_slice(&sum);
        }
    }

    /// The path and the way that a packet goes. One for a path that leads nowhere goes by another,
    /// save for probes of it: when all links have been replaced, the stack tells of the new address
    /// by the old paths. The peer finds the association by an address within (RFC 5061 §4.1.1).
    fn way_of(&mut self, path: PathId, payload: &[u8]) -> Option<(PathId, PathTuple)> {
        if let Some(way) = self.paths.way(path) {
            return Some((path, way));
        }
        if packet::is_probe(payload) {
            return None;
        }
        let (port, _) = packet::ports(payload)?;
        let paths = self.own_at(port)?.1.paths;
        let leading = |path: &PathId| Some((*path, self.paths.way(*path)?));
        paths.iter().find_map(leading)
    }

    /// What begins an association goes every way, so that it begins if any of them works. Peers
    /// answer each copy, and the stack takes the first answer. The cookie goes the way of that
    /// answer alone, and every way when it is repeated: a copy that comes after the association has
    /// ended would begin another one at the peer.
    ///
    /// A private address of IPv4 is told only to who has one too (RFC 9260 §5.1.2), and behind a
    /// translator it is not what the peer sees; but the peer knows where an INIT came from. So the
    /// first copies go by IPv4, where we have such an address.
    fn everywhere(&mut self, path: PathId, port: u16, payload: Vec<u8>) -> Option<Transmit> {
        let of_port = self.endpoints.values().filter(|e| e.port == port);
        let has_private = of_port
            .flat_map(|e| &e.locals)
            .any(|local| is_private(*local));
        let (_, own) = self.own_at(port)?;
        let is_first = packet::is_cookie(&payload) && !own.has_echoed;
        own.has_echoed |= is_first;
        let is_asking = !packet::is_cookie(&payload) && !own.has_asked;
        own.has_asked |= is_asking;
        let (paths, first) = (own.paths, own.paths[0]);
        let ways = paths.iter().filter(|path| !is_first || **path == first);
        let mut ways: Vec<PathTuple> = ways.filter_map(|path| self.paths.way(*path)).collect();
        let is_v4 = |way: &PathTuple| way.remote.is_ipv4();
        if is_asking && has_private && ways.iter().any(is_v4) {
            ways.retain(is_v4);
        }
        let ways = ways.into_iter();
        let copies = ways.map(|way| Transmit {
            path: Some(path),
            link: Some(way.link),
            local: None,
            remote: way.remote,
            payload: payload.clone(),
        });
        let copies: Vec<Transmit> = copies.collect();
        self.again.extend(copies);
        self.again.pop_front()
    }

    /// Packets that were dropped for their tag: somebody else's, in the name of a peer.
    #[must_use]
    pub fn bad_tags(&self) -> u64 {
        self.bad_tags
    }

    /// Packets that were dropped for a list of parameters that is none.
    #[must_use]
    pub fn bad_lists(&self) -> u64 {
        self.bad_lists
    }

    /// Datagrams that were dropped for their checksum.
    #[must_use]
    pub fn bad_checksums(&self) -> u64 {
        self.bad_checksums
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_private(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.is_private())
}
