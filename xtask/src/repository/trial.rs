//! `--check`: the repository as an owner and a user have it, with a key and an apt of its own.
//!
//! apt must verify the signature and bring the package, must find a whole repository whatever
//! happens to the owner's next run, and must refuse a list that somebody has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Options, POOL, SUITE, gpg, make, packages};
use crate::package::{Build, clear};
use crate::tool::said;

pub(super) fn run(options: &Options) -> Result<()> {
    // gpg's agent has a socket there, whose path must be short.
    let scratch = std::env::temp_dir().join(format!("tbrepo{}", std::process::id()));
    clear(&scratch)?;
    let outcome = Trial::new(options, &scratch).and_then(|trial| trial.run());
    let _ = Command::new("gpgconf")
        .arg("--homedir")
        .arg(scratch.join("gpg"))
        .args(["--kill", "all"])
        .status();
    fs::remove_dir_all(&scratch)?;
    outcome
}

/// An owner's repository, and a user.
struct Trial<'a> {
    made: Options,
    scratch: &'a Path,
    /// gpg's.
    home: PathBuf,
}

impl<'a> Trial<'a> {
    fn new(options: &Options, scratch: &'a Path) -> Result<Self> {
        let home = scratch.join("gpg");
        fs::create_dir_all(&home)?;
        said(Command::new("chmod").arg("700").arg(&home))?;
        let mut create = gpg(Some(&home));
        create.args(["--passphrase", "", "--quick-generate-key", "tabane"]);
        said(&mut create)?;
        let made = Options {
            packages: options.packages.clone(),
            out: scratch.join("repository"),
            key: None,
            check: false,
            version: options.version.clone(),
        };
        Ok(Self {
            made,
            scratch,
            home,
        })
    }

    fn run(mut self) -> Result<()> {
        make(&self.made, Some(&self.home))?;
        self.user_gets_the_package()?;
        self.later_runs_break_nothing()?;
        // What the signature covers cannot be changed by whoever serves it.
        let signed = self.signed();
        let text = fs::read_to_string(&signed)?;
        fs::write(&signed, text.replace("Label: tabane", "Label: other"))?;
        ensure!(self.update().is_err(), "apt takes a list that was changed");
        Ok(())
    }

    fn user_gets_the_package(&self) -> Result<()> {
        let top = self.made.out.display();
        let line = format!("deb [signed-by={top}/tabane.gpg] file://{top} {SUITE} main\n");
        let apt = self.scratch.join("apt");
        for directory in ["etc/preferences.d", "state", "cache/archives/partial"] {
            fs::create_dir_all(apt.join(directory))?;
        }
        fs::write(apt.join("etc/sources.list"), line)?;
        fs::write(apt.join("state/status"), "")?;
        self.update()?;
        let fetched = self.scratch.join("fetched");
        fs::create_dir_all(&fetched)?;
        let mut download = self.apt_get();
        said(download.args(["download", "tabane"]).current_dir(&fetched))?;
        ensure!(packages(&fetched)?.len() == 1, "apt fetched no package");
        Ok(())
    }

    /// Neither one that fails nor one that succeeds, whatever part of it a client has seen.
    fn later_runs_break_nothing(&mut self) -> Result<()> {
        let former = fs::read(self.signed())?;
        self.made.packages = self.scratch.join("next");
        self.made.version += "+next";
        self.pack("tabane")?;
        self.made.key = Some("nobody".to_owned());
        ensure!(
            make(&self.made, Some(&self.home)).is_err(),
            "nobody's key signs"
        );
        self.update()?;
        self.made.key = None;
        make(&self.made, Some(&self.home))?;
        self.update()?;
        let newest = fs::read(self.signed())?;
        let mut shown = self.apt_get();
        let shown = said(shown.args(["-s", "install", "tabane"]))?;
        ensure!(
            shown.contains(&self.made.version),
            "apt takes another than the next package:\n{shown}"
        );
        // A cache in between may have the former signature a while longer.
        fs::write(self.signed(), &former)?;
        self.update()?;
        fs::write(self.signed(), newest)?;
        self.only_ours_is_signed()
    }

    fn only_ours_is_signed(&mut self) -> Result<()> {
        let own = std::mem::replace(&mut self.made.version, "9".to_owned());
        self.pack("tabane")?;
        self.made.version = own;
        make(&self.made, Some(&self.home))?;
        let published = packages(&self.made.out.join(POOL))?;
        ensure!(published.len() == 2, "published are {published:?}");
        let other = self.pack("other")?;
        ensure!(
            make(&self.made, Some(&self.home)).is_err(),
            "{} is signed",
            other.display()
        );
        Ok(())
    }

    /// A package of almost nothing, among those that are to be published.
    fn pack(&self, name: &str) -> Result<PathBuf> {
        let (tree, version) = (self.scratch.join("tree"), &self.made.version);
        let architecture = Build::native()?.architecture;
        clear(&tree.join("DEBIAN"))?;
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n\
             Maintainer: a <a@b.c>\nDescription: a\n"
        );
        fs::write(tree.join("DEBIAN/control"), control)?;
        fs::create_dir_all(&self.made.packages)?;
        let package = self
            .made
            .packages
            .join(format!("{name}_{version}_{architecture}.deb"));
        said(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "--build"])
                .arg(&tree)
                .arg(&package),
        )?;
        Ok(package)
    }

    fn signed(&self) -> PathBuf {
        self.made.out.join("dists").join(SUITE).join("InRelease")
    }

    /// As who has no list yet.
    fn update(&self) -> Result<()> {
        let lists = self.scratch.join("apt/state/lists");
        clear(&lists)?;
        fs::create_dir(lists.join("partial"))?;
        said(self.apt_get().args(["update", "--error-on=any"])).map(drop)
    }

    /// apt with nothing of this machine's but its programs.
    fn apt_get(&self) -> Command {
        let mut command = Command::new("apt-get");
        let of = |key: &str, path: &str| {
            let place = self.scratch.join("apt").join(path);
            format!("{key}={}", place.display())
        };
        for setting in [
            of("Dir::Etc", "etc"),
            of("Dir::State", "state"),
            of("Dir::State::status", "state/status"),
            of("Dir::Cache", "cache"),
            // It would have no right to read below a directory of root's.
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.args(["-o", &setting]);
        }
        command
    }
}
