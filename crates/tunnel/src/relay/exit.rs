//! The relay's TUN device, by which packets of clients leave with addresses of its pool.
//!
//! Owns the device, who has which address, and which client an answer is for. What may leave is
//! decided by those who send; that the kernel passes packets on and translates their addresses is
//! the affair of whoever has made the device.
//!
//! One worker reads the device, so that nobody's packets overtake one another, and hands answers
//! to the others in bounded queues. Writing to it is one system call, of whichever worker has the
//! client. Locks are held for a look into a map.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tabane_base::Prefix;
use tabane_core::PublicKey;
use tabane_linux::tun::Tun;
use tokio::sync::mpsc;

use super::pool::{Addresses, Pool};
use crate::assignment::{Assignment, Lodging};
use crate::ip_packet::IpPacket;

/// Answers to one client that wait for their turn: 10 ms at 300 Mbit/s. More are dropped.
const MAX_WAITING: usize = 256;
/// The longest packet there is.
const MAX_PACKET: usize = 65_535;

/// A device with a route for the pool, which the kernel forwards from and to.
pub struct ExitConfig {
    /// The device.
    pub tun: Tun,
    /// The IPv4 addresses for clients, but for the first, which is the relay's.
    pub v4: Option<Prefix>,
    /// The same for IPv6.
    pub v6: Option<Prefix>,
    /// The largest packet that the device takes, in bytes.
    pub mtu: u16,
}

/// What a client's packets outside of streams have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketsSnapshot {
    /// The addresses it has.
    pub addresses: Vec<IpAddr>,
    /// Packets that went out.
    pub sent: u64,
    /// Packets that came back.
    pub received: u64,
    /// Packets that were not passed on, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Why a client's packet is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No IP packet, or one with a route of its own.
    Malformed,
    /// Its source is not the client's address.
    Spoofed,
    /// TCP or UDP.
    Stream,
    /// The client may not reach the destination.
    Denied,
    /// Only pings are served for this family.
    NotServed,
    /// Beyond the user's rate.
    Rate,
    /// The kernel does not take it.
    Full,
}

impl Refusal {
    const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Spoofed => "spoofed",
            Self::Stream => "tcp_or_udp",
            Self::Denied => "denied",
            Self::NotServed => "not_served",
            Self::Rate => "rate",
            Self::Full => "full",
        }
    }
}

/// The device with the clients that have addresses. Clones are the same.
#[derive(Clone)]
pub(super) struct Exit(Arc<Inner>);

struct Inner {
    tun: Tun,
    mtu: u16,
    pool: Mutex<Pool>,
    /// By address: the client there, the latest session where it has several.
    clients: Mutex<BTreeMap<IpAddr, Client>>,
    /// By session.
    tallies: Mutex<BTreeMap<u64, Tally>>,
}

/// What one session's packets have come to.
type Tally = Arc<Mutex<PacketsSnapshot>>;

struct Client {
    session: u64,
    answers: mpsc::Sender<Vec<u8>>,
    tally: Tally,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session with addresses, until it is dropped.
pub(super) struct Lodger {
    exit: Exit,
    key: PublicKey,
    session: u64,
    addresses: Addresses,
    answers: mpsc::Receiver<Vec<u8>>,
    tally: Tally,
}

impl Exit {
    pub(super) fn new(config: ExitConfig) -> Self {
        Self(Arc::new(Inner {
            tun: config.tun,
            mtu: config.mtu,
            pool: Mutex::new(Pool::new(config.v4, config.v6)),
            clients: Mutex::default(),
            tallies: Mutex::default(),
        }))
    }

    /// Gives a client its addresses; `None` where all are in use.
    pub(super) fn lodge(&self, key: PublicKey, session: u64) -> Option<Lodger> {
        let leased = lock(&self.0.pool).lease(key);
        let Some(addresses) = leased else {
            let (used, places) = lock(&self.0.pool).fill();
            tracing::warn!(
                client = %key, used, places,
                "no address left in the pool: this client's packets beside TCP and UDP are not \
                 carried, pings are; `tabane relay --pool` with a larger range has room"
            );
            return None;
        };
        let (sender, answers) = mpsc::channel(MAX_WAITING);
        let tally = Arc::new(Mutex::new(PacketsSnapshot {
            addresses: addresses.all().collect(),
            ..PacketsSnapshot::default()
        }));
        let mut clients = lock(&self.0.clients);
        for address in addresses.all() {
            let client = Client {
                session,
                answers: sender.clone(),
                tally: tally.clone(),
            };
            clients.insert(address, client);
        }
        lock(&self.0.tallies).insert(session, tally.clone());
        Some(Lodger {
            exit: self.clone(),
            key,
            session,
            addresses,
            answers,
            tally,
        })
    }

    /// What is told to a client.
    pub(super) fn assignment(&self, lodger: Option<&Lodger>) -> Assignment {
        Assignment {
            lodging: match lodger {
                Some(_) => Lodging::Given,
                None => Lodging::Full,
            },
            v4: lodger.and_then(|lodger| lodger.addresses.v4),
            v6: lodger.and_then(|lodger| lodger.addresses.v6),
            mtu: self.0.mtu,
        }
    }

    /// What the packets of a session have come to.
    pub(super) fn tally(&self, session: u64) -> Option<PacketsSnapshot> {
        let tallies = lock(&self.0.tallies);
        tallies.get(&session).map(|tally| lock(tally).clone())
    }

    /// Hands answers to those whom they are for, for ever.
    pub(super) async fn hand_out(&self) {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            match self.0.tun.recv(&mut buffer).await {
                Ok(length) => self.hand_over(&buffer[..length]),
                Err(error) => {
                    tracing::error!(%error, "the pool's TUN device failed: no packets come back");
                    return std::future::pending().await;
                }
            }
        }
    }

    fn hand_over(&self, packet: &[u8]) {
        // The kernel's own chatter on a new device among them.
        let Ok(header) = IpPacket::parse(packet) else {
            return;
        };
        if let Some(client) = lock(&self.0.clients).get(&header.destination)
            && client.answers.try_send(packet.to_vec()).is_ok()
        {
            lock(&client.tally).received += 1;
        }
    }
}

impl Addresses {
    fn all(self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

impl Lodger {
    /// Whether it has an address of this family.
    pub(super) fn has(&self, is_v4: bool) -> bool {
        match is_v4 {
            true => self.addresses.v4.is_some(),
            false => self.addresses.v6.is_some(),
        }
    }

    /// Whether this is its own address.
    pub(super) fn is_at(&self, address: IpAddr) -> bool {
        self.addresses.all().any(|own| own == address)
    }

    /// Puts a packet out.
    pub(super) fn send(&self, packet: &[u8]) -> Result<(), Refusal> {
        let sent = self.exit.0.tun.try_send(packet);
        sent.map_err(|error| {
            tracing::trace!(%error, "not sent");
            Refusal::Full
        })
    }

    pub(super) fn count_up(&self, sent: Result<(), Refusal>) {
        let mut tally = lock(&self.tally);
        match sent {
            Ok(()) => tally.sent += 1,
            Err(refusal) => *tally.refused.entry(refusal.name()).or_default() += 1,
        }
    }

    /// Ready with the next packet for the client.
    pub(super) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        match self.answers.poll_recv(cx) {
            Poll::Ready(Some(packet)) => Poll::Ready(packet),
            // A later session of the client has the address; this one still sends.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Lodger {
    fn drop(&mut self) {
        let inner = &self.exit.0;
        lock(&inner.pool).release(self.key);
        let session = self.session;
        let is_others = |_: &IpAddr, client: &mut Client| client.session != session;
        lock(&inner.clients).retain(is_others);
        lock(&inner.tallies).remove(&session);
    }
}
