//! What all links carry together, and what an outage costs: the figures of the ARMS cells, in
//! virtual time. `cargo xtask bench arms` has them with sockets and real time.
//!
//! `CELLS=8x30+3x30,… BYTES=20000000 cargo test -p tabane-sctp --test aggregate -- --nocapture`
//! prints what those cells give; `TRACE=0.1` beside it shows the paths so often, in seconds. The
//! stack draws its numbers by itself, so runs differ a little.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod world;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tabane_sctp::{
    EndpointId, Event, Families, Incoming, Message, PathTuple, Sent, Settings, Stack,
};
use world::{Shape, UDP, World, far, id_of, near};

const PORT: u16 = 5_000;
const MESSAGE: usize = 1_340;
/// dummynet's default of 50 packets.
const QUEUE: usize = 75_000;
const PATIENCE: Duration = Duration::from_secs(2_000);

/// How a transfer went.
#[derive(Debug)]
struct Outcome {
    mbps: f64,
    /// The longest time in which the receiver got nothing.
    silence: Duration,
    /// Bytes by link, headers included.
    carried: Vec<usize>,
    dropped: Vec<usize>,
}

/// A stack, and how many transfers it has made.
struct Lab {
    stack: Option<Stack>,
    number: u16,
    trace: Option<Duration>,
}

impl Lab {
    fn transfer(&mut self, shapes: &[Shape], bytes: usize) -> Outcome {
        self.number += 1;
        let mut stack = self.stack.take().unwrap();
        let links = 0..shapes.len();
        let homes: Vec<IpAddr> = links.clone().map(far).collect();
        let locals: Vec<IpAddr> = links.clone().map(near).collect();
        let way = |link| PathTuple {
            link: id_of(link),
            remote: SocketAddr::new(far(link), UDP),
        };
        let ways: Vec<PathTuple> = links.clone().map(way).collect();
        let port = PORT + self.number;
        let listener = stack.open(Families::V4, &homes, port, 0).unwrap();
        stack.listen(listener).unwrap();
        let sender = stack.open(Families::V4, &locals, port + 10_000, 0).unwrap();
        stack.connect(sender, &ways, port).unwrap();
        let mut world = World::new(stack, shapes);
        world.flush();
        let (mbps, silence) = self.run(&mut world, sender, listener, bytes);
        let outcome = Outcome {
            mbps,
            silence,
            carried: links.clone().map(|link| world.carried(link)).collect(),
            dropped: links.map(|link| world.dropped(link)).collect(),
        };
        world.stack.close(sender);
        // The last packets arrive, or not.
        for _ in 0..200 {
            world.step();
        }
        world.stack.close(listener);
        self.stack = Some(world.stack);
        outcome
    }

    /// Sends so much; gives Mbit/s from the association's beginning on, and the longest silence.
    fn run(
        &self,
        world: &mut World,
        sender: EndpointId,
        listener: EndpointId,
        bytes: usize,
    ) -> (f64, Duration) {
        let message = vec![7; MESSAGE];
        let (mut sent, mut received) = (0, 0);
        let mut up = None;
        let (mut begun_at, mut heard_at) = (Duration::ZERO, Duration::ZERO);
        let (mut silence, mut shown_at) = (Duration::ZERO, Duration::ZERO);
        while received < bytes {
            world.step();
            let now = world.now();
            assert!(now < PATIENCE, "{received} of {bytes} bytes");
            while let Some(incoming) = world.stack.poll_event(sender) {
                if let Incoming::Event(Event::Up { association, .. }) = incoming {
                    up = Some(association);
                    (begun_at, heard_at) = (now, now);
                }
            }
            while let Some(incoming) = world.stack.poll_event(listener) {
                if let Incoming::Piece(piece) = incoming {
                    received += piece.data.len();
                    silence = silence.max(now - heard_at);
                    heard_at = now;
                }
            }
            while let Some(association) = up.filter(|_| sent < bytes) {
                let message = Message {
                    data: &message[..MESSAGE.min(bytes - sent)],
                    stream: 0,
                    protocol: 7,
                    path: None,
                };
                match world.stack.send(sender, association, message).unwrap() {
                    Sent::Queued => sent += message.data.len(),
                    Sent::Full => break,
                }
            }
            world.flush();
            if self.trace.is_some_and(|pause| now >= shown_at + pause) {
                shown_at = now;
                world.show(sender, received);
            }
        }
        let seconds = (world.now() - begun_at).as_secs_f64();
        (bytes as f64 * 8.0 / 1e6 / seconds, silence)
    }
}

/// Links as Mbit/s x round trip in ms, joined by +.
fn shapes(cell: &str) -> Vec<Shape> {
    let shape = |link: &str| {
        let (rate, rtt) = link.split_once('x').unwrap();
        let ms = |text: &str| text.parse::<f64>().unwrap() / 1e3;
        Shape {
            rate: rate.parse::<f64>().unwrap() * 1e6,
            delay: Duration::from_secs_f64(ms(rtt) / 2.0),
            queue: QUEUE,
            outage: Duration::ZERO..Duration::ZERO,
        }
    };
    cell.split('+').map(shape).collect()
}

fn rates(shapes: &[Shape]) -> f64 {
    shapes.iter().map(|shape| shape.rate).sum::<f64>() / 1e6
}

/// One that the ARMS paper has, by equal links, and by unequal ones; and what it left open.
const CELLS: [&str; 8] = [
    "1x30+1x30",
    "1x60+1x60",
    "2x60+2x30",
    "2x60+2x60",
    "2x60+1x30",
    "8x30+3x30",
    "2x30+2x60+1x30",
    "4x30+2x30+2x60+1x60",
];
/// Of 1,396 bytes on the wire 1,340 are the user's, so .96 of the rates is all there is.
const OF_RATES: f64 = 0.86;
const EQUAL_OF_ONE: f64 = 1.9;

#[test]
fn links_carry_together_what_they_carry_alone() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let mut lab = Lab {
        stack: Some(Stack::start(&Settings::default()).unwrap()),
        number: 0,
        trace: number("TRACE").map(Duration::from_secs_f64),
    };
    let bytes = number("BYTES").map_or(4_000_000, |bytes: f64| bytes as usize);
    if let Ok(cells) = std::env::var("CELLS") {
        for cell in cells.split(',') {
            measure(&mut lab, cell, bytes);
        }
        return;
    }
    let alone = ["1x30", "1x60", "2x30", "2x60"].map(|link| (link, measure(&mut lab, link, bytes)));
    for cell in CELLS {
        let mbps = measure(&mut lab, cell, bytes);
        let all = rates(&shapes(cell));
        assert!(mbps > OF_RATES * all, "{cell}: {mbps} of {all} Mbit/s");
        let links: Vec<&str> = cell.split('+').collect();
        let is_equal = |link: &&str| link[..2] == links[0][..2];
        if links.len() == 2 && links.iter().all(is_equal) {
            let best = |(link, mbps): &(&str, f64)| links.contains(link).then_some(*mbps);
            let best = alone.iter().filter_map(best).fold(0.0, f64::max);
            assert!(mbps > EQUAL_OF_ONE * best, "{cell}: {mbps}, one {best}");
        }
    }
    a_link_that_pauses_is_used_again(&mut lab);
    a_link_that_is_cut_holds_nothing_up(&mut lab);
}

fn measure(lab: &mut Lab, cell: &str, bytes: usize) -> f64 {
    let shapes = shapes(cell);
    let done = lab.transfer(&shapes, bytes);
    let of_all = done.mbps / rates(&shapes);
    println!(
        "{cell:20} {bytes:9} B {:.3} Mbit/s, {of_all:.3} of the rates, {} ms of silence, {:?} lost",
        done.mbps,
        done.silence.as_millis(),
        done.dropped,
    );
    done.mbps
}

fn a_link_that_pauses_is_used_again(lab: &mut Lab) {
    let mut shapes = shapes("2x60+2x60");
    shapes[1].outage = Duration::from_secs(3)..Duration::from_secs(6);
    let done = lab.transfer(&shapes, 8_000_000);
    println!("a pause of 3 s: {done:?}");
    assert!(done.silence < Duration::from_secs(2), "{done:?}");
    // Of 18 s and a little, it was there for all but three, and may take two or three to find back.
    assert!(done.carried[1] * 2 > done.carried[0], "{done:?}");
}

fn a_link_that_is_cut_holds_nothing_up(lab: &mut Lab) {
    let mut shapes = shapes("8x30+3x30");
    shapes[1].outage = Duration::from_secs(2)..PATIENCE;
    let done = lab.transfer(&shapes, 8_000_000);
    println!("a cut: {done:?}");
    assert!(done.silence < Duration::from_secs(2), "{done:?}");
    assert!(done.mbps > 0.75 * 8.0, "{done:?}");
}
