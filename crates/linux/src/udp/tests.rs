//! UDP sockets against the real kernel, on loopback. Interfaces are tested in `tests/veth.rs`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::*;

fn bind(local: &str) -> UdpSocket {
    UdpSocket::bind(UdpBind {
        interface: None,
        local: local.parse().unwrap(),
    })
    .unwrap()
}

/// Receives until `count` datagrams have come.
async fn receive(socket: &UdpSocket, count: usize) -> Vec<(Vec<u8>, Meta)> {
    let mut batch = RecvBatch::new();
    let mut received = Vec::new();
    while received.len() < count {
        socket.readable().await.unwrap();
        match socket.try_recv(&mut batch) {
            Ok(_) => received.extend(batch.datagrams().map(|d| (d.payload.to_vec(), d.meta))),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    received
}

async fn send(socket: &UdpSocket, transmit: Transmit<'_>) -> io::Result<()> {
    loop {
        socket.writable().await?;
        match socket.try_send(transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Ten datagrams of 1,000 bytes and a shorter one, each filled with its number.
fn numbered() -> Vec<u8> {
    (0..10_300).map(|i| (i / 1_000) as u8).collect()
}

async fn roundtrip_numbered(sender: &UdpSocket) {
    let receiver = bind("127.0.0.1:0");
    let contents = numbered();
    let remote = receiver.local_addr().unwrap();
    let transmit = Transmit {
        remote,
        local_ip: None,
        segment_size: Some(1_000),
        contents: &contents,
    };
    send(sender, transmit).await.unwrap();

    let received = receive(&receiver, 11).await;
    assert_eq!(received.len(), 11);
    for (number, (payload, meta)) in received.iter().enumerate() {
        assert_eq!(payload.len(), if number == 10 { 300 } else { 1_000 });
        assert!(payload.iter().all(|byte| usize::from(*byte) == number));
        assert_eq!(meta.remote, sender.local_addr().unwrap());
        assert_eq!(meta.local_ip, Some(remote.ip()));
    }
}

#[tokio::test]
async fn a_gso_batch_arrives_as_the_datagrams_it_was() {
    let sender = bind("127.0.0.1:0");
    assert_eq!(sender.max_gso_segments(), 64);
    roundtrip_numbered(&sender).await;
}

#[tokio::test]
async fn who_ignores_its_local_address_hears_of_the_sender_alone() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let (sender, receiver) = (bind(local), bind(local));
        receiver.ignore_local_ip().unwrap();
        let transmit = Transmit {
            remote: receiver.local_addr().unwrap(),
            local_ip: None,
            segment_size: None,
            contents: b"hello",
        };
        send(&sender, transmit).await.unwrap();
        let (payload, meta) = receive(&receiver, 1).await.remove(0);
        assert_eq!(payload, b"hello");
        let known = (meta.remote, meta.local_ip);
        assert_eq!(known, (sender.local_addr().unwrap(), None));
    }
}

#[tokio::test]
async fn a_route_that_cannot_segment_gets_the_same_datagrams_one_by_one() {
    let sender = bind("127.0.0.1:0");
    refuse_gso(&sender);
    roundtrip_numbered(&sender).await;
    assert_eq!(sender.max_gso_segments(), 1);
    roundtrip_numbered(&sender).await;
}

/// Switches UDP checksums off, which makes the kernel answer GSO with `EINVAL`, as it does for
/// devices and routes that cannot segment.
fn refuse_gso(socket: &UdpSocket) {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is a live `c_int` and its size is passed with it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

#[tokio::test]
async fn a_wildcard_socket_answers_from_the_address_it_was_reached_at() {
    let relay = bind("[::]:0");
    let port = relay.local_addr().unwrap().port();
    for reached in [
        IpAddr::from(Ipv4Addr::new(127, 3, 2, 1)),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let client = bind(if reached.is_ipv4() {
            "127.0.0.1:0"
        } else {
            "[::1]:0"
        });
        let remote = SocketAddr::new(reached, port);
        let hello = Transmit {
            remote,
            local_ip: None,
            segment_size: None,
            contents: b"hello",
        };
        send(&client, hello).await.unwrap();

        let (payload, meta) = receive(&relay, 1).await.remove(0);
        assert_eq!(payload, b"hello");
        assert_eq!(meta.remote, client.local_addr().unwrap());
        assert_eq!(meta.local_ip, Some(reached));

        let answer = Transmit {
            remote: meta.remote,
            local_ip: meta.local_ip,
            segment_size: Some(4),
            contents: b"hi, you",
        };
        send(&relay, answer).await.unwrap();
        let answers = receive(&client, 2).await;
        assert_eq!(answers[0].0, b"hi, ");
        assert_eq!(answers[1].0, b"you");
        assert_eq!(answers[0].1.remote, remote);
    }
}

#[tokio::test]
async fn faults_are_told_apart_and_do_not_outlast_their_packet() {
    let sender = bind("0.0.0.0:0");
    let receiver = bind("127.0.0.1:0");
    let remote = receiver.local_addr().unwrap();
    let ok = Transmit {
        remote,
        local_ip: None,
        segment_size: None,
        contents: b"ok",
    };

    // Loopback's MTU is 65,536, so only the IPv4 limit itself is too large here.
    let large = vec![0; MAX_TRANSMIT_BYTES + 1];
    let too_large = quinn_udp::Transmit {
        destination: remote,
        ecn: None,
        contents: &large,
        segment_size: None,
        src_ip: None,
    };
    sender.writable().await.unwrap();
    let socket = UdpSockRef::from(sender.io.get_ref());
    let error = sender.state.try_send(socket, &too_large).unwrap_err();
    assert_eq!(SendFault::of(&error), Some(SendFault::TooLarge));

    // A source address that is not ours must not be mistaken for a route without GSO.
    let contents = numbered();
    let stranger = Transmit {
        local_ip: Some(Ipv4Addr::new(192, 0, 2, 7).into()),
        segment_size: Some(1_000),
        contents: &contents,
        ..ok
    };
    let error = send(&sender, stranger).await.unwrap_err();
    let fault = SendFault::of(&error);
    // The number depends on the kernel's age.
    let expected = [
        SendFault::NetworkUnreachable,
        SendFault::Other(libc::EINVAL),
    ];
    assert!(
        fault.is_some_and(|fault| expected.contains(&fault)),
        "{error}"
    );
    assert_eq!(sender.max_gso_segments(), 64);

    send(&sender, ok).await.unwrap();
    assert_eq!(receive(&receiver, 1).await[0].0, b"ok");
}

#[tokio::test]
async fn setting_up_fails_with_a_reason() {
    let taken = bind("127.0.0.1:0").local_addr().unwrap();
    let holder = bind(&taken.to_string());
    let again = UdpBind {
        interface: None,
        local: holder.local_addr().unwrap(),
    };
    assert!(matches!(
        UdpSocket::bind(again),
        Err(UdpError::BindAddress { .. })
    ));

    let local = "0.0.0.0:0".parse().unwrap();
    let missing = UdpBind {
        interface: Some("tbn-none0"),
        local,
    };
    assert!(matches!(
        UdpSocket::bind(missing),
        Err(UdpError::NoSuchInterface { .. })
    ));
}

#[test]
fn who_sends_is_not_woken_by_what_has_left() {
    const ROUNDS: usize = 50;
    let waits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waits);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .build()
        .unwrap();
    // Answers each datagram a moment later, so that it comes apart from what else there may be.
    let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let remote = far.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            far.set_read_timeout(None).unwrap();
            let (_, from) = far.recv_from(&mut [0; 8]).unwrap();
            let moment = Some(std::time::Duration::from_millis(1));
            far.set_read_timeout(moment).unwrap();
            far.recv(&mut [0; 8]).unwrap_err();
            far.send_to(b"heard", from).unwrap();
        }
    });
    runtime.block_on(async {
        let sender = bind("127.0.0.1:0");
        let packet = Transmit {
            remote,
            local_ip: None,
            segment_size: None,
            contents: b"gone",
        };
        for _ in 0..ROUNDS {
            sender.try_send(packet).unwrap();
            receive(&sender, 1).await;
        }
    });
    answering.join().unwrap();
    let waits = waits.load(Ordering::Relaxed);
    assert!(waits < ROUNDS * 3 / 2, "{waits} times");
}
