//! A stream that tells its position: what is received is known byte by byte, and when.
//!
//! Owns both ends, run by `bench` as `tabane-bench stream`: a sender that sends for a time and
//! then closes, and a receiver that checks every byte, notes every silence, and waits for the end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_base::{Content, Seed};

/// What is sent, here and by the other ends.
pub(super) const CONTENT: Content = Content::new(Seed(0));

/// In no range that the system gives to others.
const PORT: u16 = 5202;

/// What the sender prints when it can be reached.
pub(super) const LISTENING: &str = "listening";

/// How long either end stands a connection on which nothing moves, and how long the rest of a
/// stream may take after the sender's time.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Silences of this length are listed.
const SILENCE: Duration = Duration::from_millis(100);

/// A few reads per millisecond at 1 Gbit/s.
const CHUNK: usize = 64 * 1024;

/// What became of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamReport {
    /// Every byte that was sent arrived, unchanged, and the connection lived to its end.
    pub(crate) intact: bool,
    /// What the sender has written.
    pub(crate) sent_bytes: u64,
    /// What arrived and was as it should be.
    pub(crate) verified_bytes: u64,
    /// From the connection being set up to its end.
    pub(crate) seconds: f64,
    /// The longest time without a byte, in milliseconds.
    pub(crate) silence_ms_max: f64,
    /// Times without a byte: second of the stream at which each ended, and milliseconds.
    pub(crate) silences: Vec<(f64, f64)>,
    /// What went wrong at the receiver.
    pub(crate) fault: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    sent_bytes: u64,
    fault: Option<String>,
}

impl StreamReport {
    /// Joins what both ends have printed.
    pub(super) fn parse(sender: &str, receiver: &str) -> Result<Self> {
        let sent: Sent = last_json(sender).context("the sender gave no report")?;
        let received: Self = last_json(receiver).context("the receiver gave no report")?;
        let fault = received.fault.or(sent.fault);
        Ok(Self {
            intact: fault.is_none() && received.verified_bytes == sent.sent_bytes,
            sent_bytes: sent.sent_bytes,
            fault,
            ..received
        })
    }
}

fn last_json<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
    serde_json::from_str(text.lines().last()?).ok()
}

/// Adds the arguments of a sender to this program's own `command`.
pub(super) fn sender(command: &mut Command, seconds: u64) {
    command.args(["stream", "send", &seconds.to_string()]);
}

/// Adds the arguments of a receiver to this program's own `command`.
pub(super) fn receiver(command: &mut Command, server: Ipv4Addr) {
    command.args(["stream", "receive", &server.to_string()]);
}

/// `tabane-bench stream`: one end, by hand or for `bench`.
pub(crate) fn run(arguments: &[&str]) -> Result<bool> {
    match arguments {
        ["send", seconds] => {
            let seconds = seconds.parse().context("expected a number of seconds")?;
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))
                .with_context(|| format!("cannot listen on port {PORT}"))?;
            println!("{LISTENING}");
            let (socket, _) = listener.accept().context("cannot accept")?;
            let sent = send(socket, Duration::from_secs(seconds))?;
            println!("{}", serde_json::to_string(&sent)?);
        }
        ["receive", server] => {
            let server: Ipv4Addr = server.parse().context("expected an IPv4 address")?;
            let socket = TcpStream::connect((server, PORT)).context("cannot connect")?;
            println!("{}", serde_json::to_string(&receive(socket)?)?);
        }
        _ => bail!("usage: tabane-bench stream send SECONDS | receive ADDRESS"),
    }
    Ok(true)
}

fn send(mut socket: TcpStream, time: Duration) -> Result<Sent> {
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut chunk = vec![0; CHUNK];
    let (mut sent_bytes, mut fault) = (0, None);
    let began_at = Instant::now();
    while began_at.elapsed() < time {
        CONTENT.fill(sent_bytes, &mut chunk);
        match socket.write(&chunk) {
            Ok(written) => sent_bytes += written as u64,
            Err(error) => {
                fault = Some(format!("sending: {error}"));
                break;
            }
        }
    }
    // The receiver closes when it has everything. If it is gone, it has told why.
    let _ = socket
        .shutdown(Shutdown::Write)
        .and_then(|()| socket.read(&mut [0]));
    Ok(Sent { sent_bytes, fault })
}

fn receive(mut socket: impl Receive) -> Result<StreamReport> {
    socket.set_patience(PATIENCE)?;
    let mut chunk = vec![0; CHUNK];
    let mut report = StreamReport {
        intact: false,
        sent_bytes: 0,
        verified_bytes: 0,
        seconds: 0.0,
        silence_ms_max: 0.0,
        silences: Vec::new(),
        fault: None,
    };
    let began_at = Instant::now();
    let mut last_at = began_at;
    loop {
        let read = socket.read(&mut chunk);
        let now = Instant::now();
        let silence = now - last_at;
        last_at = now;
        let silence_ms = silence.as_secs_f64() * 1e3;
        report.silence_ms_max = report.silence_ms_max.max(silence_ms);
        if silence >= SILENCE {
            report
                .silences
                .push(((now - began_at).as_secs_f64(), silence_ms));
        }
        match read {
            Ok(0) => break,
            Ok(length) => {
                let came = &chunk[..length];
                if let Some(at) = CONTENT.first_difference(report.verified_bytes, came) {
                    report.verified_bytes = at;
                    report.fault = Some(format!("byte {at} is not what was sent"));
                    break;
                }
                report.verified_bytes += length as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                report.fault = Some(format!("receiving: {error}"));
                break;
            }
        }
    }
    report.seconds = began_at.elapsed().as_secs_f64();
    Ok(report)
}

/// A connection, or a test's.
trait Receive: Read {
    fn set_patience(&mut self, patience: Duration) -> std::io::Result<()>;
}

impl Receive for TcpStream {
    fn set_patience(&mut self, patience: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Piecewise(Vec<Vec<u8>>);

    impl Read for Piecewise {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    impl Receive for Piecewise {
        fn set_patience(&mut self, _: Duration) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn bytes(from: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        CONTENT.fill(from, &mut bytes);
        bytes
    }

    #[test]
    fn a_lost_or_doubled_or_changed_byte_is_seen() {
        let good = receive(Piecewise(vec![bytes(0, 13), bytes(13, 500)])).unwrap();
        assert_eq!((good.verified_bytes, good.fault), (513, None));
        let mut changed = bytes(0, 100);
        changed[40] ^= 1;
        for (pieces, verified) in [
            (vec![bytes(0, 100), bytes(101, 50)], 100),
            (vec![bytes(0, 100), bytes(99, 50)], 100),
            (vec![changed], 40),
        ] {
            let report = receive(Piecewise(pieces)).unwrap();
            assert!(report.fault.is_some());
            // By chance, a byte beside a gap may be the one expected.
            assert!((verified..verified + 3).contains(&report.verified_bytes));
        }
    }

    #[test]
    fn both_ends_must_agree() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            send(listener.accept().unwrap().0, Duration::from_millis(50)).unwrap()
        });
        let received = receive(TcpStream::connect(address).unwrap()).unwrap();
        let mut sent = sender.join().unwrap();
        let parse = |sent: &Sent| {
            let json = |value: String| format!("{LISTENING}\n{value}\n");
            let sender = json(serde_json::to_string(sent).unwrap());
            let receiver = serde_json::to_string(&received).unwrap();
            StreamReport::parse(&sender, &receiver).unwrap()
        };
        let report = parse(&sent);
        assert!(report.intact && report.verified_bytes > 0, "{report:?}");
        sent.sent_bytes += 1;
        assert!(!parse(&sent).intact, "cut short");
    }
}
