//! A relay of one to four threads, with real programs over two links.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};

use crate::control::{link, state, until};
use crate::world::{World, first_line, pid, wait_for};
use crate::{complaint, status, text};

/// A command whose session is there until its line is answered.
fn waiting(world: &World) -> Child {
    let line = "curl -sS --fail -o /dev/null http://203.0.113.2:8000/3000000 && echo up; read it";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    child
}

#[test]
fn any_number_of_workers_serves_both_links_and_says_who_has_what() {
    for workers in 1..=4_u64 {
        let Some(mut world) = World::new(&["--workers", &workers.to_string()]) else {
            return;
        };
        world.join();
        let mut clients: Vec<_> = (0..5).map(|_| waiting(&world)).collect();
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let seen = until(&world, "relay-4510", |seen| {
            number(&seen["totals"]["sessions"]) == 5
        });
        let by_worker = seen["totals"]["sessions_by_worker"].as_array().unwrap();
        if workers == 1 {
            assert!(by_worker.is_empty());
        } else {
            assert_eq!(by_worker.len() as u64, workers);
            assert_eq!(by_worker.iter().map(number).sum::<u64>(), 5);
            let shown = world
                .tabane(&["status", "--instance", "relay-4510"])
                .output();
            let shown = text(&shown.unwrap().stdout);
            assert!(shown.contains("; by worker "), "{shown}");
        }
        for session in seen["sessions"].as_array().unwrap() {
            assert!(number(&session["worker"]) < workers, "{session}");
        }
        for client in &clients {
            let name = format!("run-{}", client.id());
            let is_active = |seen: &serde_json::Value, name| link(seen, name)["state"] == "active";
            until(&world, &name, |seen| {
                is_active(seen, "c1") && is_active(seen, "c2")
            });
            assert_eq!(state(&world, &name)["totals"]["sessions_so_far"], 1);
        }
        for client in &mut clients {
            drop(client.stdin.take());
            wait_for(client, crate::control::PATIENCE);
        }
        kill(pid(world.relay.as_ref().unwrap()), Signal::SIGTERM).unwrap();
        assert!(world.await_relay(crate::control::PATIENCE).success());
    }
}

#[test]
fn a_number_of_workers_that_cannot_be_is_refused_in_a_line() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    for number in ["0", "65", "-1", "two", "4096"] {
        let flag = format!("--workers={number}");
        let output = world.tabane(&["relay", &flag]).output().unwrap();
        assert_eq!(status(&output), Some(2), "{output:?}");
        let why = complaint(&output);
        assert!(why.contains("expected a number from 1 to 64"), "{why}");
    }
}
