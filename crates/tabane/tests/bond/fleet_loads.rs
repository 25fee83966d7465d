//! What the relays of a fleet have to do, and where clients go by it.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::fleet::{Fleet, insist, manage};
use crate::relays::{fetch, until};
use crate::running::Running;
use crate::text;
use crate::world::{TABANE, World, first_line, pid};

/// Clients are told of loads once a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// A client by itself: its settings, its process, and what that logs.
struct Device {
    proxy: Running,
    log: PathBuf,
}

impl Device {
    /// Joins by the line of a relay, which is the only one it knows at first.
    fn join(world: &World, name: &str, relay: &str, port: u16, settings: &str) -> Self {
        let config = world.path(name);
        let token = insist("a token", || manage(world, relay, "relay token new"));
        insist("it joins", || {
            let mut join = world.tabane(&["join", "--name", "home", token.trim(), "--config"]);
            join.arg(&config);
            join
        });
        fs::write(config.join("config.toml"), settings).unwrap();
        let log = config.join("log");
        let listen = format!("127.0.0.1:{port}");
        let mut proxy = world.tabane(&["proxy", "--log", "info,tabane_client=debug"]);
        proxy.args(["--listen", &listen, "--config"]).arg(&config);
        proxy.stderr(fs::File::create(&log).unwrap());
        let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
        first_line(&mut proxy.0);
        Self { proxy, log }
    }

    fn end(&self) {
        kill(pid(&self.proxy.0), Signal::SIGTERM).unwrap();
    }

    fn until_at(&self, world: &World, relay: &str) {
        let name = format!("home.{relay}");
        until(world, &self.proxy, |it| it["instance"]["relay"] == name);
    }

    /// How often it has begun a session.
    fn sessions(&self) -> usize {
        fs::read_to_string(&self.log)
            .unwrap()
            .matches("session up")
            .count()
    }

    /// Waits until it was told of a relay that has as much to do as it is meant for, and not as the
    /// first thing.
    fn until_told_of_much(&self) {
        let is_it = |line: &str| line.contains("loads=[Heavy,") || line.contains(", Heavy]");
        let begin = Instant::now();
        while !fs::read_to_string(&self.log).unwrap().lines().any(is_it) {
            assert!(begin.elapsed() < PATIENCE, "it is not told of it");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Waits until etcd has it that so many sessions are at each of the relays.
fn until_counted(world: &World, sessions: [u64; 2]) {
    let begin = Instant::now();
    loop {
        let shown = insist("it is shown", || {
            manage(world, "owner", "fleet status --json")
        });
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let relays = shown["relays"].as_array().unwrap().iter();
        let seen: Vec<u64> = relays.map(|it| it["sessions"].as_u64().unwrap()).collect();
        if seen == sessions {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{seen:?}, not {sessions:?}");
    }
}

/// Both relays are on one host, and each is meant for one session.
#[test]
fn new_clients_go_where_there_is_room_and_nobody_swings() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let Some(_fleet) = Fleet::of(&world, &["oslo", "rome"]) else {
        return;
    };
    for relay in ["oslo", "rome"] {
        let add = format!("fleet add {relay} --capacity 1");
        insist("its capacity", || manage(&world, "owner", &add));
    }
    // One that is bound to its relay, which it fills.
    let bound = "relay = \"home.oslo\"\n";
    let first = Device::join(&world, "first", "oslo", 1081, bound);
    first.until_at(&world, "oslo");
    until_counted(&world, [1, 0]);

    let begin = Instant::now();
    let new = Device::join(&world, "new", "oslo", 1082, "");
    new.until_at(&world, "rome");
    println!("elsewhere after {} ms", begin.elapsed().as_millis());
    assert_eq!(new.sessions(), 2);

    // The place it did not take gets free, and where it is there is no room for another.
    first.end();
    until_counted(&world, [0, 1]);
    new.until_told_of_much();
    // Whoever comes after that goes where it could have gone back to.
    let next = Device::join(&world, "next", "rome", 1083, "");
    next.until_at(&world, "oslo");
    assert_eq!((new.sessions(), next.sessions()), (2, 2));
    new.until_at(&world, "rome");
}

/// By its own trace: a look at a session is a line there.
#[test]
fn a_relay_that_nobody_watches_looks_at_no_session_and_knows_what_it_lost() {
    /// Longer than anything that a relay does by itself.
    const UNWATCHED: Duration = Duration::from_secs(11);
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    // A fiftieth of what comes to clients is lost: by count, since a train of packets counts as one
    // there, and none of so few may be hit by chance.
    const LOSSY: &str = "table ip lossy { chain in { type filter hook input priority 0; \
                         meta l4proto udp numgen inc mod 50 == 49 drop; }; }";
    let made = world.in_client("nft").arg(LOSSY).status();
    assert!(made.unwrap().success());
    world.stop_relay();
    let Some(fleet) = Fleet::of(&world, &["oslo"]) else {
        return;
    };
    let log = world.path("rome.log");
    let mut rome = fleet.command(&world, "rome", "warn,tabane_tunnel::engine=trace");
    rome.args(["--http", "127.0.0.1:0"]);
    rome.stderr(fs::File::create(&log).unwrap());
    let mut rome = Running(rome.spawn().unwrap());
    insist("it is let in", || manage(&world, "owner", "fleet add rome"));
    first_line(&mut rome.0);
    let looks = || {
        let log = fs::read_to_string(&log).unwrap();
        log.matches("looked at").count()
    };

    // One comes and goes, and loses packets meanwhile.
    let bound = "relay = \"home.rome\"\n";
    let first = Device::join(&world, "first", "rome", 1080, bound);
    first.until_at(&world, "rome");
    let whole = fetch(&world, "8000000").output().unwrap();
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    first.end();
    // Another one stays. How many there are is known all the same.
    let second = Device::join(&world, "second", "rome", 1080, bound);
    let begin = Instant::now();
    second.until_at(&world, "rome");
    until_counted(&world, [0, 1]);
    std::thread::sleep(UNWATCHED.saturating_sub(begin.elapsed()));
    assert_eq!(looks(), 0);

    let seen = insist("somebody looks", || {
        let mut status = world.in_relay(TABANE);
        status.args(["status", "--json", "--instance", "relay-4601"]);
        status
    });
    assert!(looks() > 0);
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["sessions"].as_array().unwrap().len(), 1, "{seen}");
    let lost = |of: &Value| of["traffic"]["lost_packets"].as_u64().unwrap();
    let (all, present) = (lost(&seen["totals"]), lost(&seen["sessions"][0]));
    println!("{all} packets lost, {present} of them by the session there is");
    assert!(all > present, "{seen}");
}
