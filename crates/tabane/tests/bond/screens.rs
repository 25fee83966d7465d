//! What the screens say when something is not as it was: a spent budget, a link that is left out, a
//! dead relay, a faulty policy.

use std::fs;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::control::{download, link, state, until};
use crate::policy::{policy, used};
use crate::text;
use crate::up::{LOST, UP, Up};
use crate::world::{World, pid, wait_for};

/// All problems with their remedies.
fn problems(state: &Value) -> String {
    state["problems"].to_string()
}

fn status(world: &World, instance: &str) -> String {
    let output = world
        .tabane(&["status", "--instance", instance])
        .output()
        .unwrap();
    text(&output.stdout)
}

/// What the table of links says of one.
fn row(world: &World, arguments: &[&str], name: &str) -> String {
    let output = world.tabane(arguments).output().unwrap();
    let shown = text(&output.stdout);
    let mut lines = shown.lines();
    let line = lines.find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{output:?}")).to_owned()
}

#[test]
fn a_spent_budget_is_told_and_another_period_forgets_nothing_of_it() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    assert!(policy(&world, "set c2 --budget 1MB/month").status.success());
    let (mut child, name) = download(&world, 200_000_000);
    let spent = until(&world, &name, |state| {
        link(state, "c2")["state"] == "unused" && link(state, "c2")["share"] != 0.0
    });
    let c2 = link(&spent, "c2");
    let why = c2["problem"].as_str().unwrap();
    assert!(why.contains("1.0 MB per month are used up"), "{spent:#}");
    let budget = &c2["budget"];
    assert_eq!(budget["amount_bytes"], 1_000_000, "{spent:#}");
    assert!(
        budget["used_bytes"].as_u64() >= Some(1_000_000),
        "{spent:#}"
    );
    assert!(
        problems(&spent).contains("budget of c2 is spent"),
        "{spent:#}"
    );
    let renews = budget["renews"].as_str().unwrap();
    assert!(problems(&spent).contains(renews), "{spent:#}");
    let events = spent["events"].as_array().unwrap();
    let mut texts = events.iter().filter(|event| event["link"] == "c2");
    assert!(
        texts.any(|event| event["text"].as_str().unwrap().contains("used up")),
        "{spent:#}"
    );
    assert!(status(&world, &name).contains("c2 is not used: "));
    // Other programs read it in a file, which is written beside the data path.
    let deadline = std::time::Instant::now() + crate::control::PATIENCE;
    while !row(&world, &["links"], "c2").contains("used up") {
        assert!(std::time::Instant::now() < deadline, "not written");
    }
    kill(pid(&child), Signal::SIGTERM).unwrap();
    wait_for(&mut child, crate::control::PATIENCE);
    // What was used is kept by the day.
    let before = used(&world, "c2");
    assert!(policy(&world, "set c2 --budget 1MB/day").status.success());
    assert_eq!(used(&world, "c2"), before);
    // A file of an older version has one sum.
    let file = world.path(".config/tabane/usage.toml");
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = today.unwrap().as_secs() / 86_400;
    fs::write(&file, format!("[c2]\nsince = {since}\nbytes = 24800000\n")).unwrap();
    assert_eq!(used(&world, "c2"), 24_800_000);
    assert!(policy(&world, "set c2 --budget 1MB/month").status.success());
    assert_eq!(used(&world, "c2"), 24_800_000);
}

#[test]
fn links_that_are_left_out_have_a_row_that_says_why() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // What `tabane links` says follows the settings.
    let settings = world.path(".config/tabane/config.toml");
    fs::write(&settings, "links = ['c1']\n").unwrap();
    assert!(row(&world, &["links"], "c2").contains("only c1 is to be used"));
    assert!(row(&world, &["links"], "c1").contains("yes"));
    assert!(row(&world, &["links", "--link", "c2"], "c1").contains("only c2"));
    fs::remove_file(settings).unwrap();
    assert!(policy(&world, "set c2 --use never").status.success());
    let (mut child, name) = download(&world, 200_000_000);
    let seen = until(&world, &name, |state| {
        state["links"].as_array().unwrap().len() == 2
    });
    assert_eq!(link(&seen, "c2")["state"], "unused", "{seen:#}");
    let why = link(&seen, "c2")["problem"].as_str().unwrap();
    assert!(
        why.contains("policy.toml:") && why.contains("never"),
        "{why}"
    );
    assert_eq!(seen["condition"], "up", "as it was wished: {seen:#}");
    let in_force = serde_json::json!({ "text": "never used", "line": 1 });
    assert_eq!(link(&seen, "c2")["policy"], in_force, "{seen:#}");
    assert!(policy(&world, "unset c2").status.success());
    until(&world, &name, |state| {
        link(state, "c2")["state"] == "active"
    });
    crate::ip(&format!("-n {} link set c2 down", world.client_ns()));
    let seen = until(&world, &name, |state| {
        link(state, "c2")["state"] == "unused"
    });
    let why = link(&seen, "c2")["problem"].as_str().unwrap();
    assert!(why.contains("down"), "{why}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_dead_relay_is_suspected_and_its_silence_is_timed() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    until(&world, "up", |state| {
        let mut links = state["links"].as_array().unwrap().iter();
        links.all(|link| link["state"] == "active") && state["links"].as_array().unwrap().len() == 2
    });
    kill(world.relay_pid(), Signal::SIGSTOP).unwrap();
    up.wait_until(LOST);
    let down = until(&world, "up", |state| {
        state["condition"] == "down" && state["silent_ms"].as_u64() >= Some(1_000)
    });
    kill(world.relay_pid(), Signal::SIGCONT).unwrap();
    let instance = &down["instance"];
    let age =
        down["at_unix_ms"].as_u64().unwrap() - instance["started_at_unix_ms"].as_u64().unwrap();
    assert!(down["silent_ms"].as_u64().unwrap() < age, "{down:#}");
    let said = problems(&down);
    assert!(said.contains("likely the relay"), "{said}");
    assert!(said.contains("go as without tabane"), "{said}");
    assert!(
        !said.contains("nothing comes back over"),
        "one cause, told once: {said}"
    );
    for name in ["c1", "c2"] {
        assert_eq!(link(&down, name)["share_now"], Value::Null, "{down:#}");
    }
    up.wait_until(UP);
}

#[test]
fn a_faulty_policy_is_told_and_the_old_one_stays() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    assert!(policy(&world, "set c2 --use never").status.success());
    let (mut child, name) = download(&world, 200_000_000);
    assert_eq!(state(&world, &name)["policy_fault"], Value::Null);
    let file = world.path(".config/tabane/policy.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "\n[[link]]\nname = 'c2'\nweight = 7\n").unwrap();
    let seen = until(&world, &name, |state| state["condition"] == "degraded");
    let said = problems(&seen);
    assert!(
        said.contains("line 4") && said.contains("tabane policy check"),
        "{said}"
    );
    assert_eq!(link(&seen, "c2")["state"], "unused", "{seen:#}");
    fs::write(&file, good).unwrap();
    until(&world, &name, |state| state["condition"] == "up");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_metered_link_that_carries_is_explained_so() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    assert!(policy(&world, "set c2 --metered true").status.success());
    // So that the other is needed.
    assert!(policy(&world, "set c1 --down 2mbit").status.success());
    let explain = || row(&world, &["policy", "explain", "203.0.113.2"], "c2");
    let idle = explain();
    assert!(idle.contains("if needed"), "{idle}");
    let (mut child, name) = download(&world, 64_000_000);
    until(&world, &name, |state| {
        link(state, "c2")["share_now"].as_f64() > Some(0.2)
    });
    let carrying = explain();
    assert!(
        carrying.contains("yes") && carrying.contains('%'),
        "{carrying}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}
