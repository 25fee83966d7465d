//! What is installed, wherever it is unpacked: the program, its manual pages and completions, and
//! what a distribution asks for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, build::Build};
use crate::tool::{compress, put, said};

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
    build.linked().put(root, &documents)?;
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
