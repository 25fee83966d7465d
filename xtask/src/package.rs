//! `cargo xtask package`: a Debian package and an archive of the program, for this processor.
//!
//! Owns what stands where in them, and that the same commit makes the same bytes. Manual pages and
//! completions are the program's own to write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "\
usage: cargo xtask package [OPTION...]
Makes tabane_VERSION_ARCHITECTURE.deb and tabane-VERSION-ARCHITECTURE.tar.gz out of this commit.
  --binary FILE    a tabane built elsewhere [built: release]
  --out DIR        where to [target/packages]
  --check          makes them twice and compares; installs, runs and purges the first in a
                   directory of its own";

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAINTAINER: &str = "The tabane developers <tabane@example.invalid>";
/// What shells look for, by directory and name.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/tabane"),
    ("zsh", "usr/share/zsh/vendor-completions/_tabane"),
    ("fish", "usr/share/fish/vendor_completions.d/tabane.fish"),
];
/// Which package has a shared library that the program may need.
const LIBRARIES: [(&str, &str); 4] = [
    ("libc.so", "libc6"),
    ("libm.so", "libc6"),
    ("ld-linux", "libc6"),
    ("libgcc_s.so", "libgcc-s1"),
];

/// Services that run go on with the new program.
const POSTINST: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = configure ] && [ -n \"$2\" ] && [ -z \"$DPKG_ROOT\" ] && [ -d /run/systemd/system ]
then
    deb-systemd-invoke try-restart tabane-up.service tabane-relay.service >/dev/null || true
fi
";
/// Before the program goes, what it runs and what it has set up go.
const PRERM: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -z \"$DPKG_ROOT\" ]; then
    for service in up relay; do
        if [ -e /etc/systemd/system/tabane-$service.service ]; then
            tabane service uninstall $service || true
        fi
    done
    tabane down >/dev/null 2>&1 || true
fi
";
/// Keys and relays stay until they are purged.
const POSTRM: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = purge ]; then
    rm -rf \"$DPKG_ROOT/etc/tabane\" \"$DPKG_ROOT/var/lib/tabane\"
fi
";
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: tabane

Files: *
Copyright: The tabane developers
License: Apache-2.0 or Expat
 Apache-2.0: see /usr/share/common-licenses/Apache-2.0.
 .
";

struct Options {
    binary: Option<PathBuf>,
    out: PathBuf,
    check: bool,
}

/// Makes the packages; `false` where `--check` found a fault.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let mut options = Options {
        binary: None,
        out: root.join("target/packages"),
        check: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            let value = words.next();
            value.with_context(|| format!("{word} needs a value\n{USAGE}"))
        };
        match *word {
            "--binary" => options.binary = Some(PathBuf::from(value()?)),
            "--out" => options.out = PathBuf::from(value()?),
            "--check" => options.check = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(true);
            }
            other => bail!("unknown: {other}\n{USAGE}"),
        }
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            let build = ["build", "--release", "--locked", "-p", "tabane"];
            said(Command::new("cargo").args(build).current_dir(root))?;
            root.join("target/release/tabane")
        }
    };
    let release = Release::of(root)?;
    let made = release.make(root, &binary, &options.out)?;
    for path in &made {
        println!("{} ({:.1} MB)", path.display(), size(path)? / 1e6);
    }
    if options.check {
        let again = release.make(root, &binary, &options.out.join("again"))?;
        for (one, other) in made.iter().zip(&again) {
            ensure!(
                fs::read(one)? == fs::read(other)?,
                "{} differs when it is made again",
                one.display()
            );
        }
        fs::remove_dir_all(options.out.join("again"))?;
        install_and_purge(&made[0], &options.out.join("root"))?;
        println!("made twice the same; installs, runs, purges");
    }
    Ok(true)
}

/// What is packed, and for which machine.
struct Release {
    version: String,
    /// Debian's word for the processor.
    architecture: String,
    /// Of the commit, in seconds since 1970: no file in a package is newer.
    time: String,
}

impl Release {
    /// This commit: a release where its tag says so, and else what comes before one.
    fn of(root: &Path) -> Result<Self> {
        let git = |arguments: &[&str]| said(Command::new("git").args(arguments).current_dir(root));
        let date = "--date=format-local:%Y%m%d%H%M";
        let commit = git(&["log", "-1", date, "--format=%ct %cd %h"])?;
        let mut words = commit.split_whitespace();
        let mut next = || words.next().context("git log says too little");
        let (time, date, hash) = (next()?.to_owned(), next()?, next()?);
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        let version = match tags.lines().any(|tag| tag == format!("v{VERSION}")) {
            true => VERSION.to_owned(),
            false => format!("{VERSION}~{date}.g{hash}"),
        };
        let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
        Ok(Self {
            version,
            architecture: architecture.trim().to_owned(),
            time,
        })
    }

    /// The package and the archive, in this order, in `out`.
    fn make(&self, root: &Path, binary: &Path, out: &Path) -> Result<[PathBuf; 2]> {
        let Self {
            version,
            architecture,
            ..
        } = self;
        let stage = out.join("stage");
        clear(&stage)?;
        self.lay_out(root, binary, &stage)?;
        // Whatever the umask.
        let directories = ["-type", "d", "-exec", "chmod", "755", "{}", "+"];
        said(Command::new("find").arg(&stage).args(directories))?;
        let archive = out.join(format!("tabane-{version}-{architecture}.tar.gz"));
        let tar = "tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@\"$TIME\" \
                   -C \"$STAGE\" -cf - usr | gzip -9n > \"$ARCHIVE\"";
        let mut command = Command::new("sh");
        command.args(["-ec", tar]).env("TIME", &self.time);
        said(command.env("STAGE", &stage).env("ARCHIVE", &archive))?;

        self.describe(&stage)?;
        fs::set_permissions(stage.join("DEBIAN"), fs::Permissions::from_mode(0o755))?;
        let package = out.join(format!("tabane_{version}_{architecture}.deb"));
        let mut command = Command::new("dpkg-deb");
        command.args(["--root-owner-group", "-Zxz", "--build"]);
        command.args([&stage, &package]);
        said(command.env("SOURCE_DATE_EPOCH", &self.time))?;
        fs::remove_dir_all(&stage)?;
        Ok([package, archive])
    }

    /// Everything that is installed.
    fn lay_out(&self, root: &Path, binary: &Path, stage: &Path) -> Result<()> {
        let program = stage.join("usr/bin/tabane");
        let bytes = fs::read(binary);
        put(
            &program,
            &bytes.with_context(|| format!("cannot read {}", binary.display()))?,
            0o755,
        )?;
        said(Command::new("strip").arg("--strip-unneeded").arg(&program))?;
        for (shell, path) in COMPLETIONS {
            let script = said(Command::new(&program).args(["completion", shell]))?;
            put(&stage.join(path), script.as_bytes(), 0o644)?;
        }
        let pages = stage.join("usr/share/man/man1");
        said(Command::new(&program).arg("manual").arg(&pages))?;
        for page in fs::read_dir(&pages)? {
            let page = page?.path();
            fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
            said(Command::new("gzip").arg("-9n").arg(page))?;
        }
        let documents = stage.join("usr/share/doc/tabane");
        let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
        let mit: String = mit.lines().fold(String::new(), |all, line| {
            let line = if line.trim().is_empty() { "." } else { line };
            all + " " + line + "\n"
        });
        let copyright = format!("{COPYRIGHT}{mit}");
        put(&documents.join("copyright"), copyright.as_bytes(), 0o644)?;
        let changes = fs::read(root.join("CHANGELOG.md"))?;
        put(&documents.join("NEWS.md"), &changes, 0o644)?;
        said(
            Command::new("gzip")
                .arg("-9n")
                .arg(documents.join("NEWS.md")),
        )?;
        let changelog = self.changelog()?;
        let path = documents.join("changelog.gz");
        put(&path.with_extension(""), changelog.as_bytes(), 0o644)?;
        said(Command::new("gzip").arg("-9n").arg(path.with_extension("")))?;
        Ok(())
    }

    /// In Debian's form (deb-changelog(5)).
    fn changelog(&self) -> Result<String> {
        let mut date = Command::new("date");
        let date = said(date.args(["-u", "-R", "-d", &format!("@{}", self.time)]))?;
        Ok(format!(
            "tabane ({}) unstable; urgency=medium\n\n  * What has changed: NEWS.md.gz.\n\n \
             -- {MAINTAINER}  {}\n",
            self.version,
            date.trim()
        ))
    }

    /// What dpkg reads (deb-control(5)).
    fn describe(&self, stage: &Path) -> Result<()> {
        let control = stage.join("DEBIAN");
        let size = said(
            Command::new("du")
                .args(["-sk", "--apparent-size"])
                .arg(stage),
        )?;
        let size = size.split_whitespace().next().context("du says nothing")?;
        let dump = |option: &str| {
            let program = stage.join("usr/bin/tabane");
            said(Command::new("objdump").arg(option).arg(program))
        };
        let depends = dependencies(&dump("-p")?, &dump("-T")?)?;
        let text = format!(
            "Package: tabane\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {size}\nDepends: {depends}\nRecommends: nftables\n\
             Suggests: iproute2\nSection: net\nPriority: optional\n\
             Description: makes every link that a machine has work as one\n \
             One encrypted multipath session carries TCP, UDP and DNS of programs that know\n \
             nothing of it over all links at once, to a relay that is the same program.\n",
            self.version, self.architecture,
        );
        put(&control.join("control"), text.as_bytes(), 0o644)?;
        for (name, script) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
            put(&control.join(name), script.as_bytes(), 0o755)?;
        }
        let sums = "cd \"$0\" && find usr -type f | LC_ALL=C sort | xargs md5sum";
        let sums = said(Command::new("sh").args(["-c", sums]).arg(stage))?;
        put(&control.join("md5sums"), sums.as_bytes(), 0o644)
    }
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
    let newest = versions.max();
    let named = packages.into_iter().map(|package| match newest {
        Some((major, minor)) if package == "libc6" => format!("libc6 (>= {major}.{minor})"),
        _ => package.to_owned(),
    });
    Ok(named.collect::<Vec<_>>().join(", "))
}

/// Installs the package below `target`, runs what it brought, and purges it: only directories may
/// be left.
fn install_and_purge(package: &Path, target: &Path) -> Result<()> {
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
    let version = said(Command::new(target.join("usr/bin/tabane")).arg("--version"))?;
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
    Ok(())
}

/// Writes a file with these permissions, whatever the umask, and the directories above it.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let parent = path.parent().context("a file has a directory")?;
    fs::create_dir_all(parent)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
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

/// What a command printed; an error with its own words where it failed.
pub(crate) fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.env("TZ", "UTC").output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}: {}", output.status, words.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_the_libraries_with_the_newest_symbol_that_is_needed() {
        let needs = "  NEEDED               libgcc_s.so.1\n  NEEDED               libm.so.6\n  \
                     NEEDED               libc.so.6\n  RPATH x\n";
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) read\n0 DF *UND* 0 (GLIBC_2.34) open\n\
                       0 DF *UND* 0 (GLIBC_2.2.5) write\n0 DF *UND* 0 (GCC_3.0) unwind\n";
        let found = dependencies(needs, symbols).expect("all are known");
        assert_eq!(found, "libc6 (>= 2.34), libgcc-s1");
        assert!(dependencies("  NEEDED    libstrange.so.1", "").is_err());
    }
}
