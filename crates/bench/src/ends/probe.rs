//! Small datagrams that come back: how long each was away.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::now_ns;

/// The first byte of a datagram that is to come back.
pub(super) const ECHO: u8 = b'E';

/// Of a probe, without headers: its kind, number and time, and what makes it as long as a ping's.
const LENGTH: usize = 56;

/// A probe at IP level, in bytes.
pub(in super::super) const PACKET: u64 = LENGTH as u64 + 28;

/// A probe that is not back so long after the last was sent is lost: the deepest queues of the
/// scenarios, several times.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// What became of probes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Probed {
    pub(in super::super) sent: u64,
    pub(in super::super) lost: u64,
    /// In the order in which they came back.
    pub(in super::super) round_trips_ms: Vec<f64>,
}

/// Sends a probe every `every` for `time` and takes what comes back.
pub(super) fn ask(socket: &UdpSocket, time: Duration, every: Duration) -> Result<Probed> {
    let began_at = Instant::now();
    let mut back = Vec::new();
    let mut probed = Probed::default();
    while began_at.elapsed() < time {
        let mut probe = [0; LENGTH];
        probe[0] = ECHO;
        probe[1..9].copy_from_slice(&probed.sent.to_be_bytes());
        probe[9..17].copy_from_slice(&now_ns().to_be_bytes());
        // One that cannot be sent is lost.
        let _ = socket.send(&probe);
        probed.sent += 1;
        back.push(false);
        let next_at = began_at + every * u32::try_from(probed.sent).unwrap_or(u32::MAX);
        while receive(socket, next_at, &mut back, &mut probed)? {}
    }
    let until = Instant::now() + LOST_AFTER;
    while back.contains(&false) && receive(socket, until, &mut back, &mut probed)? {}
    probed.lost = back.iter().filter(|&&back| !back).count() as u64;
    Ok(probed)
}

/// Waits for one datagram; false when `until` has come.
fn receive(
    socket: &UdpSocket,
    until: Instant,
    back: &mut [bool],
    probed: &mut Probed,
) -> Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    socket.set_read_timeout(Some(left))?;
    let mut buffer = [0; 2048];
    match socket.recv(&mut buffer) {
        Ok(length) if length >= 17 && buffer[0] == ECHO => {
            let word = |from| u64::from_be_bytes(buffer[from..from + 8].try_into().expect("eight"));
            let number = usize::try_from(word(1)).unwrap_or(usize::MAX);
            // One that comes twice counts once.
            if back.get(number) == Some(&false) {
                back[number] = true;
                let away = now_ns().saturating_sub(word(9));
                probed.round_trips_ms.push(away as f64 / 1e6);
            }
        }
        Ok(_) => {}
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused
            ) => {}
        Err(error) => return Err(error).context("cannot receive a probe"),
    }
    Ok(true)
}
