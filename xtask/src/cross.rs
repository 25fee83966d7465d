//! `cargo xtask cross`: other processors, by cross compilers and qemu's emulation of programs.
//!
//! Owns which crates' tests are run on which processor, and what is only checked there.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::package::can_start;
use crate::tool::said;

const USAGE: &str = "\
usage: cargo xtask cross [PROCESSOR...]
Runs the pure crates' tests as programs of other processors, under qemu, and checks the build for
routers there: aarch64, armv7 (32 bits; checked alone) and s390x (big-endian; of those, Rust brings
its standard library for this one and 64-bit POWER, and for no MIPS). Needs their compilers:
gcc-aarch64-linux-gnu, gcc-arm-linux-gnueabihf, gcc-s390x-linux-gnu, qemu-user, and `rustup target
add` of what it names.";

/// Pure crates, whose tests need nothing of the machine; `sim` would take hours there.
const CRATES: [&str; 6] = ["base", "core", "gateway", "netem", "policy", "ranges"];

/// What computes for minutes on a processor that is emulated, and has no bytes of others.
const SLOW: &str = "congestion::";

/// A processor that this machine does not have.
struct Processor {
    name: &'static str,
    triple: &'static str,
    /// Its compiler's prefix and directory of libraries.
    gnu: &'static str,
    /// Runs its programs; `None` where they are not run.
    emulator: Option<&'static str>,
}

const PROCESSORS: [Processor; 3] = [
    Processor {
        name: "aarch64",
        triple: "aarch64-unknown-linux-gnu",
        gnu: "aarch64-linux-gnu",
        emulator: Some("qemu-aarch64"),
    },
    Processor {
        name: "armv7",
        triple: "armv7-unknown-linux-gnueabihf",
        gnu: "arm-linux-gnueabihf",
        emulator: None,
    },
    Processor {
        name: "s390x",
        triple: "s390x-unknown-linux-gnu",
        gnu: "s390x-linux-gnu",
        emulator: Some("qemu-s390x"),
    },
];

/// `false` where a check or a test failed. What cannot be built here is said and passed over,
/// unless it was named.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    if let ["--help" | "-h"] = arguments {
        println!("{USAGE}");
        return Ok(true);
    }
    let is_known = |name: &&&str| PROCESSORS.iter().any(|it| it.name == **name);
    if let Some(name) = arguments.iter().find(|name| !is_known(name)) {
        bail!("unknown: {name}\n{USAGE}");
    }
    let mut passed = true;
    for processor in &PROCESSORS {
        let is_named = arguments.contains(&processor.name);
        if !is_named && !arguments.is_empty() {
            continue;
        }
        match processor.lacks()? {
            Some(remedy) if is_named => bail!("{}: {remedy}", processor.name),
            Some(remedy) => eprintln!("xtask: skipped: {}: {remedy}", processor.name),
            None => passed &= processor.check(root)? & processor.test(root)?,
        }
    }
    Ok(passed)
}

impl Processor {
    fn lacks(&self) -> Result<Option<String>> {
        let Self { triple, gnu, .. } = self;
        let library = ["--print", "target-libdir", "--target", triple];
        let library = said(Command::new("rustc").args(library))?;
        if !Path::new(library.trim()).exists() {
            return Ok(Some(format!("`rustup target add {triple}`")));
        }
        let compiler = format!("{gnu}-gcc");
        if !can_start(&compiler) {
            return Ok(Some(format!("`apt install gcc-{gnu}` brings {compiler}")));
        }
        let emulator = self.emulator.filter(|emulator| !can_start(emulator));
        Ok(emulator.map(|emulator| format!("`apt install qemu-user` brings {emulator}")))
    }

    fn check(&self, root: &Path) -> Result<bool> {
        self.cargo(
            root,
            &["check", "--package", "tabane", "--no-default-features"],
        )
    }

    fn test(&self, root: &Path) -> Result<bool> {
        if self.emulator.is_none() {
            return Ok(true);
        }
        let packages = CRATES
            .iter()
            .flat_map(|name| ["--package".to_owned(), format!("tabane-{name}")]);
        let packages: Vec<String> = packages.collect();
        let mut words = vec!["test", "--lib", "--no-fail-fast"];
        words.extend(packages.iter().map(String::as_str));
        words.extend(["--", "--skip", SLOW]);
        self.cargo(root, &words)
    }

    fn cargo(&self, root: &Path, words: &[&str]) -> Result<bool> {
        let Self { triple, gnu, .. } = self;
        let words = [&words[..1], &["--locked", "--target", triple], &words[1..]].concat();
        let line = format!("cargo {}", words.join(" "));
        eprintln!("xtask: {line}");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(words).current_dir(root);
        let of = |what: &str| {
            format!(
                "CARGO_TARGET_{}_{what}",
                triple.to_uppercase().replace('-', "_")
            )
        };
        command.env(of("LINKER"), format!("{gnu}-gcc"));
        if let Some(emulator) = self.emulator {
            command.env(of("RUNNER"), format!("{emulator} -L /usr/{gnu}"));
        }
        let status = command
            .status()
            .with_context(|| format!("cannot start `{line}`"))?;
        if !status.success() {
            eprintln!("xtask: failed: {line}");
        }
        Ok(status.success())
    }
}
