//! Running instances, asked by their sockets without a process in between.
//!
//! Shared by the tests of modes that have one (`#[path]`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// Asks an instance by its socket, as any program would; the answer with its head.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
}

/// What an instance says of a link.
pub(crate) fn told(socket: &Path, link: &str) -> Value {
    let answer = ask(socket, "GET", "/v1/state", "");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut state: Value = serde_json::from_str(body).unwrap();
    let links = state["links"].as_array_mut().unwrap();
    let found = links.iter_mut().find(|it| it["name"] == link);
    found.map_or(Value::Null, Value::take)
}

/// Waits until an instance says this of a link: a word of why it is not used, or that it is metered
/// or paused.
pub(crate) fn await_told(socket: &Path, link: &str, word: &str) -> Instant {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = told(socket, link);
        let problem = told["problem"].as_str().unwrap_or_default();
        if told[word] == true || problem.contains(word) {
            return Instant::now();
        }
        assert!(Instant::now() < deadline, "{word}: {told:#}");
    }
}
