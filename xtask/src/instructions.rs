//! `cargo xtask instructions`: how many instructions a packet takes in core, and a session that
//! begins and ends at a server, counted by callgrind.
//!
//! Owns the comparison with `crates/core/benches/instructions.txt`. A count is the same on a busy
//! machine as on a quiet one, so that a few percent more are seen; what a cache miss or a system
//! call costs is for `bench cost`. Where valgrind is missing nothing is counted, and nothing fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "\
usage: cargo xtask instructions [--write]
Counts what a packet takes in core, and a session that begins and ends at a server, by valgrind's
callgrind, and fails where it is a few percent more than crates/core/benches/instructions.txt says.
--write writes down what it is now.";

/// What is counted: its name, the function in the bench, and what its instructions are divided by.
const COUNTED: [(&str, &str, Per); 9] = [
    ("write", "counted_write", Per::Data),
    ("send", "counted_send", Per::Data),
    ("receive", "counted_receive", Per::Data),
    ("read", "counted_read", Per::Data),
    ("answer", "counted_answer", Per::Answers),
    ("acknowledge", "counted_acknowledge", Per::Data),
    ("decide", "counted_decide", Per::Decisions),
    ("session", "counted_session", Per::Sessions),
    ("cryptography", "counted_cryptography", Per::Sessions),
];

/// More than the count written down, by this part, fails. Compilers differ by less.
const TOLERANCE: f64 = 0.04;

/// What there are so many of as the bench says.
#[derive(Clone, Copy)]
enum Per {
    Data,
    /// Packets that acknowledge. How many there are for the same data follows from the windows.
    Answers,
    Decisions,
    /// That begin and end at a server. What agreeing on keys and signing take of one is counted
    /// beside it: no TLS with keys at both ends can do without.
    Sessions,
}

/// Counts, and compares or writes. `false` where something takes more than it did.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let writes = match arguments {
        [] => false,
        ["--write"] => true,
        _ => bail!("{USAGE}"),
    };
    let version = Command::new("valgrind").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("xtask: skipped: instructions (valgrind is not installed)");
        return Ok(true);
    }
    let counts = count(&build(root)?)?;
    let path = root.join("crates/core/benches/instructions.txt");
    if writes {
        std::fs::write(&path, text(&counts))?;
        return Ok(true);
    }
    let known = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    compare(&counts, &parse_known(&known)?)
}

/// The bench's binary, which cargo names on a line of its own: `Executable SOURCE (BINARY)`.
fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["bench", "--profile", "profiling", "--no-run"]);
    let output = build
        .args(["--package", "tabane-core", "--bench", "instructions"])
        .current_dir(root)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the bench cannot be built:\n{said}"
    );
    let mut lines = said.lines().rev();
    let line = lines.find(|line| line.trim_start().starts_with("Executable"));
    let name = line.and_then(|line| line.trim_end().strip_suffix(')')?.rsplit_once('('));
    let (_, name) = name.context("cargo names no executable")?;
    Ok(root.join(name))
}

/// Instructions per packet or session, by name.
fn count(bench: &Path) -> Result<BTreeMap<&'static str, f64>> {
    let profile = std::env::temp_dir().join(format!("tabane-callgrind-{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--compress-strings=no"]);
    valgrind.arg("--compress-pos=no");
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    let output = valgrind.arg(bench).stderr(Stdio::inherit()).output()?;
    let calls = std::fs::read_to_string(&profile);
    // Only a copy is needed, and of that only some lines.
    let _ = std::fs::remove_file(&profile);
    ensure!(output.status.success(), "the bench failed under valgrind");
    let (calls, said) = (calls?, String::from_utf8_lossy(&output.stdout));
    let number = |name: &str| {
        let mut lines = said.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(key, _)| *key == name);
        let number = found.and_then(|(_, value)| value.parse::<f64>().ok());
        number.with_context(|| format!("the bench does not say how many {name} there were"))
    };
    let (data, answers) = (number("data")?, number("answers")?);
    let (decisions, sessions) = (number("decisions")?, number("sessions")?);
    let counts = COUNTED.iter().map(|(name, function, per)| {
        let instructions = inclusive(&calls, function);
        ensure!(instructions > 0, "callgrind has not seen {function}");
        let many = match per {
            Per::Data => data,
            Per::Answers => answers,
            Per::Decisions => decisions,
            Per::Sessions => sessions,
        };
        Ok((*name, instructions as f64 / many))
    });
    counts.collect()
}

/// What all calls of `function` took, what they called included. In callgrind's format, `cfn=`
/// names who is called, `calls=` how often, and the line after that where from and the cost.
fn inclusive(profile: &str, function: &str) -> u64 {
    let mut lines = profile.lines();
    let mut sum = 0;
    while let Some(line) = lines.next() {
        let is_called = |name: &str| name.split("::").any(|part| part == function);
        if !line.strip_prefix("cfn=").is_some_and(is_called) {
            continue;
        }
        let cost = lines.nth(1).and_then(|line| line.split_whitespace().nth(1));
        sum += cost.and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
    }
    sum
}

fn text(counts: &BTreeMap<&str, f64>) -> String {
    let mut text =
        "# Instructions for a packet or session: cargo xtask instructions --write\n".to_owned();
    for (name, ..) in COUNTED {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {:.0}", counts[name]);
    }
    text
}

fn parse_known(text: &str) -> Result<BTreeMap<&str, f64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let known = lines.map(|line| {
        let fields = line.split_once(' ');
        let parsed = fields.and_then(|(name, count)| Some((name, count.parse().ok()?)));
        parsed.with_context(|| format!("expected NAME COUNT, found {line:?}"))
    });
    known.collect()
}

/// Prints all; `false` where one is more than was written down.
fn compare(counts: &BTreeMap<&str, f64>, known: &BTreeMap<&str, f64>) -> Result<bool> {
    let mut is_kept = true;
    for (name, ..) in COUNTED {
        let (now, before) = (counts[name], known.get(name));
        let before = before.with_context(|| format!("{name} is not written down; --write"))?;
        let change = now / before - 1.0;
        let verdict = match change {
            _ if change > TOLERANCE => "more than it was: mend it, or say why and --write",
            _ if change < -TOLERANCE => "less than it was: --write keeps it so",
            _ => "as it was",
        };
        is_kept &= change <= TOLERANCE;
        println!(
            "{name:<12} {now:>7.0} instructions, {:+.1} %: {verdict}",
            change * 100.0
        );
    }
    Ok(is_kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "fn=world::World::tick\n12 40\ncfn=world::counted_send\ncalls=3 0\n\
                           13 600\ncfn=world::counted_sender\ncalls=1 0\n14 7\n\
                           fn=main\ncfn=world::counted_send\ncalls=1 0\n9 250\n";

    #[test]
    fn calls_of_a_function_are_summed_from_wherever_they_come() {
        assert_eq!(inclusive(PROFILE, "counted_send"), 850);
        assert_eq!(inclusive(PROFILE, "counted_read"), 0);
    }

    #[test]
    fn a_few_percent_more_fail_and_less_does_not() {
        let of = |count: f64| COUNTED.map(|(name, ..)| (name, count)).into();
        let text = text(&of(1_000.0));
        let known = parse_known(&text).unwrap();
        assert!(compare(&of(1_030.0), &known).unwrap());
        assert!(compare(&of(800.0), &known).unwrap());
        assert!(!compare(&of(1_050.0), &known).unwrap());
        assert!(parse_known("send\n").is_err());
        assert!(compare(&of(1_000.0), &BTreeMap::new()).is_err());
    }
}
