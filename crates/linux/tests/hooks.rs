//! Socket hooks against the real kernel, with programs that know nothing of them.
//!
//! ```text
//!   network namespace of the test's thread: only `lo`, no route to anywhere
//!   ┌──────────────────────────────────────────────────────────────┐
//!   │  this test ── hooks on ──► cgroup tabane/run-…               │
//!   │     ▲                        │ this binary again (`client`)  │
//!   │     └──── 127.128.x.y:port ◄─┘ asks for 192.0.2.1, 2001:db8::1 …
//!   └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! The client checks what a program sees, the test what the daemon sees. Skipped without root.
#![allow(clippy::unwrap_used)]

#[path = "hooks/attached.rs"]
mod attached;
#[path = "hooks/client.rs"]
mod client;
#[path = "hooks/egress.rs"]
mod egress;
#[path = "hooks/held.rs"]
mod held;
#[path = "hooks/world.rs"]
mod world;

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use attached::attached;
use socket2::{Domain, Socket, Type};
use tabane_base::Prefix;
use tabane_linux::{
    cgroup::Cgroup,
    hooks::{HookError, Hooks, MAX_EXCLUDED, Protocol},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use world::{World, as_v4, config, ended, exe, finish, ip, until_detached, with_hooks};

#[test]
fn tcp4_reaches_us_and_looks_like_its_destination() {
    with_hooks(|mut world| async move {
        let mut client = world.run("tcp4");
        let captured = world.echo_one().await;
        assert_eq!(
            captured,
            ("192.0.2.1:80".parse().unwrap(), Protocol::Tcp, false)
        );
        finish(&mut client).await;
    });
}

#[test]
fn tcp6_reaches_us_and_looks_like_its_destination() {
    with_hooks(|mut world| async move {
        for role in ["tcp6", "tcp4-on-v6-socket"] {
            let mut client = world.run(role);
            let (dest, protocol, dns) = world.echo_one().await;
            let expected = if role == "tcp4-on-v6-socket" {
                "192.0.2.1:80"
            } else {
                "[2001:db8::1]:443"
            };
            assert_eq!(
                (dest.to_string().as_str(), protocol, dns),
                (expected, Protocol::Tcp, false)
            );
            finish(&mut client).await;
        }
    });
}

#[test]
fn one_socket_connecting_twice_at_once_is_two_flows() {
    with_hooks(|mut world| async move {
        let mut client = world.run("tcp-pair");
        let mut dests = [world.echo_one().await.0, world.echo_one().await.0];
        dests.sort();
        assert_eq!(
            dests.map(|dest| dest.to_string()),
            ["192.0.2.1:80", "192.0.2.2:81"]
        );
        finish(&mut client).await;
    });
}

#[test]
fn a_program_bound_to_another_local_address_is_captured_too() {
    with_hooks(|mut world| async move {
        ip(&["addr", "add", "198.51.100.7/32", "dev", "lo"]);
        let mut client = world.run("tcp4-bound");
        assert_eq!(world.echo_one().await.0.to_string(), "192.0.2.1:80");
        finish(&mut client).await;
        let mut client = world.run("udp4-bound");
        world.echo_datagrams(1).await;
        finish(&mut client).await;
    });
}

#[test]
fn udp_connected_and_not_to_many_destinations_of_one_socket() {
    with_hooks(|mut world| async move {
        for (role, dests) in [
            ("udp4-connected", vec!["192.0.2.1:7"]),
            ("udp6-connected", vec!["[2001:db8::1]:7"]),
            ("udp4-pair", vec!["192.0.2.1:7", "192.0.2.2:7"]),
            ("udp6-pair", vec!["[2001:db8::1]:7", "[2001:db8::2]:7"]),
            ("udp6-only-pair", vec!["[2001:db8::1]:7", "[2001:db8::2]:7"]),
            ("udp-both-families", vec!["192.0.2.1:7", "[2001:db8::2]:7"]),
        ] {
            let mut client = world.run(role);
            let seen = world.echo_datagrams(dests.len()).await;
            assert_eq!(seen, dests, "{role}");
            finish(&mut client).await;
        }
    });
}

#[test]
fn questions_to_a_local_resolver_are_captured_and_marked() {
    with_hooks(|mut world| async move {
        let mut client = world.run("dns");
        let mut seen = Vec::new();
        world.echo(1, |original| seen.push(original)).await;
        assert_eq!(seen[0].dest, "127.0.0.53:53".parse().unwrap());
        assert!(seen[0].captured_dns);
        finish(&mut client).await;
    });
}

#[test]
fn curl_and_dig_notice_nothing() {
    with_hooks(|mut world| async move {
        for url in ["http://192.0.2.1/", "http://[2001:db8::1]/"] {
            let program = ["curl", "-sS", "-w", "%{remote_ip}", "--max-time", "10", url];
            let Some(curl) = world.run_program(&program) else {
                continue;
            };
            let mut captured = world.accept().await;
            let mut request = [0; 4096];
            let length = captured.stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET / HTTP/1.1"));
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbonded";
            captured.stream.write_all(answer).await.unwrap();
            let output = curl.wait_with_output().await.unwrap();
            let dest = captured.original.dest.ip();
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                format!("bonded{dest}")
            );
        }
        let program = ["dig", "@127.0.0.53", "+tries=1", "+time=10", "tabane.test"];
        let Some(dig) = world.run_program(&program) else {
            return;
        };
        let mut marked = Vec::new();
        let no_such_name = |query: &mut [u8]| {
            query[2] |= 0x80;
            query[3] = 0x83;
        };
        world
            .answer(
                1,
                |original| marked.push(original.captured_dns),
                no_such_name,
            )
            .await;
        assert_eq!(marked, [true]);
        let output = dig.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("NXDOMAIN") && said.contains("SERVER: 127.0.0.53#53"),
            "{said}"
        );
    });
}

#[test]
fn what_shall_be_left_alone_is() {
    with_hooks(|mut world| async move {
        let mut client = world.run("left-alone");
        finish(&mut client).await;
        let accepting = timeout(Duration::ZERO, world.call()).await;
        assert!(accepting.is_err(), "a connection was captured");
        world.assert_no_datagram();
    });
}

/// A link with an address, by which everything is routed.
fn add_link() {
    ip(&["link", "add", "plain0", "type", "veth", "peer", "plain1"]);
    for link in ["plain0", "plain1"] {
        ip(&["link", "set", link, "up"]);
    }
    ip(&["addr", "add", "198.51.100.7/24", "dev", "plain0"]);
    let v6 = ["-6", "addr", "add", "2001:db8:7::7/64", "dev", "plain0"];
    ip(&[&v6[..], &["nodad"]].concat());
    ip(&["route", "add", "default", "via", "198.51.100.1"]);
    ip(&["-6", "route", "add", "default", "dev", "plain0"]);
}

#[test]
fn datagrams_that_name_their_interface_are_left_alone() {
    with_hooks(|world| async move {
        add_link();
        for (family, router) in [("-4", "198.51.100.1"), ("-6", "2001:db8::1")] {
            let known = [
                "neigh",
                "add",
                router,
                "lladdr",
                "02:00:00:00:00:01",
                "dev",
                "plain0",
            ];
            ip(&[&[family], &known[..]].concat());
        }
        let wire = egress::Wire::of("plain1");
        finish(&mut world.run("by-interface")).await;
        for dest in egress::DESTS {
            wire.hear(b"not captured", dest);
        }
    });
}

#[test]
fn datagrams_by_the_interface_of_our_own_answers_are_captured() {
    with_hooks(|mut world| async move {
        add_link();
        let mut client = world.run("as-answered");
        for _ in 0..4 {
            world.echo_datagrams(1).await;
        }
        finish(&mut client).await;
    });
}

#[test]
fn what_this_machine_asks_of_itself_is_left_alone_but_for_names() {
    with_hooks(|mut world| async move {
        add_link();
        // As a proxy has it, for packets that it has marked.
        ip(&[
            "route", "add", "local", "default", "dev", "lo", "table", "77",
        ]);
        world.hooks.follow_routes().await.unwrap();
        finish(&mut world.run("to-itself")).await;
        let accepting = timeout(Duration::ZERO, world.call()).await;
        assert!(accepting.is_err(), "a connection was captured");
        world.assert_no_datagram();
        let mut client = world.run("dns-here");
        assert_eq!(world.echo_datagrams(1).await, ["198.51.100.7:53"]);
        finish(&mut client).await;
        let mut client = world.run("udp4-connected");
        assert_eq!(world.echo_datagrams(1).await, ["192.0.2.1:7"]);
        finish(&mut client).await;
    });
}

#[test]
fn a_socket_of_multipath_tcp_is_called_as_one_of_plain_tcp() {
    with_hooks(|mut world| async move {
        add_link();
        world.hooks.follow_routes().await.unwrap();
        if Socket::new(Domain::IPV4, Type::STREAM, Some(socket2::Protocol::MPTCP)).is_err() {
            println!("skipped: this kernel has no MPTCP");
            return;
        }
        let mut client = world.run("names-mptcp");
        world.echo_one().await;
        world.echo_one().await;
        finish(&mut client).await;
    });
}

#[test]
fn what_is_for_all_hosts_of_a_wire_is_left_alone() {
    with_hooks(|mut world| async move {
        add_link();
        world.hooks.follow_routes().await.unwrap();
        finish(&mut world.run("to-all")).await;
        world.assert_no_datagram();
    });
}

#[test]
fn strangers_cannot_claim_a_flow() {
    with_hooks(|world| async move {
        let mut client = world.run("tcp4-lingering");
        let captured = world.accept().await;
        let flow_address = captured.stream.local_addr().unwrap();
        assert!(world.hooks.original(as_v4(flow_address)).is_some());

        // Not in the cgroup: refused for having no flow of its own.
        let refused = tokio::select! {
            refused = TcpStream::connect(flow_address) => refused.unwrap_err(),
            _ = world.call() => panic!("a stranger has got through"),
        };
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

        // The port on an address that stands for no flow: dropped unanswered, not refused.
        let elsewhere = SocketAddr::new("127.0.0.1".parse().unwrap(), world.capture.port);
        let attempt = TcpStream::connect(elsewhere);
        assert!(timeout(Duration::from_millis(200), attempt).await.is_err());

        drop(captured);
        finish(&mut client).await;
    });
}

#[test]
fn a_flow_is_its_socket_s_before_its_connection_has_come() {
    with_hooks(|world| async move {
        // It has asked, and cannot come.
        let way = |what| ip(&["route", what, "throw", "127.128.0.0/10", "table", "local"]);
        way("add");
        finish(&mut world.run("shut")).await;
        way("del");
        let address = SocketAddr::new("127.128.0.1".parse().unwrap(), world.capture.port);
        assert!(world.hooks.original(as_v4(address)).is_some());
        let refused = tokio::select! {
            refused = TcpStream::connect(address) => refused.unwrap_err(),
            _ = world.call() => panic!("a stranger has got through"),
        };
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn who_sends_to_the_address_of_another_s_flow_is_told_off() {
    with_hooks(|mut world| async move {
        let mut client = world.run(&format!("intrude-{}", world.capture.port));
        world.echo_datagrams(1).await;
        finish(&mut client).await;
    });
}

#[test]
fn dropping_the_hooks_detaches_them() {
    with_hooks(|world| async move {
        assert_eq!(attached(&world.cgroup), 10);
        let World { hooks, cgroup, .. } = world;
        drop(hooks);
        until_detached(&cgroup).await;
    });
}

#[test]
fn a_killed_holder_leaves_nothing_attached() {
    with_hooks(|world| async move {
        let World { hooks, cgroup, .. } = world;
        drop(hooks);
        let mut holder = exe("holder");
        holder
            .env("TABANE_TEST_CGROUP", cgroup.path())
            .stdout(Stdio::piped());
        let mut holder = tokio::process::Command::from(holder).spawn().unwrap();
        let mut lines = tokio::io::BufReader::new(holder.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("attached") {
            let read = tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut said).await;
            assert!(read.unwrap() > 0, "the holder ended early: {said}");
        }
        assert_eq!(attached(&cgroup), 10);
        holder.kill().await.unwrap();
        until_detached(&cgroup).await;
    });
}

/// Not a test: attaches hooks to a group it is told and waits to be killed.
#[test]
fn holder() {
    let Some(path) = std::env::var_os("TABANE_TEST_CGROUP") else {
        println!("skipped: run by a_killed_holder_leaves_nothing_attached");
        return;
    };
    let cgroup = Cgroup::open(path.as_ref()).unwrap();
    let _hooks = Hooks::attach(&cgroup, &config(1)).unwrap();
    println!("attached");
    std::thread::park();
}

/// Not a test: plays a program, in a process and cgroup of its own.
#[test]
fn client() {
    match std::env::var("TABANE_TEST_ROLE") {
        Ok(role) => client::play(&role),
        Err(_) => println!("skipped: run by the others, in the cgroup"),
    }
}

#[test]
fn a_socket_hears_of_whom_it_did_not_ask() {
    with_hooks(|mut world| async move {
        for (role, from) in [
            ("udp4-stranger", "192.0.2.9:99"),
            ("udp6-stranger", "[2001:db8::9]:99"),
        ] {
            let mut client = world.run(role);
            let (flow, original) = world.datagram().await;
            assert!(!original.is_connected);
            let sender = world.capture.udp.sender();
            let stranger = sender.stranger(&world.hooks.flows(), flow, from.parse().unwrap());
            sender.try_send(stranger.unwrap(), b"here", None).unwrap();
            let (again, original) = world.datagram().await;
            assert_eq!(
                (again.socket, original.dest),
                (flow.socket, from.parse().unwrap())
            );
            finish(&mut client).await;
        }
    });
}

#[test]
fn a_connected_socket_is_told_that_nobody_is_there() {
    with_hooks(|mut world| async move {
        for role in ["udp4-refused", "udp6-refused"] {
            let mut client = world.run(role);
            let (flow, original) = world.datagram().await;
            assert!(original.is_connected);
            world.capture.udp.sender().refuse(flow).unwrap();
            finish(&mut client).await;
        }
    });
}

#[test]
fn a_connected_socket_is_called_what_it_would_be_called_without_us() {
    with_hooks(|mut world| async move {
        add_link();
        ip(&["addr", "add", "198.51.100.9/24", "dev", "plain0"]);
        world.hooks.follow_routes().await.unwrap();
        let mut client = world.run("names-tcp");
        world.echo_one().await;
        world.echo_one().await;
        finish(&mut client).await;
        finish(&mut world.run("names-udp")).await;

        // And after the routing table has changed.
        ip(&[
            "route",
            "add",
            "192.0.2.0/25",
            "dev",
            "plain0",
            "src",
            "198.51.100.9",
        ]);
        while !ended(&mut world.run("names-udp")).await.success() {
            // The news is on its way.
        }
    });
}

#[test]
fn bad_configurations_are_refused() {
    with_hooks(|world| async move {
        let address: IpAddr = "192.0.2.0".parse().unwrap();
        let mut wrong = config(1);
        wrong.exclude = vec![Prefix { address, bits: 33 }];
        let error = Hooks::attach(&world.cgroup, &wrong).unwrap_err();
        assert!(matches!(error, HookError::InvalidPrefix { .. }), "{error}");
        let ranges = (0..=MAX_EXCLUDED as u32).map(|n| Prefix {
            address: std::net::Ipv4Addr::from_bits(n << 8).into(),
            bits: 24,
        });
        wrong.exclude = ranges.collect();
        let error = Hooks::attach(&world.cgroup, &wrong).unwrap_err();
        assert!(
            matches!(error, HookError::TooManyExclusions { count: 1025 }),
            "{error}"
        );
    });
}

#[test]
fn a_shut_gate_is_as_no_hooks_until_it_opens() {
    with_hooks(|mut world| async move {
        world.hooks.set_open(false).unwrap();
        finish(&mut world.run("shut")).await;
        world.hooks.set_open(true).unwrap();
        let mut client = world.run("tcp4");
        world.echo_one().await;
        finish(&mut client).await;
    });
}

#[test]
fn exclusions_change_while_they_are_in_use_and_spare_resolvers() {
    with_hooks(|mut world| async move {
        let all = Prefix {
            address: "192.0.2.0".parse().unwrap(),
            bits: 24,
        };
        let resolver = "192.0.2.9".parse().unwrap();
        world.hooks.exclude(&[all], &[resolver], &[]).unwrap();
        finish(&mut world.run("shut")).await;
        let mut client = world.run("dns-in-range");
        assert_eq!(world.echo_datagrams(1).await, ["192.0.2.9:53"]);
        finish(&mut client).await;
        world.hooks.exclude(&[], &[], &[]).unwrap();
        let mut client = world.run("tcp4");
        world.echo_one().await;
        finish(&mut client).await;
    });
}

#[test]
fn a_server_s_answers_leave_the_way_the_questions_came() {
    with_hooks(|world| async move {
        for address in ["198.51.100.7/32", "198.51.100.8/32"] {
            ip(&["addr", "add", address, "dev", "lo"]);
        }
        let peer = tokio::net::UdpSocket::bind("198.51.100.8:5000")
            .await
            .unwrap();
        let mut server = world.run("udp-server");
        let mut answer = [0; 16];
        loop {
            // Until the server is there.
            let _ = peer.send_to(b"question", "198.51.100.7:5001").await;
            let received = timeout(Duration::from_millis(50), peer.recv_from(&mut answer));
            if let Ok(Ok((length, from))) = received.await {
                assert_eq!(from, "198.51.100.7:5001".parse().unwrap());
                assert_eq!(&answer[..length], b"answer");
                break;
            }
        }
        finish(&mut server).await;
    });
}
