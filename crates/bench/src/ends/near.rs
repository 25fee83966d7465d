//! The near end: does one job, with a bulk beside it if asked.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::super::contender::Direction;
use super::super::stream::CONTENT;
use super::far::{CHUNK, TELL, request};
use super::flow::{self, Flow, Tally};
use super::{COURSE_STEP, Course, Done, Job, PORT, Task, now_ns, probe, sockets};

/// Between two fetches, as somebody who reads what came: queues drain meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a fetch stands that nothing moves.
const STALL: Duration = Duration::from_secs(30);

pub(super) fn run(server: Ipv4Addr, job: &Job) -> Result<Done> {
    let bulk = job
        .bulk
        .map(|direction| Bulk::start(server, job.from, direction))
        .transpose()
        .context("the bulk beside")?;
    if bulk.is_some() {
        thread::sleep(Duration::from_secs(job.head_start_s));
    }
    let mut done = Done::default();
    match job.task {
        Task::Fetch {
            bytes,
            times,
            direction,
        } => {
            for index in 0..times {
                if index > 0 {
                    thread::sleep(PAUSE);
                }
                let took = fetch(server, job.from, bytes, direction)?;
                done.fetched_s.push(took.as_secs_f64());
            }
        }
        Task::Ahead { seconds } => {
            let stream = tell(server, job.from)?;
            done.ahead_bytes = Some(sockets::ahead(&stream, Duration::from_secs(seconds))?);
        }
        Task::Unread {
            connections,
            seconds,
        } => {
            let open = || endless(server, job.from);
            let span = Duration::from_secs(seconds);
            done.unread = Some(sockets::unread(connections, open, span)?);
        }
        Task::Connect { times } => {
            for _ in 0..times {
                let began_at = Instant::now();
                open(server, job.from)?;
                done.connected_s.push(began_at.elapsed().as_secs_f64());
                thread::sleep(PAUSE);
            }
        }
        Task::Course { seconds } => {
            done.course = Some(course(server, job.from, Duration::from_secs(seconds))?);
        }
        Task::Probe { seconds, every_ms } => {
            let socket = datagrams(server, job.from)?;
            let every = Duration::from_millis(every_ms);
            done.probed = Some(probe::ask(&socket, Duration::from_secs(seconds), every)?);
        }
        Task::Flow {
            bps,
            seconds,
            direction,
            in_time_ms,
        } => {
            let flow = Flow::new(bps, seconds, in_time_ms);
            done.flow = Some(carry(
                &flow,
                &datagrams(server, job.from)?,
                server,
                direction,
            )?);
        }
    }
    done.bulk_bps = bulk.map(|bulk| bulk.rate_bps()).transpose()?;
    Ok(done)
}

/// From the request to connect to the last byte, or to the server's word that it has it.
fn fetch(
    server: Ipv4Addr,
    from: Option<Ipv4Addr>,
    bytes: u64,
    direction: Direction,
) -> Result<Duration> {
    let began_at = Instant::now();
    let mut stream = open(server, from)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    stream.write_all(&request(direction, bytes))?;
    let (mut chunk, mut done) = (vec![0; CHUNK], 0);
    match direction {
        Direction::Download => {
            while done < bytes {
                let length = stream.read(&mut chunk).context("a fetch")?;
                ensure!(length > 0, "a fetch ended after {done} of {bytes} bytes");
                ensure!(
                    CONTENT.first_difference(done, &chunk[..length]).is_none(),
                    "a fetch's bytes from {done} on are not what was sent"
                );
                done += length as u64;
            }
        }
        Direction::Upload => {
            while done < bytes {
                let length = CHUNK.min(usize::try_from(bytes - done).unwrap_or(CHUNK));
                CONTENT.fill(done, &mut chunk[..length]);
                stream.write_all(&chunk[..length]).context("an upload")?;
                done += length as u64;
            }
            let answer = stream.read_exact(&mut chunk[..1]);
            answer.context("the server has not confirmed an upload")?;
        }
    }
    Ok(began_at.elapsed())
}

/// A download without an end.
fn endless(server: Ipv4Addr, from: Option<Ipv4Addr>) -> Result<TcpStream> {
    let mut stream = open(server, from)?;
    stream.write_all(&request(Direction::Download, u64::MAX))?;
    Ok(stream)
}

fn carry(flow: &Flow, socket: &UdpSocket, server: Ipv4Addr, direction: Direction) -> Result<Tally> {
    match direction {
        Direction::Download => flow.receive(socket),
        Direction::Upload => {
            flow.send(socket, SocketAddr::from((server, PORT)));
            flow.ask_for_report(socket)
        }
    }
}

/// Downloads for `span`, counted from the request to connect.
fn course(server: Ipv4Addr, from: Option<Ipv4Addr>, span: Duration) -> Result<Course> {
    let steps = span.as_nanos() / COURSE_STEP.as_nanos();
    let mut course = Course {
        began_at_ns: now_ns(),
        bytes: vec![0; usize::try_from(steps)?],
    };
    let began_at = Instant::now();
    let mut stream = endless(server, from)?;
    stream.set_read_timeout(Some(STALL))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = stream.read(&mut chunk).context("a download")?;
        ensure!(length > 0, "a download without an end has ended");
        let step = began_at.elapsed().as_nanos() / COURSE_STEP.as_nanos();
        let Some(bytes) = course.bytes.get_mut(usize::try_from(step)?) else {
            return Ok(course);
        };
        *bytes += length as u64;
    }
}

/// A connection whose far end tells how much has come.
fn tell(server: Ipv4Addr, from: Option<Ipv4Addr>) -> Result<TcpStream> {
    let mut stream = open(server, from)?;
    stream.write_all(&TELL)?;
    Ok(stream)
}

/// Without a source address by the standard library, whose calls `mptcpize` sees.
fn open(server: Ipv4Addr, from: Option<Ipv4Addr>) -> Result<TcpStream> {
    let to = SocketAddr::from((server, PORT));
    let stream = match from {
        None => TcpStream::connect(to).context("cannot connect")?,
        Some(from) => {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&socket, &SocketAddr::from((from, 0))).context("cannot bind")?;
            connect(&socket, &to).context("cannot connect")?;
            socket.into()
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn datagrams(server: Ipv4Addr, from: Option<Ipv4Addr>) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((from.unwrap_or(Ipv4Addr::UNSPECIFIED), 0))?;
    socket.connect((server, PORT)).context("cannot connect")?;
    flow::make_room(&socket);
    Ok(socket)
}

/// A connection that carries as much as it can, until it is dropped.
#[derive(Debug)]
struct Bulk {
    stream: TcpStream,
    began_at: Instant,
    bytes: Arc<AtomicU64>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Bulk {
    fn start(server: Ipv4Addr, from: Option<Ipv4Addr>, direction: Direction) -> Result<Self> {
        let mut stream = open(server, from)?;
        stream.write_all(&request(direction, u64::MAX))?;
        let bytes = Arc::new(AtomicU64::new(0));
        let (mut moving, counter) = (stream.try_clone()?, Arc::clone(&bytes));
        let thread = thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = match direction {
                    Direction::Download => moving.read(&mut chunk)?,
                    Direction::Upload => {
                        CONTENT.fill(counter.load(Ordering::Relaxed), &mut chunk);
                        moving.write(&chunk)?
                    }
                };
                if length == 0 {
                    return Ok(());
                }
                counter.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        Ok(Self {
            stream,
            began_at: Instant::now(),
            bytes,
            thread,
        })
    }

    /// What it has carried; an error if it has broken down meanwhile.
    fn rate_bps(self) -> Result<f64> {
        ensure!(!self.thread.is_finished(), "the bulk beside broke down");
        let bytes = self.bytes.load(Ordering::Relaxed);
        let rate = bytes as f64 * 8.0 / self.began_at.elapsed().as_secs_f64();
        // The thread sees the end of its connection, whichever way it is taken.
        let _ = self.stream.shutdown(Shutdown::Both);
        Ok(rate)
    }
}
