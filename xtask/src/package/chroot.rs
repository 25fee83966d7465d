//! The package on a Debian system of its own: `--chroot SUITE`.
//!
//! Owns the system's files (made once, by debootstrap) and the namespaces around it. What is tried
//! there is `packaging/deb/trial.sh`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::clear;
use crate::tool::{is_root, said};

/// What a Debian system has and debootstrap's smallest does not, of what is used here; what the
/// program needs, its package brings.
const INCLUDE: &str = "apparmor,systemd";
/// Mounts what a kernel does. Everything below goes with the namespaces.
const ENTER: &str = "\
mount -t proc proc \"$1/proc\"
mount --rbind /sys \"$1/sys\"
mount --rbind /dev \"$1/dev\"
mount -t tmpfs tmpfs \"$1/run\"
exec chroot \"$1\" sh -eu /trial/trial.sh";

/// Installs, upgrades and purges there.
pub(super) fn run(root: &Path, suite: &str, package: &Path, newer: &Path) -> Result<()> {
    ensure!(is_root(), "--chroot needs root");
    let is_name = |suite: &str| suite.bytes().all(|byte| byte.is_ascii_lowercase());
    ensure!(
        is_name(suite),
        "--chroot takes a suite like bookworm, not {suite}"
    );
    let base = root.join("target/chroot").join(suite);
    if !base.join("etc/debian_version").exists() || !base.join("usr/bin/systemctl").exists() {
        clear(&base)?;
        let mirror = mirror()?;
        println!("debootstrap {suite} from {mirror}: fetches some 60 MB, once");
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", "--include", INCLUDE, suite]);
        said(debootstrap.arg(&base).arg(&mirror))?;
    }
    let system = base.with_extension("trial");
    if system.exists() {
        fs::remove_dir_all(&system)?;
    }
    said(Command::new("cp").arg("-a").arg(&base).arg(&system))?;
    let trial = system.join("trial");
    fs::create_dir_all(&trial)?;
    fs::copy(package, trial.join("tabane.deb"))?;
    fs::copy(newer, trial.join("tabane-newer.deb"))?;
    fs::copy(root.join("packaging/deb/trial.sh"), trial.join("trial.sh"))?;
    fs::copy("/etc/resolv.conf", system.join("etc/resolv.conf"))?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--uts"]);
    command.args(["sh", "-ec", ENTER, "sh"]).arg(&system);
    command
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive");
    let status = command.status().context("cannot start unshare")?;
    ensure!(status.success(), "the trial on {suite} failed: {status}");
    fs::remove_dir_all(&system)?;
    Ok(())
}

/// Where this machine's apt gets Debian from.
fn mirror() -> Result<String> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(SITE)", "Origin: Debian"]);
    let sites = said(&mut apt)?;
    let site = sites.lines().find(|site| !site.contains("security"));
    Ok(site.context("apt knows no mirror of Debian")?.to_owned())
}
