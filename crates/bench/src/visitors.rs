//! A server, and those who visit it.
//!
//! The server greets with a byte, reads how many bytes are wanted (8 bytes, big-endian), sends them
//! and closes. Every wait has an end, so that what is lost is counted and not waited for.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tabane_linux::netns::Netns;

/// Longer than a connection that is there takes on these links, beside a thousand others.
const PATIENCE: Duration = Duration::from_secs(20);
/// Thousands of threads that hardly do anything.
const STACK: usize = 128 * 1024;
/// Connections that wait for the server: more than come at once. The library's 128 are too few: the
/// kernel answers the rest by SYN cookies, and forgets a visitor whose last segment of the
/// handshake finds the queue full. That one is connected, and waits for ever for a server that
/// speaks first.
const QUEUE: i32 = 4_096;
static PIECE: [u8; 65_536] = [7; 65_536];

/// When how many bytes came.
pub(super) type Course = Vec<(Instant, usize)>;

/// Serves at a port of a host until this program ends.
pub(super) fn serve(at: &Netns, port: u16) -> Result<()> {
    let listener = at.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    let listener = listener.with_context(|| format!("port {port} for the server"))?;
    serve_by(listener).context("a longer queue for the server")
}

fn serve_by(listener: TcpListener) -> io::Result<()> {
    // Once more, with a longer queue (listen(2)).
    rustix::net::listen(&listener, QUEUE)?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answering = move || {
                // A visitor who leaves is not the server's business.
                let _ = answer(connection);
            };
            let _ = thread::Builder::new().stack_size(STACK).spawn(answering);
        }
    });
    Ok(())
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    connection.write_all(b"h")?;
    let mut wanted = [0; 8];
    connection.read_exact(&mut wanted)?;
    let mut left = usize::try_from(u64::from_be_bytes(wanted)).unwrap_or(usize::MAX);
    while left > 0 {
        let piece = &PIECE[..left.min(PIECE.len())];
        connection.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

/// How long a connection takes to be there, and the server's first byte.
pub(super) fn set_up(at: &Netns, to: SocketAddr) -> Result<[Duration; 2]> {
    let times = at.run(|| -> io::Result<_> {
        let begin = Instant::now();
        let mut connection = TcpStream::connect_timeout(&to, PATIENCE)?;
        let there = begin.elapsed();
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.read_exact(&mut [0])?;
        Ok([there, begin.elapsed()])
    })?;
    times.with_context(|| format!("no first byte from {to}"))
}

fn connect(at: &Netns, to: SocketAddr) -> Result<TcpStream> {
    let connection = at.run(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    let connection = connection.with_context(|| format!("cannot connect to {to}"))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// A download for so long: its course goes on in another thread.
pub(super) fn download(
    at: &Netns,
    to: SocketAddr,
    lasts: Duration,
) -> Result<thread::JoinHandle<io::Result<Course>>> {
    let mut connection = connect(at, to)?;
    connection.read_exact(&mut [0])?;
    connection.write_all(&u64::MAX.to_be_bytes())?;
    Ok(thread::spawn(move || {
        let deadline = Instant::now() + lasts;
        let mut course = vec![(Instant::now(), 0)];
        let mut buffer = vec![0; PIECE.len()];
        while Instant::now() < deadline {
            match connection.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => course.push((Instant::now(), len)),
            }
        }
        Ok(course)
    }))
}

/// The course of a download that is over.
pub(super) fn joined(download: thread::JoinHandle<io::Result<Course>>) -> Result<Course> {
    match download.join() {
        Ok(course) => course.context("the download broke"),
        Err(_) => bail!("the download's thread has panicked"),
    }
}

/// What came in its time, in Mbit/s.
pub(super) fn rate_mbps(course: &Course) -> f64 {
    let bytes: usize = course.iter().map(|(_, len)| len).sum();
    let span = course.first().zip(course.last());
    let seconds = span.map_or(0.0, |(first, last)| (last.0 - first.0).as_secs_f64());
    bytes as f64 * 8.0 / seconds.max(1e-3) / 1e6
}

/// The longest silence after a cut; infinite where nothing came any more.
pub(super) fn silence_ms(course: &Course, cut_at: Instant) -> f64 {
    let later = course.windows(2).filter(|two| two[1].0 > cut_at);
    let silences = later.map(|two| (two[1].0 - two[0].0).as_secs_f64() * 1e3);
    // None came at all.
    silences.fold(0.0, f64::max).max(match course.last() {
        Some((last, _)) if *last > cut_at => 0.0,
        _ => f64::INFINITY,
    })
}

/// A crowd of visitors, and what became of it.
#[derive(Default)]
pub(super) struct Crowd {
    pub(super) served: usize,
    /// What the others have seen, and how many of them.
    pub(super) lost: BTreeMap<String, usize>,
}

/// So many who are all connected before the first of them goes.
pub(super) fn at_once(at: &Netns, to: SocketAddr, visitors: usize) -> Result<Crowd> {
    Ok(at.run(|| come_at_once(to, visitors))?)
}

fn come_at_once(to: SocketAddr, visitors: usize) -> Crowd {
    let (crowd, all_here) = (Mutex::new(Crowd::default()), Barrier::new(visitors));
    let visit = || {
        let greeted = greet(to);
        all_here.wait();
        let (when, seen) = match greeted {
            Ok(connection) => ("asking", ask(connection)),
            Err(error) => ("waiting for the first byte", Err(error)),
        };
        let mut crowd = crowd.lock().unwrap_or_else(PoisonError::into_inner);
        match seen {
            Ok(()) => crowd.served += 1,
            Err(error) => *crowd.lost.entry(format!("{when}: {error}")).or_default() += 1,
        }
    };
    thread::scope(|scope| {
        for _ in 0..visitors {
            // Whoever is not even there keeps the others waiting: better to know.
            let spawned = thread::Builder::new().stack_size(STACK);
            spawned
                .spawn_scoped(scope, visit)
                .expect("room for a thread");
        }
    });
    crowd.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// So many a second for so long, each for itself; how many of how many were served.
pub(super) fn one_by_one(
    at: &Netns,
    to: SocketAddr,
    in_a_second: u32,
    lasts: Duration,
) -> Result<[usize; 2]> {
    let served = Arc::new(AtomicUsize::new(0));
    let every = Duration::from_secs(1) / in_a_second;
    let count = (lasts.as_secs_f64() / every.as_secs_f64()) as u32;
    at.run(|| {
        let begin = Instant::now();
        let visitors = (0..count).map(|number| {
            thread::sleep((begin + every * number).saturating_duration_since(Instant::now()));
            let served = served.clone();
            let one = move || {
                if greet(to).and_then(ask).is_ok() {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            };
            let spawned = thread::Builder::new().stack_size(STACK);
            spawned.spawn(one).expect("room for a thread")
        });
        let visitors: Vec<_> = visitors.collect();
        for visitor in visitors {
            // Who has failed is not counted.
            let _ = visitor.join();
        }
    })?;
    Ok([served.load(Ordering::Relaxed), count as usize])
}

fn greet(to: SocketAddr) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect_timeout(&to, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.read_exact(&mut [0])?;
    Ok(connection)
}

fn ask(mut connection: TcpStream) -> io::Result<()> {
    connection.write_all(&1_000_u64.to_be_bytes())?;
    connection.read_exact(&mut [0; 1_000])?;
    match connection.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_what_came_and_a_silence_the_longest_after_the_cut() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let course = vec![
            (at(0), 0),
            (at(500), 500_000),
            (at(600), 100_000),
            (at(900), 100_000),
            (at(1_000), 50_000),
        ];
        assert!((rate_mbps(&course) - 6.0).abs() < 1e-9);
        assert!((silence_ms(&course, at(590)) - 300.0).abs() < 1e-9);
        assert!((silence_ms(&course, at(950)) - 100.0).abs() < 1e-9);
        assert!(silence_ms(&course, at(1_000)).is_infinite());
    }

    #[test]
    fn a_server_of_this_kind_loses_none_of_a_crowd() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        serve_by(listener).unwrap();
        let crowd = come_at_once(to, 450);
        assert_eq!(crowd.served, 450, "{:?}", crowd.lost);
    }
}
