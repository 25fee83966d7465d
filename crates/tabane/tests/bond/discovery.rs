//! A machine that lets anybody in is found by who asks for that, trusted by the key that it shows
//! first, and not by another. Places and views as in `peers.rs`.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::peers::{PROXIED, RELAY, SELF, WHO, add, start_peer, start_peer_with, until_seen};
use crate::running::Running;
use crate::text;
use crate::world::{World, first_line};

/// Twice the same, with time for a question and its answer between.
fn twice(what: &str) -> String {
    format!("{what}; sleep 2; {what}")
}

fn listed(world: &World) -> Value {
    let list = world.tabane(&["peer", "list", "--json"]).output().unwrap();
    serde_json::from_slice(&list.stdout).unwrap()
}

#[test]
fn who_lets_anybody_in_is_found_and_trusted_by_its_first_key_alone() {
    let Some(world) = World::new(&[]) else { return };
    let (mut peer, join) = start_peer_with(&world, "peer", &["--open"]);
    world.join();
    let mut proxy = world.tabane(&["proxy", "--trust-first-use", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    let took = until_seen(&world, PROXIED, SELF);
    println!("straight after {} ms", took.as_millis());
    let list = listed(&world);
    let key = list[0]["key"].as_str().unwrap();
    assert!(join.contains(key), "{list:#}");
    assert!(
        list[0]["first_use"].as_u64() > Some(1_700_000_000),
        "{list:#}"
    );
    let table = world.tabane(&["peer", "list"]).output().unwrap();
    assert!(text(&table.stdout).contains("first use 20"), "{table:?}");
    drop(proxy);
    // Known from here on: the next command waits for it, and asks nobody.
    let output = world.run(&[], WHO);
    assert_eq!(text(&output.stdout).trim(), SELF, "{output:?}");
    // Somebody else in its place, who lets anybody in as well.
    peer.kill();
    let (_other, _) = start_peer_with(&world, "other", &["--open"]);
    let output = world.run(&["--trust-first-use"], &twice(WHO));
    assert_eq!(text(&output.stdout), format!("{RELAY}\n{RELAY}\n"));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("another key") && complaint.contains("peer 203.0.113.2"),
        "{complaint}"
    );
    for field in ["key", "first_use"] {
        assert_eq!(listed(&world)[0][field], list[0][field]);
    }
}

#[test]
fn nobody_is_asked_unless_the_user_wants_it_and_the_policy_allows_it() {
    let Some(world) = World::new(&[]) else { return };
    let (_peer, _) = start_peer_with(&world, "peer", &["--open"]);
    world.join();
    let ask = &["--trust-first-use"][..];
    let by_relay = format!("{RELAY}\n{RELAY}\n");
    let metered = "[[link]]\nname = 'c*'\nmetered = true\n";
    let direct = "[[rule]]\nname = 'a'\naddress = '203.0.113.0/24'\ndirect = true\n";
    for (flags, policy, seen) in [
        (&[][..], "", by_relay.clone()),
        (ask, metered, by_relay),
        (ask, direct, "10.71.1.1\n10.71.1.1\n".to_owned()),
        // At last: so it could have been found all the time.
        (ask, "", format!("{RELAY}\n{SELF}\n")),
    ] {
        fs::write(world.path(".config/tabane/policy.toml"), policy).unwrap();
        let output = world.run(flags, &twice(WHO));
        assert_eq!(text(&output.stdout), seen, "{policy}: {output:?}");
    }
}

#[test]
fn who_is_not_let_in_goes_by_the_relay() {
    let Some(world) = World::new(&[]) else { return };
    let (_peer, _) = start_peer(&world);
    world.join();
    let output = world.run(&["--trust-first-use"], &twice(WHO));
    assert_eq!(text(&output.stdout), format!("{RELAY}\n{RELAY}\n"));
    assert_eq!(
        text(&output.stderr),
        "",
        "what was not asked for is no news"
    );
    assert_eq!(listed(&world), Value::Array(Vec::new()));
}

#[test]
fn a_silent_relay_does_not_keep_a_command_from_a_peer() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    let (_peer, join) = start_peer(&world);
    world.join();
    add(&world, &join);
    drop(world.relay.take().map(Running));
    let output = world.run(&[], WHO);
    assert_eq!(text(&output.stdout).trim(), SELF, "{output:?}");
    let complaint = text(&output.stderr);
    assert!(complaint.contains("does not answer yet"), "{complaint}");
}
