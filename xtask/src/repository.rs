//! `cargo xtask repository`: packages as apt takes them from a web server that serves files.
//!
//! Owns the layout and the signature. Which packages there are, `package` decides; earlier ones
//! that stand in the directory stay in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::clear;
use crate::tool::said;

const USAGE: &str = "\
usage: cargo xtask repository [OPTION...]
Puts the packages that `cargo xtask package` has made into a signed apt repository.
  --packages DIR   where they are [target/packages]
  --out DIR        the repository; packages that are there stay [target/repository]
  --key ID         gpg's key to sign with
  --check          makes one with a key of its own, lets apt verify it and fetch the package";

/// Where packages stand, from the repository's top.
const POOL: &str = "pool/main/t/tabane";
const SUITE: &str = "stable";

struct Options {
    packages: PathBuf,
    out: PathBuf,
    key: Option<String>,
    check: bool,
}

/// Makes the repository.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let mut options = Options {
        packages: root.join("target/packages"),
        out: root.join("target/repository"),
        key: None,
        check: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("{word} needs a value"))
        };
        match *word {
            "--packages" => options.packages = PathBuf::from(value()?),
            "--out" => options.out = PathBuf::from(value()?),
            "--key" => options.key = Some((*value()?).to_owned()),
            "--check" => options.check = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(true);
            }
            other => bail!("unknown: {other}\n{USAGE}"),
        }
    }
    if options.check {
        check(&options)?;
        println!("apt takes the repository by its key alone, and the package from it");
        return Ok(true);
    }
    ensure!(options.key.is_some(), "--key says which key signs\n{USAGE}");
    make(&options, None)?;
    println!(
        "{}: serve it, and see CONTRIBUTING.md",
        options.out.display()
    );
    Ok(true)
}

/// Copies the packages, lists them and signs the list; `home` is gpg's, where it is not the user's.
fn make(options: &Options, home: Option<&Path>) -> Result<()> {
    let pool = options.out.join(POOL);
    fs::create_dir_all(&pool)?;
    for package in packages(&options.packages)? {
        let name = package.file_name().context("a package has a name")?;
        fs::copy(&package, pool.join(name))?;
    }
    let mut architectures: Vec<String> = Vec::new();
    for package in packages(&pool)? {
        let mut command = Command::new("dpkg-deb");
        command.arg("--field").arg(&package).arg("Architecture");
        architectures.push(said(&mut command)?.trim().to_owned());
    }
    architectures.sort_unstable();
    architectures.dedup();
    ensure!(
        !architectures.is_empty(),
        "no package in {}: `make packages` makes them",
        options.packages.display()
    );
    let dists = options.out.join("dists").join(SUITE);
    let mut lists = Vec::new();
    for architecture in &architectures {
        let list = format!("main/binary-{architecture}/Packages");
        let mut scan = Command::new("dpkg-scanpackages");
        scan.args(["--multiversion", "--arch", architecture, "pool"]);
        let text = said(scan.current_dir(&options.out))?;
        let path = dists.join(&list);
        fs::create_dir_all(path.parent().context("a list has a directory")?)?;
        fs::write(&path, text)?;
        said(Command::new("gzip").arg("-9nkf").arg(&path))?;
        lists.extend([list.clone(), list + ".gz"]);
    }
    let release = release(&dists, &architectures.join(" "), &lists)?;
    fs::write(dists.join("Release"), release)?;
    for (how, to) in [
        ("--clearsign", "InRelease"),
        ("--detach-sign", "Release.gpg"),
    ] {
        let mut gpg = gpg(home);
        gpg.args(options.key.iter().flat_map(|key| ["--local-user", key]));
        gpg.args(["--yes", "--armor", "--output", to, how, "Release"]);
        said(gpg.current_dir(&dists))?;
    }
    let mut export = gpg(home);
    export.args(["--yes", "--output", "tabane.gpg", "--export"]);
    said(export.args(&options.key).current_dir(&options.out))?;
    Ok(())
}

/// What is signed: the lists with their digests
/// (<https://wiki.debian.org/DebianRepository/Format>).
fn release(dists: &Path, architectures: &str, lists: &[String]) -> Result<String> {
    let date = said(Command::new("date").args(["-u", "-R"]))?;
    let mut text = format!(
        "Origin: tabane\nLabel: tabane\nSuite: {SUITE}\nCodename: {SUITE}\nDate: {date}\
         Architectures: {architectures}\nComponents: main\nSHA256:\n"
    );
    for list in lists {
        let sum = said(Command::new("sha256sum").arg(list).current_dir(dists))?;
        let sum = sum.split_whitespace().next().context("no digest")?;
        let bytes = fs::metadata(dists.join(list))?.len();
        text += &format!(" {sum} {bytes} {list}\n");
    }
    Ok(text)
}

/// As an owner and a user would do it, in a directory of their own: apt must verify the signature
/// and bring the package, and must refuse a list that somebody has changed.
fn check(options: &Options) -> Result<()> {
    // gpg's agent has a socket there, whose path must be short.
    let scratch = std::env::temp_dir().join(format!("tbrepo{}", std::process::id()));
    clear(&scratch)?;
    let home = scratch.join("gpg");
    let outcome = trial(options, &scratch, &home);
    let _ = Command::new("gpgconf")
        .arg("--homedir")
        .arg(&home)
        .args(["--kill", "all"])
        .status();
    fs::remove_dir_all(&scratch)?;
    outcome
}

fn trial(options: &Options, scratch: &Path, home: &Path) -> Result<()> {
    fs::create_dir_all(home)?;
    said(Command::new("chmod").arg("700").arg(home))?;
    let mut create = gpg(Some(home));
    create.args(["--passphrase", "", "--quick-generate-key", "tabane"]);
    said(&mut create)?;
    let made = Options {
        packages: options.packages.clone(),
        out: scratch.join("repository"),
        key: None,
        check: false,
    };
    make(&made, Some(home))?;
    let top = made.out.display();
    let line = format!("deb [signed-by={top}/tabane.gpg] file://{top} {SUITE} main\n");
    let apt = scratch.join("apt");
    for directory in [
        "etc/preferences.d",
        "state/lists/partial",
        "cache/archives/partial",
    ] {
        fs::create_dir_all(apt.join(directory))?;
    }
    fs::write(apt.join("etc/sources.list"), line)?;
    fs::write(apt.join("state/status"), "")?;
    said(apt_get(&apt).arg("update"))?;
    let fetched = scratch.join("fetched");
    fs::create_dir_all(&fetched)?;
    said(
        apt_get(&apt)
            .args(["download", "tabane"])
            .current_dir(&fetched),
    )?;
    ensure!(packages(&fetched)?.len() == 1, "apt fetched no package");
    // What the signature covers cannot be changed by whoever serves it.
    let signed = made.out.join("dists").join(SUITE).join("InRelease");
    let text = fs::read_to_string(&signed)?;
    fs::write(&signed, text.replace("Label: tabane", "Label: other"))?;
    ensure!(
        said(apt_get(&apt).args(["update", "--error-on=any"])).is_err(),
        "apt takes a list that was changed"
    );
    Ok(())
}

/// apt with nothing of this machine's but its programs.
fn apt_get(directory: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let of = |key: &str, path: &str| format!("{key}={}", directory.join(path).display());
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

fn gpg(home: Option<&Path>) -> Command {
    let mut command = Command::new("gpg");
    command.arg("--batch");
    if let Some(home) = home {
        command.arg("--homedir").arg(home);
        command.args(["--pinentry-mode", "loopback"]);
    }
    command
}

/// The packages in a directory.
fn packages(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory);
    let entries =
        entries.with_context(|| format!("no {}: `make packages` makes it", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
