//! The stack: endpoints, associations and their paths.
//!
//! Owns endpoints and associations, and nothing of what SCTP itself decides. What is thought of
//! paths is in `paths.rs`, which packet belongs to which in `packets.rs`.
//!
//! ```text
//!  the stack's view            ours                        the network
//!  10.231.16.0   ─────── path ──── link 1, 192.0.2.1:9899 ═════ ╗
//!  10.231.16.1   ─────── path ──── link 2, 192.0.2.1:9899 ═════ ╬══ peer
//!  10.231.16.2…7 ─────── path ──── (no way yet)                 ║
//!  203.0.113.5   ─────── an association that the peer began: answered where it came from
//! ```

mod packets;
mod paths;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;

use crate::association::{Incoming, Message, Piece, SctpError, Sent, Transmit};
use crate::correspondents::Correspondents;
use crate::event;
use crate::ffi;
use crate::identity::{AssociationId, EndpointId};
use crate::library::{self, Library, Received, Socket};
use crate::opening::{self, Order};
use crate::own::Own;
use crate::path::{Guise, PathId, PathTuple, Paths, SLOTS};
use crate::settings::{Families, Settings};

/// What one reading may bring: a message larger than this comes in parts.
const READ_BYTES: usize = 256 * 1024;
/// How often the accounts kept of packets are looked at.
const WATCH: Duration = Duration::from_millis(5);

/// By how many bytes a header of IPv6 is longer than one of IPv4.
const LONGER_HEADER: u32 = 20;

#[derive(Debug)]
struct Endpoint {
    socket: Socket,
    port: u16,
    locals: Vec<IpAddr>,
    families: Families,
    /// The association it was made for; an endpoint that listens has none of these.
    own: Option<Own>,
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
    correspondents: Correspondents,
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
    bad_tags: u64,
    bad_lists: u64,
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
            correspondents: Correspondents::default(),
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
            bad_tags: 0,
            bad_lists: 0,
        })
    }

    /// Opens a port on local addresses, to which others of these families may come; `adaptation` is
    /// told to every peer.
    ///
    /// # Errors
    /// No address, one of another family, or the port is taken.
    pub fn open(
        &mut self,
        families: Families,
        locals: &[IpAddr],
        port: u16,
        adaptation: u32,
    ) -> Result<EndpointId, SctpError> {
        let (first, others) = locals.split_first().ok_or(SctpError::NoAddress)?;
        let socket = self.library.socket(families)?;
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
                families,
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
        ways: &[PathTuple],
        port: u16,
    ) -> Result<AssociationId, SctpError> {
        let begins = self.endpoints.get_mut(&endpoint).ok_or(SctpError::Gone)?;
        if ways.is_empty() {
            return Err(SctpError::NoAddress);
        }
        let remotes = ways.iter().map(|way| way.remote.ip());
        let guise = Guise::of(&begins.locals, remotes);
        if let (Guise::V4(_), Families::Both) = (guise, begins.families) {
            // What the stack means for IPv4 may leave by IPv6.
            let mtu = self.mtu.saturating_sub(LONGER_HEADER);
            opening::limit_packets(&self.library, &begins.socket, mtu)?;
        }
        let paths = self.paths.invent(guise).ok_or(SctpError::TooMany)?;
        for (path, way) in paths.iter().zip(ways) {
            self.paths.set(*path, Some(*way));
        }
        let peer = SocketAddr::new(paths[0].0, port);
        match self.library.connect(&begins.socket, peer) {
            Ok(association) => {
                begins.own = Some(Own::new(self.clock, association, port, paths));
                Ok(AssociationId(association))
            }
            Err(error) => {
                self.paths.forget(&paths);
                Err(error.into())
            }
        }
    }

    /// How many bytes of a message one packet of an association holds.
    #[must_use]
    pub fn message_bytes(&self, endpoint: EndpointId, association: AssociationId) -> Option<usize> {
        let status = self.ask_status(endpoint, association)?;
        usize::try_from(status.sstat_fragmentation_point).ok()
    }

    /// What the peer listed as its addresses when the association was set up.
    #[must_use]
    pub fn listed(&self, endpoint: EndpointId) -> &[IpAddr] {
        let own = self.endpoints.get(&endpoint).and_then(|e| e.own.as_ref());
        own.and_then(|own| own.listed.as_deref()).unwrap_or(&[])
    }

    /// For how long nothing has come from an association's peer. One that lives is heard again and
    /// again, since it answers our probes, so this tells of its end sooner than the stack, whose
    /// counter of repetitions has to leave room for paths that lead nowhere. Strangers' ABORTs do
    /// not count. `None` where nothing is known.
    #[must_use]
    pub fn silence(&self, endpoint: EndpointId, association: AssociationId) -> Option<Duration> {
        let endpoint = self.endpoints.get(&endpoint)?;
        let heard_at = match &endpoint.own {
            Some(own) => own.heard_at,
            None => {
                let peers = self.library.peers(&endpoint.socket, association.0);
                let known = peers.iter();
                let known =
                    known.filter_map(|peer| self.correspondents.place((peer.ip(), peer.port())));
                known.map(|known| known.heard_at).max()?
            }
        };
        Some(self.clock.saturating_sub(heard_at))
    }

    /// How many chunks wait for acknowledgement or to be sent; `None` once it has ended.
    #[must_use]
    pub fn backlog(&self, endpoint: EndpointId, association: AssociationId) -> Option<u32> {
        let status = self.ask_status(endpoint, association)?;
        Some(u32::from(status.sstat_unackdata) + u32::from(status.sstat_penddata))
    }

    fn ask_status(&self, endpoint: EndpointId, association: AssociationId) -> Option<ffi::Status> {
        let endpoint = self.endpoints.get(&endpoint)?;
        let asked = ffi::Status {
            sstat_assoc_id: association.0,
            ..library::zero()
        };
        self.library.ask(&endpoint.socket, ffi::SCTP_STATUS, asked)
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
        let to = message.path.map(|path| SocketAddr::new(path.0, port));
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
            families: listening.families,
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
}
