//! How much a program on this machine may write ahead of what its connection carries.
//!
//! Owns the receive buffer of our end of such a connection. The kernel would let it grow to
//! megabytes, because here everything is near and fast; the links behind are neither, and what lies
//! in the buffer is called sent by whoever wrote it. Programs of other machines are left to the
//! kernel: their way to us needs a buffer of its own.
//!
//! A buffer that takes fewer than two segments stops a connection: its sender waits for room for a
//! whole one (RFC 9293 §3.8.6.2.1) and asks only every 200 ms. Loopback's segments have 64 kB, so
//! a listener that wants small buffers asks for smaller ones.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use tabane_base::{Duration, Instant};
use tokio::net::TcpStream;

/// Of connections to a listener of ours. The kernel's offloading makes large ones of them anyway.
const SEGMENT: u32 = 8 * 1024;
/// Two that the window has room for, as the kernel counts its own costs, and two as a reserve.
const LEAST_SEGMENTS: usize = 4;
/// Enough for any link.
const MOST: usize = 4 << 20;

/// Has programs that connect to `listener` send segments that small buffers have room for.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn allow_small_buffers(listener: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(listener, sockopt::TcpMaxSeg, &SEGMENT)?)
}

/// A buffer that shrinks refuses what its sender still may send, which comes again after 200 ms, so
/// that a passing dip of the limit should not do it.
const SHRINKS_AFTER: Duration = Duration::from_millis(500);

/// Of one connection.
#[derive(Debug)]
pub struct ReadAhead {
    /// Bytes the kernel takes in; `None` where that is the kernel's affair.
    given: Option<usize>,
    least: usize,
    /// The most wanted since `began`, and in the period before that.
    wanted: [usize; 2],
    began: Instant,
}

impl ReadAhead {
    /// Of a connection with `tcp` as our end.
    #[must_use]
    pub fn of(tcp: &TcpStream) -> Self {
        let is_here = |peer: std::net::SocketAddr| peer.ip().to_canonical().is_loopback();
        // Ours towards the program are of the size of the program's towards us.
        let segment = getsockopt(tcp, sockopt::TcpMaxSeg).map_or(usize::MAX, |size| size as usize);
        Self {
            given: tcp.peer_addr().is_ok_and(is_here).then_some(0),
            least: segment.saturating_mul(LEAST_SEGMENTS).min(MOST),
            wanted: [0; 2],
            began: Instant::from_millis(0),
        }
    }

    /// Has the kernel take in no more than an eighth of `limit`, which the next hop holds at most.
    /// It follows upwards at once, and downwards within a second.
    pub fn follow(&mut self, tcp: &impl AsFd, now: Instant, limit: usize) {
        let Some(given) = self.given else {
            return;
        };
        let wanted = (limit / 8).clamp(self.least, MOST);
        if now.since(self.began) >= SHRINKS_AFTER {
            self.wanted = [0, self.wanted[0]];
            self.began = now;
        }
        self.wanted[0] = self.wanted[0].max(wanted);
        let wanted = self.wanted[0].max(self.wanted[1]);
        // Each step costs a system call, and none is worth it that changes little.
        if wanted > given.saturating_mul(5) / 4 || wanted <= given / 2 {
            self.give(tcp, wanted);
        }
    }

    fn give(&mut self, tcp: &impl AsFd, wanted: usize) {
        // Before the first step the kernel has offered half of its own buffer, as it counts.
        let offered = || getsockopt(tcp, sockopt::RcvBuf).unwrap_or_default() / 4;
        let wanted = match self.given {
            Some(0) => wanted.max(offered()),
            _ => wanted,
        };
        self.given = Some(wanted);
        if let Err(error) = setsockopt(tcp, sockopt::RcvBuf, &wanted) {
            tracing::debug!(%error, "SO_RCVBUF stays as it is");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const CHUNK: usize = 64 * 1024;
    const SIZE: usize = 4_096 * CHUNK;

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
            read_ahead.follow(&ours, now, *limit);
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

    #[tokio::test]
    async fn the_buffer_follows_the_limit_up_at_once_and_down_within_a_second() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        allow_small_buffers(&listener).unwrap();
        let (_program, ours) = pair(&listener).await;
        let mut read_ahead = ReadAhead::of(&ours);
        let mut given = |ms, limit| {
            read_ahead.follow(&ours, Instant::from_millis(ms), limit);
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
