//! An instance as the server knows it: publishes states, carries out changes of its first link,
//! and has a policy file that takes whatever holds the word "good"; its entries for links are
//! lines of JSON in it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tabane_control::{
    Client, Command, Directory, HttpConfig, LinkEntry, LinkEntryChange, Naming, Pace, PolicyFile,
    PolicyRefusal, Publisher, RuleAnswer, RuleQuestion, Server, ServerConfig, State,
};

pub(crate) const TOKEN: &str = "0123456789abcdef";

/// A client with one link, as JSON, which is what other programs see.
pub(crate) const STATE: &str = r#"{
    "api": 1, "at_unix_ms": 5000, "condition": "up", "problems": [], "sessions_omitted": 0,
    "instance": {"name": "run-1", "kind": "run", "pid": 1, "version": "0", "about": "x",
        "started_at_unix_ms": 1000, "relay": "home", "http": null},
    "totals": {"sessions": 1, "sessions_so_far": 1, "streams": 0, "drops": {},
        "traffic": {"sent_bytes": 0, "received_bytes": 0, "sent_packets": 0, "lost_packets": 0,
            "sent_bps": 0, "received_bps": 0, "loss": null}},
    "links": [{"name": "wlan0", "state": "active", "problem": null, "weight": 1.0,
        "paused": false, "share": 0.0, "share_now": null, "path": null,
        "traffic": {"sent_bytes": 0, "received_bytes": 0, "sent_packets": 0, "lost_packets": 0,
            "sent_bps": 0, "received_bps": 0, "loss": null}}],
    "sessions": [], "events": [], "process": {"memory_bytes": 0, "cpu_ms": 0}
}"#;

/// An instance: publishes one state, and carries out changes of its one link.
pub(crate) struct Instance {
    pub(crate) server: Option<Server>,
    pub(crate) directory: Directory,
    pub(crate) publisher: Arc<Mutex<Option<Publisher>>>,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Instance {
    pub(crate) fn start(http: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tabane-api-{}-{number}", std::process::id());
        Self::start_in(&std::env::temp_dir().join(name), "run-1", http)
    }

    /// With a directory and a name of the caller's choice.
    pub(crate) fn start_in(directory: &Path, name: &str, http: bool) -> Self {
        let directory = Directory::at(directory);
        let (server, publisher, mut commands) = Server::start(ServerConfig {
            directory: directory.clone(),
            name: name.to_owned(),
            naming: Naming::WithPid,
            http: http.then(|| HttpConfig {
                address: "127.0.0.1:0".parse().unwrap(),
                token: TOKEN.to_owned(),
            }),
            policy: Some(Box::new(PlainFile(directory.path().join("policy.toml")))),
            pace: Pace::ByItself,
        })
        .unwrap();
        let mut state: State = serde_json::from_str(STATE).unwrap();
        state.instance.name = name.to_owned();
        publisher.publish(state.clone());
        let publisher = Arc::new(Mutex::new(Some(publisher)));
        let state = Arc::new(Mutex::new(state));
        let (publishes, changed) = (publisher.clone(), state.clone());
        let thread = std::thread::spawn(move || {
            while let Some(command) = commands.blocking_recv() {
                let (change, reply) = match command {
                    Command::ChangeLink { change, reply, .. } => (change, reply),
                    Command::Explain { question, reply } => {
                        reply.send(Ok(explain(&question))).unwrap();
                        continue;
                    }
                    Command::Look { .. } => panic!("it tells by itself"),
                    Command::Trace { .. } => panic!("nobody traces here"),
                };
                let mut state = changed.lock().unwrap();
                if change.weight == Some(0.25) {
                    reply.send(Err("not today".to_owned())).unwrap();
                    continue;
                }
                let link = &mut state.links[0];
                link.weight = change.weight.unwrap_or(link.weight);
                link.paused = change.paused.unwrap_or(link.paused);
                let publisher = publishes.lock().unwrap();
                publisher.as_ref().unwrap().publish(state.clone());
                reply.send(Ok(())).unwrap();
            }
        });
        Self {
            server: Some(server),
            directory,
            publisher,
            state,
            thread: Some(thread),
        }
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        let publisher = self.publisher.lock().unwrap();
        publisher.as_ref().unwrap().publish(state.clone());
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.directory.find(None).unwrap().socket
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.server.as_ref().unwrap().http().unwrap()
    }

    /// Sends bytes as they are; gives status and body.
    pub(crate) fn raw(&self, request: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        // The server may have answered and closed before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        answer(&mut stream)
    }

    pub(crate) fn put(&self, path: &str, body: &str) -> (u16, String) {
        self.raw(&format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        ))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        let _ = fs::remove_dir_all(self.directory.path());
    }
}

/// Sound is what holds the word "good".
struct PlainFile(PathBuf);

impl PolicyFile for PlainFile {
    fn path(&self) -> &Path {
        &self.0
    }

    fn read(&self) -> io::Result<String> {
        match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read,
        }
    }

    fn replace(&self, text: &str) -> Result<(), PolicyRefusal> {
        if !text.contains("good") {
            let what = "line 1: expected \"good\"\nline 2: as well";
            return Err(PolicyRefusal::Unsound(what.to_owned()));
        }
        fs::write(&self.0, text).map_err(|error| PolicyRefusal::NotWritten(error.to_string()))
    }

    fn runs_nothing_new(&self, old: &str, new: &str) -> bool {
        old.contains("run") || !new.contains("run")
    }

    fn links(&self, text: &str) -> Vec<LinkEntry> {
        let entries = text.lines().map(serde_json::from_str);
        entries.filter_map(Result::ok).collect()
    }

    fn with_link(&self, text: &str, change: &LinkEntryChange) -> Result<String, PolicyRefusal> {
        let entry = &change.entry;
        if entry.weight.is_some_and(|weight| weight > 1.0) {
            let what = "line 2: weight = 1.5: expected a share from 0 to 1".to_owned();
            return Err(PolicyRefusal::Unsound(what));
        }
        let is_other = |line: &&str| match serde_json::from_str::<LinkEntry>(line) {
            Ok(other) => (other.name, other.kind) != (entry.name.clone(), entry.kind.clone()),
            Err(_) => true,
        };
        let mut lines: Vec<_> = text.lines().filter(is_other).map(str::to_owned).collect();
        if !change.forget {
            lines.push(serde_json::to_string(entry).unwrap());
        }
        Ok(lines.join("\n"))
    }
}

pub(crate) fn answer(stream: &mut impl Read) -> (u16, String) {
    let mut text = String::new();
    // What came before a reset is an answer all the same.
    let _ = stream.read_to_string(&mut text);
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
    (status.unwrap_or(0), body.unwrap_or_default().to_owned())
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// There is one rule, for a range; its addresses have a name.
fn explain(question: &RuleQuestion) -> RuleAnswer {
    let is_ours = question.address == Some("192.0.2.7".parse().unwrap());
    RuleAnswer {
        rule: is_ours.then(|| "backups".to_owned()),
        names: is_ours
            .then(|| "nas.example".to_owned())
            .into_iter()
            .collect(),
        hardware: None,
    }
}
