//! Visitors of exposed ports: by which links, how many, in whose name, at which servers.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};

use crate::control::until;
use crate::exposure::{
    RELAY, another_client, end_at, expose, script, sent_by_links, server, visit, visitor,
    world_of_ann,
};
use crate::policy::{carried, policy, used};
use crate::process::PATIENCE;
use crate::rules::write;
use crate::running::{Running, run, within};
use crate::text;
use crate::world::{TABANE, first_line, ip, pid, wait_for};

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
    within(PATIENCE, "both links carry it", || {
        let mut sent = sent().into_iter().zip(before_sent);
        sent.all(|(now, before)| now >= before + 2_000_000)
    });
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
    let (mut crowd, line) = Running::start(&mut script(world.in_servers("python3"), &come));
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
    command.args(["--nofile=256:8192", TABANE, "expose", "8080"]);
    let (_exposing, line) = Running::start(&mut command);
    assert!(line.contains("leads to"), "{line}");
    let served = visit(&world, &format!("many {RELAY} 8080 {VISITORS}"));
    assert_eq!(served, VISITORS.to_string());
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
    let (_bob, _) = Running::start(&mut as_bob(&["expose", "8090"]));
    let flood = format!(
        "import socket\n\
         print('begun', flush=True)\n\
         while True:\n\
         \x20 s = socket.socket()\n\
         \x20 s.setblocking(False)\n\
         \x20 s.connect_ex(('{RELAY}', 8080))\n\
         \x20 s.close()\n"
    );
    let (_flood, begun) = Running::start(&mut visitor(&world, &flood));
    assert_eq!(begun, "begun");
    for _ in 0..20 {
        let ended = end_at(&world, 8090);
        let (who, seconds) = ended.rsplit_once(' ').unwrap();
        assert_eq!(who, "from 127.0.0.1", "{ended}");
        assert!(seconds.parse::<f64>().unwrap() < 5.0, "{ended}");
    }
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
    assert_eq!(run(&mut visitor(&world, &script)), "ok");
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
    let said = run(&mut visitor(&world, &script));
    assert_eq!(said, format!("from 203.0.113.2 at {RELAY}:8080"));
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
    within(PATIENCE, "dropbear answers", || {
        end_at(&world, 2222).starts_with("SSH-2.0-dropbear")
    });
}
