//! What links may be used for: set by command, followed by sessions that run.

use std::time::Duration;

use crate::world::{World, first_line, wait_for};
use crate::{FETCH, complaint, text};

/// What came in over a link so far, by the kernel's count.
pub(crate) fn received(world: &World, interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/rx_bytes");
    let output = world.in_client("cat").arg(path).output().unwrap();
    text(&output.stdout).trim().parse().unwrap()
}

/// Received and sent.
pub(crate) fn carried(world: &World, interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    let output = world.in_client("cat").arg(path).output().unwrap();
    let sent: u64 = text(&output.stdout).trim().parse().unwrap();
    received(world, interface) + sent
}

/// What counts against the budget of a link.
pub(crate) fn used(world: &World, link: &str) -> u64 {
    let shown = policy(world, "--json").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let mut links = shown.as_array().unwrap().iter();
    let link = links.find(|it| it["link"] == link).unwrap();
    link["used_bytes"].as_u64().unwrap()
}

pub(crate) fn policy(world: &World, arguments: &str) -> std::process::Output {
    let mut command = world.tabane(&["policy"]);
    command.args(arguments.split_whitespace()).output().unwrap()
}

fn fetch(world: &World) {
    let line = format!("cd {} && {FETCH}", world.path("").display());
    let output = world.run(&[], &line);
    assert!(output.status.success(), "{output:?}");
}

/// Handshakes and keep-alives; data would be millions.
pub(crate) const HARDLY_ANYTHING: u64 = 100_000;

#[test]
fn a_link_that_may_not_be_used_carries_nothing() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    world.limit_rates([40, 40]);
    assert!(policy(&world, "set c2 --use never").status.success());
    let before = received(&world, "c2");
    fetch(&world);
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let shown = text(&policy(&world, "").stdout);
    assert!(
        shown.contains("never used") && shown.contains("policy.toml:"),
        "{shown}"
    );
    assert!(policy(&world, "unset c2").status.success());
    fetch(&world);
    assert!(received(&world, "c2") - before > 1_000_000);
}

/// A download of 20 MB that has begun, at so much a second.
fn downloading(world: &World, rate: &str) -> std::process::Child {
    let url = "http://203.0.113.2:8000/20000000";
    let line = format!("echo up; curl -sS --limit-rate {rate} -o /dev/null {url}");
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let command = command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    child
}

/// Waits until the second link carries of what `child` loads.
fn await_c2(world: &World, child: &mut std::process::Child) {
    while received(world, "c2") < 100_000 {
        assert!(child.try_wait().unwrap().is_none(), "c2 carried nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_change_reaches_a_running_transfer_within_100_ms() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    world.limit_rates([40, 40]);
    let mut child = downloading(&world, "8M");
    await_c2(&world, &mut child);
    assert!(policy(&world, "set c2 --use never").status.success());
    std::thread::sleep(Duration::from_millis(100));
    let last = received(&world, "c2");
    assert!(wait_for(&mut child, Duration::from_secs(20)).success());
    let after = received(&world, "c2") - last;
    assert!(after < 10_000, "{after} bytes later than 100 ms");
}

#[test]
fn a_policy_that_is_deleted_forbids_nothing_any_more() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    world.limit_rates([40, 40]);
    assert!(policy(&world, "set c2 --use never").status.success());
    let file = world.path(".config/tabane/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut child = downloading(&world, "4M");
    // As editors write: the old one has gone before the new one is there.
    std::fs::rename(&file, world.path("backup")).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(received(&world, "c2") < 10_000);
    std::fs::write(&file, &text).unwrap();
    std::fs::remove_file(&file).unwrap();
    await_c2(&world, &mut child);
    assert!(wait_for(&mut child, Duration::from_secs(20)).success());
}

#[test]
fn what_network_manager_calls_metered_waits_until_it_is_needed() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let nmcli = world.path("bin");
    std::fs::create_dir(&nmcli).unwrap();
    let says = |text: &str| std::fs::write(world.path("nm"), text).unwrap();
    let path = format!("{}:{}", nmcli.display(), env!("PATH"));
    let nmcli = nmcli.join("nmcli");
    let script = format!("#!/bin/sh\ncat {}\n", world.path("nm").display());
    std::fs::write(&nmcli, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&nmcli, executable).unwrap();
    says("GENERAL.DEVICE:c1\nGENERAL.METERED:no\n\nGENERAL.DEVICE:c2\nGENERAL.METERED:yes\n");
    let shown = world.tabane(&["policy"]).env("PATH", &path).output();
    let shown = text(&shown.unwrap().stdout);
    let c2 = shown.lines().find(|line| line.contains("c2"));
    assert!(c2.unwrap().contains("metered"), "{shown}");
    // Without a limit one link may carry all that there is.
    assert!(policy(&world, "set c1 --down 40mbit").status.success());
    let slowly = "curl -sS --limit-rate 2M -o /dev/null http://203.0.113.2:8000/4000000";
    let quickly = "curl -sS -o /dev/null http://203.0.113.2:8000/20000000";
    let run = |line: &str| {
        let mut run = world.tabane(&["run", "--", "sh", "-c", line]);
        let output = run.env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let before = received(&world, "c2");
    run(slowly);
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    // The policy file has the last word.
    assert!(policy(&world, "set c2 --metered false").status.success());
    run(quickly);
    assert!(received(&world, "c2") - before > 5_000_000);
    assert!(policy(&world, "unset c2").status.success());
    // It changes its mind under a transfer, and is asked again when an interface comes or goes.
    let before = received(&world, "c2");
    let file = world.path("nm").display().to_string();
    let add = format!(
        "ip -n {} link add d0 type veth peer name d1",
        world.client_ns()
    );
    let calm = "printf 'GENERAL.DEVICE:c2\\nGENERAL.METERED:no (guessed)\\n'";
    let twice = format!("{calm} > {file} && {add} && sleep 2 && {quickly}");
    run(&twice);
    assert!(received(&world, "c2") - before > 5_000_000);
}

#[test]
fn a_budget_is_kept_across_runs_and_ends_the_use_of_a_link() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    world.limit_rates([40, 40]);
    // Of what is over in a moment every packet counts. The kernel's own count knows not all their
    // headers, as packets pass in bundles here.
    assert!(policy(&world, "set c2 --budget 1GB/month").status.success());
    let before = carried(&world, "c2");
    fetch(&world);
    let used = used(&world, "c2") as f64;
    let part = used / (carried(&world, "c2") - before) as f64;
    assert!((0.97..1.03).contains(&part), "{part} of {used}");
    assert!(policy(&world, "set c2 --budget 1MB/month").status.success());
    // Counted ten times a second: this takes two, and more than one link.
    let slowly = "curl -sS --limit-rate 8M -o /dev/null http://203.0.113.2:8000/20000000";
    assert!(world.run(&[], slowly).status.success());
    let shown = text(&policy(&world, "").stdout);
    assert!(shown.contains("used up"), "{shown}");
    let before = received(&world, "c2");
    fetch(&world);
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
}

#[test]
fn nonsense_changes_nothing_and_says_what_was_expected() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for (arguments, expected) in [
        ("set c2 --weight 2", "0 to 1"),
        ("set c2 --down quick", "a rate such as"),
        ("set c2", "nothing to set"),
        ("unset c2", "nothing is set"),
    ] {
        let output = policy(&world, arguments);
        assert!(!output.status.success(), "{arguments}");
        assert!(complaint(&output).contains(expected), "{output:?}");
    }
    fetch(&world);
}

#[test]
fn a_full_disk_costs_what_was_counted_and_nothing_else() {
    let Some(world) = World::new(&[]) else { return };
    let settings = world.path(".config/tabane");
    std::fs::create_dir_all(&settings).unwrap();
    let mount = |line: &str| {
        let mut mount = std::process::Command::new("sh");
        let line = format!("{line} {}", settings.display());
        assert!(mount.args(["-c", &line]).status().unwrap().success());
    };
    mount("mount -t tmpfs -o size=64k none");
    world.join();
    assert!(policy(&world, "set c2 --budget 1GB/month").status.success());
    fetch(&world);
    let _ = std::fs::write(settings.join("filler"), vec![1; 100_000]);
    // Long enough for several counts.
    let line = "curl -sS --limit-rate 8M http://203.0.113.2:8000/8000000 | wc -c";
    let output = world.run(&[], line);
    mount("umount");
    assert_eq!(text(&output.stdout).trim(), "8000000", "{output:?}");
    assert!(text(&output.stderr).contains("is not kept"), "{output:?}");
}

/// The accounts become a file that nobody writes to: whoever reads it waits for ever.
#[test]
fn a_disk_that_hangs_holds_up_no_packet() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // Slow enough that the budget ends under way: it is counted ten times a second.
    let limits = "set c2 --down 16mbit --budget 1MB/month";
    assert!(policy(&world, limits).status.success());
    let settings = world.path(".config/tabane").display().to_string();
    let hang = format!("cd {settings} && mkfifo hung && mv hung usage.toml");
    let fetch = "curl -sS --limit-rate 4M --max-time 60 http://203.0.113.2:8000/12000000 | wc -c";
    let before = received(&world, "c2");
    let output = world.run(&[], &format!("{hang} && {fetch}"));
    assert_eq!(text(&output.stdout).trim(), "12000000", "{output:?}");
    // The budget is kept to all the same.
    let over = received(&world, "c2") - before;
    assert!(over < 3_000_000, "{over}");
}

/// The client's accounts and the relay's list, which both are told to look at again.
#[test]
fn disks_that_hang_for_ten_seconds_delay_no_datagram() {
    const MOST_MS: f64 = 5.0;
    let Some(world) = World::new(&[]) else { return };
    world.join();
    assert!(policy(&world, "set c2 --budget 1GB/month").status.success());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/hung.py");
    let accounts = world.path(".config/tabane/usage.toml");
    let list = world.path("relay/access.toml");
    assert!(list.exists(), "{}", list.display());
    // What is carried beside them is counted ten times a second.
    let download = "curl -sS --limit-rate 1M -o /dev/null http://203.0.113.2:8000/100000000000";
    let (accounts, list) = (accounts.display(), list.display());
    let line = format!("{download} & python3 {script} {accounts} {list}; kill $!");
    let output = world.run(&[], &line);
    let took = text(&output.stdout);
    let took: Vec<f64> = took.split_whitespace().flat_map(str::parse).collect();
    let [before, hung] = took[..] else {
        panic!("{output:?}");
    };
    println!("{before:.2} ms, {hung:.2} ms while disks hang");
    assert!(hung < before + MOST_MS, "{hung} ms, {before} before");
}
