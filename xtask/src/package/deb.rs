//! The Debian package: what dpkg reads, and what only a Debian system has a place for.
//!
//! Owns control, conffiles and the scripts around them (`packaging/deb`), and what `lintian` and
//! `apparmor_parser` say of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build::{Build, can_start};
use super::contents::{COMPLETIONS, MAINTAINER, open_directories};
use super::{Release, clear, size};
use crate::tool::{put, said};

/// Which package has a shared library that the program may need.
const LIBRARIES: [(&str, &str); 4] = [
    ("libc.so", "libc6"),
    ("libm.so", "libc6"),
    ("ld-linux", "libc6"),
    ("libgcc_s.so", "libgcc-s1"),
];

/// Run by dpkg.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../../../packaging/deb/postinst")),
    ("prerm", include_str!("../../../packaging/deb/prerm")),
    ("postrm", include_str!("../../../packaging/deb/postrm")),
];
/// Files by place, with their permissions; those below `etc` are the administrator's to change.
const FILES: [(&str, &str, u32); 4] = [
    (
        "etc/tabane/config.toml",
        include_str!("../../../packaging/deb/config.toml"),
        0o644,
    ),
    (
        "etc/apparmor.d/tabane-relay",
        include_str!("../../../packaging/deb/apparmor"),
        0o644,
    ),
    (
        "usr/lib/sysusers.d/tabane.conf",
        include_str!("../../../packaging/deb/sysusers.conf"),
        0o644,
    ),
    (
        "usr/share/lintian/overrides/tabane",
        include_str!("../../../packaging/deb/lintian-overrides"),
        0o644,
    ),
];

/// Makes what is laid out in `stage` a package.
pub(super) fn make(release: &Release, build: &Build, stage: &Path, package: &Path) -> Result<()> {
    for (path, text, mode) in FILES {
        put(&stage.join(path), text.as_bytes(), mode)?;
    }
    open_directories(stage)?;
    // Keys of services come there.
    said(
        Command::new("chmod")
            .arg("700")
            .arg(stage.join("etc/tabane")),
    )?;
    describe(release, build, stage)?;
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]);
    command.arg(stage).arg(package);
    said(command.env("SOURCE_DATE_EPOCH", &release.time)).map(drop)
}

/// What dpkg reads (deb-control(5)).
fn describe(release: &Release, build: &Build, stage: &Path) -> Result<()> {
    let control = stage.join("DEBIAN");
    let mut size = Command::new("du");
    let size = said(size.args(["-sk", "--apparent-size"]).arg(stage))?;
    let size = size.split_whitespace().next().context("du says nothing")?;
    let dump = |option: &str| {
        let program = stage.join("usr/bin/tabane");
        said(Command::new(build.tool("objdump")).arg(option).arg(program))
    };
    let depends = dependencies(&dump("-p")?, &dump("-T")?)?;
    let text = format!(
        "Package: tabane\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {depends}\n\
         Recommends: ca-certificates, curl, iproute2, nftables\nSuggests: apparmor\n\
         Section: net\nPriority: optional\n\
         Description: makes every link that a machine has work as one\n \
         One encrypted multipath session carries TCP, UDP and DNS of programs that know\n \
         nothing of it over all links at once, to a relay that is the same program.\n",
        release.version, build.architecture,
    );
    put(&control.join("control"), text.as_bytes(), 0o644)?;
    for (name, script) in SCRIPTS {
        put(&control.join(name), script.as_bytes(), 0o755)?;
    }
    let conffiles = FILES.iter().filter(|(path, ..)| path.starts_with("etc/"));
    let conffiles: String = conffiles.map(|(path, ..)| format!("/{path}\n")).collect();
    put(&control.join("conffiles"), conffiles.as_bytes(), 0o644)?;
    let sums = "cd \"$0\" && find usr -type f | LC_ALL=C sort | xargs md5sum";
    let sums = said(Command::new("sh").args(["-c", sums]).arg(stage))?;
    put(&control.join("md5sums"), sums.as_bytes(), 0o644)
}

/// The packages of the libraries that a program needs, and how new its libc must be: from what
/// `objdump -p` and `objdump -T` say.
fn dependencies(needs: &str, symbols: &str) -> Result<String> {
    let mut packages = Vec::new();
    for line in needs.lines() {
        let Some(library) = line.trim().strip_prefix("NEEDED") else {
            continue;
        };
        let library = library.trim();
        let found = LIBRARIES.iter().find(|(name, _)| library.starts_with(name));
        let (_, package) = found.with_context(|| format!("nobody says whose {library} is"))?;
        packages.push(*package);
    }
    packages.sort_unstable();
    packages.dedup();
    let number = |part: &str| part.parse::<u32>().ok();
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (major, minor) = rest[..end.unwrap_or(rest.len())].split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((number(major)?, number(minor)?))
    });
    // What mends packed addresses has no symbol of its own, and is of 2.36.
    let packed = needs.contains("GLIBC_ABI_DT_RELR").then_some((2, 36));
    let newest = versions.chain(packed).max();
    let named = packages.into_iter().map(|package| match newest {
        Some((major, minor)) if package == "libc6" => format!("libc6 (>= {major}.{minor})"),
        _ => package.to_owned(),
    });
    Ok(named.collect::<Vec<_>>().join(", "))
}

/// What Debian's own tools find wrong with it, where they are.
pub(super) fn inspect(package: &Path, root: &Path) -> Result<()> {
    match can_start("lintian") {
        // Of root's, too, whose builds are as good.
        true => {
            let mut lintian = Command::new("lintian");
            lintian.args([
                "--allow-root",
                "--fail-on",
                "error,warning",
                "--tag-display-limit",
                "0",
            ]);
            let said = lintian.arg(package).output()?;
            let words = String::from_utf8_lossy(&said.stdout);
            ensure!(said.status.success(), "lintian:\n{words}");
        }
        false => eprintln!("xtask: skipped: lintian (apt install lintian)"),
    }
    match can_start("apparmor_parser") {
        true => {
            let mut parser = Command::new("apparmor_parser");
            parser.args(["--skip-kernel-load", "--skip-cache"]);
            said(parser.arg(root.join("packaging/deb/apparmor")))?;
        }
        false => eprintln!("xtask: skipped: the AppArmor profile (apt install apparmor)"),
    }
    Ok(())
}

/// Installs the package below `target`, runs what it brought, and purges it: only directories may
/// be left. Bytes of the program.
pub(super) fn install_and_purge(package: &Path, target: &Path) -> Result<f64> {
    clear(target)?;
    let target = fs::canonicalize(target)?;
    let database = target.join("var/lib/dpkg");
    for directory in ["info", "updates"] {
        fs::create_dir_all(database.join(directory))?;
    }
    fs::write(database.join("status"), "")?;
    let dpkg = |arguments: &[&str], last: &Path| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", target.display()));
        command.args([
            "--force-not-root",
            "--force-depends",
            "--force-script-chrootless",
        ]);
        said(command.args(arguments).arg(last))
    };
    dpkg(&["--install"], package)?;
    let program = target.join("usr/bin/tabane");
    let version = said(Command::new(&program).arg("--version"))?;
    let bytes = size(&program)?;
    ensure!(version.starts_with("tabane "), "it says: {version}");
    for path in ["usr/share/man/man1/tabane-run.1.gz", COMPLETIONS[0].1] {
        ensure!(size(&target.join(path))? > 500.0, "{path} is too short");
    }
    // What the administrator and the program put there goes with it.
    fs::create_dir_all(target.join("etc/tabane"))?;
    fs::write(target.join("etc/tabane/config.toml"), "")?;
    dpkg(&["--purge"], Path::new("tabane"))?;
    let left = said(
        Command::new("find")
            .arg(&target)
            .args(["-path", "*tabane*", "-type", "f"]),
    )?;
    let left: Vec<&str> = left
        .lines()
        .filter(|path| !path.contains("/dpkg/"))
        .collect();
    ensure!(left.is_empty(), "purging left {left:?}");
    fs::remove_dir_all(target)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit has NoNewPrivileges, under which the kernel refuses a change of profile.
    #[test]
    fn what_the_confined_relay_runs_stays_under_its_profile() {
        let (_, profile, _) = FILES[1];
        let rules = profile.lines().filter_map(|line| {
            let (path, rights) = line.trim().strip_suffix(',')?.rsplit_once(' ')?;
            (path.starts_with('/') && rights.contains('x')).then_some((path, rights))
        });
        let rules: Vec<_> = rules.collect();
        assert!(rules.len() >= 2, "{rules:?}");
        for (path, rights) in rules {
            assert!(rights.ends_with("ix"), "{path} {rights}");
        }
    }

    #[test]
    fn dependencies_are_the_libraries_with_the_newest_symbol_that_is_needed() {
        let needs = "  NEEDED               libgcc_s.so.1\n  NEEDED               libm.so.6\n  \
                     NEEDED               libc.so.6\n  RPATH x\n";
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) read\n0 DF *UND* 0 (GLIBC_2.34) open\n\
                       0 DF *UND* 0 (GLIBC_2.2.5) write\n0 DF *UND* 0 (GCC_3.0) unwind\n";
        let found = dependencies(needs, symbols).expect("all are known");
        assert_eq!(found, "libc6 (>= 2.34), libgcc-s1");
        let needs = format!("{needs}    0x0fd0e42 0x00 29 GLIBC_ABI_DT_RELR\n");
        let found = dependencies(&needs, symbols).expect("all are known");
        assert_eq!(found, "libc6 (>= 2.36), libgcc-s1");
        assert!(dependencies("  NEEDED    libstrange.so.1", "").is_err());
    }
}
