//! Doors on loopback.

use super::super::attending::Knock;
use super::*;
use std::net::Ipv4Addr;
use tabane_base::PortRange;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ANN: Claimant<'_> = Claimant {
    key: PublicKey([1; 32]),
    user: "ann",
};
const BOB: Claimant<'_> = Claimant {
    key: PublicKey([2; 32]),
    user: "bob",
};

fn doors() -> Arc<FrontDoors> {
    FrontDoors::new(Ipv4Addr::LOCALHOST.into(), Vec::new())
}

/// A port that is free at this moment.
fn port() -> PortClaim {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    PortClaim {
        protocol: Protocol::Tcp,
        ports: PortRange::new(port, port).unwrap(),
    }
}

async fn connect(claim: PortClaim) -> io::Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, claim.ports.first())).await
}

#[test]
fn visitors_knock_while_there_is_a_lease_and_a_closed_port_refuses() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        assert!(connect(claim).await.is_err());
        let mut held = doors.lease(claim, None, ANN).await.unwrap();
        let visitor = connect(claim).await.unwrap();
        let Some(Knock::Errand(Arrival::Visitor(seen))) = held.knock().await else {
            panic!("nobody knocks");
        };
        assert_eq!(seen.from, visitor.local_addr().unwrap());
        assert_eq!(seen.at, visitor.peer_addr().unwrap());
        let other = doors.lease(claim, None, BOB).await.err();
        assert_eq!(other, Some(Status::PortTaken));
        let told = held.knock().await;
        assert!(matches!(told, Some(Knock::Asked { by_the_same: false })));
        drop(held);
        // The door's task is gone with the next turn.
        tokio::task::yield_now().await;
        assert!(connect(claim).await.is_err());
        assert!(doors.lease(claim, None, BOB).await.is_ok());
    })
    .unwrap();
}

#[test]
fn the_same_client_has_the_port_again_once_its_earlier_session_is_gone() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let mut held = doors.lease(claim, None, ANN).await.unwrap();
        let earlier = tokio::task::spawn_local(async move {
            let asked = held.knock().await;
            assert!(matches!(asked, Some(Knock::Asked { by_the_same: true })));
            drop(held);
        });
        assert!(doors.lease(claim, None, ANN).await.is_ok());
        earlier.await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_port_of_somebody_else_s_is_told_and_nothing_of_a_range_is_kept() {
    crate::block_on(async {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let claim = PortClaim {
            protocol: Protocol::Tcp,
            ports: PortRange::new(port - 1, port).unwrap(),
        };
        let doors = doors();
        let refused = doors.lease(claim, None, ANN).await.err();
        assert_eq!(refused, Some(Status::PortUnavailable));
        assert!(doors.snapshot().is_empty());
        doors.ports.closed((claim.protocol, port - 1)).await;
        assert!(connect(claim).await.is_err());
    })
    .unwrap();
}

#[test]
fn visitors_of_a_shared_port_go_by_the_name_they_ask_for() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let [a, b] = ["a.example", "b.example"].map(|name| HostName::new(name).unwrap());
        let mut at_a = doors.lease(claim, Some(&a), ANN).await.unwrap();
        let mut at_b = doors.lease(claim, Some(&b), BOB).await.unwrap();
        let ask = async |name: &str| {
            let mut visitor = connect(claim).await.unwrap();
            let (head, rest) = ("GET / HTTP/1.1\r\nHo", format!("st: {name}\r\n\r\n"));
            visitor.write_all(head.as_bytes()).await.unwrap();
            visitor.write_all(rest.as_bytes()).await.unwrap();
            (visitor, format!("{head}{rest}"))
        };
        for (name, at) in [("b.example", &mut at_b), ("A.Example:80", &mut at_a)] {
            let (_visitor, asked) = ask(name).await;
            let Some(Knock::Errand(Arrival::Visitor(seen))) = at.knock().await else {
                panic!("nobody knocks at {name}");
            };
            assert_eq!(seen.front.into_bytes(), asked.as_bytes());
        }
        let (mut visitor, _) = ask("c.example").await;
        let ended = visitor.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(doors.turned_away(), 1);
    })
    .unwrap();
}

#[test]
fn those_who_say_nothing_keep_nobody_else_out() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let a = HostName::new("a.example").unwrap();
        let mut at_a = doors.lease(claim, Some(&a), ANN).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..MAX_NAMELESS + 10 {
            // Those beyond are reset, some before they know that they are connected.
            silent.extend(connect(claim).await);
        }
        // Somebody else, for those share what their address has.
        let other = tokio::net::TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let door = SocketAddr::from((Ipv4Addr::LOCALHOST, claim.ports.first()));
        let mut visitor = other.connect(door).await.unwrap();
        let request = b"GET / HTTP/1.0\r\nHost: a.example\r\n\r\n";
        visitor.write_all(request).await.unwrap();
        assert!(matches!(
            at_a.knock().await,
            Some(Knock::Errand(Arrival::Visitor(_)))
        ));
    })
    .unwrap();
}

/// While a relay drains, a worker without sessions ends before one that serves the visitor.
#[test]
fn a_visitor_stays_when_the_worker_that_took_it_in_has_ended() {
    let (doors, claim) = (doors(), port());
    let (hand, handed) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        crate::block_on(async {
            let mut held = doors.lease(claim, None, ANN).await.unwrap();
            let outside = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, claim.ports.first()));
            let Some(Knock::Errand(Arrival::Visitor(visitor))) = held.knock().await else {
                panic!("nobody came");
            };
            hand.send((outside.unwrap(), visitor)).unwrap();
        })
        .unwrap();
    });
    let (mut outside, visitor) = handed.recv().unwrap();
    crate::block_on(async {
        let mut visitor = visitor.at_home().unwrap();
        worker.join().unwrap();
        std::io::Write::write_all(&mut outside, b"here").unwrap();
        let mut heard = [0; 4];
        visitor.tcp.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"here");
    })
    .unwrap();
}

#[test]
fn closed_doors_keep_no_port() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let mut held = doors.lease(claim, None, ANN).await.unwrap();
        doors.close();
        assert!(held.knock().await.is_none());
        tokio::task::yield_now().await;
        assert!(connect(claim).await.is_err());
        drop(held);
    })
    .unwrap();
}

#[test]
fn a_port_is_free_at_once_whichever_worker_attended_it() {
    let (doors, claim) = (doors(), port());
    let (hand, handed) = std::sync::mpsc::channel();
    let (go_on, told) = std::sync::mpsc::channel();
    let at_other = doors.clone();
    let worker = std::thread::spawn(move || {
        crate::block_on(async {
            hand.send(at_other.lease(claim, None, ANN).await.unwrap())
                .unwrap();
            // Busy with something else, and then with nothing.
            told.recv().unwrap();
            at_other
                .ports
                .closed((claim.protocol, claim.ports.first()))
                .await;
        })
        .unwrap();
    });
    let held = handed.recv().unwrap();
    crate::block_on(async {
        drop(held);
        tokio::task::spawn_local(async move { go_on.send(()).unwrap() });
        assert!(doors.lease(claim, None, BOB).await.is_ok());
    })
    .unwrap();
    worker.join().unwrap();
}

#[test]
fn datagrams_end_with_their_port_which_somebody_else_may_have_at_once() {
    crate::block_on(async {
        let doors = doors();
        let claim = PortClaim {
            protocol: Protocol::Udp,
            ..port()
        };
        let mut held = doors.lease(claim, None, ANN).await.unwrap();
        let outside = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let door = (Ipv4Addr::LOCALHOST, claim.ports.first());
        outside.send_to(b"hello", door).await.unwrap();
        let Some(Knock::Errand(Arrival::Datagrams(visitor))) = held.knock().await else {
            panic!("nobody came");
        };
        assert_eq!(visitor.at, SocketAddr::from(door));
        drop(held);
        assert!(doors.lease(claim, None, BOB).await.is_ok());
        drop(visitor);
    })
    .unwrap();
}

#[test]
fn who_waits_for_a_port_while_the_relay_drains_does_not_get_it() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let mut held = doors.lease(claim, None, ANN).await.unwrap();
        let at_earlier = doors.clone();
        tokio::task::spawn_local(async move {
            assert!(matches!(held.knock().await, Some(Knock::Asked { .. })));
            at_earlier.close();
            drop(held);
        });
        let refused = doors.lease(claim, None, ANN).await.err();
        assert_eq!(refused, Some(Status::TimedOut));
        assert!(connect(claim).await.is_err());
    })
    .unwrap();
}

#[test]
fn a_name_is_read_whatever_pieces_it_comes_in() {
    crate::block_on(async {
        let (doors, claim) = (doors(), port());
        let name = HostName::new("a.example").unwrap();
        let mut held = doors.lease(claim, Some(&name), ANN).await.unwrap();
        let filling = "x".repeat(6_000);
        let request = format!("GET / HTTP/1.1\r\nX: {filling}\r\nHost: a.example\r\n\r\n");
        let mut visitor = connect(claim).await.unwrap();
        visitor.set_nodelay(true).unwrap();
        for byte in request.bytes() {
            visitor.write_all(&[byte]).await.unwrap();
            // So that each is seen alone.
            tokio::task::yield_now().await;
        }
        let Some(Knock::Errand(Arrival::Visitor(seen))) = held.knock().await else {
            panic!("nobody came");
        };
        assert_eq!(seen.front.into_bytes(), request.as_bytes());
    })
    .unwrap();
}

#[test]
fn what_is_left_of_before_the_end_takes_nothing_of_what_came_since() {
    crate::block_on(async {
        let own = 443;
        let doors = FrontDoors::new(Ipv4Addr::LOCALHOST.into(), vec![own]);
        let held = doors.lease(port(), None, ANN).await.unwrap();
        doors.close();
        // At the relay's own door no port is to be opened.
        let claim = PortClaim {
            protocol: Protocol::Tcp,
            ports: PortRange::new(own, own).unwrap(),
        };
        let name = HostName::new("a.example").unwrap();
        let _since = doors.lease(claim, Some(&name), BOB).await.unwrap();
        drop(held);
        let left = doors.snapshot();
        assert!(left.len() == 1 && left[0].client == BOB.key && left[0].visitors == 0);
    })
    .unwrap();
}
