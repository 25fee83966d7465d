//! How visits of exposed ports end: as plain sockets do, and when client, relay or target is gone.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::control::until;
use crate::exposure::{RELAY, end_at, expose, server, visitor, world_of_ann, world_with};
use crate::process::PATIENCE;
use crate::running::{Running, run, within};
use crate::text;
use crate::world::{World, first_line, ip};

#[test]
fn endings_are_those_of_plain_sockets() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    let _server = server(&world, "serve 8080");
    let (_exposing, _) = expose(&world, "8080");
    let ask = |line: &str, last: &str| {
        let script = format!(
            "import socket\n\
             s = socket.create_connection(('{RELAY}', 8080), timeout=20)\n\
             s.sendall(b'{line}')\n\
             {last}\n\
             got = b''\n\
             try:\n\
             \x20 while d := s.recv(65536): got += d\n\
             \x20 print('fin', got.count(b'\\n'))\n\
             except ConnectionResetError: print('rst', got.count(b'\\n'))\n"
        );
        run(&mut visitor(&world, &script))
    };
    // A half-closed visitor hears all that is still said to it.
    assert_eq!(ask("one\\ntwo\\n", "s.shutdown(socket.SHUT_WR)"), "fin 3");
    // The reset may be there before the visitor has closed its half.
    let half = "try: s.shutdown(socket.SHUT_WR)\nexcept OSError: pass";
    for last in ["pass", half] {
        let ended = ask("RST\\n", last);
        assert!(ended.starts_with("rst"), "{last}: {ended}");
    }
}

#[test]
fn a_relay_that_drains_gives_its_ports_up_and_lets_visitors_finish() {
    let Some(mut world) = world_with(&["--drain", "30s"], "--port 8080") else {
        return;
    };
    let _server = server(&world, "serve 8080");
    let (_exposing, _) = expose(&world, "8080");
    let script = format!(
        "import socket\n\
         s = socket.create_connection(('{RELAY}', 8080), timeout=20)\n\
         lines = s.makefile('rb')\n\
         assert lines.readline() == b'from 127.0.0.1\\n'\n\
         print('in', flush=True)\n\
         input()\n\
         s.sendall(b'GET 3000000\\n')\n\
         print(len(lines.read()))\n"
    );
    let mut command = visitor(&world, &script);
    let command = command.stdin(Stdio::piped());
    let mut visitor = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut visitor), "in");
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    within(PATIENCE, "it lets nobody else in", || {
        end_at(&world, 8080).starts_with("refused")
    });
    visitor.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let output = visitor.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "3000000", "{output:?}");
    assert!(world.await_relay(PATIENCE).success());
}

/// A visitor who says that it is in, and then how its connection ends.
fn stay(world: &World) -> Running {
    let script = format!(
        "import socket\n\
         s = socket.create_connection(('{RELAY}', 8080), timeout=60)\n\
         assert s.recv(100) == b'from 127.0.0.1\\n'\n\
         print('in', flush=True)\n\
         try: print('eof', s.recv(1))\n\
         except ConnectionResetError: print('reset')\n"
    );
    let (visitor, line) = Running::start(&mut visitor(world, &script));
    assert_eq!(line, "in");
    visitor
}

#[test]
fn a_client_that_vanished_has_its_ports_again_and_its_visitors_are_reset() {
    let Some(world) = world_of_ann("--port 8080,27015") else {
        return;
    };
    let _servers = [server(&world, "serve 8080"), server(&world, "udp 27015")];
    let (mut exposing, _) = expose(&world, "8080 udp:27015");
    let mut guest = stay(&world);
    let speak = format!(
        "import socket\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.settimeout(1)\n\
         s.connect(('{RELAY}', 27015))\n\
         while True:\n\
         \x20 s.send(b'hello')\n\
         \x20 try:\n\
         \x20   s.recv(100)\n\
         \x20   break\n\
         \x20 except OSError: pass\n\
         print('answered')\n"
    );
    let spoken = || assert_eq!(run(&mut visitor(&world, &speak)), "answered");
    spoken();
    // As by a power cut: `ip netns exec` has become the client itself.
    exposing.kill();
    let (_exposing, line) = expose(&world, "8080 udp:27015");
    assert!(line.contains("leads to 127.0.0.1"), "{line}");
    let mut ended = String::new();
    let stdout = guest.0.stdout.as_mut().unwrap();
    stdout.read_to_string(&mut ended).unwrap();
    assert_eq!(ended.trim(), "reset");
    assert!(end_at(&world, 8080).starts_with("from 127.0.0.1"));
    spoken();
}

#[test]
fn a_target_that_never_answers_ends_by_a_reset() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    // What goes there is lost without a word.
    for line in [
        "link add d0 type veth peer name d1",
        "addr add 192.0.2.1/24 dev d0",
        "link set d0 up",
        "link set d1 up",
        "neigh add 192.0.2.99 lladdr 02:00:00:00:00:99 dev d0 nud permanent",
    ] {
        ip(&format!("-n {} {line}", world.client_ns()));
    }
    let (exposing, _) = expose(&world, "8080=192.0.2.99");
    let name = format!("expose-{}", exposing.0.id());
    let told = |visitors: u64, in_vain: u64| {
        until(&world, &name, |state| {
            let exposure = &state["exposures"][0];
            exposure["visitors_so_far"] == visitors && exposure["in_vain"] == in_vain
        })
    };
    // Who gives up is waited for by nobody.
    let script = format!(
        "import socket, struct\n\
         s = socket.create_connection(('{RELAY}', 8080), timeout=20)\n\
         s.sendall(b'hello')\n\
         input()\n\
         s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
         s.close()\n"
    );
    let mut command = visitor(&world, &script);
    let mut impatient = command.stdin(Stdio::piped()).spawn().unwrap();
    told(1, 0);
    let begin = Instant::now();
    impatient.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(impatient.wait().unwrap().success());
    until(&world, &name, |state| {
        state["exposures"][0]["visitors_now"] == 0
    });
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    let ended = end_at(&world, 8080);
    let seconds: f64 = ended.strip_prefix("reset ").unwrap().parse().unwrap();
    assert!((10.0..25.0).contains(&seconds), "{ended}");
    told(2, 1);
}
