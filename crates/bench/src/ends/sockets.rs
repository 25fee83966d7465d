//! What a program's own sockets show: how far writes are ahead, what nobody reads.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Unread;
use super::far::CHUNK;

/// How long downloads fill what there is before another begins.
pub(super) const UNREAD_FOR: Duration = Duration::from_secs(2);
/// How long a socket is waited for at a time.
const STEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Writes for `span`; the most that was written and had not come, by the far end's word.
pub(super) fn ahead(stream: &TcpStream, span: Duration) -> Result<u64> {
    stream.set_nonblocking(true)?;
    let (mut told, mut written, mut most) = (Told::default(), 0_u64, 0);
    let until = Instant::now() + span;
    let chunk = vec![0; CHUNK];
    while Instant::now() < until {
        let wanted = PollFlags::IN | PollFlags::OUT;
        let mut ready = [PollFd::new(stream, wanted)];
        poll(&mut ready, Some(&STEP)).context("cannot wait for a socket")?;
        let ready = ready[0].revents();
        if ready.contains(PollFlags::IN) {
            told.take(stream)?;
        }
        if ready.contains(PollFlags::OUT) {
            match { stream }.write(&chunk) {
                Ok(length) => written += length as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("an upload"),
            }
        }
        most = most.max(written - told.bytes);
    }
    ensure!(told.bytes > 0, "nothing of {written} bytes has come");
    Ok(most)
}

/// The far end's words, of eight bytes each.
#[derive(Debug, Default)]
struct Told {
    rest: Vec<u8>,
    bytes: u64,
}

impl Told {
    fn take(&mut self, mut stream: &TcpStream) -> Result<()> {
        let mut buffer = [0; 4_096];
        let length = stream.read(&mut buffer).context("the far end's word")?;
        ensure!(length > 0, "the far end has gone");
        self.rest.extend_from_slice(&buffer[..length]);
        let whole = self.rest.len() / 8 * 8;
        if let Some(last) = self.rest[..whole].last_chunk() {
            self.bytes = u64::from_be_bytes(*last);
        }
        self.rest.drain(..whole);
        Ok(())
    }
}

/// Opens so many downloads that nobody reads, later one more, and reads that for `span`.
pub(super) fn unread(
    connections: usize,
    open: impl Fn() -> Result<TcpStream>,
    span: Duration,
) -> Result<Unread> {
    let before = received()?;
    let unread = (0..connections)
        .map(|_| open())
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(UNREAD_FOR);
    let bytes_each = (received()? - before) / connections.max(1) as u64;
    let mut other = open()?;
    let (mut chunk, mut bytes) = (vec![0; CHUNK], 0);
    let began_at = Instant::now();
    while began_at.elapsed() < span {
        let length = other.read(&mut chunk).context("a download")?;
        ensure!(length > 0, "a download has ended");
        bytes += length;
    }
    drop(unread);
    Ok(Unread {
        bytes_each,
        beside_bps: bytes as f64 * 8.0 / began_at.elapsed().as_secs_f64(),
    })
}

/// By all interfaces but loopback: field 1 of a line of `/proc/net/dev`.
fn received() -> Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let lines = table.lines().filter_map(|line| line.split_once(':'));
    let links = lines.filter(|(name, _)| name.trim() != "lo");
    let counted = links.filter_map(|(_, counters)| {
        let first = counters.split_whitespace().next()?;
        first.parse::<u64>().ok()
    });
    Ok(counted.sum())
}
