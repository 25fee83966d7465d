//! The engine's sockets: UDP sockets, by number and with what a full one could not take, and the
//! byte streams beside them.
//!
//! Owns what happens to a packet that cannot be sent. A socket whose buffer is full holds what
//! core has already given out, up to [`MAX_HELD`], and drops beyond that, as any full queue does:
//! one stuck link must not hold up the others. A socket whose interface, address or route is gone
//! is reported once; whether it is replaced is the owner's affair.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, ready};

use tabane_core::{FourTuple, SocketId, Transmit, TransmitBatch};
use tabane_linux::udp::{BoundUdp, Meta};
use tabane_linux::{RecvBatch, SendFault, UdpError, UdpSocket};

use super::streams::Streams;
use super::volume::Volume;

/// Bytes held for a socket that takes no more: what one transmit batch may bring.
const MAX_HELD: usize = 512 * 1024;

#[derive(Default)]
pub(super) struct Sockets {
    pub(super) streams: Streams,
    sockets: Vec<Entry>,
    next_id: u32,
    /// Lost since the owner last asked.
    lost: Vec<SocketId>,
    /// Of sockets that are closed, by link.
    past: BTreeMap<String, Volume>,
}

struct Entry {
    id: SocketId,
    /// What the monitor calls the link it leads over.
    link: String,
    socket: UdpSocket,
    /// Answers leave from the address that the question came to.
    answers_locally: bool,
    /// The owner has been told that nothing leaves here.
    is_reported: bool,
    held: VecDeque<Held>,
    held_bytes: usize,
    volume: Volume,
}

/// A transmit that waits for its socket.
struct Held {
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    segment_size: usize,
    contents: Vec<u8>,
}

impl Sockets {
    /// Takes a socket in.
    pub(super) fn adopt(
        &mut self,
        link: &str,
        bound: BoundUdp,
        mark: Option<u32>,
        answers_locally: bool,
    ) -> Result<SocketId, UdpError> {
        let local = bound.local_addr();
        let socket = UdpSocket::watch(bound)?;
        if let Some(mark) = mark {
            socket
                .set_mark(mark)
                .map_err(|source| UdpError::Configure {
                    local,
                    option: "SO_MARK",
                    source,
                })?;
        }
        if !answers_locally && let Err(error) = socket.ignore_local_ip() {
            tracing::debug!(%error, "IP_PKTINFO stays as it is");
        }
        let id = SocketId(self.next_id);
        self.next_id += 1;
        self.sockets.push(Entry {
            id,
            link: link.to_owned(),
            socket,
            answers_locally,
            is_reported: false,
            held: VecDeque::new(),
            held_bytes: 0,
            volume: Volume::default(),
        });
        Ok(id)
    }

    pub(super) fn unbind(&mut self, id: SocketId) {
        if let Some((link, volume)) = self.streams.detach(id) {
            *self.past.entry(link).or_default() += volume;
        }
        for closed in self.sockets.extract_if(.., |entry| entry.id == id) {
            *self.past.entry(closed.link).or_default() += closed.volume;
        }
    }

    /// Sends every transmit of `batch`; what cannot be sent waits or is lost.
    pub(super) fn send(&mut self, batch: &TransmitBatch) {
        for transmit in batch.iter() {
            let id = transmit.tuple.socket;
            if id.is_ordered() {
                self.streams.send(&transmit);
                continue;
            }
            let Some(entry) = self.sockets.iter_mut().find(|entry| entry.id == id) else {
                continue;
            };
            if !entry.held.is_empty() {
                entry.hold(transmit);
                continue;
            }
            match entry.socket.try_send(outgoing(&transmit)) {
                Ok(()) => entry
                    .volume
                    .on_sent(transmit.contents, transmit.segment_size),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => entry.hold(transmit),
                Err(error) => entry.handle_fault(&error, &mut self.lost),
            }
        }
    }

    /// Sends what was held where sockets take data again, and has the task woken where not;
    /// `true` where a socket came free.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> bool {
        let mut freed = false;
        for entry in &mut self.sockets {
            let held_something = !entry.held.is_empty();
            while !entry.held.is_empty()
                && let Poll::Ready(Ok(())) = entry.socket.poll_writable(cx)
            {
                entry.send_held(&mut self.lost);
            }
            freed |= held_something && entry.held.is_empty();
        }
        freed
    }

    /// The sockets lost since the last question.
    pub(super) fn take_lost(&mut self) -> Vec<SocketId> {
        std::mem::take(&mut self.lost)
    }

    /// Receives into `batch`; `unasked` what the loop has not been told of, too. After `true` there
    /// may be more, and after `false` there is none that the loop is not told of.
    pub(super) fn poll_recv(
        &self,
        index: usize,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch,
        unasked: bool,
    ) -> Poll<bool> {
        match ready!(self.sockets[index].socket.poll_recv(cx, batch, unasked)) {
            Ok(_) => Poll::Ready(batch.is_full()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Ready(false),
            Err(error) => {
                // ICMP errors of earlier sends surface here; losses are core's affair.
                tracing::trace!(%error, "receive");
                Poll::Ready(true)
            }
        }
    }

    /// Where a datagram that socket `index` received came from.
    pub(super) fn tuple(&self, index: usize, meta: Meta) -> FourTuple {
        let entry = &self.sockets[index];
        FourTuple {
            socket: entry.id,
            local_ip: meta.local_ip.filter(|_| entry.answers_locally),
            remote: meta.remote,
        }
    }

    /// Socket `index` received a datagram.
    pub(super) fn on_received(&mut self, index: usize, datagram: &[u8]) {
        self.sockets[index].volume.on_received(datagram);
    }

    /// What the sockets over `link`, or all, have carried, those that are closed included.
    pub(super) fn volume(&self, link: Option<&str>) -> Volume {
        let past = self.past.iter();
        let present = self.sockets.iter().map(|it| (&it.link, &it.volume));
        let of = past
            .chain(present)
            .chain(self.streams.volumes())
            .filter(|(name, _)| link.is_none_or(|link| link == *name));
        of.fold(Volume::default(), |mut sum, (_, volume)| {
            sum += *volume;
            sum
        })
    }

    /// What the monitor calls the link of a socket.
    pub(super) fn link(&self, id: SocketId) -> Option<&str> {
        if id.is_ordered() {
            return self.streams.link(id);
        }
        let entry = self.sockets.iter().find(|entry| entry.id == id)?;
        Some(&entry.link)
    }

    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether there are sockets and none of them takes anything.
    pub(super) fn all_blocked(&self) -> bool {
        let blocked = |entry: &Entry| !entry.held.is_empty();
        let is_some = !self.sockets.is_empty() && self.streams.is_empty();
        is_some && self.sockets.iter().all(blocked)
    }
}

#[cfg(test)]
impl Sockets {
    /// Has all of them full.
    pub(super) fn block(&mut self) {
        for entry in &mut self.sockets {
            let remote = entry.socket.local_addr();
            entry.held.push_back(Held {
                remote: remote.unwrap(),
                local_ip: None,
                segment_size: 1,
                contents: vec![0],
            });
            entry.held_bytes += 1;
        }
    }
}

impl Entry {
    fn hold(&mut self, transmit: Transmit<'_>) {
        if self.held_bytes + transmit.contents.len() > MAX_HELD {
            return;
        }
        self.held_bytes += transmit.contents.len();
        self.held.push_back(Held {
            remote: transmit.tuple.remote,
            local_ip: transmit.tuple.local_ip,
            segment_size: transmit.segment_size,
            contents: transmit.contents.to_vec(),
        });
    }

    fn send_held(&mut self, lost: &mut Vec<SocketId>) {
        let Some(held) = self.held.front() else {
            return;
        };
        let result = self.socket.try_send(tabane_linux::Transmit {
            remote: held.remote,
            local_ip: held.local_ip,
            segment_size: Some(held.segment_size),
            contents: &held.contents,
        });
        if let Err(error) = &result {
            if error.kind() == io::ErrorKind::WouldBlock {
                return;
            }
            self.handle_fault(error, lost);
        }
        if let Some(held) = self.held.pop_front() {
            self.held_bytes -= held.contents.len();
            if result.is_ok() {
                self.volume.on_sent(&held.contents, held.segment_size);
            }
        }
    }

    fn handle_fault(&mut self, error: &io::Error, lost: &mut Vec<SocketId>) {
        let Some(fault) = SendFault::of(error) else {
            return;
        };
        match fault {
            // A socket that serves several addresses meets these for single clients only.
            SendFault::NoDevice
            | SendFault::SourceGone
            | SendFault::NetworkDown
            | SendFault::NetworkUnreachable
                if !self.answers_locally =>
            {
                if !std::mem::replace(&mut self.is_reported, true) {
                    tracing::debug!(socket = self.id.0, ?fault, "a socket is lost");
                    lost.push(self.id);
                }
            }
            // A packet lost on its way, as far as core is concerned: it will find out by the
            // missing acknowledgement.
            SendFault::NoDevice
            | SendFault::SourceGone
            | SendFault::NetworkDown
            | SendFault::NetworkUnreachable
            | SendFault::TooLarge
            | SendFault::Refused
            | SendFault::HostUnreachable
            | SendFault::Denied
            | SendFault::QueueFull
            | SendFault::Other(_) => {
                tracing::trace!(socket = self.id.0, ?fault, "not sent");
            }
        }
    }
}

fn outgoing<'a>(transmit: &Transmit<'a>) -> tabane_linux::Transmit<'a> {
    tabane_linux::Transmit {
        remote: transmit.tuple.remote,
        local_ip: transmit.tuple.local_ip,
        segment_size: Some(transmit.segment_size),
        contents: transmit.contents,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::net::UdpSocket as StdUdpSocket;
    use tabane_linux::UdpBind;

    fn bound(remote: SocketAddr) -> (Sockets, FourTuple) {
        let mut sockets = Sockets::default();
        let local = "127.0.0.1:0".parse().unwrap();
        let interface = None;
        let bound = BoundUdp::bind(UdpBind { interface, local }).unwrap();
        let socket = sockets.adopt("lo", bound, None, false);
        let tuple = FourTuple {
            socket: socket.unwrap(),
            local_ip: None,
            remote,
        };
        (sockets, tuple)
    }

    #[test]
    fn a_full_socket_holds_so_much_and_sends_it_once_it_can() {
        let receiver = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = receiver.local_addr().unwrap();
        let patience = std::time::Duration::from_secs(5);
        receiver.set_read_timeout(Some(patience)).unwrap();
        crate::block_on(async {
            let (mut sockets, tuple) = bound(remote);
            assert!(!sockets.all_blocked());
            let contents = [7; 10_000];
            for _ in 0..100 {
                sockets.sockets[0].hold(Transmit {
                    tuple,
                    segment_size: 1_000,
                    contents: &contents,
                });
            }
            assert!(sockets.all_blocked());
            let held = sockets.sockets[0].held.len();
            assert_eq!(held, MAX_HELD / contents.len());

            poll_fn(|cx| {
                if sockets.flush(cx) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            assert!(!sockets.all_blocked());
            assert_eq!(sockets.sockets[0].held_bytes, 0);
            // The receiver's own buffer holds only some of it.
            let mut buffer = [0; 2_000];
            for _ in 0..50 {
                assert_eq!(receiver.recv(&mut buffer).unwrap(), 1_000);
            }
            // What was held is counted once it is sent, and not forgotten with the socket.
            let sent = sockets.volume(Some("lo"));
            assert_eq!(sent.sent.get() as usize, held * contents.len());
            assert_eq!(sent.sent_packets as usize, held * 10);
            sockets.unbind(tuple.socket);
            assert_eq!(sockets.volume(Some("lo")), sent);
            assert_eq!(sockets.volume(Some("eth0")), Volume::default());
        })
        .unwrap();
    }

    #[test]
    fn a_socket_that_cannot_send_is_reported_once() {
        crate::block_on(async {
            let (mut sockets, tuple) = bound("127.0.0.1:9".parse().unwrap());
            let mut lost = Vec::new();
            let no_device = io::Error::from_raw_os_error(19);
            let too_large = io::Error::from_raw_os_error(90);
            for error in [&too_large, &no_device, &no_device] {
                sockets.sockets[0].handle_fault(error, &mut lost);
            }
            assert_eq!(lost, [tuple.socket]);

            // A relay's socket serves other clients still.
            sockets.sockets[0].is_reported = false;
            sockets.sockets[0].answers_locally = true;
            sockets.sockets[0].handle_fault(&no_device, &mut lost);
            assert_eq!(lost.len(), 1);
        })
        .unwrap();
    }
}
