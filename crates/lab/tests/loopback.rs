//! The relays on loopback, which need no privilege.
//!
//! ```text
//!  client socket ── relay 1 ═ 20 Mbit/s, 10 ms ═ ─┐
//!                └─ relay 2 ═ 5 Mbit/s, 30 ms  ═ ─┴─ server socket
//! ```

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use tabane_base::Seed;
use tabane_lab::Loopback;
use tabane_netem::Scenario;

const LINKS: &str = r#"
    name = "test"
    why = "test"
    link = [
      { name = "a", rate = "20mbit", delay = "10ms", queue = "200kB" },
      { name = "b", rate = "5mbit", delay = "30ms", queue = "100kB" },
    ]"#;

#[test]
fn delay_and_outage_are_those_of_the_scenario() {
    let server = echo();
    let relays = relays(server);
    for (link, expected) in relays.links().iter().zip([20, 60]) {
        let socket = client(link.address);
        let expected = Duration::from_millis(expected);
        let bound = expected + Duration::from_millis(8);
        let mut least = Duration::MAX;
        // A machine that is held up needs more than five until one is not.
        for asked in 1..=50 {
            least = least.min(round_trip(&socket).unwrap_or(Duration::MAX));
            if asked >= 5 && least < bound {
                break;
            }
        }
        assert!(least >= expected, "{least:?} < {expected:?}");
        assert!(least < bound, "{least:?} > {expected:?}");
    }
    let socket = client(relays.links()[0].address);
    relays.control().set_outage(0, true);
    assert_eq!(round_trip(&socket), None);
    relays.control().set_outage(0, false);
    round_trip(&socket).expect("the outage is over");
}

#[test]
fn the_rate_is_that_of_the_scenario() {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let relays = relays(sink.local_addr().unwrap());
    thread::spawn(move || while sink.recv(&mut [0; 2_000]).is_ok() {});
    let socket = client(relays.links()[1].address);
    let start = Instant::now();
    // 8 Mbit/s offered to 5, of which the warm-up does not count.
    let mut first = None;
    while start.elapsed() < Duration::from_millis(2_500) {
        socket.send(&[0; 972]).unwrap();
        thread::sleep(Duration::from_millis(1));
        if first.is_none() && start.elapsed() > Duration::from_millis(500) {
            first = Some((Instant::now(), relays.snapshot().unwrap()));
        }
    }
    let (since, before) = first.unwrap();
    let after = relays.snapshot().unwrap();
    let bytes = after.links[1].up.delivered.bytes - before.links[1].up.delivered.bytes;
    let offered = after.links[1].up.offered.bytes - before.links[1].up.offered.bytes;
    let seconds = since.elapsed().as_secs_f64();
    let [mbps, offered] = [bytes, offered].map(|b| b.bits() as f64 / 1e6 / seconds);
    let expected = offered.min(5.0);
    assert!(
        (mbps / expected - 1.0).abs() < 0.05,
        "{mbps} of {offered} Mbit/s"
    );
    assert!(after.links[1].up.queue_full.packets > 0 || offered < 5.2);
}

fn relays(server: SocketAddr) -> Loopback {
    let scenario = Scenario::parse(LINKS, None, &mut |_| Err("none".to_owned())).unwrap();
    Loopback::up(&scenario, server, Seed(1)).unwrap()
}

/// Sends every datagram back, until the process ends.
fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

fn client(relay: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(relay).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    socket
}

/// How long an answer takes; `None` if none comes within 300 ms.
fn round_trip(socket: &UdpSocket) -> Option<Duration> {
    let start = Instant::now();
    socket.send(b"ping").unwrap();
    socket.recv(&mut [0; 4]).ok().map(|_| start.elapsed())
}
