//! Hosts behind `tabane up --lan`: rules for some of them, lists in files, and what each carried.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::control::until;
use crate::lan::Host;
use crate::rules::write;
use crate::running::within;
use crate::text;
use crate::up::{UP, Up, is_plain};
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "http://203.0.113.2:8000";
const LIST: &str = "servers.txt";

fn world() -> Option<World> {
    let world = World::new(&[])?;
    world.limit_rates([40, 40]);
    world.join();
    Some(world)
}

/// The address of the host's card.
fn card(host: &Host<'_>) -> String {
    host.shell("cat /sys/class/net/l1/address").1
}

fn fetch(host: &Host<'_>, from: &str, bytes: usize) {
    let line = format!("curl -sS --fail --max-time 20 --interface {from} {SERVER}/{bytes} | wc -c");
    assert_eq!(host.shell(&line).1, bytes.to_string());
}

fn rule(name: &str, source: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\n{source}\nlinks = [\"c2\"]\n")
}

fn so_far(state: &Value, place: usize) -> u64 {
    state["rules"][place]["connections_so_far"]
        .as_u64()
        .unwrap()
}

fn explained(world: &World, arguments: &[&str]) -> Value {
    let mut command = world.tabane(&["policy", "explain", "203.0.113.2:8000", "--json"]);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn rules_for_a_host_s_address_and_for_its_card_hold_for_that_host_and_each_is_counted() {
    const BYTES: usize = 3_000_000;
    let Some(world) = world() else {
        return;
    };
    let host = Host::new(&world);
    assert!(host.shell("ip addr add 10.72.0.3/24 dev l1").0);
    let card = card(&host);
    let rules = [
        rule("by address", "source = [\"10.72.0.3\", \"192.168.7.0/28\"]"),
        rule("by card", &format!("source = \"{}\"", card.to_uppercase())),
    ];
    write(&world, &rules.concat());
    // The kernel has heard of both.
    fetch(&host, "10.72.0.3", 10);
    fetch(&host, "10.72.0.2", 10);
    let up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    let sent = |link: &str| {
        let path = format!("/sys/class/net/{link}/statistics/rx_bytes");
        let output = world.in_client("cat").arg(path).output().unwrap();
        text(&output.stdout).trim().parse::<u64>().unwrap()
    };
    let before = [sent("c1"), sent("c2")];
    fetch(&host, "10.72.0.3", BYTES);
    fetch(&host, "10.72.0.2", BYTES);
    let came = [sent("c1") - before[0], sent("c2") - before[1]];
    assert!(came[0] < 500_000 && came[1] > 6_000_000, "{came:?}");
    // Programs of this machine are no hosts behind it.
    let own = format!("curl -sS --fail --max-time 20 -o /dev/null {SERVER}/1000");
    let own = world.in_client("sh").args(["-c", &own]).status();
    assert!(own.unwrap().success());
    let state = until(&world, "up", |state| {
        so_far(state, 0) == 1 && so_far(state, 1) == 1 && so_far(state, 2) > 0
    });
    let hosts = state["lan_hosts"].as_array().unwrap();
    for address in ["10.72.0.2", "10.72.0.3"] {
        let of = hosts.iter().find(|it| it["address"] == address).unwrap();
        assert_eq!(of["hardware"], card, "{of:#}");
        let received = of["received_bytes"].as_u64().unwrap();
        assert!((3_000_000..3_010_000).contains(&received), "{of:#}");
        assert_eq!(of["connections_so_far"], 1, "{of:#}");
    }
    let screen = text(&world.tabane(&["status"]).output().unwrap().stdout);
    assert!(
        screen.contains("10.72.0.3") && screen.contains(&card),
        "{screen}"
    );

    let rule_of = |source: &str| explained(&world, &["--source", source])["rule"]["name"].clone();
    assert_eq!(rule_of("10.72.0.3"), "by address");
    assert_eq!(rule_of(&card), "by card");
    assert_eq!(rule_of("10.72.0.77"), Value::Null);
    assert_eq!(explained(&world, &[])["rule"], Value::Null);
    // Of an address, the one that runs knows the card.
    assert_eq!(rule_of("10.72.0.2"), "by card");
}

#[test]
fn lists_in_files_are_followed_and_a_faulty_one_changes_nothing() {
    let Some(world) = world() else {
        return;
    };
    let list = |text: &str| {
        let policy = world.path(".config/tabane");
        fs::write(policy.join(LIST), text).unwrap();
    };
    write(
        &world,
        &rule("listed", &format!("address-file = \"{LIST}\"")),
    );
    list("# none yet\n");
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    let fits = || {
        let told = explained(&world, &[]);
        // Nothing but this tells what the one that runs goes by.
        let is_same = told["notes"].as_array().unwrap().is_empty();
        is_same.then(|| told["rule"]["name"] == "listed")
    };
    let soon = |wanted: bool| {
        within(PATIENCE, &format!("listed: {wanted}"), || {
            fits() == Some(wanted)
        });
    };
    soon(false);
    list("203.0.113.0/28\n");
    soon(true);
    list("203.0.113.2\nads example\n");
    let state = until(&world, "up", |state| state["policy_fault"].is_string());
    let fault = state["policy_fault"].as_str().unwrap();
    assert!(fault.contains("servers.txt\": line 2"), "{fault}");
    let checked = world.tabane(&["policy", "check"]).output().unwrap();
    assert!(!checked.status.success());
    assert!(
        text(&checked.stderr).contains(":3: address-file"),
        "{checked:?}"
    );
    // It is read again though the policy itself stays as it is.
    list("192.0.2.1\n");
    until(&world, "up", |state| state["policy_fault"].is_null());
    soon(false);
}

/// Takes no connection, and has room for all of them.
const LISTEN: &str = "
import socket, sys
s = socket.create_server(('203.0.113.2', 8100), backlog=8192)
print('listens', flush=True)
sys.stdin.read()
";
const HOLD: &str = "
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
held = [socket.create_connection(('203.0.113.2', 8100), 20) for _ in range(int(sys.argv[1]))]
print('held', flush=True)
sys.stdin.read()
";

/// A command that holds something from its first line on, until it is dropped.
struct Holding(Child);

impl Holding {
    fn begin(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
        lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it has ended");
        Self(child)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// More than a session has streams.
#[test]
fn connections_that_one_host_holds_send_no_other_host_s_past_the_tunnel() {
    const HELD: u64 = 4_200;
    let Some(world) = world() else {
        return;
    };
    let host = Host::new(&world);
    // Another host, as far as the wire shows.
    for line in [
        "ip link add link l1 name l2 type macvlan mode bridge",
        "ip addr add 10.72.0.4/24 dev l2",
        "ip link set l2 up",
        "ip route add default via 10.72.0.1 dev l2 metric 200",
        "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
    ] {
        assert!(host.shell(line).0, "{line}");
    }
    let mut room = world.in_servers("sysctl");
    let room = room.args(["-qw", "net.core.somaxconn=8192"]).status();
    assert!(room.unwrap().success());
    let mut listen = world.in_servers("python3");
    listen.args(["-c", LISTEN]);
    let _listening = Holding::begin(listen);
    let up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    let line = "curl -sS --fail --max-time 20 --interface l2 http://203.0.113.2:8000/peer";
    let ask = || host.shell(line).1;
    let carried = ask();
    assert!(
        !carried.starts_with("10.72.") && !is_plain(&carried),
        "{carried}"
    );
    let mut hold = host.command("python3");
    hold.args(["-c", HOLD, &HELD.to_string()]);
    let _held = Holding::begin(hold);
    assert_eq!(ask(), carried);
    until(&world, "up", |state| {
        state["totals"]["bypassing_connections"] == HELD - 1_536
    });
}
