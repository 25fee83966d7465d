//! Replays the corpus of every target, then changes of it by a seed that is drawn anew and printed.
//!
//! `TABANE_FUZZ=http:1000000` runs one target for that many executions, `TABANE_FUZZ_SEED=7` the
//! changes of that seed. An input that fails is written to the temporary directory.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tabane_base::{Rng, Seed};
use tabane_fuzz::{TARGETS, Target};

/// Longest input.
const MAX_INPUT: usize = 4_096;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let files = std::fs::read_dir(&directory).expect("a target has a corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    paths.sort();
    let read = |path| std::fs::read(path).expect("readable");
    paths.into_iter().map(read).collect()
}

/// An input of the corpus, with some bytes flipped, cut out, repeated or taken from another.
fn changed(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut below = |bound: usize| rng.below(bound.max(1) as u64) as usize;
    let mut input = corpus[below(corpus.len())].clone();
    for _ in 0..=below(6) {
        let at = below(input.len());
        let end = (at + 1 + below(16)).min(input.len());
        match below(6) {
            0 if at < input.len() => input[at] ^= 1 << below(8),
            1 if at < input.len() => {
                input[at] = [0, 1, 0x7f, 0x80, 0xff, below(256) as u8][below(6)]
            }
            2 => drop(input.drain(at.min(end)..end)),
            3 => {
                let piece = input[at.min(end)..end].to_vec();
                input.splice(at..at, piece);
            }
            4 => input.insert(at, below(256) as u8),
            _ => {
                let other = &corpus[below(corpus.len())];
                input.extend_from_slice(&other[below(other.len())..]);
            }
        }
        input.truncate(MAX_INPUT);
    }
    input
}

/// The target that runs C: what fails there ends the process.
const IN_C: &str = "sctp_stack";

/// Runs `input`, and keeps it where it fails.
fn run(target: &Target, input: &[u8]) {
    let (name, _, body) = *target;
    let path = std::env::temp_dir().join(format!("tabane-fuzz-{name}"));
    let keep = || std::fs::write(&path, input).expect("writable");
    if name == IN_C {
        keep();
    }
    if let Err(panic) = std::panic::catch_unwind(|| body(input)) {
        keep();
        println!("the input that failed is {}", path.display());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_target_takes_its_corpus_and_changes_of_it() {
    let drawn = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|d| d.as_nanos() as u64);
    let seed = std::env::var("TABANE_FUZZ_SEED").map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|_| drawn.unwrap_or(1));
    println!("TABANE_FUZZ_SEED={seed}");
    let wanted = std::env::var("TABANE_FUZZ").ok();
    let wanted = wanted
        .as_deref()
        .map(|text| text.split_once(':').expect("TARGET:EXECUTIONS"));
    let known = |name| TARGETS.iter().any(|target| target.0 == name);
    assert!(wanted.is_none_or(|(name, _)| known(name)), "no such target");
    for target in TARGETS {
        let executions = match wanted {
            None => target.1,
            Some((name, count)) if name == target.0 => count.parse().expect("a number"),
            Some(_) => continue,
        };
        let corpus = corpus(target.0);
        corpus.iter().for_each(|input| run(target, input));
        let mut rng = Seed(seed).rng(target.0);
        let begun = std::time::Instant::now();
        for _ in 0..executions {
            run(target, &changed(&mut rng, &corpus));
        }
        let rate = f64::from(executions) / begun.elapsed().as_secs_f64();
        println!("{}: {executions} executions, {rate:.0}/s", target.0);
    }
}
