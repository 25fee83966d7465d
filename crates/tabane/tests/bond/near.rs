//! What a relay's host has on its own wires: its owner's, whatever addresses it has.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::text;
use crate::up::is_plain;
use crate::world::{World, first_line, ip};

/// Tells everybody who asks at any address of its host from where.
const PEER: &str = r#"
import socket
server = socket.create_server(("::", 8001), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    caller, peer = server.accept()
    caller.recv(4096)
    body = peer[0].removeprefix("::ffff:").encode()
    caller.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    caller.close()
"#;

#[test]
fn a_relay_leads_to_no_network_that_its_host_is_in_from_when_it_is_in_it() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let (r, s) = (world.relay_ns(), world.servers_ns());
    ip(&format!("-n {s} addr add 198.51.100.2/24 dev s0"));
    ip(&format!("-n {s} addr add 2001:db8:77::2/64 dev s0 nodad"));
    world.route("198.51.100.0/24", "203.0.113.2");
    world.route("2001:db8:77::/64", "2001:db8:ffff::2");
    let mut server = world.in_servers("python3");
    let server = server.args(["-c", PEER]).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    assert_eq!(first_line(&mut server), "ready");
    // What the relay denies goes plainly, by the same router.
    let is_denied = |host: &str| {
        let line = format!("curl -sS --fail --max-time 20 'http://{host}:8001/'");
        let output = world.run(&[], &line);
        assert!(output.status.success(), "{output:?}");
        is_plain(text(&output.stdout).trim())
    };
    let soon = |host: &str, wanted: bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_denied(host) != wanted {
            assert!(
                Instant::now() < deadline,
                "{host}: denied is never {wanted}"
            );
        }
    };
    for (host, own) in [
        ("198.51.100.2", "198.51.100.1/24"),
        ("[2001:db8:77::2]", "2001:db8:77::1/64"),
    ] {
        assert!(!is_denied(host), "{host}");
        ip(&format!("-n {r} addr add {own} dev r0"));
        soon(host, true);
        ip(&format!("-n {r} addr del {own} dev r0"));
        soon(host, false);
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
