//! Users' connections leave the relay by the addresses that its owner gave them.
//!
//! The servers tell whom they see.

use std::net::IpAddr;

use crate::control::until;
use crate::exposure::another_client;
use crate::world::{TABANE, World, ip};
use crate::{complaint, text};

/// The relay's usual addresses, and two more of its host.
const USUAL: [&str; 2] = ["203.0.113.1", "2001:db8:ffff::1"];
const OWN: [&str; 2] = ["203.0.113.9", "2001:db8:ffff::9"];
const RANGE: &str = "2001:db8:5::/64";

/// Asks both families by TCP, by UDP with a socket for everybody, and with one for the server.
const ASK: &str = r"
import http.client, socket
for host in ('203.0.113.2', '2001:db8:ffff::2'):
    kind = socket.AF_INET6 if ':' in host else socket.AF_INET
    try:
        asked = http.client.HTTPConnection(host, 8000, timeout=10)
        asked.request('GET', '/peer')
        print(asked.getresponse().read().decode().strip())
    except OSError as error:
        print(error.errno)
    for connects in (False, True):
        s = socket.socket(kind, socket.SOCK_DGRAM)
        s.settimeout(10)
        try:
            if connects:
                s.connect((host, 9001))
                s.send(b'who')
            else:
                s.sendto(b'who', (host, 9001))
            print(s.recv(100).decode())
        except OSError as error:
            print(error.errno or error)
";

fn world_of_ann() -> Option<World> {
    let world = World::new(&[])?;
    give(&world, &OWN);
    world.manage("user add ann");
    world.join_with(&world.manage("token new --user ann"));
    Some(world)
}

fn give(world: &World, addresses: &[&str]) {
    for address in addresses {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        let r = world.relay_ns();
        ip(format!("-n {r} addr add {address} dev r0 {nodad}").trim());
    }
}

fn take_away(world: &World, address: &str) {
    ip(&format!(
        "-n {} addr del {address} dev r0",
        world.relay_ns()
    ));
}

/// Whom the servers see, three by IPv4 and three by IPv6.
fn seen(mut command: std::process::Command) -> Vec<String> {
    let output = command.args(["run", "--", "python3", "-c", ASK]);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout);
    lines.lines().map(str::to_owned).collect()
}

fn three_of(addresses: [&str; 2]) -> Vec<String> {
    let three = |it: &str| vec![it.to_owned(); 3];
    addresses.map(three).concat()
}

fn manage_in_vain(world: &World, line: &str) -> String {
    let mut command = world.in_relay(TABANE);
    command.arg("relay").args(line.split_whitespace());
    let output = command.arg("--state").arg(world.path("relay")).output();
    let output = output.unwrap();
    assert!(!output.status.success(), "{output:?}");
    complaint(&output)
}

#[test]
fn a_user_leaves_by_its_own_addresses_of_both_families_and_others_do_not() {
    let Some(world) = world_of_ann() else {
        return;
    };
    world.manage("user add bob");
    let as_bob = another_client(&world, "bob");
    assert_eq!(seen(world.tabane(&[])), three_of(USUAL));
    let both = OWN.join(",");
    world.manage(&format!("user set ann --exit-address {both}"));
    let shown = world.manage("user show ann");
    assert!(shown.contains(&OWN.join(" ")), "{shown}");
    assert_eq!(seen(world.tabane(&[])), three_of(OWN));
    assert_eq!(seen(as_bob(&[])), three_of(USUAL));
    // A family that is not named leaves as ever.
    world.manage("user set ann --exit-address 2001:db8:ffff::9");
    assert_eq!(seen(world.tabane(&[])), three_of([USUAL[0], OWN[1]]));
    world.manage("user set ann --exit-address none");
    assert_eq!(seen(world.tabane(&[])), three_of(USUAL));
}

#[test]
fn each_device_has_an_address_of_a_routed_range_and_keeps_it() {
    let Some(world) = world_of_ann() else {
        return;
    };
    let said = manage_in_vain(&world, &format!("user set ann --exit-address {RANGE}"));
    assert!(
        said.contains("ip -6 route add local 2001:db8:5::/64"),
        "{said}"
    );
    let r = world.relay_ns();
    ip(&format!("-n {r} -6 route add local {RANGE} dev lo"));
    world.manage(&format!("user set ann --exit-address {RANGE}"));
    let range = tabane_base::Prefix::parse(RANGE).unwrap();
    let address = |command| {
        let seen = seen(command);
        assert_eq!(seen[..3], three_of(USUAL)[..3]);
        let address: IpAddr = seen[3].parse().unwrap();
        assert!(range.contains(address), "{seen:?}");
        assert_eq!(seen[3..], vec![seen[3].clone(); 3]);
        address
    };
    let first = address(world.tabane(&[]));
    let as_other = another_client(&world, "ann");
    assert_ne!(address(as_other(&[])), first);
    assert_eq!(address(world.tabane(&[])), first);
}

#[test]
fn what_the_relay_s_host_has_not_is_refused_and_never_leaves_by_another() {
    const ECONNREFUSED: &str = "111";
    let Some(world) = world_of_ann() else {
        return;
    };
    for (given, word) in [
        ("203.0.113.77", "does not have 203.0.113.77"),
        ("203.0.113.0/24", "no address to leave by"),
        ("127.0.0.1", "no address to leave by"),
        ("nonsense", "no address to leave by"),
    ] {
        let said = manage_in_vain(&world, &format!("user set ann --exit-address {given}"));
        assert!(said.contains(word), "{given}: {said}");
    }
    world.manage(&format!("user set ann --exit-address {}", OWN[0]));
    take_away(&world, OWN[0]);
    let by_v4 = |seen: Vec<String>| seen[..3].to_vec();
    // The kernel has told the relay by the time that a session is up.
    let refused = by_v4(seen(world.tabane(&[])));
    assert_eq!(refused[0], ECONNREFUSED);
    // Datagrams are told, or lost.
    assert!(!refused.iter().any(|it| it.contains('.')), "{refused:?}");

    let held = "curl -sS http://203.0.113.2:8000/peer; echo asked; read line || true";
    let mut command = world.tabane(&["run", "--", "sh", "-c", held]);
    let command = command.stdin(std::process::Stdio::piped());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(crate::world::first_line(&mut child), "asked");
    let state = until(&world, "relay-4510", |state| {
        state["sessions"][0]["exit"]["refused"].as_u64() > Some(0)
    });
    let exit = &state["sessions"][0]["exit"];
    assert_eq!(
        (&exit["user"], &exit["missing"][0]),
        (&"ann".into(), &OWN[0].into())
    );
    let problem = state["problems"][0]["what"].as_str().unwrap();
    assert!(
        problem.contains(OWN[0]) && problem.contains("ann"),
        "{problem}"
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());

    give(&world, &OWN[..1]);
    assert_eq!(by_v4(seen(world.tabane(&[]))), three_of(OWN)[..3]);
}
