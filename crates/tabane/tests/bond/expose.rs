//! `tabane expose`: visitors of the relay's ports are led to servers behind the client.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::control::until;
use crate::policy::{carried, policy, used};
use crate::relays::start_relay;
use crate::rules::write;
use crate::up::{UP, Up};
use crate::world::{World, first_line, ip, pid, wait_for};
use crate::{complaint, text};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/expose.py");
/// Where visitors find the relay.
const RELAY: &str = "203.0.113.1";
const PATIENCE: Duration = Duration::from_secs(20);

/// A world whose client is ann's, to whom this is granted.
fn world_of_ann(grants: &str) -> Option<World> {
    world_with(&[], grants)
}

/// The same with these flags of the relay's.
fn world_with(flags: &[&str], grants: &str) -> Option<World> {
    let world = World::new(flags)?;
    world.manage(&format!("user add ann {grants}"));
    world.join_with(&world.manage("token new --user ann"));
    Some(world)
}

/// Something that runs until this is dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> (Self, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let line = first_line(&mut child);
        (Self(child), line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script(mut command: Command, arguments: &str) -> Command {
    command.arg(SCRIPT).args(arguments.split(' '));
    command
}

/// A server behind the client.
fn server(world: &World, arguments: &str) -> Running {
    let (server, line) = Running::start(script(world.in_client("python3"), arguments));
    assert_eq!(line, "ready");
    server
}

/// `tabane expose`, once it has said where.
fn expose(world: &World, arguments: &str) -> (Running, String) {
    let mut command = world.tabane(&["expose"]);
    command.args(arguments.split(' '));
    Running::start(command)
}

/// A second client of the relay, of this user: what gives its commands.
pub(crate) fn another_client<'a>(world: &'a World, user: &str) -> impl Fn(&[&str]) -> Command + 'a {
    let home = world.path("other");
    let client = move |arguments: &[&str]| {
        let mut command = world.tabane(&["--config", home.to_str().unwrap()]);
        command.args(arguments);
        command
    };
    let join = world.manage(&format!("token new --user {user}"));
    assert!(client(&["join", &join]).output().unwrap().status.success());
    client
}

/// What a visitor says who comes from the internet.
fn visit(world: &World, arguments: &str) -> String {
    let output = script(world.in_servers("python3"), arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments}: {output:?}");
    text(&output.stdout).trim().to_owned()
}

fn end_at(world: &World, port: u16) -> String {
    visit(world, &format!("end {RELAY} {port}"))
}

fn refusal(world: &World, arguments: &str) -> String {
    let mut command = world.tabane(&["expose"]);
    let output: Output = command.args(arguments.split(' ')).output().unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    complaint(&output)
}

#[test]
fn a_server_behind_the_client_is_reached_over_both_links_and_through_a_cut() {
    let Some(world) = world_of_ann("--port 8000-8100") else {
        return;
    };
    world.limit_rates([40, 40]);
    let _server = server(&world, "serve 8080");
    let (exposing, line) = expose(&world, "8080");
    assert_eq!(line, format!("tcp {RELAY}:8080 leads to 127.0.0.1:8080"));

    let sent = || sent_by_links(&world);
    let before_sent = sent();
    let visit_long = format!("fetch {RELAY} 8080 30000000");
    let mut command = script(world.in_servers("python3"), &visit_long);
    let mut visitor = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut visitor), "from 127.0.0.1");
    // Both links carry it.
    let deadline = Instant::now() + PATIENCE;
    while sent()
        .iter()
        .zip(before_sent)
        .any(|(now, before)| *now < before + 2_000_000)
    {
        assert!(Instant::now() < deadline, "one link carries it");
    }
    ip(&format!("-n {} link set c1 down", world.client_ns()));
    let output = visitor.wait_with_output().unwrap();
    let words = text(&output.stdout);
    let (bytes, silence) = words.trim().split_once(' ').unwrap();
    assert_eq!(bytes, "30000000");
    let silence: f64 = silence.parse().unwrap();
    println!("silence of {silence} s at the cut");
    assert!(silence < 3.0, "{silence}");
    drop(exposing);
}

/// Bytes that each link of the client has sent.
fn sent_by_links(world: &World) -> [u64; 2] {
    ["c1", "c2"].map(|link| {
        let path = format!("/sys/class/net/{link}/statistics/tx_bytes");
        let output = world.in_client("cat").arg(path).output().unwrap();
        text(&output.stdout).trim().parse().unwrap()
    })
}

#[test]
fn what_is_not_granted_not_free_or_not_there_is_told() {
    let Some(world) = world_of_ann("--port 443,8000-8100") else {
        return;
    };
    let said = refusal(&world, "9000");
    assert!(
        said.contains("tcp:9000") && said.contains("user set NAME --port 9000"),
        "{said}"
    );
    let said = refusal(&world, "8100-8101");
    assert!(said.contains("not granted"), "{said}");
    // The relay's private server has its port 8000.
    let said = refusal(&world, "8000");
    assert!(said.contains("something else on its host"), "{said}");
    let said = refusal(&world, &format!("8001={RELAY}:8001"));
    assert!(said.contains("for ever"), "{said}");
    let said = refusal(&world, "8001 --host a.example");
    assert!(said.contains("--host a.example"), "{said}");

    // Nobody is there: at the relay, behind the client, and who does not answer.
    assert!(end_at(&world, 8001).starts_with("refused"));
    let (mut exposing, _) = expose(&world, "8001-8002=127.0.0.1:9001");
    assert!(end_at(&world, 8001).starts_with("reset 0."), "no silence");
    let _server = server(&world, "serve 9002");
    assert!(end_at(&world, 8002).starts_with("from 127.0.0.1"));
    let by_v6 = visit(&world, "end 2001:db8:ffff::1 8002");
    assert!(by_v6.starts_with("from 127.0.0.1"), "{by_v6}");

    // Another client of the same user asks for a port of it, and both are told.
    let as_other = another_client(&world, "ann");
    let said = complaint(&as_other(&["expose", "8002"]).output().unwrap());
    assert!(
        said.contains("another client of the relay has it"),
        "{said}"
    );
    let name = format!("expose-{}", exposing.0.id());
    let state = until(&world, &name, |state| {
        state["exposures"][0]["problem"].is_string()
    });
    let exposure = &state["exposures"][0];
    assert_eq!(exposure["visitors_so_far"], 3, "{exposure:#}");
    assert_eq!(exposure["in_vain"], 1, "{exposure:#}");

    // What is taken back is so with the next visitor.
    world.manage("user set ann --port 443");
    end_at(&world, 8002);
    assert!(!wait_for(&mut exposing.0, PATIENCE).success());
    assert!(end_at(&world, 8002).starts_with("refused"));
}

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
        let output = world
            .in_servers("python3")
            .args(["-c", &script])
            .output()
            .unwrap();
        text(&output.stdout).trim().to_owned()
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
fn a_thousand_come_at_once_and_none_is_lost() {
    const VISITORS: usize = 1_000;
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    let _server = server(&world, "serve 8080");
    let (exposing, _) = expose(&world, "8080");
    let served = visit(&world, &format!("many {RELAY} 8080 {VISITORS}"));
    assert_eq!(served, VISITORS.to_string());
    let name = format!("expose-{}", exposing.0.id());
    let state = until(&world, &name, |state| {
        state["exposures"][0]["visitors_now"] == 0
    });
    assert_eq!(
        state["exposures"][0]["visitors_so_far"], VISITORS,
        "{state:#}"
    );
    assert_eq!(state["exposures"][0]["in_vain"], 0, "{state:#}");
}

#[test]
fn who_came_while_the_relay_was_busy_is_served_as_well() {
    // They say nothing before they are spoken to, and nobody takes them in for a while.
    const VISITORS: usize = 1_600;
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    let _server = server(&world, "serve 8080");
    let (_exposing, _) = expose(&world, "8080");
    let come = format!("patient {RELAY} 8080 {VISITORS}");
    kill(world.relay_pid(), Signal::SIGSTOP).unwrap();
    let (mut crowd, line) = Running::start(script(world.in_servers("python3"), &come));
    kill(world.relay_pid(), Signal::SIGCONT).unwrap();
    assert_eq!(line, VISITORS.to_string(), "the kernel has no room");
    let mut served = String::new();
    let stdout = crowd.0.stdout.as_mut().unwrap();
    stdout.read_to_string(&mut served).unwrap();
    assert_eq!(served.trim(), VISITORS.to_string());
}

#[test]
fn a_crowd_is_no_matter_of_the_usual_limit_of_descriptors() {
    const VISITORS: usize = 400;
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    let _server = server(&world, "serve 8080");
    let mut command = world.in_client("prlimit");
    command.args(["--nofile=256:8192", crate::world::TABANE, "expose", "8080"]);
    let (_exposing, line) = Running::start(command);
    assert!(line.contains("leads to"), "{line}");
    let served = visit(&world, &format!("many {RELAY} 8080 {VISITORS}"));
    assert_eq!(served, VISITORS.to_string());
}

#[test]
fn kept_ports_are_led_by_up_and_again_after_the_relay_was_started_anew() {
    let Some(mut world) = world_of_ann("--port 2222,8080-8081") else {
        return;
    };
    let mut relay = Running(world.relay.take().unwrap());
    let _server = server(&world, "serve 8080");
    let keep = |arguments: &str| {
        let mut command = world.tabane(&["expose"]);
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert!(keep("--keep 8080").contains("kept tcp:8080=127.0.0.1:8080"));
    let listed: Value = serde_json::from_str(&keep("list --json")).unwrap();
    assert!(
        listed[0]["kept"] == true && listed[0]["instance"].is_null(),
        "{listed:#}"
    );

    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    let is_led = |world: &World, port| end_at(world, port).starts_with("from 127.0.0.1");
    let soon = |what: &str, holds: &dyn Fn() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}");
        }
    };
    soon("it is led", &|| is_led(&world, 8080));
    // What is written down while it runs is taken up.
    keep("--keep 8081=8080");
    soon("the second is led", &|| is_led(&world, 8081));
    // Instances look at themselves twice a second.
    soon("both are listed as up's", &|| {
        let listed: Value = serde_json::from_str(&keep("list --json")).unwrap();
        let rows = listed.as_array().unwrap();
        let is_open = |row: &Value| row["instance"] == "up" && row["state"] == "open";
        rows.len() == 2 && rows.iter().all(is_open)
    });
    let screen = text(&world.tabane(&["status"]).output().unwrap().stdout);
    assert!(screen.contains("203.0.113.1:8081"), "{screen}");
    assert!(keep("remove 8081").contains("removed"));
    soon("the second is given up", &|| {
        end_at(&world, 8081).starts_with("refused")
    });

    kill(pid(&relay.0), Signal::SIGTERM).unwrap();
    assert!(wait_for(&mut relay.0, PATIENCE).success());
    assert!(end_at(&world, 8080).starts_with("refused"));
    let mut relay = Running(world.spawn_relay(&[]));
    first_line(&mut relay.0);
    soon("it is led by the new one", &|| is_led(&world, 8080));
    drop(up);
}

#[test]
fn datagrams_of_several_visitors_find_the_server_and_their_way_back() {
    let Some(world) = world_of_ann("--port 27015-27016") else {
        return;
    };
    // The relay's host has one more of each family, which its routing table does not choose.
    for address in ["203.0.113.9/32", "2001:db8:ffff::9/128 nodad"] {
        ip(&format!(
            "-n {} addr add {address} dev r0",
            world.relay_ns()
        ));
    }
    let _servers = [server(&world, "udp 27015"), server(&world, "udp 27016")];
    let (exposing, line) = expose(&world, "udp:27015-27016");
    assert_eq!(
        line,
        format!("udp {RELAY}:27015-27016 leads to 127.0.0.1:27015")
    );
    let script = format!(
        "import socket\n\
         relays = ['{RELAY}', '203.0.113.9', '2001:db8:ffff::1', '2001:db8:ffff::9']\n\
         kind = lambda n: socket.AF_INET6 if n % 4 > 1 else socket.AF_INET\n\
         socks = [socket.socket(kind(n), socket.SOCK_DGRAM) for n in range(20)]\n\
         for n, s in enumerate(socks):\n\
         \x20 s.settimeout(10)\n\
         \x20 s.connect((relays[n % 4], 27015 + n % 2))\n\
         \x20 for size in (1, 1200, 9000):\n\
         \x20   sent = bytes([n]) * size\n\
         \x20   s.send(sent)\n\
         \x20   assert s.recv(65536) == b'%d ' % (27015 + n % 2) + sent, (n, size)\n\
         print('ok')\n"
    );
    let output = world
        .in_servers("python3")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout).trim(), "ok", "{output:?}");
    let name = format!("expose-{}", exposing.0.id());
    let state = until(&world, &name, |state| {
        state["exposures"][0]["visitors_now"] == 20
    });
    assert_eq!(state["exposures"][0]["visitors_so_far"], 20, "{state:#}");
}

#[test]
fn servers_are_told_who_comes_and_visitors_cannot_say_otherwise() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    let _server = server(&world, "proxied 8080");
    let (_exposing, _) = expose(&world, "8080 --proxy-protocol");
    let script = format!(
        "import socket\n\
         s = socket.create_connection(('{RELAY}', 8080), timeout=20)\n\
         forged = b'\\r\\n\\r\\n\\0\\r\\nQUIT\\n\\x21\\x11\\0\\x0c' + bytes(12)\n\
         s.sendall(forged + b'\\n')\n\
         print(s.makefile('rb').readline().decode())\n"
    );
    let output = world
        .in_servers("python3")
        .args(["-c", &script])
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert_eq!(
        said.trim(),
        format!("from 203.0.113.2 at {RELAY}:8080"),
        "{output:?}"
    );
}

#[test]
fn clients_share_a_port_by_the_names_of_their_hosts() {
    let Some(world) = world_of_ann("--host a.example,*.ann.example") else {
        return;
    };
    world.manage("user add bob --host b.example");
    let as_bob = another_client(&world, "bob");
    let _servers = [server(&world, "serve 9001"), server(&world, "serve 9002")];
    let (_ann, line) = expose(&world, "80=9001 --host a.example");
    assert_eq!(line, "tcp a.example:80 leads to 127.0.0.1:9001");
    let (_bob, _) = Running::start(as_bob(&["expose", "80=9002", "--host", "b.example"]));
    let said = complaint(
        &as_bob(&["expose", "80", "--host", "a.example"])
            .output()
            .unwrap(),
    );
    assert!(said.contains("--host a.example"), "{said}");

    // The servers say each line of a request back: which of them was asked shows in their logs.
    let ask = |name: &str| {
        let line = format!(
            "printf 'POST / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n' | timeout 5 nc -N {RELAY} 80"
        );
        let mut command = world.in_servers("sh");
        text(&command.args(["-c", &line]).output().unwrap().stdout)
    };
    assert!(ask("a.example").contains("back Host: a.example"));
    assert!(ask("B.example:80").contains("back Host: B.example:80"));
    assert_eq!(ask("c.example"), "");
    let (_tls, line) = expose(&world, "443=9001 --host www.ann.example");
    assert!(!line.is_empty(), "not exposed");
    println!(
        "SS {}",
        text(&world.in_relay("ss").arg("-Hltnp").output().unwrap().stdout)
    );
    let seen = visit(&world, &format!("dribble {RELAY} 443 www.ann.example"));
    assert!(seen.starts_with("from 127.0.0.1"), "{seen}");
    // What is nobody's is the relay's, which takes in TLS there, too.
    let page = |name: &str| {
        let url = format!("https://{name}/");
        let mut curl = world.in_servers("curl");
        let to = format!("{name}:443:{RELAY}");
        let output = curl.args(["-sSk", "--resolve", &to, "--max-time", "10", &url]);
        text(&output.output().unwrap().stdout)
    };
    assert!(page("c.example").contains("Welcome"));
    let said = refusal(&world, "443");
    assert!(said.contains("not granted"), "{said}");
    world.manage("user set ann --port 443");
    let said = refusal(&world, "443");
    assert!(
        said.contains("something else on its host") || said.contains("another"),
        "{said}"
    );
}

#[test]
fn visitors_keep_to_the_links_of_their_rule() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    world.limit_rates([40, 40]);
    let rule = "[[rule]]\nname = \"by the second\"\ninbound = true\nport = 8080\n\
                links = [\"c2\"]\n";
    write(&world, rule);
    let _server = server(&world, "serve 8080");
    let (exposing, _) = expose(&world, "8080");
    let before = sent_by_links(&world);
    let told = visit(&world, &format!("fetch {RELAY} 8080 8000000"));
    assert!(told.contains("8000000"), "{told}");
    let after = sent_by_links(&world);
    let sent = [after[0] - before[0], after[1] - before[1]];
    assert!(sent[0] < 300_000 && sent[1] > 8_000_000, "{sent:?}");
    let name = format!("expose-{}", exposing.0.id());
    let state = until(&world, &name, |state| {
        state["rules"][0]["connections_so_far"] == 2
    });
    assert_eq!(state["rules"][0]["rule"], "by the second", "{state:#}");
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
    let mut command = world.in_servers("python3");
    let command = command.args(["-c", &script]).stdin(Stdio::piped());
    let mut visitor = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut visitor), "in");
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !end_at(&world, 8080).starts_with("refused") {
        assert!(Instant::now() < deadline, "it lets others in");
    }
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
    let mut command = world.in_servers("python3");
    command.args(["-c", &script]);
    let (visitor, line) = Running::start(command);
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
    let mut visitor = stay(&world);
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
    let spoken = || {
        let output = world.in_servers("python3").args(["-c", &speak]).output();
        assert_eq!(text(&output.unwrap().stdout).trim(), "answered");
    };
    spoken();
    // As by a power cut: `ip netns exec` has become the client itself.
    exposing.0.kill().unwrap();
    exposing.0.wait().unwrap();
    let (_exposing, line) = expose(&world, "8080 udp:27015");
    assert!(line.contains("leads to 127.0.0.1"), "{line}");
    let mut ended = String::new();
    let stdout = visitor.0.stdout.as_mut().unwrap();
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
    let mut command = world.in_servers("python3");
    let command = command.args(["-c", &script]).stdin(Stdio::piped());
    let mut impatient = command.spawn().unwrap();
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

#[test]
fn when_a_relay_is_gone_the_next_leads_the_ports_or_says_why_not() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    // Its home is elsewhere, that nobody takes it for the world's.
    let (mut first, _) = start_relay(&world, "first", "4601");
    let manage_first = |line: &str| {
        let mut command = world.in_relay(crate::world::TABANE);
        command.arg("relay").args(line.split(' ')).arg("--state");
        let output = command.arg(world.path("first")).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        text(&output.stdout).trim().to_owned()
    };
    manage_first("user add ann --port 8080-8081");
    world.manage("user add ann --port 8080");
    for (name, join) in [
        ("a", manage_first("token new --user ann")),
        ("b", world.manage("token new --user ann")),
    ] {
        let joined = world.tabane(&["join", "--name", name, &join]).output();
        assert!(joined.unwrap().status.success());
    }
    let _server = server(&world, "serve 8080");
    let (_exposing, line) = expose(&world, "8080");
    assert_eq!(line, format!("tcp {RELAY}:8080 leads to 127.0.0.1:8080"));
    let mut command = world.tabane(&["expose", "8081=8080"]);
    let (mut refused, _) = Running::start({
        command.stderr(Stdio::piped());
        command
    });
    assert!(end_at(&world, 8081).starts_with("from 127.0.0.1"));

    first.kill();
    let deadline = Instant::now() + 3 * PATIENCE;
    while !end_at(&world, 8080).starts_with("from 127.0.0.1") {
        assert!(Instant::now() < deadline, "the next relay leads nobody");
    }
    assert!(!wait_for(&mut refused.0, 3 * PATIENCE).success());
    let mut said = String::new();
    let stderr = refused.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("not granted"), "{said}");
}

#[test]
fn what_visitors_carry_counts_in_the_budgets_of_links() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    world.limit_rates([40, 40]);
    assert!(policy(&world, "set c2 --budget 1GB/month").status.success());
    let _server = server(&world, "serve 8080");
    let before = carried(&world, "c2");
    let (mut exposing, _) = expose(&world, "8080");
    let told = visit(&world, &format!("fetch {RELAY} 8080 20000000"));
    assert!(told.contains("20000000"), "{told}");
    // What was counted is written down at the end.
    kill(pid(&exposing.0), Signal::SIGINT).unwrap();
    assert!(wait_for(&mut exposing.0, PATIENCE).success());
    let carried = carried(&world, "c2") - before;
    assert!(carried > 2_000_000, "one link has carried it: {carried}");
    let part = used(&world, "c2") as f64 / carried as f64;
    assert!((0.95..1.05).contains(&part), "{part} of {carried}");
}

#[test]
fn a_flood_of_one_user_s_port_keeps_nobody_from_another_s() {
    let Some(world) = world_of_ann("--port 8080") else {
        return;
    };
    world.manage("user add bob --port 8090");
    let as_bob = another_client(&world, "bob");
    let _server = server(&world, "serve 8090");
    let (_ann, _) = expose(&world, "8080=127.0.0.1:9");
    let (_bob, _) = Running::start(as_bob(&["expose", "8090"]));
    let flood = format!(
        "import socket\n\
         print('begun', flush=True)\n\
         while True:\n\
         \x20 s = socket.socket()\n\
         \x20 s.setblocking(False)\n\
         \x20 s.connect_ex(('{RELAY}', 8080))\n\
         \x20 s.close()\n"
    );
    let mut command = world.in_servers("python3");
    command.args(["-c", &flood]);
    let (_flood, begun) = Running::start(command);
    assert_eq!(begun, "begun");
    for _ in 0..20 {
        let ended = end_at(&world, 8090);
        let (who, seconds) = ended.rsplit_once(' ').unwrap();
        assert_eq!(who, "from 127.0.0.1", "{ended}");
        assert!(seconds.parse::<f64>().unwrap() < 5.0, "{ended}");
    }
}

#[test]
fn real_servers_serve_behind_a_client() {
    let Some(world) = world_of_ann("--port 8080,2222") else {
        return;
    };
    let directory = world.path("web");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), vec![7; 5_000_000]).unwrap();
    let settings = world.path("nginx.conf");
    let process = world.path("nginx.pid");
    let log = world.path("nginx.log");
    fs::write(
        &settings,
        format!(
            "daemon off; pid {}; error_log {}; events {{}}\n\
             http {{ access_log off; server {{ listen 8080; root {}; }} }}\n",
            process.display(),
            log.display(),
            directory.display()
        ),
    )
    .unwrap();
    let mut nginx = world.in_client("nginx");
    let Ok(nginx) = nginx.arg("-c").arg(&settings).spawn() else {
        println!("skipped: no nginx");
        return;
    };
    let mut nginx = Running(nginx);
    let (_exposing, _) = expose(&world, "8080");
    let fetch = || {
        let url = format!("http://{RELAY}:8080/file");
        let mut curl = world.in_servers("curl");
        let output = curl.args(["-sS", "--fail", "--retry", "5", "--retry-all-errors"]);
        output.arg(url).output().unwrap().stdout.len()
    };
    assert_eq!(fetch(), 5_000_000);
    // A server that ends is one that refuses.
    kill(pid(&nginx.0), Signal::SIGTERM).unwrap();
    wait_for(&mut nginx.0, PATIENCE);
    assert!(end_at(&world, 8080).starts_with("reset 0."));

    let key = world.path("host.key");
    let made = world
        .in_client("dropbearkey")
        .args(["-t", "ed25519", "-f"])
        .arg(&key)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("skipped: no dropbear");
        return;
    }
    let mut dropbear = world.in_client("dropbear");
    let dropbear = dropbear
        .args(["-F", "-E", "-p", "127.0.0.1:2022", "-r"])
        .arg(&key);
    let _dropbear = Running(dropbear.stderr(Stdio::null()).spawn().unwrap());
    let (_exposing, _) = expose(&world, "2222=2022");
    let deadline = Instant::now() + PATIENCE;
    while !end_at(&world, 2222).starts_with("SSH-2.0-dropbear") {
        assert!(Instant::now() < deadline, "no dropbear");
    }
}
