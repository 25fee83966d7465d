//! Whom hosts of a site, and servers behind a client, see: who connects, where that can be.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::process::PATIENCE;
use crate::running::{Running, run};
use crate::site::{Site, joined, offices};
use crate::text;
use crate::world::{World, first_line, ip, pid, wait_for};

/// Says to each who it is, by TCP and UDP of this family.
const WHO: &str = "import socket, sys, threading\n\
    family = socket.AF_INET6 if sys.argv[1] == '6' else socket.AF_INET\n\
    udp = socket.socket(family, socket.SOCK_DGRAM)\n\
    if sys.argv[1] == '6': udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)\n\
    udp.bind(('', 7000))\n\
    tcp = socket.create_server(('', 7000), family=family)\n\
    def answer():\n    \
        while True: peer = udp.recvfrom(9)[1]; udp.sendto(repr(peer[:2]).encode(), peer)\n\
    threading.Thread(target=answer, daemon=True).start()\n\
    print('ready', flush=True)\n\
    while True:\n    \
        connection, peer = tcp.accept(); connection.sendall(repr(peer[:2]).encode())\n    \
        connection.close()";
/// Asks by both, from port 40000.
const ASK_WHO: &str = "import socket, sys\n\
    host = sys.argv[1]\n\
    family = socket.AF_INET6 if ':' in host else socket.AF_INET\n\
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:\n    \
        s = socket.socket(family, kind); s.settimeout(20)\n    \
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n    \
        s.bind(('', 40000)); s.connect((host, 7000))\n    \
        if kind == socket.SOCK_DGRAM: s.send(b'who')\n    \
        print(eval(s.recv(99).decode()))";

/// By which address a visitor of the relay's port is seen there.
const VISIT: &str = "import socket\n\
    s = socket.create_connection(('203.0.113.1', 7000), 20)\n\
    s.settimeout(20)\n\
    try:\n    \
        said = s.recv(99).decode()\n\
    except ConnectionResetError:\n    \
        said = ''\n\
    print('from ' + eval(said)[0] if said else 'turned away')";

impl Site<'_> {
    fn tell_who(&self, family: &str) -> Running {
        let mut command = self.at_host("python3");
        Running::ready(command.args(["-c", WHO, family]))
    }

    fn ask_who(&self, host: &str) -> Vec<String> {
        let said = run(self.at_host("python3").args(["-c", ASK_WHO, host]));
        said.lines().map(str::to_owned).collect()
    }

    fn problem(&self, prefix: &str) -> String {
        let told = self.until(prefix, |it| it["problem"].is_string());
        told["problem"].as_str().unwrap().to_owned()
    }
}

#[test]
fn hosts_see_whom_connections_and_datagrams_are_for() {
    let Some(world) = World::new(&["--workers", "2"]) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    joined(&mut a, &mut b);
    let _who = [b.tell_who("4"), b.tell_who("6")];
    let host = ["('192.168.10.2', 40000)"; 2];
    assert_eq!(a.ask_who("192.168.20.2"), host, "{}", b.log());
    assert_eq!(a.ask_who("192.168.20.2"), host, "{}", b.log());
    assert_eq!(
        a.ask_who("fd00:20::2"),
        ["('fd00:10::2', 40000)"; 2],
        "{}",
        b.log()
    );
    // A host that refuses says so, by both.
    assert!(a.visit("end 192.168.20.2 9").starts_with("refused 0."));
    assert_eq!(a.ask_by_udp("192.168.20.2"), "refused");
    // Killed, what is left of it does nothing to anybody, until it is cleared away.
    b.end(Signal::SIGKILL);
    let r = world.relay_ns();
    ip(&format!("-n {r} route add 192.168.20.0/24 via 10.73.1.1"));
    assert!(b.visit("end 10.73.1.2 9").starts_with("refused 0."));
    let rules = |site: &Site<'_>| {
        let tables = run(site.at_client("nft").args(["list", "tables"]));
        let routing = run(site.at_client("ip").args(["rule", "list"]));
        (
            tables.contains("tabane_sources"),
            routing.contains("10623:"),
        )
    };
    assert_eq!(rules(&b), (true, true));
    assert!(b.tabane(&["down"]).status().unwrap().success());
    assert_eq!(rules(&b), (false, false));
    b.begin(&["--route", "192.168.20.0/24"]);
    b.until_route("192.168.20.0/24", "open");
    a.until_route("192.168.20.0/24", "open");
    // By the port that asked before it was killed, too.
    assert_eq!(a.ask_who("192.168.20.2"), host, "{}", b.log());
    let said = a.visit("end 192.168.20.2 7000");
    assert!(said.starts_with("('192.168.10.2', "), "{said}");
    assert_eq!(rules(&b), (true, true));
    b.end(Signal::SIGTERM);
    assert_eq!(rules(&b), (false, false));
}

#[test]
fn who_may_not_or_cannot_be_shown_is_led_from_the_site_s_own_address() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    // What a's hosts are in is granted to a, and not offered: nobody is shown to be there.
    a.begin(&["--route", "fd00:10::/64"]);
    b.begin(&["--route", "192.168.20.0/24"]);
    a.until_route("192.168.20.0/24", "open");
    b.until_route("fd00:10::/64", "open");
    let _server = b.server("serve 8080");
    let said = a.visit("end 192.168.20.2 8080");
    assert!(said.starts_with("from 192.168.20.1"), "{said}");
    a.end(Signal::SIGTERM);
    a.begin(&["--route", "192.168.10.0/24"]);
    b.until_route("192.168.10.0/24", "open");
    a.until_route("192.168.20.0/24", "open");
    let said = a.visit("end 192.168.20.2 8080");
    assert!(said.starts_with("from 192.168.10.2"), "{said}");
    // A host that answers others by another router: found out, told, and remembered.
    ip(&format!("-n {} route del default", b.lan));
    let begun = Instant::now();
    let said = a.visit("end 192.168.20.2 8080");
    assert!(said.starts_with("from 192.168.20.1"), "{said}");
    assert!(begun.elapsed() > Duration::from_secs(1));
    let problem = b.problem("192.168.20.0/24");
    assert!(
        problem.contains("192.168.20.2") && problem.contains("another machine is its router"),
        "{problem}"
    );
    let said = a.visit("end 192.168.20.2 8080");
    assert!(said.starts_with("from 192.168.20.1 0."), "{said}");
    // The user's wish.
    ip(&format!("-n {} route add default via 192.168.20.1", b.lan));
    b.end(Signal::SIGTERM);
    b.begin(&["--route", "192.168.20.0/24", "--snat"]);
    a.until_route("192.168.20.0/24", "open");
    let said = a.visit("end 192.168.20.2 8080");
    assert!(said.starts_with("from 192.168.20.1"), "{said}");
}

#[test]
fn servers_behind_a_router_see_where_visitors_come_from() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    world.manage("user add bob --port 7000");
    let mut b = Site::second(&world);
    b.join("bob");
    let _who = b.tell_who("4");
    let ports = [
        "expose",
        "tcp:7000=192.168.20.2",
        "udp:7000=192.168.20.2",
        "--transparent",
    ];
    let ask = || {
        run(world
            .in_servers("python3")
            .args(["-c", ASK_WHO, "203.0.113.1"]))
    };
    let shown = |said: String| said.lines().all(|it| it.starts_with("('203.0.113.2', "));
    let output = b.tabane(&["expose", "7000", "--transparent"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = crate::complaint(&output);
    assert!(said.contains("--proxy-protocol"), "{said}");
    // By a command of its own, and by `up`, which takes up what is kept.
    let mut command = b.tabane(&ports);
    let mut exposing = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(first_line(&mut exposing).contains("leads to 192.168.20.2:7000"));
    let said = ask();
    kill(pid(&exposing), Signal::SIGTERM).unwrap();
    wait_for(&mut exposing, PATIENCE);
    assert!(shown(said.clone()), "{said}");
    let kept = b.tabane(&ports).arg("--keep").status().unwrap();
    assert!(kept.success());
    b.begin(&[]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = b.tabane(&["expose", "list"]).output().unwrap();
        if text(&output.stdout).matches(" open ").count() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{output:?}\n{}", b.log());
    }
    let said = ask();
    assert!(shown(said.clone()), "{said}\n{}", b.log());
}

#[test]
fn a_visitor_whom_the_target_keeps_out_does_not_come_in_by_another_address() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    world.manage("user add bob --port 7000");
    let mut b = Site::second(&world);
    b.join("bob");
    let _who = b.tell_who("4");
    let kept = ["expose", "tcp:7000=192.168.20.2", "--transparent", "--keep"];
    assert!(b.tabane(&kept).status().unwrap().success());
    b.begin(&[]);
    // What it says is as old as a second.
    let told = |so_far: u64| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = b.tabane(&["expose", "list", "--json"]).output().unwrap();
            let list: Value = serde_json::from_slice(&output.stdout).unwrap();
            let it = &list[0];
            let is_meant = it["visitors_so_far"] == so_far && it["visitors_now"] == 0;
            if is_meant && it["state"] == "open" {
                return it["problem"].as_str().unwrap_or_default().to_owned();
            }
            assert!(Instant::now() < deadline, "{list}\n{}", b.log());
        }
    };
    told(0);
    // As a target that drops what comes from there, and answers everybody else.
    let ban = |change: &str| {
        ip(&format!(
            "-n {} route {change} blackhole 203.0.113.2",
            b.lan
        ));
    };
    let visit = || {
        let mut visitor = world.in_servers("python3");
        let output = visitor.args(["-c", VISIT]).output().unwrap();
        text(&output.stdout)
    };
    ban("add");
    assert_eq!(visit(), "turned away\n", "{}", b.log());
    let problem = told(1);
    let silent = "192.168.20.2 has answered no visitor yet";
    assert!(problem.starts_with(silent), "{problem}");
    ban("del");
    assert_eq!(visit(), "from 203.0.113.2\n", "{}", b.log());
    assert_eq!(told(2), "");
    // It has answered others: it means it.
    ban("add");
    assert_eq!(visit(), "turned away\n", "{}", b.log());
    assert_eq!(told(3), "");
}
