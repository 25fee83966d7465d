//! What strangers, users and peers write to the program itself, changed by a seed that is drawn
//! anew and printed. The libraries' doors are in `crates/fuzz`.
//!
//! `TABANE_FUZZ_SEED=7` repeats the changes of that seed.

use std::time::{SystemTime, UNIX_EPOCH};

use tabane_base::{Rng, Seed};

use crate::dns_answer::addresses;
use crate::near_names::{asks_for_near, question};

const EXECUTIONS: u32 = 20_000;

/// A name, its real inputs, and what takes one.
type Door = (&'static str, &'static [&'static [u8]], fn(&[u8]));

const DOORS: [Door; 1] = [(
    "dns",
    &[
        b"\0\x07\x81\x80\0\x01\0\x03\0\0\0\0\x03Www\x07example\x03org\0\0\x01\0\x01\
              \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01a\xc0\x10\
              \x01a\xc0\x10\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x07",
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x07printer\x03lan\0\0\x01\0\x01",
    ],
    dns,
)];

/// Answers and questions of the DNS.
fn dns(message: &[u8]) {
    let _ = asks_for_near(message);
    if let Some((name, rest)) = question(message) {
        assert!(rest.len() < message.len() && name.len() < 512);
        assert!(!name.chars().any(|c| c.is_ascii_uppercase()), "{name}");
    }
    if let Some((_, found)) = addresses(message) {
        assert!(found.len() * 4 <= message.len(), "more than it can hold");
    }
}

/// Some bytes flipped, set, cut out, repeated or put in.
fn changed(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let mut below = |bound: usize| rng.below(bound.max(1) as u64) as usize;
    let mut input = input.to_vec();
    for _ in 0..=below(5) {
        let at = below(input.len());
        let end = (at + 1 + below(12)).min(input.len());
        match below(5) {
            0 if at < input.len() => input[at] ^= 1 << below(8),
            1 if at < input.len() => input[at] = [0, 0x3f, 0x40, 0xc0, 0xff, b'%'][below(6)],
            2 => drop(input.drain(at.min(end)..end)),
            3 => {
                let piece = input[at.min(end)..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => input.insert(at, below(256) as u8),
        }
    }
    input
}

#[test]
fn whatever_they_write_is_taken_or_refused() {
    let drawn = SystemTime::now().duration_since(UNIX_EPOCH);
    let drawn = drawn.map_or(1, |since| since.as_nanos() as u64);
    let wanted = std::env::var("TABANE_FUZZ_SEED").ok();
    let seed = wanted.map_or(drawn, |text| text.parse().expect("a number"));
    println!("TABANE_FUZZ_SEED={seed}");
    for (name, inputs, body) in DOORS {
        let mut rng = Seed(seed).rng(name);
        inputs.iter().for_each(|input| body(input));
        for _ in 0..EXECUTIONS {
            let input = inputs[rng.below(inputs.len() as u64) as usize];
            body(&changed(&mut rng, input));
        }
    }
}
