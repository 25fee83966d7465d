//! `cargo xtask image`: the relay as an OCI image, from scratch: the static program, a user, and
//! directories of its own. Written by hand, so that no daemon and no other tool is needed
//! (<https://github.com/opencontainers/image-spec>, image-layout, manifest, config). Its parts have
//! Docker's names for their kinds, which all take: of OCI's, podman reads no health check.
//!
//! Owns the image's configuration and its bytes, which are the same from the same commit.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::licences::Linked;
use crate::package::{Build, Release, clear};
use crate::router;
use crate::tool::{is_root, said};

const USAGE: &str = "\
usage: cargo xtask image [OPTION...]
Makes tabane-relay-VERSION-PROCESSOR.oci.tar: `podman load`, `skopeo copy oci-archive:FILE …`.
  --processor NAME x86_64 or aarch64 [this machine's]
  --binary FILE    a static tabane built elsewhere
  --out DIR        where to [target/packages]
  --check          compares all digests; as root, unpacks it and runs what it says, as its user";

/// Nobody's on any distribution; as other images from scratch have it.
const USER: u32 = 65532;
/// What the image runs, and what tells whether that answers.
const ENTRY: &str = r#"["/tabane","relay","--state","/var/lib/tabane"]"#;
const HEALTH: &str = r#"["CMD","/tabane","status"]"#;
/// What Docker calls a manifest (image manifest version 2, schema 2).
const MANIFEST: &str = "distribution.manifest.v2+json";
const RUNTIME: &str = "TABANE_RUNTIME=/run/tabane";

pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (mut binary, mut out, mut check) = (None, root.join("target/packages"), false);
    let mut processor = Build::native()?.processor;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            let value = words.next();
            value.with_context(|| format!("{word} needs a value\n{USAGE}"))
        };
        match *word {
            "--processor" => processor = (*value()?).to_owned(),
            "--binary" => binary = Some(PathBuf::from(value()?)),
            "--out" => out = PathBuf::from(value()?),
            "--check" => check = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(true);
            }
            other => bail!("unknown: {other}\n{USAGE}"),
        }
    }
    let build = Build::musl(&processor)?;
    let binary = match binary {
        Some(binary) => binary,
        None => match build.lacks()? {
            Some(remedy) => bail!("{build}: {remedy}"),
            None => router::build(root, &build.triple())?,
        },
    };
    let release = Release::of(root)?;
    let image = Image {
        root,
        release,
        build,
    };
    let file = image.write(&binary, &out)?;
    let bytes = fs::metadata(&file)?.len();
    println!("{} ({:.1} MB)", file.display(), bytes as f64 / 1e6);
    if check {
        let again = image.write(&binary, &out.join("again"))?;
        ensure!(
            fs::read(&file)? == fs::read(again)?,
            "it differs when it is made again"
        );
        fs::remove_dir_all(out.join("again"))?;
        image.check(&file, &out.join("image"))?;
    }
    Ok(true)
}

struct Image<'a> {
    /// Of the repository.
    root: &'a Path,
    release: Release,
    build: Build,
}

/// A file of the image, by what it contains.
struct Blob {
    digest: String,
    bytes: u64,
}

impl Blob {
    /// As others name it.
    fn descriptor(&self, kind: &str) -> String {
        let Self { digest, bytes } = self;
        format!(
            r#"{{"mediaType":"application/vnd.docker.{kind}",
"digest":"sha256:{digest}","size":{bytes}}}"#
        )
    }
}

impl Image<'_> {
    fn write(&self, binary: &Path, out: &Path) -> Result<PathBuf> {
        let stage = out.join("image-stage");
        clear(&stage)?;
        let layout = stage.join("layout");
        fs::create_dir_all(layout.join("blobs/sha256"))?;
        let layer = self.layer(binary, &stage)?;
        let content = sha256(&layer)?;
        said(Command::new("gzip").arg("-9n").arg(&layer))?;
        let packed = keep(&layout, &fs::read(stage.join("layer.tar.gz"))?)?;
        let config = keep(&layout, self.config(&content)?.as_bytes())?;
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.docker.{MANIFEST}",
"config":{},
"layers":[{}]}}"#,
            config.descriptor("container.image.v1+json"),
            packed.descriptor("image.rootfs.diff.tar.gzip"),
        );
        let manifest = keep(&layout, manifest.as_bytes())?;
        let named = manifest.descriptor(MANIFEST);
        let name = format!(
            r#","annotations":{{"org.opencontainers.image.ref.name":"tabane-relay:{}"}}}}"#,
            // A tag has neither.
            self.release.version.replace(['~', '+'], "-")
        );
        let named = named
            .strip_suffix('}')
            .context("a descriptor is an object")?
            .to_owned()
            + &name;
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{named}]}}"#);
        fs::write(layout.join("index.json"), index)?;
        fs::write(
            layout.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        let file = out.join(format!(
            "tabane-relay-{}-{}.oci.tar",
            self.release.version, self.build.processor
        ));
        self.tar(&layout, &["blobs", "index.json", "oci-layout"], 0, &file)?;
        fs::remove_dir_all(&stage)?;
        Ok(file)
    }

    /// The root file system.
    fn layer(&self, binary: &Path, stage: &Path) -> Result<PathBuf> {
        let tree = stage.join("tree");
        for directory in ["etc", "run/tabane", "var/lib/tabane"] {
            fs::create_dir_all(tree.join(directory))?;
        }
        let linked = Linked {
            // A router's.
            features: Some(""),
            ..self.build.linked()
        };
        linked.put(self.root, &tree.join("usr/share/doc/tabane"))?;
        let program = fs::copy(binary, tree.join("tabane"));
        program.with_context(|| format!("cannot read {}", binary.display()))?;
        fs::write(
            tree.join("etc/passwd"),
            format!("tabane:x:{USER}:{USER}::/:/\n"),
        )?;
        let modes =
            "chmod -R u=rwX,go=rX . && chmod 755 tabane && chmod 700 run/tabane var/lib/tabane";
        said(Command::new("sh").args(["-ec", modes]).current_dir(&tree))?;
        let layer = stage.join("layer.tar");
        // Root's but for what the relay writes.
        self.tar(&tree, &["etc", "tabane", "usr"], 0, &layer)?;
        let own = stage.join("own.tar");
        self.tar(&tree, &["run", "var"], USER, &own)?;
        said(Command::new("tar").arg("-Af").arg(&layer).arg(&own))?;
        Ok(layer)
    }

    fn tar(&self, tree: &Path, names: &[&str], owner: u32, file: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--numeric-owner", "--format=ustar"]);
        tar.arg(format!("--owner={owner}"))
            .arg(format!("--group={owner}"));
        tar.arg(format!("--mtime=@{}", self.release.time));
        tar.arg("-C").arg(tree).arg("-cf").arg(file);
        said(tar.args(names)).map(drop)
    }

    /// What runs, as whom, and how it is seen to be well. `Healthcheck` is Docker's, and reserved
    /// for it.
    fn config(&self, content: &str) -> Result<String> {
        let time = format!("@{}", self.release.time);
        let created = said(Command::new("date").args(["-u", "-d", &time, "+%Y-%m-%dT%H:%M:%SZ"]))?;
        Ok(format!(
            r#"{{"created":"{}","architecture":"{}","os":"linux",
"config":{{"User":"{USER}:{USER}",
"Entrypoint":{ENTRY},
"Env":["{RUNTIME}"],
"ExposedPorts":{{"4510/udp":{{}},"4500/udp":{{}},"443/udp":{{}},"443/tcp":{{}}}},
"Volumes":{{"/var/lib/tabane":{{}}}},
"StopSignal":"SIGTERM",
"Healthcheck":{{"Test":{HEALTH},"Interval":30000000000,"Timeout":5000000000,"Retries":3}}}},
"rootfs":{{"type":"layers","diff_ids":["sha256:{content}"]}}}}"#,
            created.trim(),
            self.build.architecture,
        ))
    }

    /// Every digest is its file's; what the image says is run as it says.
    fn check(&self, file: &Path, directory: &Path) -> Result<()> {
        clear(directory)?;
        let (layout, tree) = (directory.join("layout"), directory.join("tree"));
        for made in [&layout, &tree] {
            fs::create_dir_all(made)?;
            // Only its user shall need to get in.
            said(Command::new("chmod").arg("755").arg(made))?;
        }
        unpack(file, &layout)?;
        for blob in fs::read_dir(layout.join("blobs/sha256"))? {
            let blob = blob?.path();
            let digest = sha256(&blob)?;
            ensure!(
                blob.ends_with(&digest),
                "{} has the digest {digest}",
                blob.display()
            );
        }
        let index = fs::read_to_string(layout.join("index.json"))?;
        let manifest = fs::read_to_string(first_blob(&layout, &index)?)?;
        let (config, layers) = manifest
            .split_once("\"layers\"")
            .context("it has no layers")?;
        let config = fs::read_to_string(first_blob(&layout, config)?)?;
        if !is_root() || !self.build.is_of_this_processor() {
            eprintln!("xtask: skipped: running the image (needs root, and its processor)");
            return Ok(());
        }
        unpack(&first_blob(&layout, layers)?, &tree)?;
        let user = Container { config, tree }.try_out()?;
        fs::remove_dir_all(directory)?;
        println!("the image's relay runs as {user}, and its health check tells whether it does");
        Ok(())
    }
}

/// What runs an image: its configuration and files.
struct Container {
    config: String,
    tree: PathBuf,
}

impl Container {
    /// Starts the relay and asks for its health, before and meanwhile; whose it is.
    fn try_out(&self) -> Result<String> {
        let health = self.words("Test")?;
        ensure!(
            !self.command(&health[1..])?.output()?.status.success(),
            "the health check is content without a relay"
        );
        // Not this machine's ports: what is tried is on loopback.
        let listen = [
            "--listen",
            "127.0.0.1:0",
            "--listen-only",
            "--tls-listen",
            "no",
        ];
        let mut relay = self.command(&self.words("Entrypoint")?)?;
        let mut relay = relay.args(listen).stdout(Stdio::piped()).spawn()?;
        let outcome = (|| {
            let mut line = String::new();
            BufReader::new(relay.stdout.take().context("no pipe")?).read_line(&mut line)?;
            ensure!(line.starts_with("tabane://"), "the relay says {line:?}");
            said(&mut self.command(&health[1..])?)
        })();
        relay.kill()?;
        relay.wait()?;
        outcome.context("the image's relay")?;
        self.user()
    }

    fn user(&self) -> Result<String> {
        let user = self.config.split_once("\"User\":\"").map(|(_, rest)| rest);
        let user = user.and_then(|rest| rest.split_once('"'));
        let (user, _) = user.context("it names no user")?;
        Ok(user.to_owned())
    }

    /// A list in the configuration.
    fn words(&self, key: &str) -> Result<Vec<String>> {
        let rest = self
            .config
            .split_once(&format!("\"{key}\":["))
            .map(|(_, rest)| rest);
        let list = rest.and_then(|rest| rest.split_once(']'));
        let (list, _) = list.with_context(|| format!("no list {key}"))?;
        let words = list
            .split(',')
            .map(|word| word.trim_matches('"').to_owned());
        Ok(words.collect())
    }

    /// Of the image's, as its user, with its environment.
    fn command(&self, words: &[String]) -> Result<Command> {
        let mut chroot = Command::new("chroot");
        chroot.arg(format!("--userspec={}", self.user()?));
        chroot.arg(&self.tree).args(words).env_clear();
        // As every runtime sets it.
        chroot.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let environment = self.words("Env")?;
        chroot.envs(environment.iter().filter_map(|pair| pair.split_once('=')));
        Ok(chroot)
    }
}

/// Puts these bytes into the layout, under their digest.
fn keep(layout: &Path, bytes: &[u8]) -> Result<Blob> {
    let new = layout.join("blobs/sha256/new");
    fs::write(&new, bytes)?;
    let digest = sha256(&new)?;
    fs::rename(&new, new.with_file_name(&digest))?;
    let bytes = bytes.len() as u64;
    Ok(Blob { digest, bytes })
}

/// The file that a piece of JSON names first.
fn first_blob(layout: &Path, json: &str) -> Result<PathBuf> {
    let digest = json
        .split_once("sha256:")
        .and_then(|(_, rest)| rest.get(..64));
    let digest = digest.with_context(|| format!("no digest in {json}"))?;
    Ok(layout.join("blobs/sha256").join(digest))
}

fn unpack(file: &Path, directory: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    said(tar.arg("-xf").arg(file).arg("-C").arg(directory)).map(drop)
}

fn sha256(file: &Path) -> Result<String> {
    let said = said(Command::new("sha256sum").arg(file))?;
    let digest = said
        .split_whitespace()
        .next()
        .context("sha256sum says nothing")?;
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_reads_the_health_check_and_licences_are_in_the_image() {
        let name = format!("tabane-image-{}", std::process::id());
        let scratch = std::env::temp_dir().join(name);
        clear(&scratch).unwrap();
        let image = Image {
            root: &crate::repository_root(),
            release: Release {
                version: "1~2+3".to_owned(),
                time: "0".to_owned(),
            },
            build: Build::musl("x86_64").unwrap(),
        };
        let program = scratch.join("tabane");
        fs::write(&program, "").unwrap();
        let file = image.write(&program, &scratch).unwrap();
        let layout = scratch.join("layout");
        fs::create_dir(&layout).unwrap();
        unpack(&file, &layout).unwrap();
        let index = fs::read_to_string(layout.join("index.json")).unwrap();
        let manifest = first_blob(&layout, &index).unwrap();
        let manifest = fs::read_to_string(manifest).unwrap();
        let (_, layers) = manifest.split_once("\"layers\"").unwrap();
        let layer = first_blob(&layout, layers).unwrap();
        let files = said(Command::new("tar").arg("-tzf").arg(layer)).unwrap();
        fs::remove_dir_all(&scratch).unwrap();
        // Of an OCI manifest it would not (podman, pull request 6024).
        let kind = "\"mediaType\":\"application/vnd.docker.distribution.manifest.v2+json\"";
        assert!(
            index.contains(kind) && manifest.contains(kind),
            "{manifest}"
        );
        assert!(index.contains("\"tabane-relay:1-2-3\""), "{index}");
        for text in ["copyright", "third-party.gz"] {
            assert!(
                files.contains(&format!("usr/share/doc/tabane/{text}\n")),
                "{files}"
            );
        }
    }
}
