//! `tabane gateway` between kernels, in namespaces of their own:
//!
//! ```text
//!   mobile  10.2.0.2 e0 ─── r0 10.2.0.1  router  s0 10.1.0.1 ─── e0 10.1.0.2  server
//! ```
//!
//! fd02:: and fd01:: run beside the IPv4 ranges. "Bare" hosts have nothing that undoes a spurious
//! timeout, "modern" ones what their kernel has.

#![allow(clippy::unwrap_used)]

mod split;
mod world;

use std::process::{Command, Stdio};

use world::{
    BARE, FLOOD, FROM_MOBILE, QUEUE_LENGTH, TO_MOBILE, World, assert_whole, first_line, ip,
};

const TABANE: &str = env!("CARGO_BIN_EXE_tabane");
const SIZE: usize = 20_000_000;

#[test]
fn every_mode_carries_bytes_whole_from_bare_and_modern_senders() {
    let Some(mut world) = World::new() else {
        return;
    };
    for mode in ["observe", "assist", "split"] {
        if mode == "split" && Command::new("nft").arg("--version").output().is_err() {
            println!("skipped: split needs nft");
            continue;
        }
        world.start(mode);
        world.fetch_whole("10.1.0.2");
        world.fetch_whole("fd01::2");
        let report = world.report();
        let count = |name: &str| report["totals"][name].as_u64().unwrap();
        match mode {
            "observe" => assert_eq!((count("opened"), count("fabricated")), (2, 0)),
            "assist" => assert!(count("opened") == 2 && count("fabricated") > 0, "{report}"),
            _ => assert_eq!(count("joined"), 2),
        }
        let metrics = String::from_utf8(world.status(&["--metrics"]).stdout).unwrap();
        assert!(
            metrics.contains("tabane_gateway_flows{radio=\"r0\"}"),
            "{metrics}"
        );
        world.is_an_instance(mode);
        world.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(world.gateway.take().unwrap().wait().unwrap().success());
        assert!(!world.rules().contains("tabane"), "{}", world.rules());
    }
    for host in ["m", "s"] {
        world.set(host, &BARE);
    }
    world.start("assist");
    world.fetch_whole("10.1.0.2");
    world.fetch_whole("fd01::2");
    world.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(world.gateway.take().unwrap().wait().unwrap().success());
    world.start_with("assist", &["--poll", "200"]);
    world.fetch_whole("10.1.0.2");
    let mut top = world.within("r", TABANE);
    top.args(["gateway", "top", "--json"]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let seen: serde_json::Value = serde_json::from_str(&first_line(&mut top)).unwrap();
    let _ = top.kill();
    let _ = top.wait();
    assert_eq!(seen["totals"]["opened"], 1, "{seen}");
}

/// Two on one interface would take each other's packets; two on different ones are told apart.
#[test]
fn each_interface_has_one_gateway_which_is_found_by_its_name() {
    let Some(mut world) = World::new() else {
        return;
    };
    world.start("observe");
    let second = world.tabane(&["gateway", "--radio", "r0", "--queue", "10630"]);
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success());
    assert!(
        said.contains("another gateway has this interface"),
        "{said}"
    );

    let mut other = world.within("r", TABANE);
    other.args([
        "gateway", "--radio", "s0", "--queue", "10630", "--mode", "assist",
    ]);
    let mut other = other.stderr(Stdio::null()).spawn().unwrap();
    world.wait_for("the other one answers", |world| {
        world.status(&["--radio", "s0"]).status.success()
    });
    let which = String::from_utf8(world.status(&[]).stderr).unwrap();
    assert!(
        which.contains("choose one with --radio (r0, s0)"),
        "{which}"
    );
    world.fetch_whole("10.1.0.2");
    for (radio, mode) in [("r0", "observe"), ("s0", "assist")] {
        let report = world.status(&["--json", "--radio", radio]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(
            (&report["radio"], &report["mode"]),
            (&radio.into(), &mode.into())
        );
    }
    // The end of one is none of the other's business.
    let pid = nix::unistd::Pid::from_raw(other.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(other.wait().unwrap().success());
    world.fetch_whole("10.1.0.2");
    assert_eq!(world.report()["totals"]["opened"], 2);
    let none = String::from_utf8(world.status(&["--radio", "s0"]).stderr).unwrap();
    assert!(none.contains("no gateway runs on s0"), "{none}");
}

#[test]
fn killed_it_fails_open_and_terminated_it_drains() {
    let Some(mut world) = World::new() else {
        return;
    };
    world.start("assist");
    let mut child = world.fetch("10.1.0.2", 10 * SIZE);
    assert_eq!(first_line(&mut child), "first");
    world.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(world.gateway.take().unwrap().wait().unwrap().success());
    assert_whole(child, 10 * SIZE);

    world.start("assist");
    world.signal(nix::sys::signal::Signal::SIGKILL);
    world.gateway.take().unwrap().wait().unwrap();
    assert!(
        world.rules().contains("--queue-bypass"),
        "rules stay behind, and pass"
    );
    world.fetch_whole("10.1.0.2");
    world.start("observe");
    world.fetch_whole("fd01::2");
}

/// One way of the connection leads past the gateway: it is left alone, others are not.
#[test]
fn routes_that_lead_past_it_one_way_harm_nothing() {
    let Some(mut world) = World::new() else {
        return;
    };
    world.build_bypass();
    world.start("assist");
    let bypassed = |world: &World, why: &str| {
        let report = world.report();
        report["bypassed"][why].as_u64().is_some()
    };
    for (host, to, why) in [("m", "10.1.0.2", "mid-flow"), ("s", "10.2.0.2", "one-way")] {
        let past = format!("-n {} route add {to}/32 dev e1", world.name(host));
        ip(&past);
        world.fetch_whole("10.1.0.2");
        ip(&past.replace(" add ", " del "));
        assert!(bypassed(&world, why), "{}", world.report());
        assert_eq!(world.report()["totals"]["fabricated"], 0);
    }
    world.fetch_whole("10.1.0.2");
    assert_ne!(world.report()["totals"]["fabricated"], 0);
}

/// A gateway that is not given the processor for a while, and more packets both ways than the
/// kernel keeps for it: they pass unseen.
#[test]
fn a_full_queue_lets_packets_pass_and_flows_go_on() {
    let Some(mut world) = World::new() else {
        return;
    };
    world.start("assist");
    let mut child = world.fetch("10.1.0.2", 10 * SIZE);
    assert_eq!(first_line(&mut child), "first");
    world.signal(nix::sys::signal::Signal::SIGSTOP);
    let flood = |world: &World, host, to, data| {
        let mut flood = world.within(host, "python3");
        let status = flood.args(["-c", FLOOD, to, data]).status();
        assert!(status.unwrap().success());
    };
    // A server's data waits for nobody; what may be a question does.
    flood(&world, "s", "10.2.0.2", "100");
    assert!(world.queued(TO_MOBILE) < QUEUE_LENGTH / 2);
    // A busy machine may drop some before they are queued.
    world.wait_for("the queues are full", |world| {
        flood(world, "s", "10.2.0.2", "0");
        flood(world, "m", "10.1.0.2", "0");
        [TO_MOBILE, FROM_MOBILE]
            .iter()
            .all(|queue| world.queued(queue) >= QUEUE_LENGTH)
    });
    world.signal(nix::sys::signal::Signal::SIGCONT);
    assert_whole(child, 10 * SIZE);
    let before = world.report()["totals"]["fabricated"].as_u64().unwrap();
    world.fetch_whole("10.1.0.2");
    assert!(world.report()["totals"]["fabricated"].as_u64().unwrap() > before);
}

/// What one gateway owed is gone with it; the next one ends the connection instead of letting it
/// stand still.
#[test]
fn what_a_killed_gateway_owed_ends_in_resets_when_it_is_back() {
    let Some(mut world) = World::new() else {
        return;
    };
    world.start("assist");
    let mut child = world.fetch("10.1.0.2", 50 * SIZE);
    assert_eq!(first_line(&mut child), "first");
    // Not by the link: what waits there for the neighbour's address would arrive in the end.
    world.deafen("-A");
    // What the gateway calls owed may have reached the mobile host, whose ACK was lost.
    world.wait_for("the server was told of bytes that never arrived", |world| {
        // SYN and FIN count with the sender.
        world.of_connection("s", "bytes_acked") > world.of_connection("m", "bytes_received") + 2
    });
    world.signal(nix::sys::signal::Signal::SIGKILL);
    world.gateway.take().unwrap().wait().unwrap();
    world.deafen("-D");
    world.start("assist");
    world.wait_for("the new gateway resets it", |world| {
        world.report()["totals"]["orphans_reset"] == 1
    });
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success(), "it had not all: {ended:?}");
}

/// Where all is acknowledged and the window is shut, the server only asks whether it has opened,
/// with a number that a mobile host has no answer to.
#[test]
fn what_a_killed_gateway_owed_behind_shut_windows_ends_in_resets_on_a_link_that_loses() {
    let Some(mut world) = World::new() else {
        return;
    };
    if Command::new("nft").arg("--version").output().is_err() {
        println!("skipped: the loss needs nft");
        return;
    }
    world.start("assist");
    world.lose(20);
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut child = world.fetch("10.1.0.2", 50 * SIZE);
            assert_eq!(first_line(&mut child), "first");
            child
        })
        .collect();
    world.deafen("-A");
    world.wait_for("four windows are shut", |world| world.stalled() == 4);
    world.signal(nix::sys::signal::Signal::SIGKILL);
    world.gateway.take().unwrap().wait().unwrap();
    world.deafen("-D");
    world.start("assist");
    world.wait_for("the new gateway resets all four", |world| {
        world.report()["totals"]["orphans_reset"] == 4
    });
    for child in children {
        let ended = child.wait_with_output().unwrap();
        assert!(!ended.status.success(), "it had not all: {ended:?}");
    }
}
