//! `cargo xtask router`: the build for routers, and that it keeps what is promised of it.
//!
//! Owns how it is built (static, without what a router does not need) and its size. What it does on
//! a small machine is tried out in `street`.

mod street;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::licences::Linked;
use crate::tool::{crates_of_others, is_root};
use street::Street;

/// What compiler and linker are told where names are stripped anyway: no tables for unwinding of
/// what is Rust, which would take 1.5 to 2 MB to tell, in a backtrace, addresses alone. Those of C
/// libraries stay, which gcc's unwinder needs (`packaging/without-unwinding.ld`). zig's linker
/// cannot tell them apart, nor does it pack addresses to be mended at the start into a bit each.
pub(crate) fn flags(by_zig: bool) -> String {
    let linker = match by_zig {
        true => "",
        false => {
            " -C link-arg=-fuse-ld=bfd -C link-arg=-Wl,-T,packaging/without-unwinding.ld \
             -C link-arg=-Wl,-z,pack-relative-relocs"
        }
    };
    format!("-C force-unwind-tables=no{linker}{}", without_home())
}

/// Has the program name crates' files by crate, not by the directory of whoever builds it: it would
/// be another program at everybody's.
fn without_home() -> String {
    match crates_in_flags() {
        Some(path) => format!(" --remap-path-prefix={path}=crates"),
        None => String::new(),
    }
}

/// Where cargo has unpacked others' crates; `None` where that cannot stand in flags.
pub(crate) fn crates_in_flags() -> Option<String> {
    let path = crates_of_others()?.to_str()?.to_owned();
    (!path.contains([' ', '='])).then_some(path)
}

const USAGE: &str = "\
usage: cargo xtask router [OPTION...]
Builds a static tabane with client, relay, gateway and web, and nothing else.
  --target TRIPLE  for another machine [this one's]
  --binary FILE    builds nothing: checks this one
  --check          no larger than promised; as root, works on an empty root file system, and the
                   client with 64 MB of memory";

/// Bytes on the disk: what it comes to, and room for a few commands more. Wanted are 8 MB.
const SIZE_MAX: u64 = 12_900_000;
/// Of the client, resident at most, with [`street::CONNECTIONS`] over two links.
const RESIDENT_MAX_MB: f64 = 40.0;

/// Builds and checks; `false` where a promise is broken.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (mut target, mut binary, mut check) = (None, None, false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("{word} needs a value"))
        };
        match *word {
            "--target" => target = Some((*value()?).to_owned()),
            "--binary" => binary = Some(PathBuf::from(value()?)),
            "--check" => check = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(true);
            }
            other => bail!("unknown: {other}\n{USAGE}"),
        }
    }
    let binary = match binary {
        Some(binary) => binary,
        None => build(root, &target.map_or_else(host, Ok)?)?,
    };
    let bytes = std::fs::metadata(&binary)?.len();
    println!("{} ({:.1} MB)", binary.display(), bytes as f64 / 1e6);
    if !check {
        return Ok(true);
    }
    let is_light = bytes <= SIZE_MAX;
    if !is_light {
        eprintln!("xtask: failed: {bytes} bytes; promised are {SIZE_MAX}");
    }
    let refused = Command::new(&binary).arg("demo").output()?;
    let line = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        line.contains("without the cargo feature `demo`"),
        "a command that other builds have is refused with {line:?}"
    );
    // Where the unwinder's own tables are missing, it ends the process instead.
    let mut fails = Command::new(&binary);
    fails.args(["--log", "tabane=loud", "links"]);
    let failed = fails.env("RUST_BACKTRACE", "1").output()?;
    let line = String::from_utf8_lossy(&failed.stderr);
    ensure!(
        line.contains("is no filter"),
        "an error with a backtrace: {}, {line:?}",
        failed.status
    );
    if !is_root() {
        eprintln!("xtask: skipped: the empty root file system and 64 MB of memory (need root)");
        return Ok(is_light);
    }
    works_alone(&binary).context("on an empty root file system")?;
    println!("relay, get, run and up work with nothing else on the root file system");
    let kib = resident(&binary).context("with 64 MB of memory")?;
    let mb = kib as f64 * 1.024 / 1e3;
    println!("the client: {mb:.1} MB resident at most; promised are {RESIDENT_MAX_MB}");
    Ok(is_light && mb <= RESIDENT_MAX_MB)
}

/// The binary, for the machines that `target` names; beside it, in `licences`, what goes with it.
pub(crate) fn build(root: &Path, target: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = "--locked --package tabane --no-default-features --profile router --target";
    let mut build = Command::new(cargo);
    let by_zig = target.ends_with("musl");
    build.arg(if by_zig { "zigbuild" } else { "build" });
    build.args(words.split(' ')).arg(target).current_dir(root);
    // A router has another C library, or none. What it has not either is AVX-512.
    let flags = flags(by_zig);
    build.env(
        "RUSTFLAGS",
        format!("-C target-feature=+crt-static {flags}"),
    );
    build.env("CFLAGS", "-fno-asynchronous-unwind-tables");
    build.env("AWS_LC_SYS_SMALL", "1");
    let built = build.status().context("cannot start cargo")?;
    ensure!(built.success(), "the build failed");
    let directory = std::env::var_os("CARGO_TARGET_DIR");
    let directory = directory.map_or_else(|| root.join("target"), PathBuf::from);
    let directory = directory.join(target).join("router");
    let linked = Linked {
        triple: target.to_owned(),
        features: Some(""),
    };
    linked.put(root, &directory.join("licences"))?;
    Ok(directory.join("tabane"))
}

/// The triple of this machine.
pub(crate) fn host() -> Result<String> {
    let told = Command::new("rustc").arg("-vV").output()?;
    let told = String::from_utf8(told.stdout)?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

/// Everything from a directory with one file in it, and what the kernel mounts.
fn works_alone(binary: &Path) -> Result<()> {
    let mut street = Street::new(binary)?;
    let join = street.start_relay()?;
    street.client(&["join", &join])?;
    street.fetches("10.77.", &["get"])?;
    street.fetches_in_run(street::SERVER)?;
    street.client(&["up", "--detach"])?;
    street.fetches_by_curl(street::SERVER)?;
    street.client(&["down"])
}

/// What the client has had resident at most, of a limit of 64 MB; in KiB.
fn resident(binary: &Path) -> Result<u64> {
    let mut street = Street::new(binary)?;
    let join = street.start_relay()?;
    street.client(&["join", &join])?;
    street.start_up("client")?;
    street.fetches_at_once()?;
    street.resident()
}
