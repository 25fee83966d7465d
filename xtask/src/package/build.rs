//! The builds that packages are made of: for which machine, with which tools, and which of them
//! this machine has.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::licences::Linked;
use crate::router::{flags, host};
use crate::tool::said;

/// What a build for another C library or machine has: usrsctp is of the distribution, and there is
/// none for them here.
const FEATURES: &str = "dashboard,demo,fleet,lab,sim";
/// The processors that others' builds are for, by Rust's and by Debian's name.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Which C library a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// Debian's; a package.
    Glibc,
    /// Linked in whole; an archive that needs nothing else.
    Musl,
}

/// One build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Build {
    /// Rust's name of the processor.
    pub(crate) processor: String,
    /// Debian's.
    pub(crate) architecture: String,
    pub(super) library: Library,
    /// For the machine that builds.
    is_native: bool,
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.triple())
    }
}

impl Build {
    /// For this machine, with what `cargo build` puts in.
    pub(crate) fn native() -> Result<Self> {
        let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
        Ok(Self {
            processor: own_processor()?,
            architecture: architecture.trim().to_owned(),
            library: Library::Glibc,
            is_native: true,
        })
    }

    /// All that packages are made of, this machine's first.
    pub(super) fn all() -> Result<Vec<Self>> {
        let native = Self::native()?;
        let others = PROCESSORS
            .into_iter()
            .flat_map(|(processor, architecture)| {
                [Library::Glibc, Library::Musl].map(|library| Self {
                    processor: processor.to_owned(),
                    architecture: architecture.to_owned(),
                    library,
                    is_native: false,
                })
            });
        let is_other = |build: &Self| build.triple() != native.triple();
        let others: Vec<Self> = others.filter(is_other).collect();
        Ok([vec![native], others].concat())
    }

    /// Without any C library of the machine it will run on.
    pub(crate) fn musl(processor: &str) -> Result<Self> {
        let all = Self::all()?;
        let found = all
            .into_iter()
            .find(|build| build.library == Library::Musl && build.processor == processor);
        found.with_context(|| format!("no static build for {processor}: x86_64, aarch64"))
    }

    /// Rust's name of the target.
    pub(crate) fn triple(&self) -> String {
        let library = match self.library {
            Library::Glibc => "gnu",
            Library::Musl => "musl",
        };
        format!("{}-unknown-linux-{library}", self.processor)
    }

    /// What this machine lacks for it, and what brings that.
    pub(crate) fn lacks(&self) -> Result<Option<String>> {
        if self.is_native {
            return Ok(None);
        }
        let triple = self.triple();
        let library =
            said(Command::new("rustc").args(["--print", "target-libdir", "--target", &triple]))?;
        if !Path::new(library.trim()).exists() {
            return Ok(Some(format!(
                "`rustup target add {triple}` brings its standard library"
            )));
        }
        let compiler = match self.library {
            Library::Musl => (
                "cargo-zigbuild".to_owned(),
                "pip install cargo-zigbuild ziglang".to_owned(),
            ),
            Library::Glibc => (
                self.tool("gcc"),
                format!(
                    "apt install gcc-{}-linux-gnu",
                    self.processor.replace('_', "-")
                ),
            ),
        };
        let emulator = self.emulator();
        let emulator = emulator.map(|program| (program, "apt install qemu-user".to_owned()));
        let missing = [compiler]
            .into_iter()
            .chain(emulator)
            .find(|(program, _)| !can_start(program));
        Ok(missing.map(|(program, remedy)| format!("`{remedy}` brings {program}")))
    }

    /// The program, with the features that it can have.
    pub(super) fn build(&self, root: &Path) -> Result<PathBuf> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        let triple = self.triple();
        let verb = match self.library {
            Library::Glibc => "build",
            Library::Musl => "zigbuild",
        };
        command.args([verb, "--locked", "--release", "--package", "tabane"]);
        // With a target named, the flags are for it alone, not for what cargo runs meanwhile.
        command.args(["--target", &triple]);
        command.env("RUSTFLAGS", flags(self.library == Library::Musl));
        if !self.is_native {
            command.args(["--no-default-features", "--features", FEATURES]);
            // No program of this machine's can do it later.
            command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        }
        if self.library == Library::Glibc && !self.is_native {
            let name = triple.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{name}_LINKER"), self.tool("gcc"));
        }
        let built = command
            .current_dir(root)
            .status()
            .context("cannot start cargo")?;
        ensure!(built.success(), "{verb} --target {triple} failed");
        let directory = std::env::var_os("CARGO_TARGET_DIR");
        let directory = directory.map_or_else(|| root.join("target"), PathBuf::from);
        Ok(directory.join(triple).join("release/tabane"))
    }

    /// What is in it of others'.
    pub(crate) fn linked(&self) -> Linked {
        Linked {
            triple: self.triple(),
            features: (!self.is_native).then_some(FEATURES),
        }
    }

    /// A command of the built program's.
    pub(super) fn start(&self, program: &Path) -> Command {
        let Some(emulator) = self.emulator() else {
            return Command::new(program);
        };
        let mut command = Command::new(emulator);
        if self.library == Library::Glibc {
            command
                .arg("-L")
                .arg(format!("/usr/{}-linux-gnu", self.processor));
        }
        command.arg(program);
        command
    }

    /// A program of the compiler's tools for this machine, like `objdump`.
    pub(super) fn tool(&self, name: &str) -> String {
        match self.emulator() {
            Some(_) => format!("{}-linux-gnu-{name}", self.processor),
            None => name.to_owned(),
        }
    }

    /// Whether this machine's own tools can read the program.
    pub(crate) fn is_of_this_processor(&self) -> bool {
        self.emulator().is_none()
    }

    fn emulator(&self) -> Option<String> {
        let is_own = own_processor().is_ok_and(|own| own == self.processor);
        (!is_own).then(|| format!("qemu-{}", self.processor))
    }
}

fn own_processor() -> Result<String> {
    let host = host()?;
    let (processor, _) = host.split_once('-').context("a triple has parts")?;
    Ok(processor.to_owned())
}

/// Whether there is such a program.
pub(crate) fn can_start(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_builds_have_all_that_this_machine_s_has_but_for_its_libraries() {
        let manifest = include_str!("../../../crates/tabane/Cargo.toml");
        let line = manifest
            .lines()
            .find_map(|line| line.strip_prefix("default = "));
        let own = line
            .expect("there are default features")
            .replace(['"', ' '], "");
        let own = own.trim_matches(['[', ']']).split(',');
        let others: Vec<&str> = own.filter(|&feature| feature != "sctp").collect();
        assert_eq!(FEATURES.split(',').collect::<Vec<_>>(), others);
        // What is advised where the libraries are missing.
        let advice = include_str!("../../../crates/sctp/build.rs");
        assert!(advice.contains(&format!("--features {FEATURES}\"")));
    }

    #[test]
    fn no_machine_is_built_for_twice_and_the_own_one_is_first() {
        let all = Build::all().expect("this machine has a name");
        assert!(all[0].is_native);
        let mut names: Vec<String> = all.iter().map(Build::triple).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(Build::musl("aarch64").is_ok() && Build::musl("vax").is_err());
    }
}
