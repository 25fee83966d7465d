//! How much whoever writes may be ahead of what its connection carries.
//!
//! Owns the receive buffer of our end of such a connection. The kernel would let it grow to
//! megabytes, because the way to us is fast; the links behind are not, and what lies in the buffer
//! is called sent by whoever wrote it. A program on this machine needs hardly any buffer; one of
//! another machine needs what its own way to us holds as well. Where the kernel does not let us
//! give so much, the buffer is left to the kernel.
//!
//! A buffer that takes fewer than two segments stops a connection: its sender waits for room for a
//! whole one (RFC 9293 §3.8.6.2.1) and asks only every 200 ms. Loopback's segments have 64 kB, so
//! who wants small buffers there asks for smaller ones (`buffers`).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use tabane_base::{Duration, Instant};
use tokio::net::TcpStream;

use crate::buffers;
use crate::private_net::stands_for_a_program;
use crate::tcp_info::round_trip;

/// Two that the window has room for, as the kernel counts its own costs, and two as a reserve.
const LEAST_SEGMENTS: usize = 4;
/// Of machines elsewhere, and at least: what a kernel offers everybody at first.
const LEAST_ELSEWHERE: usize = 64 * 1024;
/// Enough for any link.
const MOST: usize = 4 << 20;

/// A buffer that shrinks refuses what its sender still may send, and a connection that has lost
/// anything is slow for long: less is offered first, and the buffer follows so much later.
const SHRINKS_AFTER: Duration = Duration::from_millis(500);

/// What passes in so long may always wait: with less, whoever writes and we wake each other for
/// every few packets, which costs a third of the goodput where round trips are shorter.
const TURN: Duration = Duration::from_millis(4);

/// What the next hop does with what is read here.
#[derive(Clone, Copy, Debug)]
pub struct Onward {
    /// What it holds at most: some round trips of its paths.
    pub limit: usize,
    /// The round trip of the farthest of them.
    pub round_trip: Duration,
    /// Bytes it has got since the beginning.
    pub passed: u64,
}

/// Of one connection.
#[derive(Debug)]
pub struct ReadAhead {
    /// Bytes the kernel takes in; 0 before the first step.
    given: usize,
    /// Of these, what it offers.
    offered: usize,
    /// The round trip to whoever writes; `None` on this machine.
    round_trip: Option<Duration>,
    least: usize,
    /// The most wanted since `began`, and in the period before that.
    wanted: [usize; 2],
    began: Instant,
    /// Bytes that had passed by then, and what passed in a [`TURN`] before that.
    passed: u64,
    turn: usize,
}

impl ReadAhead {
    /// Of a connection with `tcp` as our end.
    #[must_use]
    pub fn of(tcp: &TcpStream) -> Self {
        let is_here = |peer: std::net::SocketAddr| {
            peer.ip().to_canonical().is_loopback() || stands_for_a_program(peer)
        };
        Self::by_place(tcp, tcp.peer_addr().is_ok_and(is_here))
    }

    fn by_place(tcp: &TcpStream, is_here: bool) -> Self {
        // Ours towards the program are of the size of the program's towards us.
        let segment = getsockopt(tcp, sockopt::TcpMaxSeg).map_or(usize::MAX, |size| size as usize);
        Self {
            given: 0,
            offered: 0,
            round_trip: (!is_here).then(|| round_trip(tcp)),
            least: match (is_here, segment.saturating_mul(LEAST_SEGMENTS).min(MOST)) {
                (true, least) => least,
                // A service beside us has an address like any other.
                (false, least) => least.max(LEAST_ELSEWHERE),
            },
            wanted: [0; 2],
            began: Instant::from_millis(0),
            passed: 0,
            turn: 0,
        }
    }

    /// Has the kernel take in no more than an eighth of what the next hop holds at most, or what
    /// passed in a [`TURN`], and from elsewhere what that passes on in three round trips of the
    /// way to us. It follows upwards at
    /// once, and downwards within a second.
    pub fn follow(&mut self, tcp: &impl AsFd, now: Instant, onward: Onward) {
        if now.since(self.began) >= SHRINKS_AFTER {
            self.wanted = [0, self.wanted[0]];
            let bytes = u128::from(onward.passed.saturating_sub(self.passed));
            let turn = bytes * TURN.as_micros() / now.since(self.began).as_micros();
            self.turn = usize::try_from(turn).unwrap_or(usize::MAX);
            self.passed = onward.passed;
            self.began = now;
            if let Some(known) = &mut self.round_trip {
                *known = round_trip(tcp);
            }
        }
        let wanted = self.wanted(onward).clamp(self.least, MOST);
        self.wanted[0] = self.wanted[0].max(wanted);
        let lasting = self.wanted[0].max(self.wanted[1]);
        if changes(self.given, lasting) {
            self.give(tcp, lasting);
        }
        if changes(self.offered, self.wanted[0]) {
            self.offer(tcp, self.wanted[0]);
        }
    }

    fn wanted(&self, onward: Onward) -> usize {
        let way = self.round_trip.map_or(0, |own| {
            // The limit is some three farthest round trips' worth.
            let own = own.as_micros() * onward.limit as u128;
            let way = own / onward.round_trip.as_micros().max(1);
            usize::try_from(way).unwrap_or(usize::MAX)
        });
        self.turn.max(onward.limit / 8).saturating_add(way)
    }

    fn give(&mut self, tcp: &impl AsFd, wanted: usize) {
        // Before the first step the kernel has offered half of its own buffer, as it counts.
        let offered = || getsockopt(tcp, sockopt::RcvBuf).unwrap_or_default() / 4;
        let wanted = match self.given {
            0 => wanted.max(offered()),
            _ => wanted,
        };
        self.given = wanted;
        let given = match self.round_trip {
            None => setsockopt(tcp, sockopt::RcvBuf, &wanted).map_err(io::Error::from),
            Some(_) => give_elsewhere(tcp, wanted),
        };
        if let Err(error) = given {
            tracing::debug!(%error, "SO_RCVBUF stays as it is");
        }
        self.offer(tcp, wanted);
    }

    fn offer(&mut self, tcp: &impl AsFd, wanted: usize) {
        self.offered = wanted;
        // What it was when the connection began would hold otherwise.
        if let Err(error) = set(tcp, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, wanted) {
            tracing::debug!(%error, "TCP_WINDOW_CLAMP stays as it is");
        }
    }
}

/// Each step costs system calls, and none is worth them that changes little.
const fn changes(from: usize, to: usize) -> bool {
    to > from.saturating_mul(5) / 4 || to <= from / 2
}

/// A buffer of `wanted` bytes for whoever needs all of it; where we may not have that much, the
/// kernel's own.
fn give_elsewhere(tcp: &impl AsFd, wanted: usize) -> io::Result<()> {
    buffers::grow_receive(tcp, wanted)?;
    if getsockopt(tcp, sockopt::RcvBuf)? < 2 * wanted {
        return set(tcp, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0);
    }
    Ok(())
}

fn set(tcp: &impl AsFd, level: i32, option: i32, value: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, and the option is an int.
    let done = unsafe {
        libc::setsockopt(
            tcp.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;
    use crate::buffers::{SEGMENT, allow_small_buffers};

    const CHUNK: usize = 64 * 1024;
    const SIZE: usize = 4_096 * CHUNK;

    fn onward(limit: usize) -> Onward {
        let round_trip = Duration::from_millis(20);
        Onward {
            limit,
            round_trip,
            passed: 0,
        }
    }

    #[tokio::test]
    async fn what_passes_in_a_turn_may_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_program, ours) = pair(&listener).await;
        let mut read_ahead = ReadAhead::of(&ours);
        for (ms, passed) in [(500, 0), (1_000, 125_000_000)] {
            let onward = Onward {
                passed,
                ..onward(64_000)
            };
            read_ahead.follow(&ours, Instant::from_millis(ms), onward);
        }
        assert!(read_ahead.given >= 1_000_000, "{}", read_ahead.given);
    }

    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().unwrap();
        let program = TcpSocket::new_v4().unwrap().connect(address).await;
        (program.unwrap(), listener.accept().await.unwrap().0)
    }

    /// Has [`SIZE`] bytes go to a reader whose limit goes up and down between its reads; the time
    /// that took.
    async fn carry(listener: TcpListener) -> std::time::Duration {
        let (mut program, mut ours) = pair(&listener).await;
        let mut read_ahead = ReadAhead::of(&ours);
        let begun = std::time::Instant::now();
        let writing = tokio::spawn(async move {
            for _ in 0..SIZE / CHUNK {
                program.write_all(&[7; CHUNK]).await.unwrap();
            }
        });
        let mut chunk = vec![0; CHUNK];
        let mut left = SIZE;
        for limit in [[16 << 20; 5], [100_000; 5]].iter().flatten().cycle() {
            let now = Instant::from_millis(begun.elapsed().as_millis() as u64);
            read_ahead.follow(&ours, now, onward(*limit));
            left -= ours.read(&mut chunk).await.unwrap();
            if left == 0 {
                break;
            }
        }
        writing.await.unwrap();
        begun.elapsed()
    }

    #[tokio::test]
    async fn a_limit_that_goes_up_and_down_stops_no_connection() {
        for is_small in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if is_small {
                allow_small_buffers(&listener).unwrap();
            }
            let took = carry(listener).await;
            // Some 0.2 s; 4 s where each fall of the limit has data refused.
            assert!(took.as_secs() < 2, "{took:?}, small segments: {is_small}");
        }
    }

    /// A service on the relay's own machine has an address like any other.
    #[tokio::test]
    async fn a_service_here_that_is_not_known_to_be_waits_for_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut program, mut ours) = pair(&listener).await;
        let writing = tokio::spawn(async move { program.write_all(&vec![7; SIZE]).await });
        let mut read_ahead = ReadAhead::by_place(&ours, false);
        let (mut chunk, mut read) = (vec![0; CHUNK / 4], 0);
        let begun = std::time::Instant::now();
        while read < SIZE {
            // 13 MB a second, over fast links, and then over slow ones.
            let ms = (read / CHUNK * 5) as u64;
            let limit = if ms < 1_000 { 16 << 20 } else { 300_000 };
            read_ahead.follow(&ours, Instant::from_millis(ms), onward(limit));
            read += ours.read(&mut chunk).await.unwrap();
        }
        // 0.2 s each time that the window has no room for a segment.
        let took = begun.elapsed();
        assert!(took.as_secs() < 2, "{took:?}");
        writing.await.unwrap().unwrap();
    }

    /// A connection that has lost anything is slow for long.
    #[tokio::test]
    async fn nothing_that_was_offered_is_refused() {
        // Two processors put packets out of order even on loopback, and that repeats some as well.
        let mut processor = nix::sched::CpuSet::new();
        let here = nix::sched::sched_getcpu().unwrap();
        processor.set(here).unwrap();
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &processor).unwrap();
        // Where a buffer shrinks at once, some 14 to 300 each time; beside others at work five, and
        // twelve now and then.
        let mut counts = Vec::new();
        while counts.iter().all(|repeated| *repeated >= 10) {
            assert!(counts.len() < 3, "{counts:?}");
            counts.push(repeated_while_the_limit_swings().await);
        }
    }

    async fn repeated_while_the_limit_swings() -> u32 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        allow_small_buffers(&listener).unwrap();
        let (program, mut ours) = pair(&listener).await;
        let mut program = program.into_std().unwrap();
        program.set_nonblocking(false).unwrap();
        let writing = std::thread::spawn(move || {
            std::io::Write::write_all(&mut program, &vec![7; SIZE]).unwrap();
            program
        });
        let mut read_ahead = ReadAhead::of(&ours);
        // Time goes by what is read, 13 MB a second, and the limit falls in every other second.
        let (mut chunk, mut read) = (vec![0; CHUNK], 0);
        while read < SIZE {
            let ms = (read / CHUNK * 5) as u64;
            let limit = [16 << 20, 10_000][(ms / 1_000 % 2) as usize];
            read_ahead.follow(&ours, Instant::from_millis(ms), onward(limit));
            read += ours.read(&mut chunk).await.unwrap();
        }
        let program = writing.join().unwrap();
        crate::tcp_info::repeated(&program).unwrap()
    }

    #[tokio::test]
    async fn the_buffer_follows_the_limit_up_at_once_and_down_within_a_second() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        allow_small_buffers(&listener).unwrap();
        let (_program, ours) = pair(&listener).await;
        let mut read_ahead = ReadAhead::of(&ours);
        let mut given = |ms, limit| {
            read_ahead.follow(&ours, Instant::from_millis(ms), onward(limit));
            getsockopt(&ours, sockopt::RcvBuf).unwrap() / 2
        };
        let first = given(0, 10_000);
        assert!(first <= 32 * 1024, "{first}");
        assert_eq!(given(10, 1_600_000), 200_000);
        assert_eq!(given(20, 10_000), 200_000);
        given(510, 10_000);
        assert_eq!(given(1_010, 10_000), 4 * (SEGMENT as usize - 12));
    }
}
