//! Programs that know nothing of tabane, one per role. Each panics where it sees anything but
//! the addresses it asked for.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use socket2::{Domain, Protocol, Socket, Type};

use super::egress;

pub(crate) fn play(role: &str) {
    match role {
        "tcp4" => tcp(connect("192.0.2.1:80"), "192.0.2.1:80"),
        "tcp6" => tcp(connect("[2001:db8::1]:443"), "[2001:db8::1]:443"),
        "tcp4-on-v6-socket" => {
            let dest = address("[::ffff:192.0.2.1]:80");
            let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.connect(&dest.into()).unwrap();
            tcp(socket.into(), "[::ffff:192.0.2.1]:80");
        }
        "tcp-pair" => {
            let first = std::thread::spawn(|| tcp(connect("192.0.2.1:80"), "192.0.2.1:80"));
            tcp(connect("192.0.2.2:81"), "192.0.2.2:81");
            first.join().unwrap();
        }
        "tcp4-bound" => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.bind(&address("198.51.100.7:0").into()).unwrap();
            socket.connect(&address("192.0.2.1:80").into()).unwrap();
            tcp(socket.into(), "192.0.2.1:80");
        }
        "waits-blocking" => {
            let watched = std::thread::spawn(|| connect("192.0.2.1:80"));
            std::thread::sleep(WAITS);
            assert!(!watched.is_finished());
            println!("waiting");
            drop(watched.join().unwrap());
        }
        "waits-polling" => polls("192.0.2.1:80"),
        "waits-polling-v6" => polls("[2001:db8::1]:80"),
        "times-out" => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
            let patience = Duration::from_millis(1_500);
            socket.set_tcp_user_timeout(Some(patience)).unwrap();
            let error = socket.connect(&address("192.0.2.1:80").into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
        "asks-twice" => drop(connect("192.0.2.1:80")),
        "crowd" => crowd("192.0.2.1:80", 1_000),
        "tcp4-lingering" => {
            let mut stream = connect("192.0.2.1:80");
            let _ = stream.read(&mut [0; 1]);
        }
        "udp4-connected" => udp_connected("0.0.0.0:0", "192.0.2.1:7"),
        "udp6-connected" => udp_connected("[::]:0", "[2001:db8::1]:7"),
        "udp4-bound" => udp(&udp_socket("198.51.100.7:0"), &["192.0.2.1:7"]),
        "udp4-pair" => udp(&udp_socket("0.0.0.0:0"), &["192.0.2.1:7", "192.0.2.2:7"]),
        "udp6-pair" => udp(
            &udp_socket("[::]:0"),
            &["[2001:db8::1]:7", "[2001:db8::2]:7"],
        ),
        "udp6-only-pair" => {
            let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).unwrap();
            socket.set_only_v6(true).unwrap();
            udp(&socket.into(), &["[2001:db8::1]:7", "[2001:db8::2]:7"]);
        }
        "udp-both-families" => {
            udp(
                &udp_socket("[::]:0"),
                &["[::ffff:192.0.2.1]:7", "[2001:db8::2]:7"],
            );
        }
        "names-tcp" | "names-mptcp" => {
            for dest in ["192.0.2.1:80", "[2001:db8::1]:443"] {
                let stream = match role {
                    "names-tcp" => connect(dest),
                    _ => connect_by_mptcp(dest),
                };
                assert_eq!(
                    stream.local_addr().unwrap().ip(),
                    plain_name(dest),
                    "{dest}"
                );
                tcp(stream, dest);
            }
        }
        "udp4-stranger" => stranger("0.0.0.0:0", ["192.0.2.1:7", "192.0.2.9:99"]),
        "udp6-stranger" => stranger("[::]:0", ["[2001:db8::1]:7", "[2001:db8::9]:99"]),
        "udp4-refused" => nobody_there("0.0.0.0:0", "192.0.2.1:7"),
        "udp6-refused" => nobody_there("[::]:0", "[2001:db8::1]:7"),
        "names-udp" => names_of_udp_sockets(),
        "dns" => udp_connected("0.0.0.0:0", "127.0.0.53:53"),
        "dns-here" => {
            let socket = udp_socket("0.0.0.0:0");
            socket.connect("198.51.100.7:53").unwrap();
            assert_eq!(
                socket.local_addr().unwrap().ip(),
                plain_name("198.51.100.7:53")
            );
            udp_connected("0.0.0.0:0", "198.51.100.7:53");
        }
        "to-itself" => to_itself("198.51.100.7:0"),
        "dns-in-range" => udp_connected("0.0.0.0:0", "192.0.2.9:53"),
        "left-alone" => left_alone(),
        "by-interface" => egress::by_interface(),
        "as-answered" => egress::as_answered(),
        "to-all" => egress::to_all(),
        "shut" => unreachable("192.0.2.1:80"),
        "udp-server" => {
            let socket = udp_socket("198.51.100.7:5001");
            let (_, from) = socket.recv_from(&mut [0; 16]).unwrap();
            socket.send_to(b"answer", from).unwrap();
        }
        role if role.starts_with("intrude-") => intrude(&role["intrude-".len()..]),
        role => match role
            .strip_prefix("refused-")
            .and_then(|it| it.rsplit_once('-'))
        {
            Some((socket, kind)) => refused(socket, kind),
            None => panic!("no role {role}"),
        },
    }
}

/// So long nothing happens to a socket whose destination has not answered.
const WAITS: Duration = Duration::from_millis(100);

fn non_blocking(dest: &str) -> Socket {
    let dest = address(dest);
    let socket = Socket::new(Domain::for_address(dest), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let error = socket.connect(&dest.into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EINPROGRESS));
    socket
}

/// Whether something happens to the socket within `wait`.
fn poll(socket: &Socket, wait: Option<Duration>) -> bool {
    let wait = wait.map(|wait| Timespec::try_from(wait).unwrap());
    let mut one = [PollFd::new(socket, PollFlags::OUT)];
    rustix::event::poll(&mut one, wait.as_ref()).unwrap() == 1
}

fn polls(dest: &str) {
    let socket = non_blocking(dest);
    assert!(!poll(&socket, Some(WAITS)));
    assert!(socket.peer_addr().is_err());
    println!("waiting");
    assert!(poll(&socket, None));
    assert!(socket.take_error().unwrap().is_none());
    assert_eq!(
        socket.peer_addr().unwrap().as_socket().unwrap(),
        address(dest)
    );
}

fn refused(socket: &str, kind: &str) {
    let error = match socket {
        "tcp4" => TcpStream::connect(address("192.0.2.1:80")).unwrap_err(),
        "tcp6" => TcpStream::connect(address("[2001:db8::1]:80")).unwrap_err(),
        "tcp4-bound-early" => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.bind(&address("0.0.0.0:0").into()).unwrap();
            socket.connect(&address("192.0.2.1:80").into()).unwrap_err()
        }
        _ => {
            let socket = non_blocking("192.0.2.1:80");
            assert!(poll(&socket, None));
            socket.take_error().unwrap().unwrap()
        }
    };
    assert_eq!(format!("{:?}", error.kind()), kind);
}

/// Many sockets that wait at the same time.
fn crowd(dest: &str, count: usize) {
    let sockets: Vec<_> = (0..count).map(|_| non_blocking(dest)).collect();
    for socket in &sockets {
        assert!(poll(socket, None));
        assert!(socket.take_error().unwrap().is_none());
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn connect(dest: &str) -> TcpStream {
    TcpStream::connect(address(dest)).unwrap()
}

/// Sends something, gets it in capitals, sees the peer it asked for.
fn tcp(mut stream: TcpStream, dest: &str) {
    assert_eq!(stream.peer_addr().unwrap(), address(dest));
    stream.write_all(b"hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HELLO");
}

fn udp_socket(local: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address(local)).unwrap();
    // The least that is no question about the way.
    socket.set_ttl(32).unwrap();
    socket
}

fn udp_connected(local: &str, dest: &str) {
    let socket = udp_socket(local);
    socket.connect(address(dest)).unwrap();
    assert_eq!(socket.peer_addr().unwrap(), address(dest));
    socket.send(b"hello").unwrap();
    let mut answer = [0; 16];
    let (length, from) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(
        (&answer[..length], from),
        (b"HELLO".as_slice(), address(dest))
    );
}

/// Sends each destination its own number from one socket, and expects each answer from there.
fn udp(socket: &UdpSocket, dests: &[&str]) {
    for (number, dest) in dests.iter().enumerate() {
        socket
            .send_to(format!("to {number}").as_bytes(), address(dest))
            .unwrap();
    }
    let mut answered = Vec::new();
    for _ in dests {
        let mut answer = [0; 16];
        let (length, from) = socket.recv_from(&mut answer).unwrap();
        let number = dests.iter().position(|dest| address(dest) == from);
        let number = number.unwrap_or_else(|| panic!("an answer from {from}, never asked"));
        assert_eq!(answer[..length], *format!("TO {number}").as_bytes());
        answered.push(number);
    }
    answered.sort_unstable();
    assert_eq!(answered, (0..dests.len()).collect::<Vec<_>>());
}

/// What a socket would be called that asks the routing table alone: connecting to port 0 does.
fn plain_name(dest: &str) -> IpAddr {
    let dest = address(dest);
    let local = if dest.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = udp_socket(local);
    socket.connect(SocketAddr::new(dest.ip(), 0)).unwrap();
    let name = socket.local_addr().unwrap().ip();
    assert!(!name.to_canonical().is_loopback(), "{dest}: {name}");
    name
}

fn connect_by_mptcp(dest: &str) -> TcpStream {
    let dest = address(dest);
    let domain = Domain::for_address(dest);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
    socket.connect(&dest.into()).unwrap();
    socket.into()
}

/// A server of the program's own sees the very socket that speaks to it.
fn to_itself(own: &str) {
    let listener = std::net::TcpListener::bind(own).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (_, from) = listener.accept().unwrap();
    assert_eq!(from, stream.local_addr().unwrap());
    let server = udp_socket(own);
    let client = udp_socket(own);
    client.send_to(b"x", server.local_addr().unwrap()).unwrap();
    let (_, from) = server.recv_from(&mut [0; 1]).unwrap();
    assert_eq!(from, client.local_addr().unwrap());
}

/// Is answered from elsewhere than it asked, and speaks with who did.
fn stranger(local: &str, [asked, stranger]: [&str; 2]) {
    let socket = udp_socket(local);
    socket.send_to(b"question", address(asked)).unwrap();
    let mut answer = [0; 16];
    let (length, from) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(
        (&answer[..length], from),
        (b"here".as_slice(), address(stranger))
    );
    socket.send_to(b"thanks", from).unwrap();
}

/// Sends to the address that stands for another socket's flow, the first there is.
fn intrude(port: &str) {
    let asks = udp_socket("0.0.0.0:0");
    asks.send_to(b"hello", address("192.0.2.1:7")).unwrap();
    for (local, of) in [
        ("0.0.0.0:0", "127.128.0.1"),
        ("[::]:0", "[::ffff:127.128.0.1]"),
    ] {
        let flow = address(&format!("{of}:{port}"));
        let other = udp_socket(local);
        let refused = [
            other.send_to(b"mine", flow).unwrap_err(),
            other.connect(flow).unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{flow}");
        }
    }
    let mut answer = [0; 16];
    let (length, _) = asks.recv_from(&mut answer).unwrap();
    assert_eq!(&answer[..length], b"HELLO");
}

fn nobody_there(local: &str, dest: &str) {
    let socket = udp_socket(local);
    socket.connect(address(dest)).unwrap();
    socket.send(b"anybody?").unwrap();
    let error = socket.recv(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

fn names_of_udp_sockets() {
    for dest in ["192.0.2.1:7", "[2001:db8::1]:7", "[::ffff:192.0.2.1]:7"] {
        let name = plain_name(dest);
        let any = if name.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = udp_socket(any);
        let port = socket.local_addr().unwrap().port();
        assert!(socket.local_addr().unwrap().ip().is_unspecified(), "{dest}");
        socket.connect(address(dest)).unwrap();
        assert_eq!(
            socket.local_addr().unwrap(),
            SocketAddr::new(name, port),
            "{dest}"
        );
    }
    // A name that the program chose is its own, and so is that of who talks to its own machine.
    let bound = udp_socket("198.51.100.9:0");
    bound.connect(address("192.0.2.1:7")).unwrap();
    assert_eq!(
        bound.local_addr().unwrap().ip(),
        address("198.51.100.9:0").ip()
    );
    for dest in ["127.0.0.1:9", "127.0.0.53:53", "[::1]:53"] {
        let dest = address(dest);
        let socket = udp_socket(if dest.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        });
        socket.connect(dest).unwrap();
        let expected = if dest.is_ipv4() { "127.0.0.1" } else { "::1" };
        assert_eq!(
            socket.local_addr().unwrap().ip(),
            expected.parse::<IpAddr>().unwrap()
        );
    }
}

fn unreachable(dest: &str) {
    let error = TcpStream::connect(address(dest)).expect_err(dest);
    let kinds = [ErrorKind::NetworkUnreachable, ErrorKind::InvalidInput];
    assert!(kinds.contains(&error.kind()), "{dest}: {error}");
}

/// Everything here must fail or succeed as if there were no hooks: the namespace has no routes.
fn left_alone() {
    unreachable("203.0.113.9:80"); // excluded
    unreachable("[2001:db8:bad::9]:80"); // excluded
    unreachable("169.254.1.1:80");
    unreachable("[fe80::1]:80");
    unreachable("224.0.0.251:5353");
    let refused = TcpStream::connect(address("127.0.0.1:9")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    let fails = |socket: Socket, dest: &str| {
        let error = socket.connect(&address(dest).into()).expect_err(dest);
        assert_eq!(
            error.kind(),
            ErrorKind::NetworkUnreachable,
            "{dest}: {error}"
        );
    };
    let tcp4 = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    let marked = tcp4();
    marked.set_mark(0x7ab).unwrap();
    fails(marked, "192.0.2.1:80");

    // What cannot reach a v4-mapped address must not be sent to one.
    let v6_only = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).unwrap();
    v6_only.set_only_v6(true).unwrap();
    fails(v6_only, "[2001:db8::1]:80");

    let v6_bound = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).unwrap();
    v6_bound.bind(&address("[::1]:0").into()).unwrap();
    fails(v6_bound, "[2001:db8::1]:80");

    // Few hops: connected or not, of both families.
    for (domain, dest) in [
        (Domain::IPV4, "192.0.2.1:80"),
        (Domain::IPV6, "[2001:db8::1]:80"),
    ] {
        for hops in [1, 31] {
            let probe = || {
                let probe = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).unwrap();
                match domain {
                    Domain::IPV4 => probe.set_ttl_v4(hops).unwrap(),
                    _ => probe.set_unicast_hops_v6(hops).unwrap(),
                }
                probe
            };
            fails(probe(), dest);
            let error = probe().send_to(b"x", &address(dest).into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{dest}");
        }
    }

    // An interface named for datagrams alone: there is no way by it, or as below.
    let named = named_interface(Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF);
    let error = named.send_to(b"x", &address("[2001:db8::1]:80").into());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    let named = named_interface(Domain::IPV4, libc::IPPROTO_IP, libc::IP_UNICAST_IF);
    let sent = named.send_to(b"not captured", &address("192.0.2.1:80").into());
    sent.unwrap();

    // Bound to a device. Whether the datagram was captured is seen by the test.
    let device = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    device.bind_device(Some(b"lo")).unwrap();
    device.connect(&address("192.0.2.1:80").into()).unwrap();
    device.send(b"not captured").unwrap();
}

/// A socket for datagrams that are to leave by loopback, without being bound to it.
fn named_interface(domain: Domain, level: i32, option: i32) -> Socket {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    let index = 1_u32.to_be();
    // SAFETY: the kernel reads four bytes of `index`.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const index).cast(),
            size_of_val(&index) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    socket
}
