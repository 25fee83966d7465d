//! `cargo xtask package`: Debian packages and archives of the program.
//!
//! Owns which are made of a commit, and that the same commit makes the same bytes. Manual pages and
//! completions are the program's own to write.

mod build;
mod chroot;
mod contents;
mod deb;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use build::Library;
pub(crate) use build::{Build, can_start};

use crate::router::crates_in_flags;
use crate::tool::said;

const USAGE: &str = "\
usage: cargo xtask package [OPTION...]
Makes packages (tabane_VERSION_ARCHITECTURE.deb) and archives (tabane-VERSION-TARGET.tar.gz) out of
this commit, for all machines that the tools here can build for, and says what it left out.
  --native         for this machine only
  --binary FILE    for this machine only, with a tabane built elsewhere
  --out DIR        where to [target/packages]
  --check          makes this machine's twice and compares; has lintian and apparmor_parser look at
                   them, where they are; installs, runs and purges the package in a directory of its
                   own; its program, built here, is no larger than promised
  --chroot SUITE   (root, needs the network) installs it on Debian bookworm, trixie, …, made by
                   debootstrap in target/chroot from the mirror that this machine's apt uses: times
                   apt to the first line of `tabane demo`, upgrades it while a relay runs, purges";

/// Bytes of the program in this machine's package.
const SIZE_MAX: f64 = 20e6;

const VERSION: &str = env!("CARGO_PKG_VERSION");

struct Options {
    binary: Option<PathBuf>,
    out: PathBuf,
    is_native: bool,
    check: bool,
    chroot: Option<String>,
}

impl Options {
    /// `None` where only the usage was asked for.
    fn parse(root: &Path, arguments: &[&str]) -> Result<Option<Self>> {
        let mut options = Self {
            binary: None,
            out: root.join("target/packages"),
            is_native: false,
            check: false,
            chroot: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next();
                value.with_context(|| format!("{word} needs a value\n{USAGE}"))
            };
            match *word {
                "--native" => options.is_native = true,
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--out" => options.out = PathBuf::from(value()?),
                "--check" => options.check = true,
                "--chroot" => options.chroot = Some((*value()?).to_owned()),
                "--help" | "-h" => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                other => bail!("unknown: {other}\n{USAGE}"),
            }
        }
        Ok(Some(options))
    }
}

/// Makes the packages; `false` where `--check` found a fault.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let Some(options) = Options::parse(root, arguments)? else {
        return Ok(true);
    };
    let release = Release::of(root)?;
    let native = Build::native()?;
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => native.build(root)?,
    };
    let made = release.make(root, &native, &binary, &options.out)?;
    tell(&made)?;
    let is_alone = options.is_native || options.binary.is_some() || options.chroot.is_some();
    for build in Build::all()?.into_iter().skip(1) {
        if is_alone {
            break;
        }
        match build.lacks()? {
            Some(remedy) => println!("left out: {build}: {remedy}"),
            None => {
                let binary = build.build(root)?;
                tell(&release.make(root, &build, &binary, &options.out)?)?;
            }
        }
    }
    if options.check {
        let again = release.make(root, &native, &binary, &options.out.join("again"))?;
        for (one, other) in made.iter().zip(&again) {
            ensure!(
                fs::read(one)? == fs::read(other)?,
                "{} differs when it is made again",
                one.display()
            );
        }
        fs::remove_dir_all(options.out.join("again"))?;
        deb::inspect(&made[1], root)?;
        if options.binary.is_none() {
            names_no_builder(&binary)?;
        }
        let bytes = deb::install_and_purge(&made[1], &options.out.join("root"))?;
        println!(
            "made twice the same; installs, runs, purges; the program has {:.1} MB",
            bytes / 1e6
        );
        // One that was built elsewhere may be for debugging.
        let is_light = bytes <= SIZE_MAX || options.binary.is_some();
        ensure!(
            is_light,
            "the program has {bytes} bytes; promised are {SIZE_MAX}"
        );
    }
    if let Some(suite) = &options.chroot {
        let out = options.out.join("newer");
        let newer = release.newer().make(root, &native, &binary, &out)?;
        chroot::run(root, suite, &made[1], &newer[1])?;
        fs::remove_dir_all(out)?;
    }
    Ok(true)
}

/// Nobody else's could be the same otherwise.
fn names_no_builder(binary: &Path) -> Result<()> {
    let program = fs::read(binary)?;
    let Some(path) = crates_in_flags() else {
        return Ok(());
    };
    let mut pieces = program.windows(path.len());
    ensure!(
        pieces.all(|piece| piece != path.as_bytes()),
        "the program names {path}, which is elsewhere on others' machines"
    );
    Ok(())
}

fn tell(made: &[PathBuf]) -> Result<()> {
    for path in made {
        println!("{} ({:.1} MB)", path.display(), size(path)? / 1e6);
    }
    Ok(())
}

/// What is packed.
pub(crate) struct Release {
    pub(crate) version: String,
    /// Of the commit, in seconds since 1970: no file in a package is newer.
    pub(crate) time: String,
}

impl Release {
    /// This commit: a release where its tag says so, and else what comes before it, or after it.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let git = |arguments: &[&str]| said(Command::new("git").args(arguments).current_dir(root));
        let date = "--date=format-local:%Y%m%d%H%M";
        let commit = git(&["log", "-1", date, "--format=%ct %cd %h"])?;
        let mut words = commit.split_whitespace();
        let mut next = || words.next().context("git log says too little");
        let (time, date, hash) = (next()?.to_owned(), next()?, next()?);
        let is_tagged = |which: &str| {
            let tags = git(&["tag", which, "HEAD"])?;
            anyhow::Ok(tags.lines().any(|tag| tag == format!("v{VERSION}")))
        };
        let version = if is_tagged("--points-at")? {
            VERSION.to_owned()
        } else if is_tagged("--merged")? {
            format!("{VERSION}+{date}.g{hash}")
        } else {
            format!("{VERSION}~{date}.g{hash}")
        };
        Ok(Self { version, time })
    }

    /// What could follow it.
    fn newer(&self) -> Self {
        Self {
            version: format!("{}+next", self.version),
            time: self.time.clone(),
        }
    }

    /// The archive, and the package where the build is for one, in `out`.
    fn make(&self, root: &Path, build: &Build, binary: &Path, out: &Path) -> Result<Vec<PathBuf>> {
        let (version, architecture) = (&self.version, &build.architecture);
        let stage = out.join("stage");
        clear(&stage)?;
        contents::lay_out(self, root, build, binary, &stage)?;
        contents::open_directories(&stage)?;
        let name = match build.library {
            Library::Glibc => architecture.clone(),
            Library::Musl => build.triple(),
        };
        let archive = out.join(format!("tabane-{version}-{name}.tar.gz"));
        let tar = "tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@\"$TIME\" \
                   -C \"$STAGE\" -cf - usr | gzip -9n > \"$ARCHIVE\"";
        let mut command = Command::new("sh");
        command.args(["-ec", tar]).env("TIME", &self.time);
        said(command.env("STAGE", &stage).env("ARCHIVE", &archive))?;
        let mut made = vec![archive];
        if build.library == Library::Glibc {
            let package = out.join(format!("tabane_{version}_{architecture}.deb"));
            deb::make(self, build, &stage, &package)?;
            made.push(package);
        }
        fs::remove_dir_all(&stage)?;
        Ok(made)
    }
}

/// An empty directory.
pub(crate) fn clear(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;
    Ok(())
}

fn size(path: &Path) -> Result<f64> {
    let metadata = fs::metadata(path).with_context(|| format!("no {}", path.display()))?;
    Ok(metadata.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether dpkg takes the one for older; `None` without dpkg.
    fn is_older(one: &str, other: &str) -> Option<bool> {
        let mut dpkg = Command::new("dpkg");
        dpkg.args(["--compare-versions", one, "lt", other]);
        Some(dpkg.status().ok()?.success())
    }

    #[test]
    fn builds_are_older_than_the_release_before_its_tag_and_newer_after_it() {
        let name = format!("tabane-xtask-{}", std::process::id());
        let repository = std::env::temp_dir().join(name);
        clear(&repository).unwrap();
        let git = |line: &str| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.net"]);
            git.args(line.split(' ')).current_dir(&repository);
            said(git.env("GIT_CONFIG_GLOBAL", "/dev/null")).unwrap();
        };
        let version = || Release::of(&repository).unwrap().version;
        git("init --quiet");
        git("commit --quiet --allow-empty -m one");
        let before = version();
        git(&format!("tag v{VERSION}"));
        assert_eq!(version(), VERSION);
        git("commit --quiet --allow-empty -m two");
        let after = version();
        fs::remove_dir_all(&repository).unwrap();
        assert!(is_older(&before, VERSION).unwrap_or(true), "{before}");
        assert!(is_older(VERSION, &after).unwrap_or(true), "{after}");
    }
}
