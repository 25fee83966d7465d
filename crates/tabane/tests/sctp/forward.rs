//! `tabane sctp forward`: programs that know nothing of it, with all their endings.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::Linger};
use serde_json::Value;
use tabane_linux::netns::Netns;

use super::{BOTH, ONE, World, asking, await_that};

const SERVER: &str = "127.0.0.1:8080";

/// One end; killed when it goes.
struct End {
    child: Child,
    /// What it prints of connections that have ended.
    told: BufReader<ChildStdout>,
    said: BufReader<ChildStderr>,
    /// Where it takes connections, at the programs' end.
    address: Option<SocketAddr>,
}

impl End {
    fn start(world: &World, host: &Netns, flags: &[&str]) -> Self {
        let mut command = world.tabane(host, &[&["forward", "--json"], flags].concat());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("taking"), "{line}");
        let address = line.trim_end().rsplit(' ').next().unwrap().parse().ok();
        Self {
            told: BufReader::new(child.stdout.take().unwrap()),
            child,
            said,
            address,
        }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut rest = String::new();
        if thread::panicking() && self.said.read_to_string(&mut rest).is_ok() {
            println!("one end said: {rest}");
        }
    }
}

fn both_ends(world: &World, to: &str) -> (End, End) {
    both_ends_with(world, to, &[])
}

fn both_ends_with(world: &World, to: &str, flags: &[&str]) -> (End, End) {
    let far = [&["--serve", SERVER], flags].concat();
    let far = End::start(world, world.lab.server(), &far);
    let flags = [&["--listen", "127.0.0.1:0", "--to", to], flags].concat();
    (End::start(world, world.lab.client(), &flags), far)
}

fn listen(world: &World) -> TcpListener {
    let bind = || TcpListener::bind(SERVER);
    world.lab.server().run(bind).unwrap().unwrap()
}

fn connect(world: &World, near: &End) -> TcpStream {
    let address = near.address.unwrap();
    let connect = || TcpStream::connect(address);
    let stream = world.lab.client().run(connect).unwrap().unwrap();
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    stream
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + len) as u8).collect()
}

/// A program that sends, says that it is done, and only then gets its answer.
fn ask(mut stream: TcpStream, len: usize) {
    let mut request = bytes(len);
    let mut writing = stream.try_clone().unwrap();
    let copy = request.clone();
    let writer = thread::spawn(move || {
        writing.write_all(&copy).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    writer.join().unwrap();
    request.reverse();
    assert!(answer == request, "{} of {len} bytes", answer.len());
}

/// Answers each connection when it has heard everything.
fn answer(server: TcpListener, connections: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let answer = |mut stream: TcpStream| {
            let mut request = Vec::new();
            stream.read_to_end(&mut request).unwrap();
            request.reverse();
            stream.write_all(&request).unwrap();
        };
        let serve = |_| {
            let (stream, _) = server.accept().unwrap();
            thread::spawn(move || answer(stream))
        };
        let serving: Vec<_> = (0..connections).map(serve).collect();
        serving.into_iter().for_each(|one| one.join().unwrap());
    })
}

#[test]
fn connections_are_carried_with_their_endings() {
    let Some(world) = World::new() else { return };
    let serving = answer(listen(&world), 9);
    let (mut near, mut far) = both_ends(&world, ONE);
    // One after the other, and at once.
    for len in [0, 5, 1_000_000] {
        ask(connect(&world, &near), len);
        let told = near.next();
        assert_eq!(told["sent_bytes"], len, "{told}");
        assert_eq!(told["received_bytes"], len, "{told}");
        assert_eq!(told["reset"], Value::Null);
        assert_eq!(far.next()["reset"], Value::Null);
    }
    let begin = |n: usize| {
        let stream = connect(&world, &near);
        thread::spawn(move || ask(stream, 100_000 + n))
    };
    let asking: Vec<_> = (0..6).map(begin).collect();
    asking.into_iter().for_each(|one| one.join().unwrap());
    serving.join().unwrap();
}

#[test]
fn a_paused_link_carries_no_connection_until_it_is_taken_back() {
    let Some(world) = World::new() else { return };
    let serving = answer(listen(&world), 2);
    let (mut near, _far) = both_ends(&world, BOTH);
    let socket = world.path(&format!("runtime/sctp-{}.sock", near.child.id()));
    let carried = |link: &str| {
        let traffic = &asking::told(&socket, link)["traffic"];
        let [sent, received] =
            ["sent_bytes", "received_bytes"].map(|name| traffic[name].as_u64().unwrap());
        sent + received
    };
    for (paused, most, least) in [(true, 0, 0), (false, u64::MAX, 100_000)] {
        let body = format!("{{\"paused\": {paused}}}");
        let told = asking::ask(&socket, "PUT", "/v1/links/link2", &body);
        assert!(told.contains(&format!("\"paused\":{paused}")), "{told}");
        ask(connect(&world, &near), 1_000_000);
        near.next();
        let by_it = carried("link2");
        assert!((least..=most).contains(&by_it), "{paused}: {by_it}");
        assert!(carried("link1") > 500_000);
    }
    serving.join().unwrap();
}

#[test]
fn what_one_side_resets_is_reset_at_the_other() {
    let Some(world) = World::new() else { return };
    let server = listen(&world);
    let (mut near, mut far) = both_ends(&world, BOTH);
    // The program.
    let mut stream = connect(&world, &near);
    stream.write_all(b"hello").unwrap();
    let (mut served, _) = server.accept().unwrap();
    let mut heard = [0; 5];
    served.read_exact(&mut heard).unwrap();
    reset(stream);
    let error = served.read(&mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(near.next()["reset"].is_string() && far.next()["reset"].is_string());
    // The server.
    let mut stream = connect(&world, &near);
    let (served, _) = server.accept().unwrap();
    reset(served);
    let error = stream.read(&mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(near.next()["reset"].is_string() && far.next()["reset"].is_string());
    // There is no server.
    drop(server);
    let mut stream = connect(&world, &near);
    let error = stream.read(&mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let why = far.next()["reset"].to_string();
    assert!(why.contains("cannot connect to 127.0.0.1:8080"), "{why}");
    near.next();
    // There is no other end.
    drop(far);
    let mut stream = connect(&world, &near);
    let error = stream.read(&mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let why = near.next()["reset"].to_string();
    assert!(why.contains("no SCTP answer from 10.77.1.1:9899"), "{why}");
}

/// An end that is killed resets its connections, and says nothing to the other, which resets its
/// own all the same.
#[test]
fn a_dead_end_resets_its_connections_and_the_other_s() {
    let Some(world) = World::new() else { return };
    let server = listen(&world);
    for dies_first in ["near", "far"] {
        let (near, far) = both_ends_with(&world, BOTH, &["--patience", "3s"]);
        let mut stream = connect(&world, &near);
        stream.write_all(b"hello").unwrap();
        let (mut served, _) = server.accept().unwrap();
        let mut heard = [0; 5];
        served.read_exact(&mut heard).unwrap();
        let (dead, mut alive, of_the_dead, left) = match dies_first {
            "near" => (near, far, stream, served),
            _ => (far, near, served, stream),
        };
        drop(dead);
        for mut connection in [of_the_dead, left] {
            let error = connection.read(&mut heard).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        let why = alive.next()["reset"].to_string();
        assert!(why.contains("nothing was heard of the peer"), "{why}");
    }
}

fn reset(stream: TcpStream) {
    let at_once = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, Linger, &at_once).unwrap();
}

/// Whoever does not read holds up whoever writes; nothing is lost, and memory has an end.
#[test]
fn a_server_that_does_not_read_holds_the_program_up() {
    const WHOLE: usize = 40_000_000;
    let Some(world) = World::new() else { return };
    let server = listen(&world);
    let (near, _far) = both_ends(&world, BOTH);
    let mut stream = connect(&world, &near);
    let (mut served, _) = server.accept().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let writing = Arc::clone(&written);
    let (tell, done) = mpsc::channel();
    thread::spawn(move || {
        while writing.load(Ordering::Relaxed) < WHOLE {
            let len = stream.write(&[7; 100_000]).unwrap_or(0);
            writing.fetch_add(len, Ordering::Relaxed);
            if len == 0 {
                break;
            }
        }
        tell.send(stream)
    });
    let mut last = (0, Instant::now());
    await_that("the program waits", || {
        let now = written.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(2)
    });
    assert!(last.0 > 0 && last.0 < WHOLE, "{}", last.0);
    // What waits is read, and the writer goes on.
    let mut heard = vec![0; last.0 + 200_000];
    served.read_exact(&mut heard).unwrap();
    assert!(written.load(Ordering::Relaxed) > last.0);
    drop((served, done));
}
