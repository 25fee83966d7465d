//! Sockets and interfaces on real (virtual) cables.
//!
//! ```text
//!   near (this thread's namespace)              far
//!   10.71.1.1 near1 ───────────────────── far1 10.71.1.2
//!   10.71.2.1 near2 ───────────────────── far2 10.71.2.2
//!   fd71::1                                    fd71::2       lo: 10.71.9.9
//!   default via 10.71.1.2 metric 100, via 10.71.2.2 metric 200
//! ```
//!
//! Skipped without root.
#![allow(clippy::unwrap_used)]

#[path = "veth/cables.rs"]
mod cables;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cables::{ip, with_cables};
use tabane_linux::{
    RecvBatch, SendFault, Transmit, UdpBind, UdpSocket,
    interfaces::{self, Kind, Scope, Unusable, Watch},
};
use tokio::time::timeout;

/// A test that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_bound_socket_uses_its_device_whatever_the_routing_table_says() {
    with_cables(|far| async move {
        let server = far.bind("0.0.0.0:0");
        let port = server.local_addr().unwrap().port();
        let remote = SocketAddr::new("10.71.9.9".parse().unwrap(), port);
        for (interface, source) in [
            (None, "10.71.1.1"),
            (Some("near2"), "10.71.2.1"),
            (Some("near1"), "10.71.1.1"),
        ] {
            let client = bind(interface, "0.0.0.0:0");
            send(&client, remote, b"hello").await.unwrap();
            let (payload, from, reached) = receive(&server).await;
            assert_eq!(payload, b"hello");
            assert_eq!(
                from.ip(),
                source.parse::<IpAddr>().unwrap(),
                "{interface:?}"
            );
            assert_eq!(reached, Some(remote.ip()));
        }
    });
}

#[test]
fn a_gso_batch_crosses_a_cable_in_both_families() {
    with_cables(|far| async move {
        for (local, reached) in [("0.0.0.0:0", "10.71.2.2"), ("[::]:0", "fd71::2")] {
            let server = far.bind("[::]:0");
            let port = server.local_addr().unwrap().port();
            let client = bind(Some("near2"), local);
            let remote = SocketAddr::new(reached.parse().unwrap(), port);
            // 40 datagrams of 1,400 bytes, each full of its number, and a shorter one.
            let contents: Vec<u8> = (0..40 * 1_400 + 100).map(|i| (i / 1_400) as u8).collect();
            let transmit = Transmit {
                remote,
                local_ip: None,
                segment_size: Some(1_400),
                contents: &contents,
            };
            client.writable().await.unwrap();
            client.try_send(transmit).unwrap();
            assert!(client.max_gso_segments() > 1, "GSO does not work on veth");

            let mut batch = RecvBatch::new();
            let mut numbers = Vec::new();
            while numbers.len() < 41 {
                server.readable().await.unwrap();
                if server.try_recv(&mut batch).is_err() {
                    continue;
                }
                for datagram in batch.datagrams() {
                    let number = datagram.payload[0];
                    assert!(datagram.payload.iter().all(|byte| *byte == number));
                    assert_eq!(
                        datagram.payload.len(),
                        if number == 40 { 100 } else { 1_400 }
                    );
                    assert_eq!(datagram.meta.local_ip, Some(remote.ip()));
                    numbers.push(number);
                }
            }
            assert_eq!(numbers, (0..41).collect::<Vec<u8>>());
        }
    });
}

#[test]
fn faults_of_a_link_are_told_apart() {
    with_cables(|_far| async move {
        let client = bind(Some("near2"), "0.0.0.0:0");
        let remote: SocketAddr = "10.71.2.2:9".parse().unwrap();
        // Larger than the MTU of 1,500, in one piece and in segments: never fragmented.
        let error = send(&client, remote, &[0; 1_473]).await.unwrap_err();
        assert_eq!(SendFault::of(&error), Some(SendFault::TooLarge));
        let segments = Transmit {
            remote,
            local_ip: None,
            segment_size: Some(1_473),
            contents: &[0; 4_000],
        };
        let error = client.try_send(segments).unwrap_err();
        assert_eq!(SendFault::of(&error), Some(SendFault::TooLarge));
        assert!(
            client.max_gso_segments() > 1,
            "a large segment is not GSO's fault"
        );
        send(&client, remote, &[0; 1_472]).await.unwrap();

        let v6_only = "[fd72::1]:9".parse().unwrap();
        let v6 = bind(Some("near1"), "[::]:0");
        let error = send(&v6, v6_only, b"no route").await.unwrap_err();
        assert_eq!(SendFault::of(&error), Some(SendFault::NetworkUnreachable));

        ip("link set near2 down");
        let error = send(&client, remote, b"down").await.unwrap_err();
        let down = [SendFault::NetworkUnreachable, SendFault::NetworkDown];
        assert!(
            SendFault::of(&error).is_some_and(|fault| down.contains(&fault)),
            "{error}"
        );
        ip("link set near2 up");
        send(&client, remote, b"up").await.unwrap();

        ip("link del near2");
        let error = send(&client, remote, b"gone").await.unwrap_err();
        let gone = [SendFault::NetworkUnreachable, SendFault::NoDevice];
        assert!(
            SendFault::of(&error).is_some_and(|fault| gone.contains(&fault)),
            "{error}"
        );
    });
}

#[test]
fn interfaces_are_listed_with_what_makes_them_links() {
    with_cables(|_far| async move {
        ip("link add inside type veth peer name inside2");
        ip("link set inside up");
        ip("link set inside2 up");
        ip("addr add 172.17.0.1/16 dev inside");
        ip("addr add 10.71.2.1/24 dev inside2");
        let listed = interfaces::list().await.unwrap();
        let find = |name: &str| listed.iter().find(|i| i.name == name).unwrap();

        let near2 = find("near2");
        assert_eq!(near2.kind, Kind::Veth);
        assert_eq!(near2.usable(), Ok(()));
        assert_eq!((near2.up, near2.carrier, near2.mtu), (true, true, 1_500));
        let route = near2.default_routes[0];
        assert_eq!((route.metric, route.is_v6), (200, false));
        assert_eq!(route.gateway, Some("10.71.2.2".parse().unwrap()));
        let addresses: Vec<IpAddr> = near2.global_addresses().collect();
        assert_eq!(
            addresses,
            ["10.71.2.1", "fd71::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        let v4 = near2.addresses[0];
        assert_eq!((v4.prefix_bits, v4.scope), (24, Scope::Global));
        assert!(
            near2.addresses.iter().any(|a| a.scope == Scope::Link),
            "fe80::"
        );

        assert_eq!(find("lo").usable(), Err(Unusable::Loopback));
        assert_eq!(find("inside").usable(), Err(Unusable::Inside));

        ip("link set near1 down");
        let listed = interfaces::list().await.unwrap();
        let near1 = listed.iter().find(|i| i.name == "near1").unwrap();
        assert_eq!(near1.usable(), Err(Unusable::Down));
    });
}

#[test]
fn a_watch_tells_of_every_kind_of_change() {
    with_cables(|_far| async move {
        let mut watch = Watch::start().unwrap();
        for change in [
            "link set near2 down",
            "link set near2 up",
            "addr add 10.71.3.1/24 dev near2",
            "-6 addr add fd73::1/64 dev near2 nodad",
            "route add 10.99.0.0/16 via 10.71.1.2",
            "-6 route add fd99::/64 dev near2",
            "link add extra type veth peer name extra2",
        ] {
            settle(&mut watch).await;
            ip(change);
            assert_eq!(
                timeout(PATIENCE, watch.changed()).await.expect(change),
                Some(())
            );
        }
    });
}

/// Waits until no news has come for a while: a change is often followed by others.
async fn settle(watch: &mut Watch) {
    while timeout(Duration::from_millis(50), watch.changed())
        .await
        .is_ok()
    {}
}

fn bind(interface: Option<&str>, local: &str) -> UdpSocket {
    UdpSocket::bind(UdpBind {
        interface,
        local: local.parse().unwrap(),
    })
    .unwrap()
}

async fn send(socket: &UdpSocket, remote: SocketAddr, contents: &[u8]) -> std::io::Result<()> {
    socket.writable().await?;
    socket.try_send(Transmit {
        remote,
        local_ip: None,
        segment_size: None,
        contents,
    })
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr, Option<IpAddr>) {
    let mut batch = RecvBatch::new();
    loop {
        socket.readable().await.unwrap();
        if socket.try_recv(&mut batch).is_ok() {
            let datagram = batch.datagrams().next().unwrap();
            return (
                datagram.payload.to_vec(),
                datagram.meta.remote,
                datagram.meta.local_ip,
            );
        }
    }
}
