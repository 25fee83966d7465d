//! What must not go without the relay: `up --strict`, and rules with `on-failure`.
//!
//! The servers count what comes to them straight from the links, whatever it is.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::{status, text};
use crate::process::UP;
use crate::running::within;
use crate::up::{LOST, Up, hop, is_plain, peer, ping, shell};
use crate::world::{World, pid};

const PEER: &str = "http://203.0.113.2:8000/peer";
const DNS: &str = "getent ahostsv4 files.example.net";

/// Has the servers count what does not come by the relay; `false` where they cannot.
fn count_strays(world: &World) -> bool {
    let rules = "table inet stray { counter seen { }; chain c { \
                 type filter hook input priority 0; \
                 ip saddr 10.71.0.0/16 counter name seen; \
                 ip6 saddr { 2001:db8:1::/48, 2001:db8:2::/48 } counter name seen; }; }";
    let made = world.in_servers("nft").arg(rules).status();
    made.is_ok_and(|status| status.success())
}

fn strays(world: &World) -> u64 {
    let told = world
        .in_servers("nft")
        .args(["list", "counter", "inet", "stray", "seen"])
        .output()
        .unwrap();
    let told = text(&told.stdout);
    let mut words = told
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// How curl ends that waits `seconds` for an answer at most, and after how long.
fn fetch(world: &World, url: &str, seconds: u32) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let mut curl = world.in_client("curl");
    let ended = curl.args(["-sS", "--max-time", &seconds.to_string(), url]);
    (status(&ended.output().unwrap()), begun.elapsed())
}

#[test]
fn while_it_is_strict_no_packet_goes_without_the_relay() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    if !count_strays(&world) {
        println!("skipped: no nft");
        return;
    }
    world.join();
    world.stop_relay();
    let mut up = Up::start(&world, &["--strict"]);
    // Set up, and there is no relay yet.
    assert_eq!(fetch(&world, PEER, 2).0, Some(28));
    let udp = "echo | timeout 1 nc -u -w 1 203.0.113.2 7000; timeout 2 ";
    shell(&world, &format!("{udp} {DNS} || true"));
    shell(&world, &format!("timeout 1 {} || true", hop(31)));
    assert_eq!(ping(&world, 1), "- -");

    // What waits is served when the relay comes, and what runs outlives its silence.
    let waiting = || {
        let mut curl = world.in_client("curl");
        let curl = curl.args(["-sS", "--max-time", "30", PEER]);
        curl.stdout(Stdio::piped()).spawn().unwrap()
    };
    let early = waiting();
    let mut relay = world.spawn_relay(&[]);
    let served = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        let peer = text(&output.stdout);
        assert!(output.status.success() && !is_plain(&peer), "{output:?}");
    };
    served(early);
    up.wait_until(UP);
    kill(pid(&relay), Signal::SIGSTOP).unwrap();
    let late = waiting();
    up.wait_until(LOST);
    assert_eq!(fetch(&world, PEER, 1).0, Some(28));
    kill(pid(&relay), Signal::SIGCONT).unwrap();
    served(late);
    relay.kill().unwrap();
    relay.wait().unwrap();
    up.wait_until(LOST);
    assert_eq!(fetch(&world, PEER, 1).0, Some(28));
    assert_eq!(strays(&world), 0, "packets went without the relay");

    kill(pid(&up.child), Signal::SIGTERM).unwrap();
    up.child.wait().unwrap();
    assert!(is_plain(&peer(&world, PEER)));
    assert!(strays(&world) > 0);
}

#[test]
fn a_rule_says_what_becomes_of_what_it_fits_without_the_relay() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    world.stop_relay();
    let file = world.path(".config/tabane/policy.toml");
    let rule = |name: &str, what: &str| {
        format!("[[rule]]\nname = '{name}'\naddress = '203.0.113.2'\non-failure = '{what}'\n")
    };
    fs::write(&file, rule("files", "refuse")).unwrap();
    let up = Up::start(&world, &[]);
    // At once, as where no route leads.
    let (ended, took) = fetch(&world, PEER, 10);
    assert_eq!(ended, Some(7));
    assert!(took < Duration::from_secs(3), "{took:?}");
    // What no rule fits goes plainly.
    assert!(is_plain(&peer(
        &world,
        "http://[2001:db8:ffff::2]:8000/peer"
    )));

    // The daemon follows the file while no relay answers as well.
    fs::write(&file, rule("files", "direct")).unwrap();
    within(Duration::from_secs(10), "it is refused no more", || {
        fetch(&world, PEER, 10).0 == Some(0)
    });
    assert!(is_plain(&peer(&world, PEER)));
    fs::write(&file, rule("files", "wait")).unwrap();
    within(Duration::from_secs(10), "it waits", || {
        fetch(&world, PEER, 1).0 == Some(28)
    });
    let mut relay = world.spawn_relay(&[]);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));
    relay.kill().unwrap();
    relay.wait().unwrap();
}
