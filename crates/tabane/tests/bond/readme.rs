//! The README's commands, run as they are written there, in its order.
//!
//! Only two things differ from a reader's machines: the join string is the one that the relay
//! really printed, and `make demo` is shown to exist and not run (`tests/demo.rs` runs the
//! demonstration itself).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::world::{TABANE, World, first_line};

/// Names for the README's hosts, where `ip netns exec` looks for them.
pub(crate) struct Hosts(PathBuf);

impl Hosts {
    pub(crate) fn new(ns: &str) -> Self {
        let directory = Path::new("/etc/netns").join(ns);
        fs::create_dir_all(&directory).unwrap();
        let names = "127.0.0.1 localhost\n203.0.113.1 relay.example.net\n\
                     203.0.113.2 files.example.net\n";
        fs::write(directory.join("hosts"), names).unwrap();
        Self(directory)
    }

    /// One line more, also for programs that run.
    pub(crate) fn add(&self, line: &str) {
        let path = self.0.join("hosts");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, format!("{text}{line}\n")).unwrap();
    }

    /// Another line in the place of all.
    pub(crate) fn put(&self, line: &str) {
        fs::write(self.0.join("hosts"), format!("{line}\n")).unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        // Only when nobody else has hosts there.
        let _ = fs::remove_dir("/etc/netns");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of all `sh` blocks.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut inside = false;
    let mut lines = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// What `files.example.net` serves: a file and a repository.
fn publish(directory: &Path) {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("big.iso"), vec![7; 5_000_000]).unwrap();
    let script = "git init -q --bare repo.git && git init -q work && cd work && \
                  echo hello > file && git add file && \
                  git -c user.name=t -c user.email=t@example.net commit -qm first && \
                  git push -q ../repo.git HEAD:master && cd ../repo.git && \
                  git symbolic-ref HEAD refs/heads/master && git update-server-info";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(directory)
        .status();
    assert!(made.unwrap().success());
}

#[test]
fn the_readme_s_commands_do_what_it_says() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let _hosts = [world.client_ns(), world.relay_ns()].map(Hosts::new);
    let files = world.path("files");
    publish(&files);
    let server = world
        .in_servers("python3")
        .args(["-m", "http.server", "--bind", "203.0.113.2", "80"])
        .current_dir(&files)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let wait = "until curl -s -o /dev/null http://203.0.113.2/; do sleep 0.02; done";
    let ready = world.in_servers("sh").args(["-c", wait]).status();
    assert!(ready.unwrap().success());
    let path = format!(
        "{}:{}",
        Path::new(TABANE).parent().unwrap().display(),
        env!("PATH")
    );
    let mut relay = None;
    let mut join = String::new();
    let work = world.path("work");
    fs::create_dir(&work).unwrap();
    for line in commands() {
        if let Some(target) = line.strip_prefix("make ") {
            let mut make = Command::new("make");
            make.arg("-n").arg(target).current_dir(root());
            assert!(make.output().unwrap().status.success(), "{line}");
        } else if line == "tabane relay" {
            // As root its state is in /var/lib; here in one that goes with it.
            let script = format!("mount -t tmpfs none /var/lib && exec {line}");
            let mut child = world
                .in_relay("unshare")
                .args(["-m", "sh", "-c", &script])
                .env("PATH", &path)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            join = first_line(&mut child);
            relay = Some(child);
        } else {
            let start = line.find("'tabane://");
            let line = start.map_or_else(|| line.clone(), |at| format!("{}'{join}'", &line[..at]));
            let lab = line.starts_with("tabane lab");
            let mut shell = if lab {
                Command::new("sh")
            } else {
                world.in_client("sh")
            };
            shell.args(["-c", &line]).env("PATH", &path);
            shell.env("HOME", world.path("home"));
            shell.current_dir(if lab { root() } else { work.clone() });
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
    }
    assert_eq!(fs::read(work.join("big.iso")).unwrap().len(), 5_000_000);
    assert_eq!(
        fs::read_to_string(work.join("repo/file")).unwrap(),
        "hello\n"
    );
    for mut child in relay.into_iter().chain([server]) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
