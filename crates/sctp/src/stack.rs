//! The stack: endpoints, associations and their paths.
//!
//! Owns which packet belongs to which path, both ways, and nothing of what SCTP itself decides.
//!
//! ```text
//!  the stack's view            ours                        the network
//!  10.231.16.0   ─────── path ──── link 1, 192.0.2.1:9899 ═════ ╗
//!  10.231.16.1   ─────── path ──── link 2, 192.0.2.1:9899 ═════ ╬══ peer
//!  10.231.16.2…7 ─────── path ──── (no way yet)                 ║
//!  203.0.113.5   ─────── an association that the peer began: answered where it came from
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use tabane_base::{Bytes, Duration};

use crate::association::{
    AssociationId, EndpointId, Incoming, Message, PathState, PathStatus, Piece, SctpError, Sent,
    Transmit,
};
use crate::event;
use crate::ffi;
use crate::library::{self, Library, Received, Socket};
use crate::opening::Order;
use crate::output::{self, Outgoing};
use crate::own::Own;
use crate::packet;
use crate::path::{LinkId, PathId, Paths, Reach, SLOTS, Way};
use crate::settings::Settings;

/// Addresses of peers that began associations with us and of which we remember where they are; who
/// comes beyond that pushes the others out, and is found again with the next packet.
const CORRESPONDENTS_MAX: usize = 4_096;
/// What one reading may bring: a message larger than this comes in parts.
const READ_BYTES: usize = 256 * 1024;
/// Beyond one and a half round trips: the receiver's delay of acknowledgements, and the stack's own
/// repetition.
const RESCUE_MARGIN: Duration = Duration::from_millis(60);

/// How often the accounts kept of packets are looked at.
const WATCH: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Endpoint {
    socket: Socket,
    port: u16,
    locals: Vec<Ipv4Addr>,
    /// The association it was made for; an endpoint that listens has none of these.
    own: Option<Own>,
}

/// Where somebody who began an association with us was last heard from.
#[derive(Clone, Copy, Debug)]
struct Correspondent {
    link: LinkId,
    local: Ipv4Addr,
    remote: SocketAddrV4,
}

/// SCTP in this process.
///
/// Drive it: `handle_packet` and `handle_timers` (every 10 ms or so), then `poll_event` until
/// `None`, then whatever there is to send, then `poll_transmit` until `None`.
#[derive(Debug)]
pub struct Stack {
    // The library outlives its sockets.
    endpoints: BTreeMap<EndpointId, Endpoint>,
    paths: Paths,
    correspondents: BTreeMap<(Ipv4Addr, u16), Correspondent>,
    /// Of endpoints that were closed, until their last packets are out.
    closed: Vec<[PathId; SLOTS]>,
    /// [`Settings::mtu`].
    mtu: u32,
    /// [`Settings::rescue`].
    rescues: bool,
    /// [`Settings::brake`].
    brakes: bool,
    /// Packets to send beside the library's.
    again: VecDeque<Transmit>,
    /// The time that the library was told of.
    clock: Duration,
    /// When what the packets tell was last looked at.
    watched_at: Duration,
    /// Time that the library has not been told of.
    unticked: Duration,
    next: u32,
    buffer: Vec<u8>,
    bad_checksums: u64,
    library: Library,
}

impl Stack {
    /// Starts it.
    ///
    /// # Errors
    /// [`SctpError::Twice`].
    pub fn start(settings: &Settings) -> Result<Self, SctpError> {
        Ok(Self {
            library: Library::start(settings).ok_or(SctpError::Twice)?,
            endpoints: BTreeMap::new(),
            paths: Paths::default(),
            correspondents: BTreeMap::new(),
            closed: Vec::new(),
            mtu: settings.mtu,
            rescues: settings.rescue,
            brakes: settings.brake,
            again: VecDeque::new(),
            clock: Duration::ZERO,
            watched_at: Duration::ZERO,
            unticked: Duration::ZERO,
            next: 0,
            buffer: vec![0; READ_BYTES],
            bad_checksums: 0,
        })
    }

    /// Opens a port on local addresses; `adaptation` is told to every peer.
    ///
    /// # Errors
    /// No address, or the port is taken.
    pub fn open(
        &mut self,
        locals: &[Ipv4Addr],
        port: u16,
        adaptation: u32,
    ) -> Result<EndpointId, SctpError> {
        let (first, others) = locals.split_first().ok_or(SctpError::NoAddress)?;
        let socket = self.library.socket()?;
        let order = Order {
            first: *first,
            others,
            port,
            adaptation,
            mtu: self.mtu,
        };
        match order.apply(&self.library, &socket) {
            Ok(port) => Ok(self.register(Endpoint {
                socket,
                port,
                locals: locals.to_vec(),
                own: None,
            })),
            Err(error) => {
                self.library.close(socket);
                Err(error)
            }
        }
    }

    /// Takes associations that peers begin.
    ///
    /// # Errors
    /// What the library says.
    pub fn listen(&mut self, endpoint: EndpointId) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        Ok(self.library.listen(&endpoint.socket)?)
    }

    /// Begins the one association of an endpoint, over these ways, of which the first carries the
    /// set-up. `port` is the peer's SCTP port.
    ///
    /// # Errors
    /// No way, too many associations, or what the library says.
    pub fn connect(
        &mut self,
        endpoint: EndpointId,
        ways: &[Way],
        port: u16,
    ) -> Result<AssociationId, SctpError> {
        let first = ways.first().ok_or(SctpError::NoAddress)?;
        let reach = Reach::of(*first.remote.ip());
        let paths = self.paths.invent(reach).ok_or(SctpError::TooMany)?;
        for (path, way) in paths.iter().zip(ways) {
            self.paths.set(*path, Some(*way));
        }
        let peer = SocketAddrV4::new(paths[0].0, port);
        let begun = match self.endpoints.get(&endpoint) {
            Some(endpoint) => {
                let begun = self.library.connect(&endpoint.socket, peer);
                begun.map_err(SctpError::from)
            }
            None => Err(SctpError::Gone),
        };
        if begun.is_err() {
            self.paths.forget(&paths);
        }
        let association = begun?;
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
            endpoint.own = Some(Own::new(association, port, paths));
        }
        Ok(AssociationId(association))
    }

    /// What the peer listed as its addresses when the association was set up.
    #[must_use]
    pub fn listed(&self, endpoint: EndpointId) -> &[Ipv4Addr] {
        let own = self.endpoints.get(&endpoint).and_then(|e| e.own.as_ref());
        own.and_then(|own| own.listed.as_deref()).unwrap_or(&[])
    }

    /// Gives the association another path; the one that already leads there, if one does. `None`
    /// where it has as many as can be.
    pub fn add_way(&mut self, endpoint: EndpointId, way: Way) -> Option<PathId> {
        let with = self.endpoints.get(&endpoint)?;
        let own = with.own.as_ref()?;
        if let Some(path) = self.paths.find(&own.paths, way.link, *way.remote.ip()) {
            return Some(path);
        }
        // One that led elsewhere before would be taken for one that works.
        let has_worked =
            |path: &PathId| self.status(with, own, *path, way).state != PathState::Unconfirmed;
        let free = own.paths.iter().copied();
        let free = free.filter(|path| self.paths.way(*path).is_none());
        let path = free.min_by_key(has_worked)?;
        self.set_way(endpoint, path, Some(way));
        Some(path)
    }

    /// Leads a path another way, or nowhere. What was under way on it is sent again.
    pub fn set_way(&mut self, endpoint: EndpointId, path: PathId, way: Option<Way>) {
        self.paths.set(path, way);
        if let Some(own) = self
            .endpoints
            .get_mut(&endpoint)
            .and_then(|e| e.own.as_mut())
        {
            own.forget(path);
        }
        if way.is_some() {
            // Ask at once whether it works, rather than at the next probe.
            let _ = self.ask_path(endpoint, path);
        }
    }

    fn ask_path(&self, endpoint: EndpointId, path: PathId) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        let own = endpoint.own.as_ref().ok_or(SctpError::Gone)?;
        let demand = ffi::PaddrParams {
            spp_address: library::storage(SocketAddrV4::new(path.0, own.port)),
            spp_assoc_id: own.association,
            spp_flags: ffi::SPP_HB_DEMAND,
            ..library::zero()
        };
        let name = ffi::SCTP_PEER_ADDR_PARAMS;
        let what = "probe a path";
        Ok(self.library.set(&endpoint.socket, name, &demand, what)?)
    }

    /// The paths that lead somewhere, and what the stack thinks of them.
    #[must_use]
    pub fn paths(&self, endpoint: EndpointId) -> Vec<PathStatus> {
        let Some(endpoint) = self.endpoints.get(&endpoint) else {
            return Vec::new();
        };
        let Some(own) = &endpoint.own else {
            return Vec::new();
        };
        let ways = own.paths.iter();
        let ways = ways.filter_map(|path| Some((*path, self.paths.way(*path)?)));
        ways.map(|(path, way)| self.status(endpoint, own, path, way))
            .collect()
    }

    fn status(&self, endpoint: &Endpoint, own: &Own, path: PathId, way: Way) -> PathStatus {
        let asked = ffi::PaddrInfo {
            spinfo_address: library::storage(SocketAddrV4::new(path.0, own.port)),
            spinfo_assoc_id: own.association,
            ..library::zero()
        };
        let name = ffi::SCTP_GET_PEER_ADDR_INFO;
        let info = self.library.ask(&endpoint.socket, name, asked);
        let info = info.unwrap_or(asked);
        let srtt = Duration::from_millis(info.spinfo_srtt.into());
        let is_silent = own.pulses.is_silent(self.clock, path, srtt);
        let state = match info.spinfo_state {
            state if state & ffi::SCTP_UNCONFIRMED != 0 => PathState::Unconfirmed,
            state if state & ffi::SCTP_ACTIVE != 0 && !is_silent => PathState::Active,
            _ => PathState::Inactive,
        };
        PathStatus {
            path,
            way,
            state,
            cwnd: Bytes::new(info.spinfo_cwnd.into()),
            srtt,
            rto: Duration::from_millis(info.spinfo_rto.into()),
            mtu: info.spinfo_mtu,
        }
    }

    /// User data that left by a path and of whose arrival nothing is known. The stack does not tell
    /// this by path; it is counted from the packets.
    #[must_use]
    pub fn outstanding(&self, endpoint: EndpointId, path: PathId) -> Bytes {
        let own = self.endpoints.get(&endpoint).and_then(|e| e.own.as_ref());
        own.map_or(Bytes::ZERO, |own| own.rescue.outstanding(path))
    }

    /// How many chunks wait for acknowledgement or to be sent; `None` once it has ended.
    #[must_use]
    pub fn backlog(&self, endpoint: EndpointId, association: AssociationId) -> Option<u32> {
        let endpoint = self.endpoints.get(&endpoint)?;
        let asked = ffi::Status {
            sstat_assoc_id: association.0,
            ..library::zero()
        };
        let status = self
            .library
            .ask(&endpoint.socket, ffi::SCTP_STATUS, asked)?;
        Some(u32::from(status.sstat_unackdata) + u32::from(status.sstat_penddata))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The association has ended, or the message is larger than the send buffer.
    pub fn send(
        &mut self,
        endpoint: EndpointId,
        association: AssociationId,
        message: Message<'_>,
    ) -> Result<Sent, SctpError> {
        let endpoint = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        let port = endpoint.own.as_ref().map_or(0, |own| own.port);
        let to = message.path.map(|path| SocketAddrV4::new(path.0, port));
        let info = ffi::SndInfo {
            snd_sid: message.stream,
            snd_flags: if to.is_some() { ffi::SCTP_ADDR_OVER } else { 0 },
            snd_ppid: message.protocol.to_be(),
            snd_context: 0,
            snd_assoc_id: association.0,
        };
        let socket = &endpoint.socket;
        match self.library.send(socket, message.data, to, info)? {
            true => Ok(Sent::Queued),
            false => Ok(Sent::Full),
        }
    }

    /// Ends the association once everything is delivered; [`Event::Closed`] tells.
    ///
    /// # Errors
    /// It has ended.
    pub fn shutdown(
        &mut self,
        endpoint: EndpointId,
        association: AssociationId,
    ) -> Result<(), SctpError> {
        self.end(endpoint, association, ffi::SCTP_EOF)
    }

    /// Ends the association at once, and tells the peer.
    ///
    /// # Errors
    /// It has ended.
    pub fn abort(
        &mut self,
        endpoint: EndpointId,
        association: AssociationId,
    ) -> Result<(), SctpError> {
        self.end(endpoint, association, ffi::SCTP_ABORT)
    }

    fn end(
        &mut self,
        endpoint: EndpointId,
        association: AssociationId,
        flag: u16,
    ) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        let info = ffi::SndInfo {
            snd_flags: flag,
            snd_assoc_id: association.0,
            ..library::zero()
        };
        self.library.send(&endpoint.socket, &[], None, info)?;
        Ok(())
    }

    /// Closes an endpoint. Its association, if it still stands, is aborted.
    pub fn close(&mut self, endpoint: EndpointId) {
        let association = self.endpoints.get(&endpoint).and_then(|e| e.own.as_ref());
        if let Some(association) = association.map(|own| AssociationId(own.association)) {
            // Where it has ended there is nothing to abort.
            let _ = self.abort(endpoint, association);
        }
        if let Some(endpoint) = self.endpoints.remove(&endpoint) {
            self.library.close(endpoint.socket);
            if let Some(own) = endpoint.own {
                self.closed.push(own.paths);
            }
        }
    }

    /// Gives an association that a peer began an endpoint of its own, so that it is read by itself.
    ///
    /// # Errors
    /// It has ended.
    pub fn accept(
        &mut self,
        endpoint: EndpointId,
        association: AssociationId,
    ) -> Result<EndpointId, SctpError> {
        let listening = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        let socket = self.library.peel_off(&listening.socket, association.0)?;
        let accepted = Endpoint {
            socket,
            port: listening.port,
            locals: listening.locals.clone(),
            own: None,
        };
        Ok(self.register(accepted))
    }

    fn register(&mut self, endpoint: Endpoint) -> EndpointId {
        let id = EndpointId(self.next);
        self.next += 1;
        self.endpoints.insert(id, endpoint);
        id
    }

    /// This host has another address, on a link: associations tell their peers (RFC 5061). Until
    /// the peer has agreed, ways over that link carry nothing; a peer that knows no changes of
    /// addresses never does.
    ///
    /// None is ever taken back. When an address is deleted under a running association, usrsctp
    /// 0.9.5 sends by a pointer to what it has freed (in `sctp_med_chunk_output`, one time in ten).
    /// A path without a way carries nothing, and the peer finds by itself that it is silent.
    ///
    /// # Errors
    /// What the library says.
    pub fn add_local(
        &mut self,
        endpoint: EndpointId,
        link: LinkId,
        local: Ipv4Addr,
    ) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get_mut(&endpoint).ok_or(SctpError::Gone)?;
        let is_known = endpoint.locals.contains(&local);
        match &mut endpoint.own {
            Some(own) if is_known => own.told.come_again(link, local),
            Some(own) => own.told.wait_for(link, local),
            None => {}
        }
        if is_known {
            return Ok(());
        }
        self.library.know_address(local);
        let address = SocketAddrV4::new(local, endpoint.port);
        self.library.add_address(&endpoint.socket, address)?;
        endpoint.locals.push(local);
        Ok(())
    }

    /// A UDP datagram has come over `link` to `local`. What is no SCTP, or damaged, is dropped.
    pub fn handle_packet(
        &mut self,
        link: LinkId,
        local: Ipv4Addr,
        remote: SocketAddrV4,
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
        let host = *remote.ip();
        let mut echoes = Vec::new();
        let source = match self.own_path(port, source_port, link, host) {
            Some(path) => {
                self.learn_addresses(port, link, host, &mut bytes);
                if !self.take_note(port, path, &bytes) {
                    return;
                }
                echoes = self.echoes(port, &bytes);
                path.0
            }
            // Nobody but ourselves may speak in the name of an address that we made up.
            None if self.paths.is_invented(host) => return,
            None => {
                let from = Correspondent {
                    link,
                    local,
                    remote,
                };
                self.remember(host, source_port, from);
                host
            }
        };
        let source = SocketAddrV4::new(source, source_port);
        let destination = SocketAddrV4::new(local, port);
        for packet in echoes.iter().chain([&bytes]) {
            self.library.input(packet, source, destination);
        }
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
    fn own_path(&self, port: u16, peer_port: u16, link: LinkId, host: Ipv4Addr) -> Option<PathId> {
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
    fn learn_addresses(&mut self, port: u16, link: LinkId, host: Ipv4Addr, bytes: &mut Vec<u8>) {
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
    fn own_at(&mut self, port: u16) -> Option<(EndpointId, &mut Own)> {
        let mut endpoints = self.endpoints.iter_mut().filter(|(_, e)| e.port == port);
        endpoints.find_map(|(id, endpoint)| Some((*id, endpoint.own.as_mut()?)))
    }

    fn remember(&mut self, host: Ipv4Addr, port: u16, from: Correspondent) {
        if self.correspondents.len() >= CORRESPONDENTS_MAX
            && !self.correspondents.contains_key(&(host, port))
        {
            self.correspondents.clear();
        }
        self.correspondents.insert((host, port), from);
    }

    /// So much time has passed since the last call; to be called every 10 ms or so, and before
    /// packets are handed in, whose time is that of the last call.
    pub fn handle_timers(&mut self, elapsed: Duration) {
        // What is not a whole millisecond counts the next time.
        let elapsed = self.unticked + elapsed;
        let millis = u32::try_from(elapsed.as_millis()).unwrap_or(u32::MAX);
        self.unticked = elapsed.saturating_sub(Duration::from_millis(millis.into()));
        if millis > 0 {
            self.clock += Duration::from_millis(millis.into());
            if self.clock >= self.watched_at + WATCH {
                self.watched_at = self.clock;
                self.leave_quiet_paths_alone();
                self.rescue();
            }
            self.library.handle_timers(millis);
        }
    }

    /// A path whose timeout is near and by which nothing has come back is left alone from that
    /// timeout on, until it answers (RFC 7829). Others are not: after such a timeout usrsctp 0.9.5
    /// waits on that path for the arrival of a packet that it has moved to another one, and until
    /// chance frees it (CUC's find_pseudo_cumack, in `sctp_t3rxt_timer`) the window stays at one
    /// packet.
    fn leave_quiet_paths_alone(&mut self) {
        let ids: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for id in ids {
            for status in self.paths(id) {
                let Some(endpoint) = self.endpoints.get_mut(&id) else {
                    continue;
                };
                let Some(own) = &mut endpoint.own else {
                    continue;
                };
                let (path, srtt) = (status.path, status.srtt);
                let is_quiet = own.pulses.is_quiet(self.clock, path, srtt);
                let is_news = match is_quiet {
                    true => own.left_alone.insert(path),
                    false => own.left_alone.remove(&path),
                };
                if is_news {
                    let thresholds = ffi::PaddrThresholds {
                        spt_address: library::storage(SocketAddrV4::new(path.0, own.port)),
                        spt_assoc_id: own.association,
                        spt_pathmaxrxt: u16::MAX,
                        spt_pathpfthld: if is_quiet { 0 } else { u16::MAX },
                        spt_pathcpthld: u16::MAX,
                    };
                    let name = ffi::SCTP_PEER_ADDR_THLDS;
                    let what = "say when a path is left alone";
                    // An association that has just ended has no paths.
                    let _ = self.library.set(&endpoint.socket, name, &thresholds, what);
                }
            }
        }
    }

    /// Looks what has arrived, and has what the stack leaves lying sent by the path that answers
    /// fastest.
    fn rescue(&mut self) {
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
            if let Some(port) = port.filter(|_| packet::is_setup(&payload)) {
                return self.everywhere(path, port, payload);
            }
            let way = self.paths.way(path)?;
            let clock = self.clock;
            if let Some((_, own)) = port.and_then(|port| self.own_at(port))
                && !own.on_transmit(clock, path, way.link, &payload)
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
        let known = self.correspondents.get(&(destination, port));
        let (link, local, remote) = match known {
            Some(known) => (Some(known.link), Some(known.local), known.remote),
            // An address that the peer listed and was not heard from yet. Its UDP port is likely
            // the one that the peer uses elsewhere (RFC 6951 §5.4).
            None => {
                let mut others = self.correspondents.iter();
                let (_, other) = others.find(|((_, known), _)| *known == port)?;
                let remote = SocketAddrV4::new(destination, other.remote.port());
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

    /// What begins an association goes every way, so that it begins if any of them works. Peers
    /// answer each copy, and the stack takes the first answer. The cookie goes the way of that
    /// answer alone, and every way when it is repeated: a copy that comes after the association has
    /// ended would begin another one at the peer.
    fn everywhere(&mut self, path: PathId, port: u16, payload: Vec<u8>) -> Option<Transmit> {
        let (_, own) = self.own_at(port)?;
        let is_first = packet::is_cookie(&payload) && !own.has_echoed;
        own.has_echoed |= is_first;
        let (paths, first) = (own.paths, own.paths[0]);
        let ways = paths.iter().filter(|path| !is_first || **path == first);
        let ways = ways.filter_map(|path| self.paths.way(*path));
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

    /// What has come in on an endpoint, in order; `None` when there is no more at present. Who
    /// does not ask leaves the data in the receive buffer, and the peer waits when that is full.
    pub fn poll_event(&mut self, endpoint: EndpointId) -> Option<Incoming<'_>> {
        let socket = &self.endpoints.get(&endpoint)?.socket;
        loop {
            match self.library.receive(socket, &mut self.buffer)? {
                Received::Notification { len } => {
                    if let Some(event) = event::parse(&self.buffer[..len]) {
                        return Some(Incoming::Event(event));
                    }
                }
                Received::Data {
                    association,
                    stream,
                    protocol,
                    len,
                    complete,
                } => {
                    return Some(Incoming::Piece(Piece {
                        association: AssociationId(association),
                        stream,
                        protocol,
                        data: &self.buffer[..len],
                        complete,
                    }));
                }
            }
        }
    }

    /// The port of an endpoint.
    #[must_use]
    pub fn port(&self, endpoint: EndpointId) -> Option<u16> {
        Some(self.endpoints.get(&endpoint)?.port)
    }

    /// Datagrams that were dropped for their checksum.
    #[must_use]
    pub fn bad_checksums(&self) -> u64 {
        self.bad_checksums
    }
}
