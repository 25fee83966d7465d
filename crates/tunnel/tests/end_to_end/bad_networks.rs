//! What stands between a link and the relay's TLS, and should not: proxies that do not do what they
//! are asked, login pages, strangers' servers, boxes that open TLS or cut it.
//!
//! Each is told of in a line that says what is wrong, by the link's name, and other links go on.

use std::future::pending;
use std::net::SocketAddr;

use tabane_core::PathStatus;
use tabane_tunnel::carrier::{Acceptor, Certificate, Deframer, Dial, Visit, encapsulate};
use tabane_tunnel::{Carrier, CarrierKind, CarrierWish, Client, LinkSnapshot, TlsPeer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::spawn_local;

use super::cables::Stream;
use super::world::{RelayOptions, RunningRelay, client_config, eventually, listener, run};

/// What comes of a connection once something was said on it.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// To everything.
    Says(&'static [u8]),
    Hangs,
    Leaves,
    /// No to CONNECT; this to who asks for UDP, and nothing where it is empty.
    Udp(&'static [u8]),
}

const NO: &[u8] = b"HTTP/1.1 403 Forbidden\r\n\r\n";
const PORTAL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Log in</html>";

/// Whoever listens at this address behaves so, whatever is asked.
async fn misbehaving(manner: Manner) -> SocketAddr {
    let (listener, address) = listener().await;
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move {
                let mut heard = [0; 4096];
                while let Ok(len @ 1..) = tcp.read(&mut heard).await {
                    match manner {
                        Manner::Udp(_) if heard[..len].starts_with(b"CONNECT ") => {
                            drop(tcp.write_all(NO).await);
                        }
                        Manner::Udp(b"") => pending().await,
                        Manner::Udp(words) => drop(tcp.write_all(words).await),
                        Manner::Says(words) => drop(tcp.write_all(words).await),
                        Manner::Hangs => pending().await,
                        Manner::Leaves => return,
                    }
                }
            });
        }
    });
    address
}

fn to(relay: SocketAddr) -> Dial {
    Dial {
        interface: None,
        local: None,
        mark: None,
        relay,
        relay_udp: relay,
        name: None,
        relay_key: [7; 32],
        proxy: None,
    }
}

/// What a dial by such a proxy, or to such a server where there is none, is told to come to.
async fn told(scheme: Option<&str>, manner: Manner) -> String {
    let address = misbehaving(manner).await;
    let mut dial = to(address);
    dial.proxy = scheme.map(|scheme| format!("{scheme}://{address}").parse().unwrap());
    dial.connect().await.err().unwrap().to_string()
}

#[test]
fn whatever_is_no_relay_and_no_proxy_is_named() {
    use Manner::{Hangs, Leaves, Says};
    let (http, socks) = (Some("http"), Some("socks5"));
    let password = "asks for a user and password";
    let no_proxy = "does not answer as one";
    let no_tls = "a login page (captive portal)";
    let asks = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
    let cases: [(Option<&str>, Manner, &str); 15] = [
        (http, Says(asks), password),
        (http, Says(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"), "HTTP 502"),
        (http, Says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), no_proxy),
        (http, Says(&[0xff; 64]), no_proxy),
        (http, Hangs, no_proxy),
        (http, Leaves, no_proxy),
        (http, Says(PORTAL), no_tls),
        (socks, Says(&[5, 0xff]), password),
        (socks, Says(&[5, 2]), password),
        (socks, Says(&[5, 0, 5, 5, 0, 1]), "SOCKS5 reply 5"),
        (socks, Says(PORTAL), no_proxy),
        (socks, Hangs, no_proxy),
        (None, Says(PORTAL), no_tls),
        (None, Hangs, "TLS with"),
        (None, Leaves, "TLS with"),
    ];
    run(async move {
        // All at once: those that hang are given up after five seconds each.
        let told = cases.map(|(scheme, manner, expected)| {
            spawn_local(async move { (told(scheme, manner).await, scheme, manner, expected) })
        });
        for case in told {
            let (text, scheme, manner, expected) = case.await.unwrap();
            assert!(text.contains(expected), "{scheme:?} {manner:?}: {text}");
        }
    });
}

/// A proxy that lets no TLS out is asked for UDP; what comes of that is told beside the first.
#[test]
fn a_proxy_without_connect_and_without_udp_is_named() {
    let cases: [(&[u8], &str); 7] = [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "a user and password",
        ),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "HTTP 404"),
        (b"HTTP/1.1 501 Not Implemented\r\n\r\n", "HTTP 501"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP 400"),
        // It has taken it for a request of a page.
        (PORTAL, "HTTP 200"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not answer as one"),
        (b"", "does not answer as one"),
    ];
    run(async move {
        let told = cases.map(|(words, expected)| {
            spawn_local(async move { (told(Some("http"), Manner::Udp(words)).await, expected) })
        });
        for case in told {
            let (text, expected) = case.await.unwrap();
            let (first, second) = text.split_once("nor does the proxy pass UDP on").unwrap();
            assert!(
                first.contains("HTTP 403") && second.contains(expected),
                "{text}"
            );
        }
    });
}

/// A proxy that connects nobody, and passes UDP on (RFC 9298): with something of its own to say
/// before, between and around datagrams.
async fn udp_proxy() -> SocketAddr {
    let (listener, address) = listener().await;
    spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            spawn_local(pass_udp(tcp));
        }
    });
    address
}

async fn pass_udp(mut tcp: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match tcp.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let place = head.split("/.well-known/masque/udp/").nth(1);
    let (Some(place), true) = (place, head.contains("\r\nUpgrade: connect-udp\r\n")) else {
        drop(tcp.write_all(NO).await);
        return;
    };
    let mut place = place.split('/');
    let (host, port) = (place.next().unwrap(), place.next().unwrap());
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    far.connect(format!("{host}:{port}")).await.unwrap();
    let hello = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                  Upgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n";
    tcp.write_all(hello).await.unwrap();
    let (mut capsules, mut datagram) = (Deframer::of_capsules(), vec![0; 9_000]);
    let mut bytes = vec![0; 4_096];
    loop {
        tokio::select! {
            read = tcp.read(&mut bytes) => match read {
                Ok(len @ 1..) => {
                    capsules.push(&bytes[..len]);
                    while let Some(packet) = capsules.packet().unwrap() {
                        // The relay may not be there any more.
                        let _ = far.send(packet).await;
                    }
                }
                _ => return,
            },
            len = far.recv(&mut datagram) => if let Ok(len) = len {
                let mut out = vec![0x21, 3, 1, 2, 3];
                encapsulate(&datagram[..len], &mut out);
                if tcp.write_all(&out).await.is_err() {
                    return;
                }
            },
        }
    }
}

#[test]
fn a_proxy_that_passes_udp_alone_carries_the_link() {
    run(async {
        let proxy = udp_proxy().await;
        // The relay takes in no TLS at all.
        let relay = RunningRelay::start(RelayOptions {
            server: true,
            ..RelayOptions::default()
        });
        let client = bonded(&relay, free_port().await, Some(proxy)).await;
        let stream = Stream::start(&client, relay.server.unwrap()).await;
        let link = || second_link(&client);
        eventually("b is carried", || {
            let link = link();
            let status = link.path.map(|path| path.status);
            link.carrier == Carrier::Tls && status == Some(PathStatus::Active)
        })
        .await;
        let received = || link().path.map_or(0, |path| path.received.get());
        let before = received();
        eventually("data by the proxy", || received() > before + 100_000).await;
        stream.grows("by both").await;
        client.close().await;
        relay.stop();
    });
}

#[test]
fn a_web_server_that_is_no_relay_is_named() {
    run(async {
        let (listener, address) = listener().await;
        let certificate = Certificate::made_up("www.example.net").unwrap();
        let acceptor = Acceptor::new(&[9; 32], certificate).unwrap();
        spawn_local(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            assert!(matches!(acceptor.visit(tcp).await, Ok(Visit::Stranger)));
        });
        let text = to(address).connect().await.err().unwrap().to_string();
        assert!(text.contains("no relay (HTTP 404)"), "{text}");
    });
}

/// A relay with TLS, and a client of two links: `a` by UDP, `b` by TLS at `door` or by `proxy`.
async fn bonded(relay: &RunningRelay, door: u16, proxy: Option<SocketAddr>) -> Client {
    let mut config = client_config(relay);
    config.relays[0].tls = Some(TlsPeer {
        port: door,
        name: None,
    });
    config.links[0].carrier.kind = CarrierKind::Udp;
    config.links[1].carrier = CarrierWish {
        kind: CarrierKind::Tls,
        proxy: proxy.map(|at| format!("http://{at}").parse().unwrap()),
    };
    Client::connect(config).await.unwrap()
}

/// A port that is free at this moment.
async fn free_port() -> u16 {
    let (_, address) = listener().await;
    address.port()
}

fn relay_with_tls(port: u16) -> RunningRelay {
    RunningRelay::start(RelayOptions {
        server: true,
        tls: Some(port),
        ..RelayOptions::default()
    })
}

fn second_link(client: &Client) -> LinkSnapshot {
    let mut links = client.snapshot().links.into_iter();
    links.find(|link| link.name == "b").unwrap()
}

#[test]
fn a_link_behind_a_login_page_says_so_and_the_other_goes_on() {
    run(async {
        let portal = misbehaving(Manner::Says(PORTAL)).await;
        let relay = relay_with_tls(free_port().await);
        let client = bonded(&relay, portal.port(), Some(portal)).await;
        let stream = Stream::start(&client, relay.server.unwrap()).await;
        eventually("b says why", || {
            let why = second_link(&client).carrier_why;
            why.is_some_and(|why| why.starts_with("no TLS: ") && why.contains("login page"))
        })
        .await;
        stream.grows("by the other link").await;
        client.close().await;
        relay.stop();
    });
}

/// Passes on what comes to `from` and from `to`, and resets both after so many bytes.
async fn cut(mut from: TcpStream, mut to: TcpStream, after: usize) {
    let (mut there, mut back) = (vec![0; 1_000], vec![0; 1_000]);
    let mut passed = 0;
    while passed < after {
        let moved = tokio::select! {
            read = from.read(&mut there) => match read {
                Ok(len @ 1..) => to.write_all(&there[..len]).await.map(|()| len),
                _ => return,
            },
            read = to.read(&mut back) => match read {
                Ok(len @ 1..) => from.write_all(&back[..len]).await.map(|()| len),
                _ => return,
            },
        };
        match moved {
            Ok(len) => passed += len,
            Err(_) => return,
        }
    }
    // What is unread when a socket is closed makes the kernel reset it.
    drop(tabane_linux::abortive::AbortiveStream::from(from));
    drop(tabane_linux::abortive::AbortiveStream::from(to));
}

#[test]
fn connections_that_are_reset_after_ten_kilobytes_cost_the_session_nothing() {
    run(async {
        let port = free_port().await;
        let relay = relay_with_tls(port);
        let (box_listener, box_address) = listener().await;
        spawn_local(async move {
            loop {
                let (from, _) = box_listener.accept().await.unwrap();
                let to = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                spawn_local(cut(from, to, 10_000));
            }
        });
        let client = bonded(&relay, box_address.port(), None).await;
        let stream = Stream::start(&client, relay.server.unwrap()).await;
        eventually("b says why", || {
            let why = second_link(&client).carrier_why;
            why.is_some_and(|why| why.contains("end soon after they began"))
        })
        .await;
        stream.grows("by the other link").await;
        assert_eq!(client.snapshot().sessions, 1);
        client.close().await;
        relay.stop();
    });
}

/// Opens the TLS of whoever comes, by a certificate of its own, and looks into what it passes on.
async fn intercept(listener: TcpListener, relay: SocketAddr, relay_key: [u8; 32]) {
    let certificate = Certificate::made_up("firewall.example.net").unwrap();
    let acceptor = Acceptor::new(&relay_key, certificate).unwrap();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        spawn_local(async move {
            let Ok(Visit::Client(mut inside)) = acceptor.visit(tcp).await else {
                return;
            };
            let mut dial = to(relay);
            dial.relay_key = relay_key;
            let mut outside = dial.connect().await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
        });
    }
}

#[test]
fn a_box_that_opens_tls_carries_a_session_that_it_cannot_read() {
    run(async {
        let port = free_port().await;
        let relay = relay_with_tls(port);
        let (box_listener, box_address) = listener().await;
        let door = SocketAddr::from(([127, 0, 0, 1], port));
        spawn_local(intercept(box_listener, door, relay.key.0));
        let client = bonded(&relay, box_address.port(), None).await;
        eventually("b is carried through the box", || {
            let link = second_link(&client);
            let status = link.path.map(|path| path.status);
            link.carrier == Carrier::Tls && status == Some(PathStatus::Active)
        })
        .await;
        let stream = Stream::start(&client, relay.server.unwrap()).await;
        stream.grows("by both").await;
        client.close().await;
        relay.stop();
    });
}
