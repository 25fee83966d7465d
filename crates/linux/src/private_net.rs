//! A network that one command has to itself: what an ordinary user can have instead of hooks.
//!
//! Owns a network namespace, within a user namespace that makes it the user's own, whose only way
//! out is a TUN device with us at the other end. TCP is left to the kernel: connections are sent
//! back into the namespace, to a listener of ours (`translation`), so both ends are the real thing
//! and bytes come out of a socket as they do with hooks; connection requests are held until their
//! destination has answered (`syn_hold::calls`). Datagrams are read from the packets, and answers
//! written into packets. Everything lives in descriptors: no process and no file is left behind.
//! What is done with the payload is left to others.

mod maker;
mod packet;
mod translation;

use std::cell::RefCell;
use std::env;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;

use nix::sched::{CloneFlags, setns};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use crate::caller::Caller;
use crate::capture::CapturedCall;
use crate::hooks::{Original, Protocol};
use crate::raw_ip::port_unreachable;
use crate::reactor::watch_reading;
use crate::syn_hold::packet::Syn;
use crate::syn_hold::{Calls, Door};

pub use maker::make_for_parent;
use packet::{Header, ICMP, ICMPV6, NOTE, ROOM, TCP, UDP};
pub(crate) use translation::stands_for_a_program;
use translation::{Translation, Verdict};

/// Packets in a row before others have their turn.
const BATCH: usize = 64;
const DNS_PORT: u16 = 53;

/// Tells the command the number of its network's namespace.
const WITHIN: &str = "TABANE_NETWORK";

/// There is no network for the command alone.
#[derive(Debug, thiserror::Error)]
pub enum PrivateNetError {
    /// The process that makes it could not be started or heard.
    #[error("cannot make a network for the command: {0}")]
    Helper(#[source] io::Error),
    /// Our own program, which is that process, is found there.
    #[error("cannot make a network for the command: no /proc (`mount -t proc proc /proc`)")]
    NoProc,
    /// What that process says.
    #[error("{0}")]
    Refused(String),
    /// What it made cannot be used.
    #[error("cannot use the network made for the command: {0}")]
    Use(#[source] io::Error),
}

/// The way into the network, for the command.
#[derive(Debug)]
pub struct Entry {
    user: OwnedFd,
    net: OwnedFd,
}

/// A network with us at its only way out.
pub struct PrivateNet {
    wire: Rc<Wire>,
    translation: Rc<RefCell<Translation>>,
    calls: Rc<Calls>,
    listeners: Vec<TcpListener>,
    buffer: Vec<u8>,
}

/// The device.
struct Wire(AsyncFd<OwnedFd>);

/// Takes what comes for the command into its network. Copies share the device.
#[derive(Clone)]
pub struct Voice(Rc<Wire>);

/// One UDP socket of the command and one destination of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrivateFlow {
    /// The socket.
    pub app: SocketAddr,
    /// Where it sends to.
    pub dest: SocketAddr,
}

/// What the command does.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// It asks for a connection.
    Call(CapturedCall),
    /// It sends a datagram.
    Datagram {
        /// For answers.
        flow: PrivateFlow,
        /// Where it goes.
        original: Original,
        /// May be empty.
        payload: &'a [u8],
    },
    /// It sends a packet of ICMP, shown as it is.
    Icmp(&'a [u8]),
}

/// Whether this process is in such a network, as the command or by it.
#[must_use]
pub fn is_within() -> bool {
    // Who has left it may have the variable still.
    let here = fs::metadata("/proc/self/ns/net").map(|it| it.ino().to_string());
    here.is_ok_and(|here| env::var(WITHIN) == Ok(here))
}

/// Whether `helper` can make such a network; nothing is left behind.
///
/// # Errors
/// What stands in the way.
pub fn try_out(helper: Command) -> Result<(), PrivateNetError> {
    maker::ask(helper).map(drop)
}

impl Entry {
    /// Has the child that `command` will start live in the network, as the user it would have been
    /// anyway. Its parent must be the user who made the network.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn place_child(&self, command: &mut Command) -> io::Result<()> {
        let number = File::from(self.net.try_clone()?).metadata()?.ino();
        command.env(WITHIN, number.to_string());
        let (user, net) = (self.user.try_clone()?, self.net.try_clone()?);
        let enter = move || {
            setns(user.as_fd(), CloneFlags::CLONE_NEWUSER)?;
            Ok(setns(net.as_fd(), CloneFlags::CLONE_NEWNET)?)
        };
        // SAFETY: between fork and exec this makes two system calls on descriptors that it keeps
        // open itself; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(enter);
        }
        Ok(())
    }

    /// Processes that live there.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn processes(&self) -> io::Result<usize> {
        maker::processes(self.net.as_fd())
    }
}

impl PrivateNet {
    /// Has `helper`, a process of its own that calls [`make_for_parent`], make the network. Waits
    /// for it: some 20 ms.
    ///
    /// # Errors
    /// See [`PrivateNetError`]; nothing is left behind.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn make(helper: Command) -> Result<(Self, Entry), PrivateNetError> {
        let made = maker::ask(helper)?;
        let adopt = |fd: OwnedFd| TcpListener::from_std(std::net::TcpListener::from(fd));
        let listeners: io::Result<Vec<_>> = made.listeners.into_iter().map(adopt).collect();
        let listeners = listeners.map_err(PrivateNetError::Use)?;
        let own: io::Result<Vec<_>> = listeners.iter().map(TcpListener::local_addr).collect();
        let translation = Translation::new(own.map_err(PrivateNetError::Use)?);
        let translation = Rc::new(RefCell::new(translation));
        let wire = watch_reading(made.tun).map_err(PrivateNetError::Use)?;
        let wire = Rc::new(Wire(wire));
        let door = TunDoor {
            wire: wire.clone(),
            translation: translation.clone(),
        };
        let net = Self {
            wire,
            translation,
            calls: Calls::new(Box::new(door)),
            listeners,
            buffer: vec![0; ROOM],
        };
        let (user, net_ns) = (made.user, made.net);
        Ok((net, Entry { user, net: net_ns }))
    }

    /// The way back, for whoever has the answers.
    #[must_use]
    pub fn voice(&self) -> Voice {
        Voice(self.wire.clone())
    }

    /// Waits for what the command does, and hands it to `handle`.
    ///
    /// # Errors
    /// The device is gone, or descriptors have run out, which may pass.
    pub async fn recv(&mut self, mut handle: impl FnMut(Arrival<'_>)) -> io::Result<()> {
        let expiry = self.calls.expire(Instant::now());
        tokio::select! {
            ready = self.wire.0.readable() => drop(ready?),
            accepted = accept(&self.listeners) => {
                let (stream, peer) = accepted?;
                self.deliver(stream, peer);
                return Ok(());
            }
            () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                return Ok(());
            }
        }
        for _ in 0..BATCH {
            match self.wire.try_recv(&mut self.buffer) {
                Ok(length) => self.take(length, &mut handle),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    fn deliver(&self, stream: TcpStream, peer: SocketAddr) {
        let key = self.translation.borrow().key_of(peer);
        // Nobody waits for it any more, or it came from within: dropped.
        if let Some(key) = key
            && let Some(stream) = self.calls.deliver(stream, key)
        {
            drop(Caller::accepted(stream, peer));
        }
    }

    fn take(&mut self, length: usize, handle: &mut impl FnMut(Arrival<'_>)) {
        let Some(bytes) = self.buffer.get(NOTE..length) else {
            return;
        };
        let Some(header) = packet::parse(bytes) else {
            return;
        };
        match header.protocol {
            TCP => {
                if let Some(call) = self.take_segment(length, &header) {
                    handle(Arrival::Call(call));
                }
            }
            // The kernel's own chatter, and calls to all: they lead nowhere.
            _ if is_for_groups(header.to.ip()) => {}
            UDP => {
                let Some(payload) = header.datagram(bytes) else {
                    return;
                };
                handle(Arrival::Datagram {
                    flow: PrivateFlow {
                        app: header.from,
                        dest: header.to,
                    },
                    original: original(&header, Protocol::Udp),
                    payload,
                });
            }
            ICMP | ICMPV6 => handle(Arrival::Icmp(bytes)),
            _ => tracing::debug!(protocol = header.protocol, "not carried"),
        }
    }

    fn take_segment(&mut self, length: usize, header: &Header) -> Option<CapturedCall> {
        let now = Instant::now();
        let bytes = &self.buffer[NOTE..length];
        let verdict = self.translation.borrow_mut().see(header, bytes, now);
        match verdict {
            Verdict::Forward { from, to } => {
                let noted = &mut self.buffer[..length];
                packet::readdress(noted, header, from, to);
                self.wire.send(noted);
                None
            }
            Verdict::Request => {
                let syn = Syn::parse(&bytes[..header.transport], header.tcp(bytes)?)?;
                let call = self.calls.on_syn(syn, now)?;
                Some(CapturedCall {
                    caller: Caller::held(call),
                    original: original(header, Protocol::Tcp),
                })
            }
            Verdict::Drop => None,
        }
    }
}

async fn accept(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    let one = async |place: usize| match listeners.get(place) {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    };
    tokio::select! {
        accepted = one(0) => accepted,
        accepted = one(1) => accepted,
    }
}

fn original(header: &Header, protocol: Protocol) -> Original {
    Original {
        dest: header.to,
        protocol,
        captured_dns: header.to.port() == DNS_PORT && header.to.ip().is_loopback(),
        // A packet does not tell; the kernel keeps from a connected socket what it did not ask for.
        is_connected: false,
        pid: None,
        dscp: Some(header.dscp),
    }
}

fn is_for_groups(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

impl Wire {
    fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_io(Interest::READABLE, |fd| {
            Ok(rustix::io::read(fd, &mut *buffer)?)
        })
    }

    /// The kernel takes a packet or drops it; it never has one wait.
    fn send(&self, noted: &[u8]) {
        if let Err(error) = rustix::io::write(self.0.get_ref(), noted) {
            tracing::debug!(%error, "the TUN device does not take a packet");
        }
    }
}

impl Voice {
    /// Takes a datagram to the command's socket `app`, as from `from`.
    pub fn datagram(&self, from: SocketAddr, app: SocketAddr, payload: &[u8]) {
        if let Some(noted) = packet::datagram(from, app, payload) {
            self.0.send(&noted);
        }
    }

    /// Tells the command that nobody takes what it sends.
    pub fn refuse(&self, flow: PrivateFlow) {
        if let Some(packet) = port_unreachable(flow.app, flow.dest) {
            self.0.send(&packet::noted(&packet));
        }
    }

    /// Takes a whole packet there, whose checksums are right.
    pub fn packet(&self, packet: &[u8]) {
        if packet::parse(packet).is_some() {
            self.0.send(&packet::noted(packet));
        }
    }
}

/// Back into the network by the device.
struct TunDoor {
    wire: Rc<Wire>,
    translation: Rc<RefCell<Translation>>,
}

impl Door for TunDoor {
    fn release(&self, syn: &Syn) -> io::Result<()> {
        let key = (syn.from, syn.to);
        let mut translation = self.translation.borrow_mut();
        let begun = translation.begin(key, syn.sequence(), Instant::now());
        let (from, to) = begun.ok_or_else(|| io::Error::other("too many connections"))?;
        let mut noted = packet::noted(&syn.again());
        let header = packet::parse(&noted[NOTE..]).ok_or(io::ErrorKind::InvalidData)?;
        packet::readdress(&mut noted, &header, from, to);
        self.wire.send(&noted);
        Ok(())
    }

    fn answer(&self, packet: &[u8]) -> io::Result<()> {
        self.wire.send(&packet::noted(packet));
        Ok(())
    }

    /// The destination itself: there is no router on this wire.
    fn router(&self, syn: &Syn) -> IpAddr {
        syn.to.ip()
    }
}
