//! `cargo xtask bench flood`: a relay that many strangers write to.
//!
//! Owns what is asked of it: what known clients carry beside a flood of what they carry without,
//! and how long a newcomer takes to be let in. Everything is on loopback and shares the machine's
//! processors; strangers are the tunnel's example `flood`, clients its `crowd`.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::relay::{Crowd, Programs, Relay, Worker};
use super::scratch::Scratch;

pub(super) const USAGE: &str = "cargo xtask bench flood [--binary FILE]";

/// Forged Initials and stray short headers a second (issue 17).
const FLOOD: [u32; 2] = [50_000, 100_000];
/// Known clients, and what each fetches.
const CLIENTS: u32 = 20;
const CLIENT_BPS: u64 = 2_000_000;
const SECONDS: u64 = 8;
/// The flood begins before the clients fetch, and ends after them.
const AHEAD: Duration = Duration::from_secs(2);
const FLOOD_S: u64 = SECONDS + 6;
/// The numbers of the first keys of the second crowd and of the newcomer: whoever had one before
/// has used its random numbers, too.
const KNOWN_AGAIN: u8 = 100;
const NEWCOMER: u8 = 200;
/// Of what they carry without.
const SHARE: f64 = 0.9;
const LET_IN_WITHIN_S: f64 = 3.0;
const BLOCK: usize = 4_096;

/// Measures and prints; `false` where a promise is not kept.
pub(super) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let binary = match arguments {
        [] => None,
        ["--binary", binary] => Some(*binary),
        _ => bail!("usage: {USAGE}"),
    };
    let programs = Programs::build(root, "release", binary)?;
    let scratch = Scratch::new()?;
    let relay = Relay::start(&programs, &scratch)?;
    let source = source()?;
    let known = |first| Crowd {
        sessions: CLIENTS,
        busy_s: SECONDS,
        first,
    };
    let fetch = |crowd: &mut Worker| -> Result<f64> {
        crowd.go()?;
        let bytes = crowd.number("bytes")?;
        Ok(bytes * 8.0 / crowd.number("seconds")? / 1e6)
    };

    let mut crowd = known(0).start(&programs, &relay, source)?;
    crowd.number("connected_s")?;
    let without = fetch(&mut crowd)?;
    drop(crowd);

    // They are known before it begins, as clients are.
    let mut crowd = known(KNOWN_AGAIN).start(&programs, &relay, source)?;
    crowd.number("connected_s")?;
    let memory = relay.memory_kb()?;
    let (begin, cpu) = (Instant::now(), relay.cpu_s()?);
    let mut flood = Worker::flood(&programs, &relay, FLOOD, FLOOD_S)?;
    sleep(AHEAD);
    let newcomer = Crowd {
        sessions: 1,
        busy_s: 0,
        first: NEWCOMER,
    };
    let let_in_s = newcomer
        .start(&programs, &relay, source)?
        .number("connected_s")?;
    let beside = fetch(&mut crowd)?;
    let load = (relay.cpu_s()? - cpu) / begin.elapsed().as_secs_f64();
    let grown = relay.memory_kb()? - memory;
    let [initials, strays] = [flood.number("initials")?, flood.number("strays")?];

    println!(
        "flood               {initials:.0} forged Initials, {strays:.0} stray packets a second"
    );
    println!(
        "known clients       {beside:.1} Mbit/s beside it, {without:.1} without: {:.3} \
         (promised: {SHARE})",
        beside / without
    );
    println!("a newcomer          is let in after {let_in_s:.2} s (promised: {LET_IN_WITHIN_S} s)");
    println!(
        "the relay           {:.0} % of a processor; memory {grown:+.0} kB",
        load * 100.0
    );
    Ok(beside >= SHARE * without && let_in_s <= LET_IN_WITHIN_S)
}

/// A TCP server that sends to everybody at the clients' rate.
fn source() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (begin, mut sent) = (Instant::now(), 0);
                while stream.write_all(&[5; BLOCK]).is_ok() {
                    sent += BLOCK as u64 * 8;
                    let due = Duration::from_secs_f64(sent as f64 / CLIENT_BPS as f64);
                    sleep(due.saturating_sub(begin.elapsed()));
                }
            });
        }
    });
    Ok(address)
}
