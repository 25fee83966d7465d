//! The relay's TUN device, by which packets of clients leave with addresses of its pool.
//!
//! Owns the device, who has which address, and which client an answer is for. What may leave is
//! decided by those who send; that the kernel passes packets on and translates their addresses is
//! the affair of whoever has made the device.
//!
//! One worker reads the device, so that nobody's packets overtake one another, and hands answers
//! to the others in bounded queues. Writing to it is one system call, of whichever worker has the
//! client. Locks are held for a look into a map.
//!
//! While a relay is upgraded two processes have the device, and one reads it: the new one, which
//! passes on what is for sessions of the old one. Both write. Addresses that are in use there are
//! given to nobody else here.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tabane_base::Prefix;
use tabane_core::PublicKey;
use tabane_linux::tun::Tun;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, watch};

use super::pool::{Addresses, Pool, PoolPlace};
use super::seldom::Seldom;
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
    /// Where answers go that are for sessions of the process which had the device before, and has
    /// it until it says otherwise.
    pub before: Option<StdDatagram>,
}

/// An address pool's device, as one process leaves it to the next.
#[derive(Debug)]
pub struct InheritedPool {
    /// The device.
    pub device: OwnedFd,
    /// Where answers go that are for the sessions of who leaves it.
    pub answers: OwnedFd,
}

/// Who reads the device.
#[derive(Clone)]
enum Reader {
    /// The process before this one, as yet. Nobody has an address here.
    Predecessor,
    /// This one. What is for nobody here goes to the process before, while there is one.
    Own(Option<Arc<UnixDatagram>>),
    /// The process after this one, and what is for us comes from it.
    Successor(Arc<UnixDatagram>),
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
    /// It is for a site whose client is away.
    Away,
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
            Self::Away => "site_away",
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
    reader: watch::Sender<Reader>,
    /// Where answers come from once another process reads the device.
    heir: Mutex<Option<Arc<UnixDatagram>>>,
    pool: Mutex<Pool>,
    /// By address: the client there, the latest session where it has several.
    clients: Mutex<BTreeMap<IpAddr, Client>>,
    /// By session.
    tallies: Mutex<BTreeMap<u64, Tally>>,
    /// That no address is left.
    full: Seldom,
}

/// What one session's packets have come to.
type Tally = Arc<Mutex<PacketsSnapshot>>;

struct Client {
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
    /// With this device.
    ///
    /// # Errors
    /// The way to the process before this one cannot be watched.
    pub(super) fn new(config: ExitConfig) -> io::Result<Self> {
        let before = config.before.map(watched).transpose()?;
        let reader = match before {
            Some(_) => Reader::Predecessor,
            None => Reader::Own(None),
        };
        Ok(Self(Arc::new(Inner {
            tun: config.tun,
            mtu: config.mtu,
            reader: watch::Sender::new(reader),
            heir: Mutex::new(before),
            pool: Mutex::new(Pool::new(config.v4, config.v6)),
            clients: Mutex::default(),
            tallies: Mutex::default(),
            full: Seldom::default(),
        })))
    }

    /// The device, for another process.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn bequeath(&self) -> io::Result<InheritedPool> {
        let (ours, theirs) = StdDatagram::pair()?;
        *lock(&self.0.heir) = Some(watched(ours)?);
        let device = self.0.tun.descriptor().try_clone_to_owned()?;
        let answers = theirs.into();
        Ok(InheritedPool { device, answers })
    }

    /// Has the other process read from here on; the places that are in use here.
    pub(super) fn leave(&self) -> Vec<PoolPlace> {
        if let Some(heir) = lock(&self.0.heir).clone() {
            self.0.reader.send_replace(Reader::Successor(heir));
        }
        lock(&self.0.pool).close()
    }

    /// Reads from here on; in the process before this one `places` are in use.
    pub(super) fn take_over(&self, places: &[PoolPlace]) {
        let mut pool = lock(&self.0.pool);
        places.iter().for_each(|place| pool.reserve(*place));
        drop(pool);
        let before = lock(&self.0.heir).clone();
        self.0.reader.send_replace(Reader::Own(before));
    }

    /// The other process has ended.
    pub(super) fn take_all(&self) {
        lock(&self.0.pool).open();
        *lock(&self.0.heir) = None;
        self.0.reader.send_replace(Reader::Own(None));
    }

    /// Gives a client its addresses; `None` where all are in use.
    pub(super) async fn lodge(&self, key: PublicKey, session: u64) -> Option<Lodger> {
        // Milliseconds, while the process before this one says what is in use there.
        let mut reader = self.0.reader.subscribe();
        let is_ready = |reader: &Reader| !matches!(reader, Reader::Predecessor);
        drop(reader.wait_for(is_ready).await);
        let leased = lock(&self.0.pool).lease(key);
        let Some(addresses) = leased else {
            if self.0.full.is_due() {
                let (used, places) = lock(&self.0.pool).fill();
                tracing::warn!(
                    client = %key, used, places,
                    "no address left in the pool: this client's packets beside TCP and UDP are \
                     not carried, pings are; `tabane relay --pool` with a larger range has room"
                );
            }
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
        let mut reader = self.0.reader.subscribe();
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let now = reader.borrow_and_update().clone();
            // The sender lives as long as this does.
            tokio::select! {
                error = self.read(&now, &mut buffer) => {
                    tracing::error!(%error, "the pool's TUN device failed: no packets come back");
                    drop(reader.changed().await);
                }
                _ = reader.changed() => {}
            }
        }
    }

    /// Reads until that fails.
    async fn read(&self, reader: &Reader, buffer: &mut [u8]) -> io::Error {
        loop {
            let read = match reader {
                Reader::Predecessor => std::future::pending().await,
                Reader::Own(_) => self.0.tun.recv(buffer).await,
                Reader::Successor(answers) => answers.recv(buffer).await,
            };
            let packet = match read {
                Ok(length) => &buffer[..length],
                Err(error) => return error,
            };
            if !self.hand_over(packet)
                && let Reader::Own(Some(before)) = reader
            {
                // As a queue that is full, and as one whose reader is gone.
                let _ = before.try_send(packet);
            }
        }
    }

    /// False where it is for nobody here.
    fn hand_over(&self, packet: &[u8]) -> bool {
        // The kernel's own chatter on a new device among them.
        let Ok(header) = IpPacket::parse(packet) else {
            return true;
        };
        let clients = lock(&self.0.clients);
        let Some(client) = clients.get(&header.destination) else {
            return false;
        };
        if client.answers.try_send(packet.to_vec()).is_ok() {
            lock(&client.tally).received += 1;
        }
        true
    }
}

/// A socket for this thread's event loop.
fn watched(socket: StdDatagram) -> io::Result<Arc<UnixDatagram>> {
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket).map(Arc::new)
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
        // A later stream of the session has put its own in the place of these.
        let is_own = |tally: &Tally| Arc::ptr_eq(tally, &self.tally);
        let mut clients = lock(&inner.clients);
        for address in self.addresses.all() {
            if clients.get(&address).is_some_and(|it| is_own(&it.tally)) {
                clients.remove(&address);
            }
        }
        drop(clients);
        let mut tallies = lock(&inner.tallies);
        if tallies.get(&self.session).is_some_and(is_own) {
            tallies.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::seldom::tests::warnings;
    use super::*;
    use std::future::poll_fn;
    use std::net::Ipv4Addr;
    use tabane_base::Duration;

    /// What stands for the device: whole messages, one at a time, as of a TUN device.
    fn device() -> (OwnedFd, StdDatagram) {
        let (device, kernel) = StdDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        (device.into(), kernel)
    }

    fn exit(device: OwnedFd, before: Option<StdDatagram>) -> Exit {
        let tun = Tun::inherit(device, "device").unwrap();
        let (v4, v6, mtu) = (Prefix::parse("100.64.16.0/24"), None, 1_400);
        Exit::new(ExitConfig {
            tun,
            v4,
            v6,
            mtu,
            before,
        })
        .unwrap()
    }

    fn packet_to(address: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 192, 0, 2, 1];
        packet.extend(address.octets());
        packet
    }

    fn address(lodger: &Lodger) -> Ipv4Addr {
        lodger.addresses.v4.unwrap()
    }

    async fn answered(lodger: &mut Lodger) -> bool {
        let own = packet_to(address(lodger));
        poll_fn(|cx| lodger.poll_recv(cx)).await == own
    }

    #[test]
    fn answers_reach_the_sessions_of_both_processes_while_one_reads() {
        let told = crate::block_on(async {
            let (device, kernel) = device();
            let old = exit(device, None);
            let [stays, comes] = [PublicKey([1; 32]), PublicKey([2; 32])];
            let mut staying = old.lodge(stays, 1).await.unwrap();
            tokio::task::spawn_local({
                let old = old.clone();
                async move { old.hand_out().await }
            });
            let tell = |to: Ipv4Addr| kernel.send(&packet_to(to)).unwrap();
            tell(address(&staying));
            assert!(answered(&mut staying).await);

            // The next process has the device, and nobody is given an address there yet.
            let left = old.bequeath().unwrap();
            let new = exit(left.device, Some(left.answers.into()));
            let reading = tokio::task::spawn_local({
                let new = new.clone();
                async move { new.hand_out().await }
            });
            let mut coming = std::pin::pin!(new.lodge(comes, 2));
            let is_waiting = poll_fn(|cx| Poll::Ready(coming.as_mut().poll(cx).is_pending()));
            assert!(is_waiting.await);
            tell(address(&staying));
            assert!(answered(&mut staying).await);

            let places = old.leave();
            assert_eq!(places.len(), 1);
            new.take_over(&places);
            let mut coming = coming.await.unwrap();
            assert_ne!(address(&coming), address(&staying));
            for _ in 0..100 {
                tell(address(&staying));
                tell(address(&coming));
                assert!(answered(&mut staying).await);
                assert!(answered(&mut coming).await);
            }
            assert!(
                old.lodge(comes, 3).await.is_none(),
                "the new one gives places"
            );
            assert!(
                staying.send(&packet_to(address(&coming))).is_ok(),
                "both write"
            );
            let mut sent = [0; 100];
            assert_eq!(kernel.recv(&mut sent).unwrap(), 20);

            // The next process comes to nothing: the old one reads, and gives places.
            drop(coming);
            reading.abort();
            assert!(reading.await.is_err());
            old.take_all();
            tell(address(&staying));
            assert!(answered(&mut staying).await);
            assert!(old.lodge(comes, 4).await.is_some());
        });
        told.unwrap();
    }

    #[test]
    fn the_later_stream_of_a_session_has_the_answers_when_the_earlier_one_ends() {
        let told = crate::block_on(async {
            let (device, kernel) = device();
            let exit = exit(device, None);
            tokio::task::spawn_local({
                let exit = exit.clone();
                async move { exit.hand_out().await }
            });
            let client = PublicKey([1; 32]);
            let earlier = exit.lodge(client, 1).await.unwrap();
            let mut later = exit.lodge(client, 1).await.unwrap();
            drop(earlier);
            kernel.send(&packet_to(address(&later))).unwrap();
            let waiting = tokio::time::timeout(Duration::from_secs(5), answered(&mut later));
            assert_eq!(waiting.await, Ok(true));
            assert_eq!(exit.tally(1).map(|tally| tally.received), Some(1));
            drop(later);
            assert!(exit.tally(1).is_none() && lock(&exit.0.clients).is_empty());
        });
        told.unwrap();
    }

    /// What a hundred goings of a client take, beside so many others who stay.
    async fn gone(others: u64) -> std::time::Duration {
        let (device, _kernel) = device();
        let exit = Exit::new(ExitConfig {
            tun: Tun::inherit(device, "device").unwrap(),
            v4: None,
            v6: Prefix::parse("fd00:1::/64"),
            mtu: 1_400,
            before: None,
        });
        let exit = exit.unwrap();
        let key = |n: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            PublicKey(key)
        };
        let mut staying = Vec::new();
        for n in 0..others {
            staying.push(exit.lodge(key(n), n).await.unwrap());
        }
        let mut least = std::time::Duration::MAX;
        for _ in 0..20 {
            let mut spent = std::time::Duration::ZERO;
            for _ in 0..100 {
                let lodger = exit.lodge(key(others), others).await.unwrap();
                let since = std::time::Instant::now();
                drop(lodger);
                spent += since.elapsed();
            }
            least = least.min(spent);
        }
        assert_eq!(lock(&exit.0.clients).len() as u64, others);
        least
    }

    #[test]
    fn whoever_comes_and_goes_is_not_paid_for_by_a_walk_over_all_clients() {
        let (few, many) = crate::block_on(async { (gone(1).await, gone(10_000).await) }).unwrap();
        println!("100 goings: {few:?} beside one, {many:?} beside 10,000");
        assert!(many < 10 * few.max(std::time::Duration::from_micros(10)));
    }

    #[test]
    fn a_client_that_asks_again_and_again_where_nothing_is_left_fills_no_log() {
        let warnings = warnings(|| {
            let asked = crate::block_on(async {
                let (device, _kernel) = device();
                let exit = exit(device, None);
                let key = |n: u8| PublicKey([n; 32]);
                let mut staying = Vec::new();
                for n in 0..253 {
                    staying.push(exit.lodge(key(n), n.into()).await.unwrap());
                }
                for n in 0..100 {
                    assert!(exit.lodge(key(254), n).await.is_none());
                }
            });
            asked.unwrap();
        });
        assert_eq!(warnings, 1);
    }
}
