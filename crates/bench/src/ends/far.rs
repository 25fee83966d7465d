//! The far end: sends and takes TCP streams, sends datagrams back, sends and counts flows.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use anyhow::{Context, Result};

use super::super::contender::Direction;
use super::super::stream::CONTENT;
use super::flow::{self, Flow, Tally};
use super::{PORT, probe};

/// A request over TCP: the direction's letter and a number of bytes.
pub(super) const REQUEST: usize = 9;

/// A request for a word after every read: how much has come, in eight bytes.
pub(super) const TELL: [u8; REQUEST] = [b'T', 0, 0, 0, 0, 0, 0, 0, 0];

/// What one read or write moves at most.
pub(super) const CHUNK: usize = 64 * 1024;

pub(super) fn request(direction: Direction, bytes: u64) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[0] = match direction {
        Direction::Download => b'D',
        Direction::Upload => b'U',
    };
    request[1..].copy_from_slice(&bytes.to_be_bytes());
    request
}

/// Serves at `address` until the process is ended; calls `listening` when it can be reached. One
/// address of its own, so that datagrams are answered from where they were sent to.
pub(super) fn serve(address: Ipv4Addr, listening: impl FnOnce()) -> Result<()> {
    let listener = TcpListener::bind((address, PORT))
        .with_context(|| format!("cannot listen on port {PORT}"))?;
    let socket =
        UdpSocket::bind((address, PORT)).with_context(|| format!("cannot bind port {PORT}"))?;
    flow::make_room(&socket);
    listening();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // How it ends is the near end's to tell.
            thread::spawn(move || answer(stream));
        }
    });
    datagrams(&socket)
}

/// One connection: sends what is asked for, or takes what is announced and says so.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request)?;
    let bytes = u64::from_be_bytes(request[1..].try_into().expect("eight bytes"));
    let (mut chunk, mut done) = (vec![0; CHUNK], 0);
    if request[0] == b'D' {
        while done < bytes {
            let length = CHUNK.min(usize::try_from(bytes - done).unwrap_or(CHUNK));
            CONTENT.fill(done, &mut chunk[..length]);
            stream.write_all(&chunk[..length])?;
            done += length as u64;
        }
        return Ok(());
    }
    if request == TELL {
        loop {
            match stream.read(&mut chunk)? {
                0 => return Ok(()),
                length => done += length as u64,
            }
            stream.write_all(&done.to_be_bytes())?;
        }
    }
    while done < bytes {
        let length = stream.read(&mut chunk)?;
        let came = &chunk[..length];
        if came.is_empty() || CONTENT.first_difference(done, came).is_some() {
            // Closed without the word that all is here.
            return Ok(());
        }
        done += length as u64;
    }
    stream.write_all(&[1])
}

fn datagrams(socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 2048];
    let mut served: HashSet<SocketAddr> = HashSet::new();
    let mut tallies: HashMap<SocketAddr, Tally> = HashMap::new();
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // What ICMP tells of a near end that has gone.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error).context("cannot receive"),
        };
        let datagram = &buffer[..length];
        match datagram.first() {
            Some(&probe::ECHO) => {
                // A probe that cannot be sent back is one that was lost.
                let _ = socket.send_to(datagram, from);
            }
            Some(&flow::NUMBERED) => tallies.entry(from).or_default().take(datagram),
            Some(&flow::REPORT) => {
                let tally = tallies.get(&from).cloned().unwrap_or_default();
                // Asked again if it is lost.
                let _ = socket.send_to(&serde_json::to_vec(&tally)?, from);
            }
            Some(&flow::WANTED) if served.insert(from) => {
                let Some(flow) = Flow::parse(datagram) else {
                    continue;
                };
                let socket = socket.try_clone().context("cannot share a socket")?;
                thread::spawn(move || flow.send(&socket, from));
            }
            _ => {}
        }
    }
}
