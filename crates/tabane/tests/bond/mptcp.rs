//! What goes without the relay and takes several links all the same: its server, the real nginx,
//! speaks multipath TCP (`mptcpize`). Both links carry 20 Mbit/s towards the client.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};

use crate::leaving::Leaving;
use crate::leaving_links::{leaves_what_goes, leaves_what_is_not_to_be_used, only_v4};
use crate::policy::{HARDLY_ANYTHING, policy, received, used};
use crate::process::PATIENCE;
use crate::rules::write;
use crate::running::within;
use crate::text;
use crate::up::{UP, Up, shell};
use crate::world::{World, pid, wait_for};

const DIRECT: &str = "[[rule]]\nname = 'near'\nport = [8000, 8080]\ndirect = true\n";
const SWITCH: &str = "/proc/sys/net/mptcp/pm_type";
/// What 20 Mbit/s carry in four seconds.
const FILE: u64 = 10_000_000;

/// nginx on port 8080 of the servers' host; ends with the test.
struct Nginx(Child);

impl Nginx {
    fn start(world: &World) -> Self {
        let root = world.path("nginx");
        fs::create_dir(&root).unwrap();
        for (name, size) in [("once", FILE), ("six", 6 * FILE), ("long", 100 * FILE)] {
            let file = fs::File::create(root.join(name)).unwrap();
            file.set_len(size).unwrap();
        }
        let at = root.display();
        let text = format!(
            "daemon off; user root; pid {at}/pid; error_log {at}/log; events {{}}\n\
             http {{ access_log off; client_body_temp_path {at}; proxy_temp_path {at};\n\
             fastcgi_temp_path {at}; uwsgi_temp_path {at}; scgi_temp_path {at};\n\
             server {{ listen 8080; listen [::]:8080; root {at}; }} }}\n"
        );
        fs::write(root.join("conf"), text).unwrap();
        let mut command = world.in_servers("mptcpize");
        command.args(["run", "nginx", "-c"]).arg(root.join("conf"));
        let nginx = Self(command.stderr(Stdio::null()).spawn().unwrap());
        let line = "until curl -sf -o /dev/null http://203.0.113.2:8080/once -r 0-9; do :; done";
        shell(world, &format!("timeout 20 sh -c '{line}'"));
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it.
        let _ = kill(pid(&self.0), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The world with its links, nginx, and the rule that it is direct; `None` with the reason where
/// that is not to be had.
fn world() -> Option<(World, Nginx)> {
    let world = World::new(&[])?;
    if let Err(lack) = tabane_linux::mptcp::available() {
        println!("skipped: {lack}");
        return None;
    }
    for end in ["r1", "r2"] {
        let mut tc = world.in_relay("tc");
        tc.args(["qdisc", "add", "dev", end, "root", "tbf", "rate", "20mbit"]);
        tc.args(["burst", "32kb", "latency", "100ms"]);
        assert!(tc.status().unwrap().success());
    }
    world.join();
    let nginx = Nginx::start(&world);
    write(&world, DIRECT);
    Some((world, nginx))
}

/// Fetches a file; bits per second.
fn fetch(world: &World, flags: &str, name: &str) -> f64 {
    let url = format!("http://203.0.113.2:8080/{name}");
    let curl = "curl -sS --fail -o /dev/null --max-time 60 -w '%{speed_download}'";
    8.0 * shell(world, &format!("{curl} {flags} {url}"))
        .parse::<f64>()
        .unwrap()
}

fn begin(world: &World, name: &str) -> Child {
    let mut curl = world.in_client("curl");
    let url = format!("http://203.0.113.2:8080/{name}");
    curl.args(["-s", "-o", "/dev/null", &url]).spawn().unwrap()
}

/// Packets to nginx that a link has carried from now on; but for the kernel's word that there is
/// no such subflow any more, to what was still under way to it.
fn watch(world: &World, link: &str) {
    let rules = format!(
        "add table inet watch; flush table inet watch; \
         add chain inet watch out {{ type filter hook output priority 0; }}; \
         add rule inet watch out oifname {link} tcp dport 8080 tcp flags & rst == 0 counter; \
         add rule inet watch out oifname {link} tcp dport 8080 counter"
    );
    shell(world, &format!("nft '{rules}'"));
}

fn watched(world: &World) -> u64 {
    let told = shell(world, "nft list table inet watch");
    let (_, rest) = told.split_once("counter packets ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn status(world: &World) -> serde_json::Value {
    let told = world
        .tabane(&["status", "--instance", "up", "--json"])
        .output();
    serde_json::from_slice(&told.unwrap().stdout).unwrap()
}

fn await_data(world: &World, links: &[&str]) {
    let before: Vec<u64> = links.iter().map(|link| received(world, link)).collect();
    let deadline = Instant::now() + PATIENCE;
    let carries = |(link, before): (&&str, &u64)| received(world, link) - before > HARDLY_ANYTHING;
    while !links.iter().zip(&before).all(carries) {
        assert!(Instant::now() < deadline, "not all of {links:?} carry");
    }
}

#[test]
fn a_direct_download_takes_every_link_where_its_server_speaks_mptcp() {
    let Some((world, _nginx)) = world() else {
        return;
    };
    let alone: f64 = ["c1", "c2"]
        .map(|link| fetch(&world, &format!("--interface {link}"), "once"))
        .iter()
        .sum();
    for link in ["c1", "c2"] {
        let set = policy(&world, &format!("set {link} --budget 1GB/month"));
        assert!(set.status.success());
    }
    let up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    let before = ["c1", "c2"].map(|link| received(&world, link));
    let together = fetch(&world, "", "six");
    let share = together / alone;
    println!("{share:.3} of what both links carry alone ({together:.0} of {alone:.0} bit/s)");
    let after = ["c1", "c2"].map(|link| received(&world, link));
    for (before, after) in before.iter().zip(after) {
        assert!(after - before > 2 * FILE, "{before} and {after}");
    }
    // Each link's budget has what the link has carried, but for headers.
    let deadline = Instant::now() + PATIENCE;
    let is_counted = || {
        let used = ["c1", "c2"].map(|link| used(&world, link));
        used.iter().sum::<u64>() > 6 * FILE
            && used
                .iter()
                .zip(before.iter().zip(after))
                .all(|(used, (before, after))| {
                    let carried = after - before;
                    (carried * 9 / 10..carried * 12 / 10).contains(used)
                })
    };
    while !is_counted() {
        assert!(
            Instant::now() < deadline,
            "{}, {}",
            used(&world, "c1"),
            used(&world, "c2")
        );
    }

    let multipath = status(&world)["multipath"].clone();
    assert_eq!(multipath["links"], serde_json::json!(["c1", "c2"]));
    assert!(
        multipath["connections_so_far"].as_u64() >= Some(1),
        "{multipath}"
    );
    let told = shell(&world, "true") + &text_of(&world, &["status", "--instance", "up"]);
    assert!(told.contains("by MPTCP  0 TCP connections now, "), "{told}");
    let explain = |dest| text_of(&world, &["policy", "explain", dest, "--instance", "up"]);
    let told = explain("203.0.113.2:8080");
    assert!(
        told.contains("by MPTCP over c1, c2, where the server speaks it"),
        "{told}"
    );
    assert!(!explain("192.168.7.7:8080").contains("MPTCP"));

    // One that does not speak it is served as ever, over one link.
    let before = received(&world, "c2");
    shell(
        &world,
        "curl -sS --fail -o /dev/null http://203.0.113.2:8000/3000000",
    );
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    assert_eq!(
        status(&world)["multipath"]["problem"],
        serde_json::Value::Null
    );
    drop(up);
}

fn text_of(world: &World, arguments: &[&str]) -> String {
    let output = world.tabane(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn no_packet_takes_a_link_that_is_forbidden_or_not_as_good() {
    let Some((world, _nginx)) = world() else {
        return;
    };
    let up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    watch(&world, "c2");
    for (entry, undone) in [("--use never", "c2"), ("--metered true --priority 1", "c2")] {
        assert!(policy(&world, &format!("set c2 {entry}")).status.success());
        // What follows the file has seen it when it says so.
        within(PATIENCE, &format!("{entry} is followed"), || {
            status(&world)["multipath"]["links"] == serde_json::json!([])
        });
        fetch(&world, "", "once");
        assert_eq!(watched(&world), 0, "{entry}");
        assert!(policy(&world, &format!("unset {undone}")).status.success());
    }
    drop(up);

    // With --strict a direct connection goes as the bare machine's would.
    let up = Up::start(&world, &["--all", "--strict"]);
    up.wait_until(UP);
    fetch(&world, "", "once");
    assert_eq!(watched(&world), 0, "--strict");
    drop(up);
}

#[test]
fn links_come_and_go_while_a_connection_runs() {
    let Some((world, _nginx)) = world() else {
        return;
    };
    only_v4(&world);
    let up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    let mut download = begin(&world, "long");
    await_data(&world, &["c1", "c2"]);
    let list = || world.tabane(&["links"]);
    let leaving = |links| Leaving {
        pid: download.id(),
        links,
        settings: world.path(".config/tabane"),
        policy: DIRECT.to_owned(),
        list: &list,
    };
    // The one that it began by, and the other.
    for links in [["c2", "c1"], ["c1", "c2"]] {
        leaves_what_is_not_to_be_used(&world, &leaving(links), "up");
        await_data(&world, &["c1", "c2"]);
    }
    // Of subflows that went without a word the server keeps two, and takes no others then.
    leaves_what_goes(&world, &leaving(["c2", "c1"]), "up");
    assert_eq!(download.try_wait().unwrap(), None);

    // A server that is gone ends it at once, although it said so to each subflow alone.
    shell(&world, "nft add table inet block");
    let rules = "add chain inet block in { type filter hook input priority 0; }; \
                 add rule inet block in tcp dport 8080 reject with tcp reset";
    let mut nft = world.in_servers("nft");
    let made = nft.arg(format!("add table inet block; {rules}")).status();
    assert!(made.unwrap().success());
    assert_eq!(
        wait_for(&mut download, PATIENCE).code(),
        Some(56),
        "CURLE_RECV_ERROR"
    );
    drop(up);
}

#[test]
fn killed_it_leaves_nothing_that_the_next_start_does_not_clear_away() {
    let Some((world, _nginx)) = world() else {
        return;
    };
    let switch = |world: &World| shell(world, &format!("cat {SWITCH}"));
    let mut up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    let mut download = begin(&world, "long");
    await_data(&world, &["c1", "c2"]);
    up.kill();
    assert_eq!(
        wait_for(&mut download, PATIENCE).code(),
        Some(56),
        "CURLE_RECV_ERROR"
    );
    assert_eq!(switch(&world), "0");
    assert_eq!(shell(&world, "ip mptcp endpoint show"), "");
    // As if it had been killed in the middle of making a socket.
    shell(&world, &format!("echo 1 > {SWITCH}"));
    let up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    assert_eq!(switch(&world), "0");
    fetch(&world, "", "once");
    drop(up);
    let down = world.tabane(&["down"]).output().unwrap();
    assert!(down.status.success(), "{down:?}");

    // The administrator's word counts, and so do the endpoints of others.
    shell(&world, &format!("echo 1 > {SWITCH}"));
    shell(&world, "ip mptcp endpoint add 10.71.2.1 dev c2 subflow");
    watch(&world, "c2");
    let up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    fetch(&world, "", "once");
    let problem = status(&world)["multipath"]["problem"].to_string();
    assert!(problem.contains("net.mptcp.pm_type=1"), "{problem}");
    assert_eq!((watched(&world), &*switch(&world)), (0, "1"));
    let told = shell(&world, "ip mptcp endpoint show");
    assert!(told.contains("10.71.2.1"), "{told}");
    drop(up);
}
