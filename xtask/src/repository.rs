//! `cargo xtask repository`: packages as apt takes them from a web server that serves files.
//!
//! Owns the layout and the signature, and that clients see a whole repository at any moment: what
//! is signed names lists that nothing overwrites. Which packages there are, `package` decides;
//! earlier ones that stand in the directory stay in it, as they are.

mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::{Release, clear};
use crate::tool::said;

const USAGE: &str = "\
usage: cargo xtask repository [OPTION...]
Puts the packages that `cargo xtask package` has made of this commit into a signed apt repository.
  --packages DIR   where they are [target/packages]; those of other commits are left out
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
    /// Of the packages that are taken.
    version: String,
}

/// Makes the repository.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let mut options = Options {
        packages: root.join("target/packages"),
        out: root.join("target/repository"),
        key: None,
        check: false,
        version: Release::of(root)?.version,
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
        trial::run(&options)?;
        println!("apt takes the repository by its key alone, and the package from it");
        return Ok(true);
    }
    let has_key = options.key.as_ref().is_some_and(|key| !key.is_empty());
    ensure!(has_key, "--key says which key signs\n{USAGE}");
    make(&options, None)?;
    println!(
        "{}: serve it, and see CONTRIBUTING.md",
        options.out.display()
    );
    Ok(true)
}

/// Copies the packages, lists them, signs the list, and only then puts it where clients look;
/// `home` is gpg's, where it is not the user's.
fn make(options: &Options, home: Option<&Path>) -> Result<()> {
    let pool = options.out.join(POOL);
    fs::create_dir_all(&pool)?;
    for package in packages(&options.packages)? {
        let version = field(&package, "Version")?;
        if version == options.version {
            publish(&package, &pool)?;
        } else {
            let (package, ours) = (package.display(), &options.version);
            println!("left out: {package}: it is of {version}, not of {ours}");
        }
    }
    let mut architectures: Vec<String> = Vec::new();
    for package in packages(&pool)? {
        architectures.push(field(&package, "Architecture")?);
    }
    architectures.sort_unstable();
    architectures.dedup();
    ensure!(
        !architectures.is_empty(),
        "no package of {} in {}: `make packages` makes them",
        options.version,
        options.packages.display()
    );
    let dists = options.out.join("dists").join(SUITE);
    let stage = options.out.join("dists/.new");
    clear(&stage)?;
    let mut lists = Vec::new();
    for architecture in &architectures {
        let list = format!("main/binary-{architecture}/Packages");
        let mut scan = Command::new("dpkg-scanpackages");
        scan.args(["--multiversion", "--arch", architecture, "pool"]);
        let text = said(scan.current_dir(&options.out))?;
        let path = stage.join(&list);
        fs::create_dir_all(path.parent().context("a list has a directory")?)?;
        fs::write(&path, text)?;
        said(Command::new("gzip").arg("-9nkf").arg(&path))?;
        lists.extend([list.clone(), list + ".gz"]);
    }
    let release = release(&stage, &architectures.join(" "), &lists)?;
    fs::write(stage.join("Release"), release)?;
    for (how, to) in [
        ("--clearsign", "InRelease"),
        ("--detach-sign", "Release.gpg"),
    ] {
        let mut gpg = gpg(home);
        gpg.args(options.key.iter().flat_map(|key| ["--local-user", key]));
        gpg.args(["--yes", "--armor", "--output", to, how, "Release"]);
        said(gpg.current_dir(&stage))?;
    }
    let mut export = gpg(home);
    export.args(["--yes", "--output", "tabane.gpg", "--export"]);
    said(export.args(&options.key).current_dir(&stage))?;
    fs::rename(stage.join("tabane.gpg"), options.out.join("tabane.gpg"))?;
    show(&stage, &dists, &lists)?;
    fs::remove_dir_all(stage)?;
    Ok(())
}

/// Puts a package into the pool, whole at once; there it never changes, since clients may hold a
/// list with its digest.
fn publish(package: &Path, pool: &Path) -> Result<()> {
    let to = pool.join(package.file_name().context("a package has a name")?);
    if to.exists() {
        ensure!(
            fs::read(package)? == fs::read(&to)?,
            "{} is published already, with other bytes than {}",
            to.display(),
            package.display()
        );
        return Ok(());
    }
    let new = pool.join(".new");
    fs::copy(package, &new)?;
    fs::rename(new, to)?;
    Ok(())
}

/// Puts what is signed in the place of what was. Lists stand under their digests as well, for good
/// (some kilobytes for each time): whoever has read the former signature still finds what it names.
fn show(stage: &Path, dists: &Path, lists: &[String]) -> Result<()> {
    for list in lists {
        let named = dists.join(list);
        let directory = named.parent().context("a list has a directory")?;
        let by_hash = directory.join("by-hash/SHA256");
        fs::create_dir_all(&by_hash)?;
        let new = by_hash.join(".new");
        fs::copy(stage.join(list), &new)?;
        fs::rename(new, by_hash.join(digest(stage, list)?))?;
    }
    let signed = ["Release", "Release.gpg", "InRelease"].map(str::to_owned);
    for file in lists.iter().chain(&signed) {
        fs::rename(stage.join(file), dists.join(file))?;
    }
    Ok(())
}

fn digest(directory: &Path, file: &str) -> Result<String> {
    let sum = said(Command::new("sha256sum").arg(file).current_dir(directory))?;
    let sum = sum.split_whitespace().next().context("no digest")?;
    Ok(sum.to_owned())
}

/// What a package says of itself; an error for one of another program, which we do not sign.
fn field(package: &Path, name: &str) -> Result<String> {
    let of = |name: &str| {
        let mut command = Command::new("dpkg-deb");
        let value = said(command.arg("--field").arg(package).arg(name))?;
        anyhow::Ok(value.trim().to_owned())
    };
    ensure!(
        of("Package")? == "tabane",
        "{} is no package of tabane's; nothing is signed",
        package.display()
    );
    of(name)
}

/// What is signed: the lists with their digests
/// (<https://wiki.debian.org/DebianRepository/Format>).
fn release(dists: &Path, architectures: &str, lists: &[String]) -> Result<String> {
    let date = said(Command::new("date").args(["-u", "-R"]))?;
    let mut text = format!(
        "Origin: tabane\nLabel: tabane\nSuite: {SUITE}\nCodename: {SUITE}\nDate: {date}\
         Acquire-By-Hash: yes\nArchitectures: {architectures}\nComponents: main\nSHA256:\n"
    );
    for list in lists {
        let bytes = fs::metadata(dists.join(list))?.len();
        text += &format!(" {} {bytes} {list}\n", digest(dists, list)?);
    }
    Ok(text)
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
