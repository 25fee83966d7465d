//! One download, and what the kernels, the radio link and the gateway counted meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use serde::Serialize;
use serde_json::Value;
use tabane_linux::netns::Netns;

use super::Sender;
use super::world::{SERVICE, World};

/// How long what the server has written may take to arrive after it has ended.
const DRAIN: Duration = Duration::from_secs(30);
/// How often a blocked end looks at the time.
const LOOK: Duration = Duration::from_millis(250);
/// IP and TCP headers; timestamps beside them.
const HEADERS: u64 = 40;
const TIMESTAMPS: u64 = 12;

/// What came of a download.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Transfer {
    /// What the program had when the time was over, per second of it.
    pub(super) mbps: f64,
    /// Segments sent again, by whoever sends over the radio link, of all, in percent.
    pub(super) again_percent: f64,
    /// Timeouts and recoveries that senders found out to have been for nothing.
    pub(super) undone: u64,
    /// Timeouts.
    pub(super) timeouts: u64,
    /// Useful share of the bytes that the radio link delivered.
    pub(super) goodput: f64,
    /// Packets that the radio link's queue had no room for.
    pub(super) overflown: u64,
    /// Packets that left the emulator late: the machine was too slow for the scenario.
    pub(super) late: u64,
    /// What the gateway says of itself.
    pub(super) gateway: Option<Value>,
}

/// Downloads for `span` as fast as it goes.
pub(super) fn run(
    world: &World,
    sender: Sender,
    window: Option<usize>,
    span: Duration,
) -> Result<Transfer> {
    world.lab().restart_schedule();
    let (in_time, all) = download(world, window, span)?;
    let gateway = world.gateway().map(|_| world.report()).transpose()?;
    let origin = Kernel::of(world.origin())?;
    // Where connections are split, the router sends over the radio link too.
    let router = Kernel::of(world.router())?;
    let copies = gateway
        .as_ref()
        .and_then(|report| report["totals"]["resent"].as_u64());
    let again = origin.again + router.again + copies.unwrap_or(0);
    let sent = origin.sent.max(router.sent) + again;
    let snapshot = world.lab().snapshot()?;
    let radio = snapshot.links.first().map(|link| link.down);
    let radio = radio.unwrap_or_default();
    let headers = match sender {
        Sender::Bare => HEADERS,
        Sender::Modern => HEADERS + TIMESTAMPS,
    };
    let delivered = radio.delivered.bytes.get() - headers * radio.delivered.packets;
    Ok(Transfer {
        mbps: in_time as f64 * 8.0 / span.as_secs_f64() / 1e6,
        again_percent: 100.0 * again as f64 / sent.max(1) as f64,
        undone: origin.undone + router.undone,
        timeouts: origin.timeouts + router.timeouts,
        goodput: all as f64 / delivered.max(1) as f64,
        overflown: radio.queue_full.packets,
        late: snapshot.health.late,
        gateway,
    })
}

/// What the program gets in `span`, in Mbit/s.
pub(super) fn rate(world: &World, span: Duration) -> Result<f64> {
    let (in_time, _) = download(world, None, span)?;
    Ok(in_time as f64 * 8.0 / span.as_secs_f64() / 1e6)
}

/// Bytes in time, and all in all.
fn download(world: &World, window: Option<usize>, span: Duration) -> Result<(u64, u64)> {
    let listener = world.origin().run(|| TcpListener::bind(SERVICE))??;
    let server = std::thread::spawn(move || serve(&listener, span));
    let mut stream = world
        .mobile()
        .run(|| connect_to_service(window))?
        .context("no connection through the router")?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.write_all(b"?")?;
    let begun = Instant::now();
    let (mut in_time, mut all) = (0, 0);
    let mut block = vec![0; 1 << 20];
    while begun.elapsed() < span + DRAIN {
        let read = match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => read as u64,
            Err(error) if is_timeout(&error) => 0,
            Err(error) => return Err(error).context("the download broke"),
        };
        all += read;
        if begun.elapsed() <= span {
            in_time = all;
        }
    }
    drop(stream);
    // That we hung up at the end of our patience is no fault of the server's.
    let _ = server.join().ok().context("the server's thread broke")?;
    Ok((in_time, all))
}

/// The window must be known before the first packet.
fn connect_to_service(window: Option<usize>) -> std::io::Result<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    if let Some(bytes) = window {
        // The kernel doubles it, for what else it keeps of each packet.
        set_socket_recv_buffer_size(&fd, bytes)?;
    }
    connect(&fd, &SERVICE)?;
    Ok(TcpStream::from(fd))
}

fn serve(listener: &TcpListener, span: Duration) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_write_timeout(Some(LOOK))?;
    stream.read_exact(&mut [0])?;
    let begun = Instant::now();
    let block = vec![7; 256 * 1024];
    while begun.elapsed() < span {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // Until the other end has it all.
    stream.set_read_timeout(Some(DRAIN))?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Counters of a host's TCP.
#[derive(Debug, Default)]
struct Kernel {
    sent: u64,
    again: u64,
    undone: u64,
    timeouts: u64,
}

impl Kernel {
    fn of(host: &Netns) -> Result<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let (snmp, netstat) = host.run(|| (read("snmp"), read("netstat")))?;
        let text = snmp? + &netstat?;
        let count = |group, key| counter(&text, group, key);
        Ok(Self {
            sent: count("Tcp", "OutSegs"),
            again: count("Tcp", "RetransSegs"),
            undone: count("TcpExt", "TCPLossUndo") + count("TcpExt", "TCPFullUndo"),
            timeouts: count("TcpExt", "TCPTimeouts"),
        })
    }
}

/// A counter of two lines, keys and values, that begin with `group`; 0 where there is none.
fn counter(text: &str, group: &str, key: &str) -> u64 {
    let prefix = format!("{group}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let (Some(keys), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let place = keys.split_whitespace().position(|word| word == key);
    let value = place.and_then(|place| values.split_whitespace().nth(place));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_group_and_key() {
        let text = "Tcp: OutSegs RetransSegs\nTcp: 12 3\nTcpExt: A TCPLossUndo\nTcpExt: 4 5\n";
        assert_eq!(counter(text, "Tcp", "RetransSegs"), 3);
        assert_eq!(counter(text, "TcpExt", "TCPLossUndo"), 5);
        assert_eq!(counter(text, "TcpExt", "RetransSegs"), 0);
    }
}
