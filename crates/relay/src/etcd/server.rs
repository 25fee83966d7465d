//! A real etcd for tests: members on loopback, with their data in a directory of the test's.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tabane_store::Scratch;

use super::{Etcd, FleetAddress};

/// A cluster; its members end with it.
pub(crate) struct Server {
    members: Vec<Member>,
    _scratch: Scratch,
}

struct Member {
    process: Option<Child>,
    client_port: u16,
    arguments: Vec<String>,
    log: PathBuf,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    /// A cluster that answers; `None`, with a line that says so, where there is no etcd.
    pub(crate) fn start(members: usize) -> Option<Self> {
        Self::start_with(members, "http", &[])
    }

    pub(crate) fn start_with(members: usize, scheme: &str, more: &[String]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: no etcd (apt-get install etcd-server)");
            return None;
        }
        let scratch = Scratch::make();
        let ports: Vec<(u16, u16)> = (0..members).map(|_| (free_port(), free_port())).collect();
        let peers = ports.iter().enumerate();
        let cluster: Vec<String> = peers
            .map(|(i, (_, port))| format!("m{i}=http://127.0.0.1:{port}"))
            .collect();
        let members = ports
            .iter()
            .enumerate()
            .map(|(i, (client_port, peer_port))| {
                let client = format!("{scheme}://127.0.0.1:{client_port}");
                let peer = format!("http://127.0.0.1:{peer_port}");
                let directory = scratch.path().join(format!("m{i}"));
                let words = [
                    ("--name", format!("m{i}")),
                    ("--data-dir", directory.display().to_string()),
                    ("--listen-client-urls", client.clone()),
                    ("--advertise-client-urls", client),
                    ("--listen-peer-urls", peer.clone()),
                    ("--initial-advertise-peer-urls", peer),
                    ("--initial-cluster", cluster.join(",")),
                    ("--heartbeat-interval", "50".to_owned()),
                    ("--election-timeout", "500".to_owned()),
                    ("--logger", "zap".to_owned()),
                ];
                let words = words
                    .into_iter()
                    .flat_map(|(flag, value)| [flag.to_owned(), value]);
                Member {
                    process: None,
                    client_port: *client_port,
                    arguments: words.chain(more.iter().cloned()).collect(),
                    log: scratch.path().join(format!("m{i}.log")),
                }
            });
        let mut server = Self {
            members: members.collect(),
            _scratch: scratch,
        };
        (0..server.members.len()).for_each(|i| server.run(i));
        Some(server)
    }

    /// Starts a member, again after it was killed.
    pub(crate) fn run(&mut self, i: usize) {
        let member = &mut self.members[i];
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&member.log);
        let process = Command::new("etcd")
            .args(&member.arguments)
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        member.process = Some(process.unwrap());
    }

    /// Kills a member as `kill -9` does.
    pub(crate) fn kill(&mut self, i: usize) {
        if let Some(mut process) = self.members[i].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|i| self.kill(i));
    }

    pub(crate) fn run_all(&mut self) {
        (0..self.members.len()).for_each(|i| self.run(i));
    }

    /// What the first member has, written to a file.
    pub(crate) fn save(&self, path: &std::path::Path) {
        let endpoint = format!("--endpoints=127.0.0.1:{}", self.port());
        etcdctl(&[&endpoint, "snapshot", "save", path.to_str().unwrap()]);
    }

    /// Has the only member take changes again after it was full, as an operator does.
    pub(crate) fn make_room(&self) {
        let endpoint = format!("--endpoints=127.0.0.1:{}", self.port());
        let status = etcdctl(&[&endpoint, "endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        let revision = status[0]["Status"]["header"]["revision"].to_string();
        etcdctl(&[&endpoint, "compact", &revision]);
        etcdctl(&[&endpoint, "defrag"]);
        etcdctl(&[&endpoint, "alarm", "disarm"]);
    }

    /// Has the only member begin anew with what was saved.
    pub(crate) fn restore(&mut self, path: &std::path::Path) {
        self.kill(0);
        let arguments = &mut self.members[0].arguments;
        let of = |name: &str| {
            let at = arguments.iter().position(|it| it == name).unwrap();
            format!("{name}={}", arguments[at + 1])
        };
        let directory = path.with_extension("data").display().to_string();
        etcdctl(&[
            "snapshot",
            "restore",
            path.to_str().unwrap(),
            &format!("--data-dir={directory}"),
            &of("--name"),
            &of("--initial-cluster"),
            &of("--initial-advertise-peer-urls"),
        ]);
        let at = arguments.iter().position(|it| it == "--data-dir").unwrap();
        arguments[at + 1] = directory;
        self.run(0);
    }

    /// What leads to it, by this name.
    pub(crate) fn address(&self, name: &str) -> FleetAddress {
        let ports = self
            .members
            .iter()
            .map(|it| format!("127.0.0.1:{}", it.client_port));
        let hosts: Vec<String> = ports.collect();
        format!("etcd://{}/{name}", hosts.join(","))
            .parse()
            .unwrap()
    }

    /// A client of a cluster that has a leader.
    pub(crate) async fn client(&self) -> Etcd {
        let etcd = Etcd::new(self.address("test"));
        wait_for(&etcd).await;
        etcd
    }

    /// A port of its first member.
    pub(crate) fn port(&self) -> u16 {
        self.members[0].client_port
    }
}

fn etcdctl(words: &[&str]) -> Vec<u8> {
    let done = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(words)
        .output()
        .unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
    done.stdout
}

/// Waits until the cluster takes changes.
pub(crate) async fn wait_for(etcd: &Etcd) {
    let begin = Instant::now();
    while let Err(error) = etcd.grant(60).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "{error}");
        // A cluster tells nobody when it has a leader.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_all();
    }
}
