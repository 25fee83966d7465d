//! `tabane expose`: what may be exposed, for how long, and by which names.

use std::io::Read;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::control::until;
use crate::exposure::{
    RELAY, another_client, end_at, expose, refusal, server, visit, world_of_ann,
};
use crate::process::PATIENCE;
use crate::relays::start_relay;
use crate::running::{Running, within};
use crate::up::{UP, Up};
use crate::world::{World, first_line, pid, wait_for};
use crate::{complaint, text};

#[test]
fn what_is_not_granted_not_free_or_not_there_is_told() {
    let Some(world) = world_of_ann("--port 443,8000-8100") else {
        return;
    };
    let said = refusal(&world, "9000");
    assert!(
        said.contains("tcp:9000") && said.contains("user set NAME --port 9000"),
        "{said}"
    );
    let said = refusal(&world, "8100-8101");
    assert!(said.contains("not granted"), "{said}");
    // The relay's private server has its port 8000.
    let said = refusal(&world, "8000");
    assert!(said.contains("something else on its host"), "{said}");
    let said = refusal(&world, &format!("8001={RELAY}:8001"));
    assert!(said.contains("for ever"), "{said}");
    let said = refusal(&world, "8001 --host a.example");
    assert!(said.contains("--host a.example"), "{said}");

    // Nobody is there: at the relay, behind the client, and who does not answer.
    assert!(end_at(&world, 8001).starts_with("refused"));
    let (mut exposing, _) = expose(&world, "8001-8002=127.0.0.1:9001");
    assert!(end_at(&world, 8001).starts_with("reset 0."), "no silence");
    let _server = server(&world, "serve 9002");
    assert!(end_at(&world, 8002).starts_with("from 127.0.0.1"));
    let by_v6 = visit(&world, "end 2001:db8:ffff::1 8002");
    assert!(by_v6.starts_with("from 127.0.0.1"), "{by_v6}");

    // Another client of the same user asks for a port of it, and both are told.
    let as_other = another_client(&world, "ann");
    let said = complaint(&as_other(&["expose", "8002"]).output().unwrap());
    assert!(
        said.contains("another client of the relay has it"),
        "{said}"
    );
    let name = format!("expose-{}", exposing.0.id());
    let state = until(&world, &name, |state| {
        state["exposures"][0]["problem"].is_string()
    });
    let exposure = &state["exposures"][0];
    assert_eq!(exposure["visitors_so_far"], 3, "{exposure:#}");
    assert_eq!(exposure["in_vain"], 1, "{exposure:#}");

    // What is taken back is so with the next visitor.
    world.manage("user set ann --port 443");
    end_at(&world, 8002);
    assert!(!wait_for(&mut exposing.0, PATIENCE).success());
    assert!(end_at(&world, 8002).starts_with("refused"));
}

#[test]
fn kept_ports_are_led_by_up_and_again_after_the_relay_was_started_anew() {
    let Some(mut world) = world_of_ann("--port 2222,8080-8081") else {
        return;
    };
    let mut relay = Running(world.relay.take().unwrap());
    let _server = server(&world, "serve 8080");
    let keep = |arguments: &str| {
        let mut command = world.tabane(&["expose"]);
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert!(keep("--keep 8080").contains("kept tcp:8080=127.0.0.1:8080"));
    let listed: Value = serde_json::from_str(&keep("list --json")).unwrap();
    assert!(
        listed[0]["kept"] == true && listed[0]["instance"].is_null(),
        "{listed:#}"
    );

    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    let is_led = |world: &World, port| end_at(world, port).starts_with("from 127.0.0.1");
    within(PATIENCE, "it is led", || is_led(&world, 8080));
    // What is written down while it runs is taken up.
    keep("--keep 8081=8080");
    within(PATIENCE, "the second is led", || is_led(&world, 8081));
    // Instances look at themselves twice a second.
    within(PATIENCE, "both are listed as up's", || {
        let listed: Value = serde_json::from_str(&keep("list --json")).unwrap();
        let rows = listed.as_array().unwrap();
        let is_open = |row: &Value| row["instance"] == "up" && row["state"] == "open";
        rows.len() == 2 && rows.iter().all(is_open)
    });
    let screen = text(&world.tabane(&["status"]).output().unwrap().stdout);
    assert!(screen.contains("203.0.113.1:8081"), "{screen}");
    assert!(keep("remove 8081").contains("removed"));
    within(PATIENCE, "the second is given up", || {
        end_at(&world, 8081).starts_with("refused")
    });

    kill(pid(&relay.0), Signal::SIGTERM).unwrap();
    assert!(wait_for(&mut relay.0, PATIENCE).success());
    assert!(end_at(&world, 8080).starts_with("refused"));
    let mut relay = Running(world.spawn_relay(&[]));
    first_line(&mut relay.0);
    within(PATIENCE, "it is led by the new one", || {
        is_led(&world, 8080)
    });
    drop(up);
}

#[test]
fn when_a_relay_is_gone_the_next_leads_the_ports_or_says_why_not() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    // Its home is elsewhere, that nobody takes it for the world's.
    let (mut first, _) = start_relay(&world, "first", "4601");
    let manage_first = |line: &str| {
        let mut command = world.in_relay(crate::world::TABANE);
        command.arg("relay").args(line.split(' ')).arg("--state");
        let output = command.arg(world.path("first")).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        text(&output.stdout).trim().to_owned()
    };
    manage_first("user add ann --port 8080-8081");
    world.manage("user add ann --port 8080");
    for (name, join) in [
        ("a", manage_first("token new --user ann")),
        ("b", world.manage("token new --user ann")),
    ] {
        let joined = world.tabane(&["join", "--name", name, &join]).output();
        assert!(joined.unwrap().status.success());
    }
    let _server = server(&world, "serve 8080");
    let (_exposing, line) = expose(&world, "8080");
    assert_eq!(line, format!("tcp {RELAY}:8080 leads to 127.0.0.1:8080"));
    let mut command = world.tabane(&["expose", "8081=8080"]);
    let (mut refused, _) = Running::start(command.stderr(Stdio::piped()));
    assert!(end_at(&world, 8081).starts_with("from 127.0.0.1"));

    first.kill();
    within(3 * PATIENCE, "the next relay leads visitors", || {
        end_at(&world, 8080).starts_with("from 127.0.0.1")
    });
    assert!(!wait_for(&mut refused.0, 3 * PATIENCE).success());
    let mut said = String::new();
    let stderr = refused.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("not granted"), "{said}");
}

#[test]
fn clients_share_a_port_by_the_names_of_their_hosts() {
    let Some(world) = world_of_ann("--host a.example,*.ann.example") else {
        return;
    };
    world.manage("user add bob --host b.example");
    let as_bob = another_client(&world, "bob");
    let _servers = [server(&world, "serve 9001"), server(&world, "serve 9002")];
    let (_ann, line) = expose(&world, "80=9001 --host a.example");
    assert_eq!(line, "tcp a.example:80 leads to 127.0.0.1:9001");
    let (_bob, _) = Running::start(&mut as_bob(&["expose", "80=9002", "--host", "b.example"]));
    let said = complaint(
        &as_bob(&["expose", "80", "--host", "a.example"])
            .output()
            .unwrap(),
    );
    assert!(said.contains("--host a.example"), "{said}");

    // The servers say each line of a request back: which of them was asked shows in their logs.
    let ask = |name: &str| {
        let line = format!(
            "printf 'POST / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n' | timeout 5 nc -N {RELAY} 80"
        );
        let mut command = world.in_servers("sh");
        text(&command.args(["-c", &line]).output().unwrap().stdout)
    };
    assert!(ask("a.example").contains("back Host: a.example"));
    assert!(ask("B.example:80").contains("back Host: B.example:80"));
    assert_eq!(ask("c.example"), "");
    let (_tls, line) = expose(&world, "443=9001 --host www.ann.example");
    assert!(!line.is_empty(), "not exposed");
    let seen = visit(&world, &format!("dribble {RELAY} 443 www.ann.example"));
    assert!(seen.starts_with("from 127.0.0.1"), "{seen}");
    // What is nobody's is the relay's, which takes in TLS there, too.
    let page = |name: &str| {
        let url = format!("https://{name}/");
        let mut curl = world.in_servers("curl");
        let to = format!("{name}:443:{RELAY}");
        let output = curl.args(["-sSk", "--resolve", &to, "--max-time", "10", &url]);
        text(&output.output().unwrap().stdout)
    };
    assert!(page("c.example").contains("Welcome"));
    let said = refusal(&world, "443");
    assert!(said.contains("not granted"), "{said}");
    world.manage("user set ann --port 443");
    let said = refusal(&world, "443");
    assert!(
        said.contains("something else on its host") || said.contains("another"),
        "{said}"
    );
}
