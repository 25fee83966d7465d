//! What is installed, wherever it is unpacked: the program, its manual pages and completions, and
//! what a distribution asks for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, build::Build, said};

pub(super) const MAINTAINER: &str = "The tabane developers <tabane@example.invalid>";
/// What shells look for, by directory and name.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/tabane"),
    ("zsh", "usr/share/zsh/vendor-completions/_tabane"),
    ("fish", "usr/share/fish/vendor_completions.d/tabane.fish"),
];

/// Puts everything below `stage`, but for what only Debian knows.
pub(super) fn lay_out(
    release: &Release,
    root: &Path,
    build: &Build,
    binary: &Path,
    stage: &Path,
) -> Result<()> {
    let program = stage.join("usr/bin/tabane");
    let bytes = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    put(&program, &bytes, 0o755)?;
    if build.is_of_this_processor() {
        said(Command::new("strip").arg("--strip-unneeded").arg(&program))?;
    }
    for (shell, path) in COMPLETIONS {
        let script = said(build.start(&program).args(["completion", shell]))?;
        put(&stage.join(path), script.as_bytes(), 0o644)?;
    }
    let pages = stage.join("usr/share/man/man1");
    said(build.start(&program).arg("manual").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
        compress(&page)?;
    }
    let documents = stage.join("usr/share/doc/tabane");
    let copyright = copyright(&fs::read_to_string(root.join("LICENSE-MIT"))?);
    put(&documents.join("copyright"), copyright.as_bytes(), 0o644)?;
    let changes = fs::read(root.join("CHANGELOG.md"))?;
    put(&documents.join("NEWS.md"), &changes, 0o644)?;
    compress(&documents.join("NEWS.md"))?;
    let changelog = documents.join("changelog");
    put(&changelog, debian_changelog(release)?.as_bytes(), 0o644)?;
    compress(&changelog)
}

/// Lets everybody into the directories below `stage`, whatever the umask.
pub(super) fn open_directories(stage: &Path) -> Result<()> {
    let words = ["-type", "d", "-exec", "chmod", "755", "{}", "+"];
    said(Command::new("find").arg(stage).args(words)).map(drop)
}

/// With the licence's text in Debian's form: a space before each line, a full stop for none.
fn copyright(mit: &str) -> String {
    let mit = mit.lines().map(|line| match line.trim() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    });
    let text = include_str!("../../../packaging/deb/copyright");
    format!("{text}License: Expat\n{}", mit.collect::<String>())
}

/// In Debian's form (deb-changelog(5)).
fn debian_changelog(release: &Release) -> Result<String> {
    let mut date = Command::new("date");
    let date = said(date.args(["-u", "-R", "-d", &format!("@{}", release.time)]))?;
    Ok(format!(
        "tabane ({}) unstable; urgency=medium\n\n  * What has changed: NEWS.md.gz.\n\n \
         -- {MAINTAINER}  {}\n",
        release.version,
        date.trim()
    ))
}

/// As `gzip` does it to the same bytes everywhere.
fn compress(path: &Path) -> Result<()> {
    said(Command::new("gzip").arg("-9nf").arg(path)).map(drop)
}

/// Writes a file with these permissions, whatever the umask, and the directories above it.
pub(super) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let parent = path.parent().context("a file has a directory")?;
    fs::create_dir_all(parent)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}
