//! The lab against its own scenario files: do delay, rate, loss and outage come out on the real
//! kernel as they were asked for?
//!
//! ```text
//!  client                         emulator                         server
//!  link1 10.77.1.2 ── c1 ═ up: queue, rate, delay, loss ═ s1 ── 10.77.1.1 link1
//!  link2 10.77.2.2 ── c2 ═ down: the same               ═ s2 ── 10.77.2.1 link2
//!  (UDP and TCP clients)                                    lo: 10.78.0.1 (servers)
//! ```
//!
//! Needs root; skipped with a line otherwise.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tabane_lab::{Lab, LabError, LabOptions, SERVICE, SERVICE6};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

/// Wide enough for a busy machine, far below what a wrong model would show.
const LATE_MAX: Duration = Duration::from_millis(8);

#[test]
fn round_trips_take_both_delays_on_every_link_and_both_families() {
    let Some(lab) = lab(r#"
        link = [
          { name = "near", rate = "50mbit", delay = "10ms", queue = "200kB" },
          { name = "far", rate = "50mbit", queue = "200kB",
            delay = { down = "50ms", up = "20ms" } },
        ]"#)
    else {
        return;
    };
    echo(&lab, SERVICE.into(), 7000);
    echo(&lab, SERVICE6.into(), 7000);
    for (link, expected) in lab.links().iter().zip([20, 70]) {
        let expected = Duration::from_millis(expected);
        let ends: [(IpAddr, IpAddr); 2] = [
            (link.client.into(), SERVICE.into()),
            (link.client6.into(), SERVICE6.into()),
        ];
        for (from, to) in ends {
            let socket = client(&lab, from, (to, 7000).into());
            let least = least_round_trip(&socket, expected + LATE_MAX);
            assert!(least >= expected, "{from}: {least:?} < {expected:?}");
            assert!(
                least < expected + LATE_MAX,
                "{from}: {least:?} > {expected:?}"
            );
        }
    }
}

#[test]
fn one_connection_fills_a_link_and_no_more() {
    let Some(lab) = lab(r#"
        link = [{ name = "a", rate = "30mbit", delay = "5ms", queue = "200kB" }]"#)
    else {
        return;
    };
    let listener = lab
        .server()
        .run(|| TcpListener::bind((SERVICE, 7001)).unwrap())
        .unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(&[0; 65_536]).is_ok() {}
    });
    let mut stream = lab
        .client()
        .run(|| TcpStream::connect((SERVICE, 7001)).unwrap())
        .unwrap();
    let mut buffer = vec![0; 65_536];
    let mut read_for = |span: Duration| {
        let start = Instant::now();
        while start.elapsed() < span {
            assert!(stream.read(&mut buffer).unwrap() > 0);
        }
    };
    read_for(Duration::from_millis(500));
    // How near one kernel's TCP comes to the link depends also on how often a busy machine lets it
    // and the emulator run: one span of five in which it did is enough. More than the link has is
    // never right.
    let mut seen = Vec::new();
    let mut always_late = true;
    let (from, to, after) = loop {
        let before = lab.snapshot().unwrap();
        let start = Instant::now();
        read_for(Duration::from_secs(3));
        let after = lab.snapshot().unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let [from, to] = [&before, &after].map(|s| s.links[0].down.delivered);
        let mbps = (to.bytes - from.bytes).bits() as f64 / 1e6 / seconds;
        let late = after.health.late - before.health.late;
        always_late &= late * 20 > to.packets - from.packets;
        seen.push(mbps);
        assert!(mbps < 1.01 * 30.0, "{seen:?} Mbit/s of 30");
        if mbps >= 0.8 * 30.0 || (always_late && seen.len() == 5) {
            break (from, to, after);
        }
        assert!(seen.len() < 5, "{seen:?} Mbit/s of 30");
    };
    if always_late {
        eprintln!("skipped: the rate, since other work made the emulator late: {seen:?} Mbit/s");
    }
    let mean = (to.bytes - from.bytes).get() / (to.packets - from.packets);
    assert!((1_400..=1_500).contains(&mean), "{mean} bytes per packet");
    assert!(after.links[0].down.queued_max.get() <= 200_000);
    assert_eq!(
        (after.health.receive_drops, after.health.send_drops),
        (0, 0)
    );
}

#[test]
fn random_loss_takes_its_share() {
    let Some(lab) = lab(r#"
        link = [{ name = "a", rate = "50mbit", delay = "1ms", queue = "1MB",
                  loss = { down = "0%", up = "10%" } }]"#)
    else {
        return;
    };
    echo(&lab, SERVICE.into(), 7002);
    let socket = client(&lab, lab.links()[0].client.into(), (SERVICE, 7002).into());
    let answers = socket.try_clone().unwrap();
    let counting =
        thread::spawn(move || std::iter::from_fn(|| answers.recv(&mut [0; 100]).ok()).count());
    for _ in 0..40 {
        for _ in 0..50 {
            socket.send(&[0; 100]).unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    let got = counting.join().unwrap();
    // 2,000 × 0.9, four standard deviations either way.
    assert!((1_746..=1_854).contains(&got), "{got} of 2000 came back");
    assert_eq!(lab.snapshot().unwrap().links[0].down.lost.packets, 0);
}

#[test]
fn in_an_outage_packets_vanish_and_the_carrier_stays() {
    let Some(lab) = lab(r#"
        link = [
          { name = "a", rate = "50mbit", delay = "1ms", queue = "100kB" },
          { name = "b", rate = "50mbit", delay = "1ms", queue = "100kB",
            outage = [{ at = "1s", for = "60s" }] },
        ]"#)
    else {
        return;
    };
    echo(&lab, SERVICE.into(), 7003);
    let [a, b] = [0, 1].map(|link| {
        client(
            &lab,
            lab.links()[link].client.into(),
            (SERVICE, 7003).into(),
        )
    });
    lab.restart_schedule();
    round_trip(&b).expect("its outage begins after a second");
    lab.set_outage(0, true);
    assert_eq!(round_trip(&a), None);
    assert_eq!(carrier(lab.client(), "link1"), "1");
    lab.set_outage(0, false);
    round_trip(&a).expect("the outage is over");
    thread::sleep(Duration::from_secs(1));
    assert_eq!(round_trip(&b), None, "its scheduled outage");
    assert!(lab.snapshot().unwrap().links[1].out);
    lab.set_carrier(0, false).unwrap();
    assert_eq!(carrier(lab.client(), "link1"), "0");
    lab.set_carrier(0, true).unwrap();
    assert_eq!(carrier(lab.client(), "link1"), "1");
    round_trip(&a).expect("the cable is back in");
}

#[test]
fn a_wire_needs_no_emulator() {
    let Some(lab) = lab(r#"link = [{ name = "a" }, { name = "b" }]"#) else {
        return;
    };
    assert!(lab.control().is_none());
    echo(&lab, SERVICE.into(), 7004);
    for link in lab.links() {
        let socket = client(&lab, link.client.into(), (SERVICE, 7004).into());
        let least = least_round_trip(&socket, LATE_MAX);
        assert!(least < LATE_MAX, "{least:?}");
    }
}

#[test]
fn a_dropped_lab_leaves_nothing_behind() {
    let Some(lab) = lab(r#"link = [{ name = "a" }]"#) else {
        return;
    };
    let names = [
        lab.client().name().to_owned(),
        lab.server().name().to_owned(),
    ];
    let mut child = lab.client().command("sleep").arg("600").spawn().unwrap();
    assert!(Netns::names().contains(&names[0]));
    drop(lab);
    let left = Netns::names();
    assert!(!names.iter().any(|name| left.contains(name)), "{left:?}");
    let status = child.wait().unwrap();
    assert!(!status.success(), "the process inside was ended");
}

/// A lab of a scenario with these links; none without root.
fn lab(links: &str) -> Option<Lab> {
    let text = format!("name = \"test\"\nwhy = \"test\"\n{links}");
    let scenario = Scenario::parse(&text, None, &mut |_| Err("none".to_owned())).unwrap();
    match Lab::up(&scenario, &LabOptions::default()) {
        Ok(lab) => Some(lab),
        Err(LabError::NotRoot) => {
            eprintln!("skipped: needs root");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sends every datagram back, until the process ends.
fn echo(lab: &Lab, address: IpAddr, port: u16) {
    let socket = lab
        .server()
        .run(|| UdpSocket::bind((address, port)).unwrap())
        .unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

fn client(lab: &Lab, from: IpAddr, to: SocketAddr) -> UdpSocket {
    let socket = lab
        .client()
        .run(|| UdpSocket::bind((from, 0)).unwrap())
        .unwrap();
    socket.connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    socket
}

/// The shortest of five round trips, or of as many more as a machine that is held up needs until
/// one is shorter than `bound` (50 at most).
fn least_round_trip(socket: &UdpSocket, bound: Duration) -> Duration {
    let mut least = Duration::MAX;
    for asked in 1..=50 {
        least = least.min(round_trip(socket).unwrap_or(Duration::MAX));
        if asked >= 5 && least < bound {
            break;
        }
    }
    least
}

/// How long an answer takes; `None` if none comes within 300 ms.
fn round_trip(socket: &UdpSocket) -> Option<Duration> {
    let start = Instant::now();
    socket.send(b"ping").unwrap();
    socket.recv(&mut [0; 4]).ok().map(|_| start.elapsed())
}

fn carrier(netns: &Netns, interface: &str) -> String {
    let mut command: Command = netns.command("ip");
    let output = command
        .args(["-o", "link", "show", interface])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let down = text.contains("NO-CARRIER") || text.contains("LOWERLAYERDOWN");
    if down { "0" } else { "1" }.to_owned()
}
