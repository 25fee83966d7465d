//! A fleet as `make fleet-demo` shows it: three members of etcd, three relays, a client that joined
//! once; a relay is killed under load, then a member of etcd, then the majority.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::relays::{fetch, until};
use crate::running::Running;
use crate::site::Site;
use crate::world::{TABANE, World, first_line};
use crate::{complaint, status, text};

/// More than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
const NAMES: [&str; 3] = ["oslo", "rome", "lima"];

pub(crate) struct Fleet {
    pub(crate) etcd: Vec<Running>,
    at: String,
    relays: Vec<Running>,
    join: String,
}

/// Does it again until it succeeds: what it waits for is another process's.
pub(crate) fn insist(what: &str, mut command: impl FnMut() -> Command) -> String {
    let begin = Instant::now();
    loop {
        let output = command().output().unwrap();
        if output.status.success() {
            return text(&output.stdout);
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `tabane WORDS --state` with the state of one of the machines.
pub(crate) fn manage(world: &World, state: &str, words: &str) -> Command {
    let mut command = world.in_relay(TABANE);
    command.args(words.split(' '));
    command.arg("--state").arg(world.path(state));
    command
}

/// `tabane fleet top`, as an owner has it before them.
struct Live {
    _top: Running,
    looks: mpsc::Receiver<String>,
}

impl Live {
    fn start(world: &World) -> Self {
        let mut top = manage(world, "owner", "fleet top");
        let mut top = Running(top.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
        let (tell, looks) = mpsc::channel();
        std::thread::spawn(move || {
            let mut look = String::new();
            for line in lines.map_while(Result::ok) {
                // The screen is cleared for the next one.
                if !line.starts_with('\x1b') {
                    look += &(line + "\n");
                } else if tell.send(std::mem::take(&mut look)).is_err() {
                    return;
                }
            }
        });
        Self { _top: top, looks }
    }

    /// Waits for a look at which these relays are so, and shows it.
    fn until(&self, relays: &[&str], state: &str) {
        let begin = Instant::now();
        let mut look = String::new();
        let is_so = |look: &str, relay: &&str| {
            let mut lines = look.lines();
            lines.any(|line| line.split_whitespace().take(2).eq([*relay, state]))
        };
        while !relays.iter().all(|relay| is_so(&look, relay)) {
            assert!(begin.elapsed() < PATIENCE, "not {state}: {look}");
            look = self.looks.recv_timeout(PATIENCE).expect("a look");
        }
        println!("{look}");
    }
}

fn show(world: &World) {
    let shown = manage(world, "owner", "fleet status").output().unwrap();
    println!("{}", text(&shown.stdout));
}

fn port(i: usize, peer: bool) -> usize {
    12_379 + 10 * i + usize::from(peer)
}

/// Three, with what they had before, if they had anything.
fn etcd_members(world: &World) -> Vec<Running> {
    let cluster: Vec<String> = (0..3)
        .map(|i| format!("m{i}=http://127.0.0.1:{}", port(i, true)))
        .collect();
    let members = (0..3).map(|i| {
        let client = format!("http://127.0.0.1:{}", port(i, false));
        let peer = format!("http://127.0.0.1:{}", port(i, true));
        let mut etcd = world.in_relay("etcd");
        etcd.args(["--name", &format!("m{i}"), "--data-dir"]);
        etcd.arg(world.path(&format!("etcd{i}")));
        etcd.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        etcd.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        etcd.args(["--initial-cluster", &cluster.join(","), "--logger", "zap"]);
        etcd.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        let etcd = etcd.stdout(Stdio::null()).stderr(Stdio::null());
        Running(etcd.spawn().unwrap())
    });
    members.collect()
}

impl Fleet {
    pub(crate) fn start(world: &World) -> Option<Self> {
        Self::of(world, &NAMES)
    }

    /// With these of the relays.
    pub(crate) fn of(world: &World, names: &[&str]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            println!("skipped: no etcd (apt-get install etcd-server)");
            return None;
        }
        let etcd = etcd_members(world);
        let hosts: Vec<String> = (0..3)
            .map(|i| format!("127.0.0.1:{}", port(i, false)))
            .collect();
        let at = format!("etcd://{}/demo", hosts.join(","));
        insist("a fleet is made", || {
            manage(world, "owner", &format!("fleet init {at}"))
        });
        let mut fleet = Self {
            etcd,
            at,
            relays: Vec::new(),
            join: String::new(),
        };
        for name in names {
            let mut relay = fleet.relay(world, name);
            insist("it is let in", || {
                manage(world, "owner", &format!("fleet add {name}"))
            });
            fleet.join = first_line(&mut relay.0);
            assert!(fleet.join.contains("&fleet="), "{}", fleet.join);
            fleet.relays.push(relay);
        }
        Some(fleet)
    }

    /// Starts the members of etcd again.
    pub(crate) fn run_etcd(&mut self, world: &World) {
        self.etcd = etcd_members(world);
    }

    fn relay(&self, world: &World, name: &str) -> Running {
        let mut relay = self.command(world, name, "warn");
        Running(relay.spawn().unwrap())
    }

    /// What starts the relay of this name, with what it logs.
    pub(crate) fn command(&self, world: &World, name: &str, log: &str) -> Command {
        let place = NAMES.iter().position(|other| *other == name).unwrap();
        let words = format!(
            "relay --log {log} --public 203.0.113.1 --listen 0.0.0.0:460{place} --listen-only \
             --tls-listen no --fleet {} --name {name} --region test",
            self.at
        );
        let mut relay = manage(world, name, &words);
        relay.stdout(Stdio::piped());
        relay
    }
}

/// The end of a client by itself, and what it said.
fn check(world: &World, config: PathBuf, join: &str) -> (Option<i32>, String) {
    let mut command = world.tabane(&["join", "--name", "fleet", "--check", join, "--config"]);
    let output = command.arg(config).output().unwrap();
    (status(&output), text(&output.stderr))
}

#[test]
fn a_fleet_goes_on_when_a_relay_and_a_member_of_etcd_are_killed() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    // It has a key of its own at the ports that clients try where others are silent.
    world.stop_relay();
    let Some(mut fleet) = Fleet::start(&world) else {
        return;
    };
    let live = Live::start(&world);
    live.until(&NAMES, "up");
    let report = manage(&world, "oslo", "fleet status --json")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    for relay in report["relays"].as_array().unwrap() {
        assert_eq!(relay["state"], "up", "{relay}");
    }

    // Each of them tells of all.
    let seen = insist("a member is seen", || {
        let mut status = world.in_relay(TABANE);
        status.args(["status", "--json", "--instance", "relay-4600"]);
        status
    });
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["fleet"]["own"], "oslo", "{seen}");
    assert_eq!(seen["fleet"]["key"], report["key"]);
    let states = seen["fleet"]["relays"].as_array().unwrap().iter();
    let states: Vec<&Value> = states.map(|relay| &relay["state"]).collect();
    assert_eq!(states, ["up", "up", "up"], "{seen}");

    // One join, by the line of one relay; the others come with the signed list.
    let joined = world
        .tabane(&["join", "--name", "home", &fleet.join])
        .output()
        .unwrap();
    assert!(joined.status.success(), "{joined:?}");
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    let is_listed = |state: &Value| {
        let name = state["instance"]["relay"].as_str().unwrap_or_default();
        NAMES.iter().any(|it| name == format!("home.{it}"))
    };
    let took = until(&world, &proxy, is_listed);
    println!(
        "every relay is known {} ms after the session",
        took.as_millis()
    );
    let relays = world.tabane(&["relays", "--json"]).output().unwrap();
    let relays: Value = serde_json::from_slice(&relays.stdout).unwrap();
    let relays = relays.as_array().unwrap();
    assert_eq!(relays.len(), 3, "{relays:?}");
    assert!(
        relays
            .iter()
            .all(|relay| relay["rtt_ms"].as_f64().unwrap() > 0.0)
    );
    assert_eq!(relays[0]["why"], "nearest");
    println!(
        "{}",
        text(&world.tabane(&["relays"]).output().unwrap().stdout)
    );

    // The relay that is used is killed under a download; what is new goes by another.
    let used = used_by(&world, &proxy);
    let place = NAMES
        .iter()
        .position(|name| used == format!("home.{name}"))
        .unwrap();
    let mut load = fetch(&world, "2000000000").spawn().unwrap();
    until(&world, &proxy, |state| {
        state["totals"]["streams"].as_u64() > Some(0)
    });
    fleet.relays[place].kill();
    let killed_at = Instant::now();
    let again = fetch(&world, "20000").output().unwrap();
    let took = killed_at.elapsed();
    assert!(again.status.success(), "{}", text(&again.stderr));
    println!(
        "{used} killed: a new connection was carried after {} ms",
        took.as_millis()
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
    load.kill().unwrap();
    load.wait().unwrap();
    until(&world, &proxy, |state| state["instance"]["relay"] != used);
    live.until(&[NAMES[place]], "down");

    // A member of etcd goes: everything is as before, newcomers included.
    fleet.etcd[0].kill();
    let new = "relay token new --uses one";
    let first = insist("a token", || manage(&world, NAMES[(place + 1) % 3], new));
    let (status, said) = check(&world, world.path("second"), first.trim());
    assert_eq!(status, Some(0), "{said}");
    show(&world);

    // The majority goes: known clients are served, and a newcomer is told why it is not.
    let token = insist("a token", || manage(&world, NAMES[(place + 2) % 3], new));
    fleet.etcd[1].kill();
    let (status, told) = check(&world, world.path("third"), token.trim());
    assert!(
        status != Some(0) && told.contains("cannot look up new clients"),
        "{told}"
    );
    let (status, said) = check(&world, world.path("second"), first.trim());
    assert_eq!(status, Some(0), "{said}");
    let again = fetch(&world, "20000").output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    println!("without a majority of etcd known clients are served; a newcomer was told:\n{told}");
}

fn used_by(world: &World, proxy: &Running) -> String {
    let name = format!("proxy-{}", proxy.0.id());
    let status = world
        .tabane(&["status", "--json", "--instance", &name])
        .output()
        .unwrap();
    let state: Value = serde_json::from_slice(&status.stdout).unwrap();
    state["instance"]["relay"].as_str().unwrap().to_owned()
}

#[test]
fn sites_meet_at_the_relay_of_their_fleet_that_their_settings_name() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let Some(mut fleet) = Fleet::start(&world) else {
        return;
    };
    let (mut a, mut b) = (Site::first(&world), Site::second(&world));
    for (site, user, range, relay) in [
        (&mut a, "ann", "192.168.10.0/24", "oslo"),
        (&mut b, "bob", "192.168.20.0/24", "rome"),
    ] {
        let add = format!("relay user add {user} --routes {range} --group offices");
        insist("a user is added", || manage(&world, relay, &add));
        let new = format!("relay token new --user {user}");
        let line = insist("a token is made", || manage(&world, relay, &new));
        site.join_by(line.trim());
        site.begin(&["--route", range]);
    }
    // Each is at the relay by whose line it came, as none is nearer; both are told what to do.
    let tells = |it: &Value| {
        let problem = it["problem"].as_str().unwrap_or_default();
        problem.contains("3 relays") && problem.contains("`relay = \"home.lima\"`")
    };
    a.until("192.168.10.0/24", tells);
    b.until("192.168.20.0/24", tells);
    for site in [&mut a, &mut b] {
        let settings = site.directory().join("config/config.toml");
        fs::write(settings, "relay = \"home.lima\"\n").unwrap();
        site.end(Signal::SIGTERM);
    }
    a.begin(&["--route", "192.168.10.0/24"]);
    b.begin(&["--route", "192.168.20.0/24"]);
    let _server = b.server("serve 8080");
    let meet = || {
        a.until_route("192.168.20.0/24", "open");
        b.until_route("192.168.10.0/24", "open");
        a.visit("end 192.168.20.2 8080")
    };
    assert!(meet().starts_with("from 192.168.10.2"));
    // It is gone for a while: they go on elsewhere, and come back to it.
    fleet.relays[2].kill();
    for (site, own) in [(&a, "192.168.10.0/24"), (&b, "192.168.20.0/24")] {
        site.until_relay(|name| name != "home.lima");
        site.until_route(own, "open");
    }
    let mut again = fleet.relay(&world, "lima");
    first_line(&mut again.0);
    fleet.relays.push(again);
    for site in [&a, &b] {
        site.until_relay(|name| name == "home.lima");
    }
    assert!(meet().starts_with("from 192.168.10.2"));
}

#[test]
fn an_owners_mistakes_are_answered_in_a_line_and_change_nothing() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let Some(fleet) = Fleet::of(&world, &["oslo"]) else {
        return;
    };
    let at = fleet.at.as_str();
    let list = || {
        let shown = insist("it is shown", || {
            manage(&world, "owner", "fleet status --json")
        });
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let names = |it: &Value| {
            (
                it["name"].clone(),
                it["state"].clone(),
                it["region"].clone(),
            )
        };
        let relays = shown["relays"].as_array().unwrap();
        (
            shown["epoch"].clone(),
            relays.iter().map(names).collect::<Vec<_>>(),
        )
    };
    let before = list();
    let anothers = at.replace("/demo", "/other");
    insist("another fleet", || {
        manage(&world, "stranger", &format!("fleet init {anothers}"))
    });
    let long = format!("fleet add oslo --region {}", "x".repeat(33));
    // Those that would not fail would take nobody's port.
    let relay = "relay --log warn --public 203.0.113.1 --listen 0.0.0.0:4609 --listen-only";
    for (state, words, says) in [
        (
            "owner",
            "fleet drain osl",
            "no relay of the fleet is called osl; `tabane fleet status`",
        ),
        (
            "owner",
            "fleet remove OSLO",
            "no relay of the fleet is called OSLO",
        ),
        (
            "owner",
            "fleet add rome",
            "no relay asks to be let in as rome: start `tabane relay",
        ),
        (
            "owner",
            "fleet add oslo --key x",
            "a key has 43 characters, this has 1",
        ),
        ("owner", "fleet add oslo --capacity -1", "'-1'"),
        (
            "owner",
            "fleet add oslo --capacity 5000000000",
            "5000000000 is not in 0..=4294967295",
        ),
        ("owner", "fleet add ../oslo", "no name for a relay"),
        ("owner", &long, "no region: a word of at most 32 letters"),
        // A relay's machine, and one of no fleet.
        (
            "oslo",
            "fleet drain oslo",
            "run this where `tabane fleet init` was run",
        ),
        (
            "nobody",
            "fleet status",
            "belongs to no fleet: run `tabane fleet init ETCD`",
        ),
        // A slip of the pen, the wrong fleet, and none.
        (
            "owner",
            &format!("fleet init {}", at.replace("/demo", "/deom")),
            "belongs to the fleet in",
        ),
        ("new", &format!("fleet init {at}"), "already, of key"),
        (
            "stranger",
            "fleet drain oslo",
            "no relay of the fleet is called oslo",
        ),
        (
            "new",
            "fleet init etcd://127.0.0.1:1/x",
            "etcd cannot be reached",
        ),
        (
            "new",
            "fleet init 127.0.0.1:2379",
            "is written etcd://HOST:2379",
        ),
        (
            "new",
            &format!("{relay} --fleet {at}x --name a"),
            "there is no fleet yet in",
        ),
        (
            "new",
            &format!("{relay} --fleet {at} --name a/b"),
            "no name for a relay",
        ),
        ("oslo", relay, "belongs to the fleet in"),
        (
            "oslo",
            &format!("{relay} --fleet {anothers} --name oslo"),
            "is of the fleet",
        ),
    ] {
        let output = manage(&world, state, words).output().unwrap();
        let told = complaint(&output);
        assert!(told.contains(says), "{words}: {told}");
        assert!(!output.status.success(), "{words}");
    }
    assert_eq!(list(), before);
}
