//! A client without IPv4, whose network leads there by a translator (the real `tayga`): where the
//! translator is, its router says (RFC 8781).
//!
//! The relay and the servers are the world's, of which the client knows IPv4 addresses alone.

use std::fs;
use std::process::{Command, Stdio};

use crate::running::Running;
use crate::text;
use crate::world::{World, ip};

/// Says every moment that 2001:db8:64::/96 is translated, and who answers for names.
const ROUTER: &str = "
import socket, struct, sys, time
link = sys.argv[1]
said = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
said.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
said.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
head = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 0, 0, 0)
prefix = socket.inet_pton(socket.AF_INET6, '2001:db8:64::')[:12]
option = struct.pack('!BBH', 38, 2, (600 // 8) << 3) + prefix
print('ready', flush=True)
while True:
    try:
        said.sendto(head + option, ('ff02::1', 0, 0, socket.if_nametoindex(link)))
    except OSError:
        pass
    time.sleep(0.1)
";

struct Translator {
    _running: [Running; 2],
}

impl Translator {
    /// `None` without tayga. The client has one link from here on, and IPv6 alone.
    fn start(world: &World) -> Option<Self> {
        let found = Command::new("tayga").arg("--help").output();
        if found.is_err() {
            println!("skipped: no tayga");
            return None;
        }
        let (client, relay) = (world.client_ns(), world.relay_ns());
        ip(&format!("-n {client} link del c2"));
        ip(&format!("-n {client} -4 addr flush dev c1"));
        let config = world.path("tayga.conf");
        let data = world.path("tayga");
        fs::create_dir(&data).unwrap();
        let lines = format!(
            "tun-device nat64\nipv4-addr 192.168.255.1\nipv6-addr 2001:db8:1::64\n\
             prefix 2001:db8:64::/96\ndynamic-pool 192.168.255.0/24\ndata-dir {}\n",
            data.display()
        );
        fs::write(&config, lines).unwrap();
        let tayga = || {
            let mut tayga = world.in_relay("tayga");
            tayga.arg("-c").arg(&config);
            tayga
        };
        let made = tayga().arg("--mktun").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        ip(&format!("-n {relay} link set nat64 up"));
        ip(&format!("-n {relay} route add 192.168.255.0/24 dev nat64"));
        ip(&format!(
            "-n {relay} -6 route add 2001:db8:64::/96 dev nat64"
        ));
        for all in ["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1"] {
            let set = world
                .in_relay("sysctl")
                .args(["-qw", &format!("net.{all}")])
                .output();
            assert!(set.unwrap().status.success());
        }
        let mut running = tayga();
        let running = running.args(["-d", "-n"]).stdout(Stdio::null());
        let running = running.stderr(Stdio::null()).spawn().unwrap();
        let mut router = world.in_relay("python3");
        let router = Running::ready(router.args(["-c", ROUTER, "r1"]));
        Some(Self {
            _running: [Running(running), router],
        })
    }
}

#[test]
fn an_ipv4_relay_and_what_goes_plainly_are_reached_without_ipv4() {
    let Some(world) = World::new(&[]) else { return };
    let Some(_translator) = Translator::start(&world) else {
        return;
    };
    assert!(!world.join.contains("2001"), "{}", world.join);
    world.join();
    let peer = "curl -sS --fail --max-time 20 http://203.0.113.2:8000/peer";
    let output = world.run(&[], peer);
    let seen = text(&output.stdout);
    assert!(
        seen.starts_with("203.0.113.1"),
        "by the relay: {seen} {output:?}"
    );
    let settings = world.path(".config/tabane");
    let rule = "[[rule]]\nname = \"x\"\naddress = \"203.0.113.2\"\ndirect = true\n";
    fs::write(settings.join("policy.toml"), rule).unwrap();
    let output = world.run(&[], peer);
    let seen = text(&output.stdout);
    assert!(
        seen.starts_with("192.168.255."),
        "plainly: {seen} {output:?}"
    );
    fs::remove_file(settings.join("policy.toml")).unwrap();
    let url = "http://203.0.113.2:8000/1000000";
    let mut get = world.tabane(&["get", url, "-o", "/dev/null"]);
    let output = get.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
