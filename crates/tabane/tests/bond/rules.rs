//! Rules for connections: by domain, port and program, through proxies and hooks, on sessions that
//! run.

use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use crate::policy::{HARDLY_ANYTHING, policy, received, used};
use crate::readme::Hosts;
use crate::running::Running;
use crate::world::{World, wait_for};
use crate::{complaint, text};

/// Writes the policy file and gives where it is.
pub(crate) fn write(world: &World, rules: &str) -> PathBuf {
    let output = policy(world, "set c1 --weight 1");
    let told = text(&output.stdout).trim().to_owned();
    let path = PathBuf::from(told.strip_suffix(" changed").unwrap());
    // As editors and `policy set` do: nobody reads half a file.
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, rules).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    path
}

/// `tabane proxy`, and what curl needs to use it.
fn proxy(world: &World) -> (Running, String) {
    let mut command = world.tabane(&["proxy", "--listen", "127.0.0.1:0"]);
    let (proxy, line) = Running::start(&mut command);
    let address = line.rsplit(' ').next().unwrap().to_owned();
    (proxy, format!("-x socks5h://{address}"))
}

fn curl(world: &World, arguments: &str) -> Child {
    let mut command = world.in_client("curl");
    command.args(["-sS", "-o", "/dev/null"]);
    command.args(arguments.split_whitespace()).spawn().unwrap()
}

fn fetch(world: &World, arguments: &str) {
    let status = wait_for(&mut curl(world, arguments), Duration::from_secs(30));
    assert!(status.success(), "{arguments}");
}

fn explain(world: &World, arguments: &str) -> String {
    let output: Output = policy(world, &format!("explain {arguments}"));
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn a_domain_s_traffic_never_takes_the_forbidden_link() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    // One link alone cannot carry what is asked for without the rule.
    world.limit_rates([40, 40]);
    // The relay looks names up, and sees the files that are there when it starts.
    world.stop_relay();
    let _hosts = [world.client_ns(), world.relay_ns()].map(Hosts::new);
    world.start_relay(&[]);
    world.join();
    let rule = "[[rule]]\nname = 'files'\ndomain = '*.example.net'\nnever = 'c2'\n";
    write(&world, rule);
    let (proxy, flag) = proxy(&world);
    let before = received(&world, "c2");
    fetch(
        &world,
        &format!("{flag} http://files.example.net:8000/5000000"),
    );
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let other = "--limit-rate 8M http://203.0.113.2:8000/20000000";
    fetch(&world, &format!("{flag} {other}"));
    assert!(received(&world, "c2") - before > 2 * HARDLY_ANYTHING);
    // The relay's instance is in the same directory here.
    let name = format!("--instance proxy-{}", proxy.0.id());
    let told = explain(&world, &format!("files.example.net:8000 {name}"));
    assert!(
        told.contains("rule \"files\" (policy.toml:1): never by c2"),
        "{told}"
    );
    assert!(
        told.contains("excludes it") && told.contains("proxy-"),
        "{told}"
    );
    let told = explain(&world, "203.0.113.2:8000 --json");
    assert!(told.contains("\"rule\": null"), "{told}");
    drop(proxy);
}

#[test]
fn a_changed_rule_reaches_a_running_connection_within_100_ms() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // Metered links are not probed: what comes over this one is data, or hardly anything. The
    // other one alone cannot carry all.
    let link = "[[link]]\nname = 'c1'\ndown = '40mbit'\n\
                [[link]]\nname = 'c2'\nmetered = true\npriority = 0\n";
    write(&world, link);
    let (proxy, flag) = proxy(&world);
    let before = received(&world, "c2");
    let line = format!("{flag} --limit-rate 8M http://203.0.113.2:8000/20000000");
    let mut child = curl(&world, &line);
    while received(&world, "c2") - before < 1_000_000 {
        assert!(child.try_wait().unwrap().is_none(), "c2 carried nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let path = write(
        &world,
        &format!("{link}[[rule]]\nname = 'web'\nport = 8000\nnever = 'c2'\n"),
    );
    std::thread::sleep(Duration::from_millis(100));
    let (last, since) = (received(&world, "c2"), Instant::now());
    // A faulty file changes nothing.
    std::fs::write(&path, "[[rule]]\nport = 0\nredundant = 3\n").unwrap();
    let output = policy(&world, "check");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("policy.toml:2: port") && told.contains(":3: redundant"),
        "{told}"
    );
    assert!(wait_for(&mut child, Duration::from_secs(20)).success());
    // Acknowledgements may go on, at some hundred bytes a second.
    let after = (received(&world, "c2") - last) as f64 / since.elapsed().as_secs_f64();
    assert!(after < 1_200.0, "{after} bytes/s later than 100 ms");
    drop(proxy);
}

#[test]
fn a_program_s_traffic_follows_its_rule() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    write(
        &world,
        "[[rule]]\nname = 'curl'\nprocess = 'curl'\nnever = 'c2'\n",
    );
    world.limit_rates([40, 40]);
    let before = received(&world, "c2");
    let line = "curl -sS -o /dev/null http://203.0.113.2:8000/5000000";
    let output = world.run(&[], line);
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let line = "cp $(command -v curl) other && ./other -sS -o /dev/null \
                http://203.0.113.2:8000/20000000";
    let line = format!("cd {} && {line}", world.path("").display());
    assert!(world.run(&[], &line).status.success());
    assert!(received(&world, "c2") - before > 4_000_000);
}

#[test]
fn what_is_direct_does_not_take_the_relay() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    write(
        &world,
        "[[rule]]\nname = 'near'\nport = 8000\ndirect = true\n",
    );
    let (proxy, flag) = proxy(&world);
    let before = received(&world, "c2");
    // By the routing table that is c1 alone.
    fetch(&world, &format!("{flag} http://203.0.113.2:8000/5000000"));
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let output = world.run(&[], "curl -sS -o /dev/null http://203.0.113.2:8000/5000000");
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    drop(proxy);
}

#[test]
fn what_goes_without_the_relay_counts_against_budgets() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    write(
        &world,
        "[[rule]]\nname = 'near'\nport = 8000\ndirect = true\n",
    );
    let set = policy(&world, "set c1 --budget 9MB/month");
    assert!(set.status.success());
    let line = "curl -sS -o /dev/null http://203.0.113.2:8000/5000000";
    // One that ends at once, and one that goes on.
    assert!(world.run(&[], line).status.success());
    assert!((5_000_000..5_500_000).contains(&used(&world, "c1")));
    let (_proxy, flag) = proxy(&world);
    fetch(&world, &format!("{flag} http://203.0.113.2:8000/5000000"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while used(&world, "c1") < 10_000_000 {
        assert!(Instant::now() < deadline, "{}", used(&world, "c1"));
    }
    // Used up: what would take it by the routing table takes the other.
    let before = received(&world, "c2");
    assert!(world.run(&[], line).status.success());
    assert!(received(&world, "c2") - before > 5_000_000);
}

#[test]
fn what_is_never_to_use_a_link_does_not_use_it_without_the_relay_either() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    write(
        &world,
        "[[rule]]\nname = 'near'\nport = 8000\nnever = 'c1'\n",
    );
    // On the wire of c1, where the relay leads nobody.
    let near = "http://10.71.1.2:8000/peer";
    let output = world.run(&[], &format!("curl -sS --max-time 20 {near}"));
    assert_eq!(text(&output.stdout), "10.71.2.1\n", "{output:?}");
    let (_proxy, flag) = proxy(&world);
    let line = format!("curl -sS --max-time 20 {flag} {near}");
    let output = world.in_client("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(text(&output.stdout), "10.71.2.1\n", "{output:?}");
}
