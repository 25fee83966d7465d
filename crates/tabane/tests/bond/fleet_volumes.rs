//! Volumes that a fleet's relays lend part by part, used faster than the parts are large.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fleet::{Fleet, insist, manage};
use crate::relays::{fetch, until};
use crate::running::Running;
use crate::text;
use crate::world::{World, first_line};

const PATIENCE: Duration = Duration::from_secs(40);
/// Of a fleet's relays.
const LEASE: Duration = Duration::from_secs(10);

/// Of the user ann, at the fleet's relays.
fn used(world: &World) -> u64 {
    let shown = insist("ann is shown", || {
        manage(world, "oslo", "relay user show ann --json")
    });
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown["volume_used_bytes"].as_u64().unwrap()
}

/// A device of ann's joins, and has a session.
fn join(world: &World) -> Running {
    let token = insist("a token", || {
        manage(world, "oslo", "relay token new --user ann")
    });
    insist("she joins", || {
        world.tabane(&["join", "--name", "home", token.trim()])
    });
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    until(world, &proxy, |state| {
        state["instance"]["relay"].is_string()
    });
    proxy
}

/// Bytes a second that come while a download runs, for at least so long: in all, and in the slowest
/// part of some seconds.
fn rates(world: &World, proxy: &Running, span: Duration) -> (f64, f64) {
    const PART: Duration = Duration::from_secs(5);
    let passed = |state: &Value| {
        let bytes = state["totals"]["traffic"]["received_bytes"].as_u64();
        (Instant::now(), bytes.unwrap())
    };
    let between = |(begin, before): (Instant, u64), (end, after): (Instant, u64)| {
        (after - before) as f64 / (end - begin).as_secs_f64().max(0.001)
    };
    let mut first = None;
    let (mut last, mut slowest) = (None, f64::INFINITY);
    loop {
        let (mut begin, mut now) = (last, last);
        until(world, proxy, |state| {
            let seen = passed(state);
            now = Some(seen);
            seen.0 - begin.get_or_insert(seen).0 >= span.min(PART)
        });
        let (begin, now) = (begin.unwrap(), now.unwrap());
        slowest = slowest.min(between(begin, now));
        let first = *first.get_or_insert(begin);
        if now.0 - first.0 >= span {
            return (between(first, now), slowest);
        }
        last = Some(now);
    }
}

/// Longer than the leases by which relays are seen to run, or as long as `TABANE_AWAY` says, in
/// seconds; the timers of ten minutes are a test of the relay's own, in virtual time.
#[test]
fn a_download_is_as_fast_while_etcd_is_away_and_a_revocation_is_in_force_after() {
    let away = std::env::var("TABANE_AWAY").map_or(14, |it| it.parse().unwrap());
    let away = Duration::from_secs(away);
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.limit_rates([16; 2]);
    world.stop_relay();
    let Some(mut fleet) = Fleet::start(&world) else {
        return;
    };
    insist("ann", || manage(&world, "oslo", "relay user add ann"));
    let proxy = join(&world);
    let most = (away + Duration::from_secs(120)).as_secs().to_string();
    let mut download = fetch(&world, "20000000000");
    let mut download = Running(download.args(["--max-time", &most]).spawn().unwrap());
    until(&world, &proxy, |state| {
        state["totals"]["streams"].as_u64() > Some(0)
    });
    rates(&world, &proxy, Duration::from_secs(2));
    let (with, _) = rates(&world, &proxy, Duration::from_secs(5));
    fleet.etcd.iter_mut().for_each(Running::kill);
    let (without, slowest) = rates(&world, &proxy, away);
    println!("{with:.0} bytes a second with etcd, {without:.0} without, {slowest:.0} at least");
    assert!(without > 0.9 * with, "{without} of {with}");
    assert!(download.0.try_wait().unwrap().is_none(), "it was cut");

    fleet.run_etcd(&world);
    insist("ann is removed", || {
        manage(&world, "rome", "relay user remove ann")
    });
    // What is lent without etcd's word, and so what a relay may not have heard, lasts so long.
    let begin = Instant::now();
    while download.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < LEASE, "she is served on");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("revoked after {} ms", begin.elapsed().as_millis());
}

#[test]
fn a_small_volume_that_is_used_fast_is_not_cut_before_its_end() {
    const VOLUME: u64 = 30_000_000;
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    // More is what a quiet machine carries, a gigabyte in two seconds; no processor is left then
    // for relays to be heard.
    world.limit_rates([200; 2]);
    world.stop_relay();
    let Some(_fleet) = Fleet::start(&world) else {
        return;
    };
    insist("ann", || manage(&world, "oslo", "relay user add ann"));
    let mut proxy = join(&world);

    // She has a volume from here on, while something of hers is on its way, which goes on.
    let mut running = fetch(&world, "2000000000").spawn().unwrap();
    until(&world, &proxy, |state| {
        state["totals"]["streams"].as_u64() > Some(0)
    });
    let set = "relay user set ann --volume 1GB/month";
    insist("a volume", || manage(&world, "rome", set));
    rates(&world, &proxy, Duration::from_secs(2));
    assert!(running.try_wait().unwrap().is_none(), "it was cut");
    running.kill().unwrap();
    running.wait().unwrap();

    let set = format!("relay user set ann --volume {}MB/day", VOLUME / 1_000_000);
    insist("a smaller volume", || manage(&world, "rome", &set));
    for _ in 0..2 {
        let whole = fetch(&world, "12000000").output().unwrap();
        assert!(whole.status.success(), "{}", text(&whole.stderr));
    }
    let cut = fetch(&world, "12000000").output().unwrap();
    assert!(!cut.status.success(), "it is more than there was");
    // A larger one is in force for the session that there is.
    let set = "relay user set ann --volume 100MB/day";
    insist("a larger volume", || manage(&world, "oslo", set));
    insist("it is served again", || fetch(&world, "1000000"));
    // All was there to be used, and no more; all is told once she is gone.
    proxy.kill();
    let most = VOLUME + 1_000_000 + 20_000;
    let begin = Instant::now();
    while used(&world) < VOLUME + 1_000_000 {
        assert!(begin.elapsed() < PATIENCE, "{} bytes", used(&world));
    }
    println!("{} bytes of {most}", used(&world));
    assert!(used(&world) <= most, "{} bytes", used(&world));
}
