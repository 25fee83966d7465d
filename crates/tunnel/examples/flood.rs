//! What strangers from many addresses send to a relay: `cargo xtask bench flood` runs it.
//!
//! `flood RELAY KEY INITIALS STRAYS SECONDS` sends so many first packets of handshakes and so many
//! packets of sessions that there are not, each second, from addresses of loopback, and prints what
//! it has sent. Each first packet is whole and repeated from every address; whoever sends it never
//! answers. Each line on stdout is `NAME NUMBER`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tabane_core::{
    Endpoint, FourTuple, Identity, PublicKey, SessionConfig, SocketId, TransmitBatch,
};
use tabane_linux::HostClock;

/// Addresses, each with a socket.
const ADDRESSES: u32 = 500;
/// Different first packets.
const BEGINNINGS: u32 = 1_000;
/// Bytes of a stray packet: its first says that it is of a session (RFC 9000, 17.3.1).
const STRAY: usize = 60;
const SHORT_HEADER: u8 = 0x40;
/// Packets are sent as often.
const TICK: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [relay, key, initials, strays, seconds] = &words[..] else {
        return Err("usage: flood RELAY KEY INITIALS STRAYS SECONDS".into());
    };
    let relay: SocketAddr = relay.parse()?;
    let beginnings = beginnings(relay, key.parse().map_err(|_| "KEY")?)?;
    let [initials, strays] = [initials.parse::<u64>()?, strays.parse::<u64>()?];
    let lasting = Duration::from_secs(seconds.parse()?);
    // Connected, so that the kernel looks for no way with each: there is more of the machine left.
    let connected = |n| {
        let socket = UdpSocket::bind((Ipv4Addr::from(0x7f02_0000 + n * 7), 0))?;
        socket.connect(relay)?;
        Ok(socket)
    };
    let sockets: std::io::Result<Vec<_>> = (0..ADDRESSES).map(connected).collect();
    let mut flood = Flood {
        sockets: sockets?,
        turn: 0,
        stray: [SHORT_HEADER; STRAY],
    };
    let begin = Instant::now();
    let mut sent = [0, 0];
    while begin.elapsed() < lasting {
        let due = |rate: u64| (begin.elapsed().as_secs_f64() * rate as f64) as u64;
        while sent[0] < due(initials) {
            flood.send(&beginnings[sent[0] as usize % beginnings.len()]);
            sent[0] += 1;
        }
        while sent[1] < due(strays) {
            flood.send_stray(sent[1]);
            sent[1] += 1;
        }
        sleep(TICK);
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("initials {}", sent[0] as f64 / seconds);
    println!("strays {}", sent[1] as f64 / seconds);
    Ok(())
}

struct Flood {
    sockets: Vec<UdpSocket>,
    turn: usize,
    stray: [u8; STRAY],
}

impl Flood {
    fn send(&mut self, packet: &[u8]) {
        self.turn = (self.turn + 1) % self.sockets.len();
        // What a full queue refuses is lost as on any network.
        let _ = self.sockets[self.turn].send(packet);
    }

    /// Of a session that there is not, whose id is nobody else's.
    fn send_stray(&mut self, number: u64) {
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        self.stray[1..9].copy_from_slice(&id);
        let stray = self.stray;
        self.send(&stray);
    }
}

/// What clients say first.
fn beginnings(relay: SocketAddr, key: PublicKey) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let identity = Identity::from_seed([250; 32]);
    let mut endpoint = Endpoint::client(identity, SessionConfig::default(), [250; 32])?;
    let now = HostClock::new().now();
    let mut batch = TransmitBatch::new(65_000);
    let mut all = Vec::new();
    for id in 0..BEGINNINGS {
        let tuple = FourTuple {
            socket: SocketId(id),
            local_ip: None,
            remote: relay,
        };
        let handle = endpoint.connect(now, key, None, vec![tuple])?;
        let session = endpoint.session_mut(handle).ok_or("it has just begun")?;
        batch.clear();
        session.poll_transmit(now, &mut batch);
        let first = batch.iter().next().ok_or("a client speaks first")?;
        all.push(first.contents[..first.segment_size].to_vec());
    }
    Ok(all)
}
