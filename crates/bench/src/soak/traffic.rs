//! Connections and datagrams of every size and temper, whose bytes are all compared.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::ops::Sub;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use tabane_base::{Rng, Seed};
use tabane_linux::netns::Netns;

pub(super) const PORT: u16 = 7_520;
const TCP_WORKERS: u64 = 6;
const UDP_WORKERS: u64 = 2;
/// Of one connection, each way, in bytes.
const LARGEST: u64 = 1 << 20;
/// A connection that moves nothing for so long is cut.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a reader that takes its time takes.
const DAWDLE: Duration = Duration::from_millis(700);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Questions by one UDP socket, one after the other, and what lies between them: many flows are
/// begun, none of them in a flood.
const QUESTIONS: u32 = 20;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(40);
/// A UDP flow is kept for 120 s after its last datagram, and found idle some seconds later.
const FLOW_KEPT: Duration = Duration::from_secs(140);

/// What became of the connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    whole: u64,
    left: u64,
    pub(super) cut: u64,
    pub(super) wrong: u64,
    bytes: u64,
    asked: u64,
    answered: u64,
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            whole: self.whole - before.whole,
            left: self.left - before.left,
            cut: self.cut - before.cut,
            wrong: self.wrong - before.wrong,
            bytes: self.bytes - before.bytes,
            asked: self.asked - before.asked,
            answered: self.answered - before.answered,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} whole, {} left half-way, {} cut, {} wrong; {:.1} MB; {} of {} datagrams answered",
            self.whole,
            self.left,
            self.cut,
            self.wrong,
            self.bytes as f64 / 1e6,
            self.answered,
            self.asked
        )
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    has_ended: bool,
    at_work: u64,
    tally: Tally,
    /// When the UDP sockets of late were closed.
    flows: VecDeque<Instant>,
}

/// Both ends at work. Ends when dropped.
#[derive(Debug)]
pub(super) struct Traffic(Arc<Shared>);

impl Traffic {
    /// Serves at `at`, and has the workers wait in the client's namespace.
    pub(super) fn between(
        client: &Netns,
        server: &Netns,
        at: Ipv4Addr,
        seed: Seed,
    ) -> Result<Self> {
        let at = SocketAddrV4::new(at, PORT);
        let (tcp, udp) = server
            .run(|| -> io::Result<_> { Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)) })??;
        std::thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                // What it met is told by the other end.
                std::thread::spawn(move || drop(serve(stream)));
            }
        });
        std::thread::spawn(move || echo(&udp));
        let shared = Arc::new(Shared::default());
        for number in 0..TCP_WORKERS + UDP_WORKERS {
            let (shared, client) = (shared.clone(), client.clone());
            let rng = seed.rng(&format!("worker {number}"));
            let is_udp = number >= TCP_WORKERS;
            std::thread::spawn(move || -> Result<()> {
                client.enter()?;
                shared.work(rng, at.into(), is_udp);
                Ok(())
            });
        }
        Ok(Self(shared))
    }

    pub(super) fn resume(&self) {
        self.0.change(|state| state.is_busy = true);
    }

    /// Connections that are under way go on to their end.
    pub(super) fn pause(&self) {
        self.0.change(|state| state.is_busy = false);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.change(|state| state.at_work == 0)
    }

    /// UDP flows that may still be known.
    pub(super) fn flows(&self) -> u64 {
        self.0.change(|state| {
            while state
                .flows
                .front()
                .is_some_and(|at| at.elapsed() > FLOW_KEPT)
            {
                state.flows.pop_front();
            }
            state.flows.len() as u64
        })
    }

    pub(super) fn tally(&self) -> Tally {
        self.0.change(|state| state.tally)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.change(|state| state.has_ended = true);
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let value = change(&mut state);
        self.changed.notify_all();
        value
    }

    /// Waits for the next round; `false` at the end of all.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_busy && !state.has_ended {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.at_work += 1;
        !state.has_ended
    }

    fn work(&self, mut rng: Rng, at: SocketAddr, is_udp: bool) {
        while self.wait() {
            if is_udp {
                let answered = ask(&mut rng, at).unwrap_or(0);
                self.change(|state| {
                    state.flows.push_back(Instant::now());
                    state.tally.asked += u64::from(QUESTIONS);
                    state.tally.answered += answered;
                });
            } else {
                let (plan, began) = (Plan::draw(&mut rng), Instant::now());
                let fate = plan.fetch(at);
                if let Err(error) = &fate {
                    let lasted = began.elapsed().as_secs_f64();
                    eprintln!("soak: cut after {lasted:.2} s: {error}: {plan:?}");
                }
                self.change(|state| state.tally.enter(fate));
            }
            self.change(|state| state.at_work -= 1);
        }
    }
}

impl Tally {
    fn enter(&mut self, fate: io::Result<Fate>) {
        match fate {
            Ok(Fate::Whole(bytes)) => {
                self.whole += 1;
                self.bytes += bytes;
            }
            Ok(Fate::Left) => self.left += 1,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => self.wrong += 1,
            Err(_) => self.cut += 1,
        }
    }
}

enum Fate {
    Whole(u64),
    Left,
}

/// One connection.
#[derive(Debug)]
struct Plan {
    up: u64,
    down: u64,
    /// Leaves after so many bytes of the answer.
    leaves_at: Option<u64>,
    dawdles: bool,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        // As many of each magnitude.
        let mut size = || {
            let magnitude = rng.below(18);
            rng.below(1 + (LARGEST >> magnitude))
        };
        let (up, down) = (size(), size());
        let leaves = rng.chance(0.1);
        Self {
            up,
            down,
            leaves_at: leaves.then(|| rng.below(down + 1)),
            dawdles: rng.chance(0.1),
        }
    }

    fn fetch(&self, at: SocketAddr) -> io::Result<Fate> {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&self.up.to_be_bytes())?;
        stream.write_all(&self.down.to_be_bytes())?;
        write_pattern(&mut stream, self.up)?;
        if self.dawdles {
            sleep(DAWDLE);
        }
        if let Some(bytes) = self.leaves_at {
            read_pattern(&mut stream, bytes)?;
            return Ok(Fate::Left);
        }
        read_pattern(&mut stream, self.down)?;
        if stream.read(&mut [0])? != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Fate::Whole(self.up + self.down))
    }
}

/// The far end of one connection.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut numbers = [0; 16];
    stream.read_exact(&mut numbers)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    read_pattern(&mut stream, number(&numbers[..8]))?;
    write_pattern(&mut stream, number(&numbers[8..]))
}

/// The byte at an offset; a prime period, so that what is shifted is wrong.
fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn write_pattern(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + 16_384);
        let block: Vec<u8> = (at..end).map(pattern).collect();
        stream.write_all(&block)?;
        at = end;
    }
    Ok(())
}

fn read_pattern(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let (mut at, mut block) = (0, [0; 16_384]);
    while at < bytes {
        let wanted = block.len().min((bytes - at) as usize);
        let read = stream.read(&mut block[..wanted])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !(at..)
            .zip(&block[..read])
            .all(|(at, byte)| pattern(at) == *byte)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        at += read as u64;
    }
    Ok(())
}

fn echo(socket: &UdpSocket) {
    let mut buffer = [0; 2_048];
    loop {
        // An error is of a datagram sent before; there is nobody to tell.
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            drop(socket.send_to(&buffer[..length], from));
        }
    }
}

/// Questions by a socket of their own; how many were answered.
fn ask(rng: &mut Rng, at: SocketAddr) -> io::Result<u64> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut answered = 0;
    for _ in 0..QUESTIONS {
        let mut question = vec![0; 16 + rng.below(1_000) as usize];
        rng.fill(&mut question);
        socket.send_to(&question, at)?;
        let mut answer = [0; 2_048];
        // A late answer to the question before is none to this.
        let heard = socket.recv_from(&mut answer);
        answered += u64::from(heard.is_ok_and(|(length, _)| answer[..length] == question[..]));
        sleep(BETWEEN_QUESTIONS);
    }
    Ok(answered)
}
