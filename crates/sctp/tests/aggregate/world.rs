//! The stack as it ships, sending to itself over links of a rate, a delay and a queue, in virtual
//! time. The library asks the machine's clock how late it is; in this process it asks this file.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use tabane_sctp::{EndpointId, LinkId, PathState, Stack};

pub(crate) const UDP: u16 = 9_899;
/// As often as the program runs the timers, at least and at most.
const TICK: Duration = Duration::from_millis(5);
const STEP: Duration = Duration::from_millis(1);
/// IP and UDP.
const OVERHEAD: usize = 28;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::from_secs(1_000_000)) };
}

/// The C library's, to whom the stack's calls lead in this process.
///
/// # Safety
/// `time` points to room for one, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut libc::timeval, _zone: *mut libc::c_void) -> c_int {
    let now = NOW.get();
    if !time.is_null() {
        let value = libc::timeval {
            tv_sec: now.as_secs().try_into().unwrap_or(0),
            tv_usec: now.subsec_micros().into(),
        };
        // SAFETY: the caller's room.
        unsafe { time.write(value) };
    }
    0
}

/// A link, alike in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Bit/s.
    pub(crate) rate: f64,
    /// One way.
    pub(crate) delay: Duration,
    /// Bytes.
    pub(crate) queue: usize,
    /// When it loses everything, from the world's beginning on.
    pub(crate) outage: Range<Duration>,
}

struct Packet {
    from: SocketAddr,
    to: IpAddr,
    payload: Vec<u8>,
}

/// One direction of a link.
struct Pipe {
    shape: Shape,
    busy_until: Duration,
    /// What stands in the queue, by when it is out of it.
    queued: VecDeque<(Duration, usize)>,
    under_way: VecDeque<(Duration, Packet)>,
    dropped: usize,
    carried: usize,
}

impl Pipe {
    fn new(shape: Shape) -> Self {
        Self {
            shape,
            busy_until: Duration::ZERO,
            queued: VecDeque::new(),
            under_way: VecDeque::new(),
            dropped: 0,
            carried: 0,
        }
    }

    fn put(&mut self, now: Duration, is_out: bool, packet: Packet) {
        while self.queued.front().is_some_and(|(out, _)| *out <= now) {
            self.queued.pop_front();
        }
        let waiting: usize = self.queued.iter().map(|(_, len)| len).sum();
        let len = packet.payload.len() + OVERHEAD;
        if is_out || waiting + len > self.shape.queue {
            self.dropped += 1;
            return;
        }
        let takes = Duration::from_secs_f64(len as f64 * 8.0 / self.shape.rate);
        self.busy_until = self.busy_until.max(now) + takes;
        self.queued.push_back((self.busy_until, len));
        self.carried += len;
        let arrives_at = self.busy_until + self.shape.delay;
        self.under_way.push_back((arrives_at, packet));
    }

    fn arrived(&mut self, now: Duration) -> Option<Packet> {
        let is_due = |(at, _): &mut (Duration, Packet)| *at <= now;
        Some(self.under_way.pop_front_if(is_due)?.1)
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) stack: Stack,
    begun_at: Duration,
    ticked_at: Duration,
    out: Vec<Pipe>,
    back: Vec<Pipe>,
}

/// The sender's address on a link.
pub(crate) fn near(link: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 168, u8::try_from(link + 1).unwrap(), 2))
}

/// The receiver's address that a link leads to.
pub(crate) fn far(link: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(
        192,
        168,
        u8::try_from(link + 101).unwrap(),
        1,
    ))
}

/// The third byte of an address.
fn network_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(v4) => v4.octets()[2].into(),
        IpAddr::V6(_) => unreachable!("nobody has one here"),
    }
}

pub(crate) fn id_of(link: usize) -> LinkId {
    LinkId(u32::try_from(link + 1).unwrap())
}

impl World {
    pub(crate) fn new(stack: Stack, shapes: &[Shape]) -> Self {
        Self {
            stack,
            begun_at: NOW.get(),
            ticked_at: NOW.get(),
            out: shapes.iter().cloned().map(Pipe::new).collect(),
            back: shapes.iter().cloned().map(Pipe::new).collect(),
        }
    }

    /// Since the beginning.
    pub(crate) fn now(&self) -> Duration {
        NOW.get() - self.begun_at
    }

    /// Bytes that a link has carried to the receiver, headers included.
    pub(crate) fn carried(&self, link: usize) -> usize {
        self.out[link].carried
    }

    /// Packets to the receiver that a link has lost.
    pub(crate) fn dropped(&self, link: usize) -> usize {
        self.out[link].dropped
    }

    /// Goes on to whatever happens next.
    pub(crate) fn step(&mut self) {
        let pipes = self.out.iter().chain(&self.back);
        let next = pipes
            .filter_map(|pipe| Some(pipe.under_way.front()?.0))
            .min();
        let tick = self.ticked_at + TICK;
        let now = next.map_or(tick, |next| next.min(tick));
        NOW.set(now);
        let elapsed = now - self.ticked_at;
        if elapsed >= STEP {
            self.stack.handle_timers(elapsed);
            self.ticked_at = now;
        }
        let stack = &mut self.stack;
        for (link, pipe) in self.out.iter_mut().enumerate() {
            while let Some(packet) = pipe.arrived(now) {
                stack.handle_packet(LinkId(0), far(link), packet.from, &packet.payload);
            }
        }
        for (link, pipe) in self.back.iter_mut().enumerate() {
            while let Some(packet) = pipe.arrived(now) {
                stack.handle_packet(id_of(link), packet.to, packet.from, &packet.payload);
            }
        }
        self.flush();
    }

    /// Puts what the stack has on its links.
    pub(crate) fn flush(&mut self) {
        let now = NOW.get();
        while let Some(transmit) = self.stack.poll_transmit() {
            let (to, payload) = (transmit.remote.ip(), transmit.payload);
            let third = network_of(to);
            let (pipes, link, from) = match transmit.link {
                Some(LinkId(link)) if transmit.path.is_some() => {
                    let link = usize::try_from(link).unwrap() - 1;
                    (&mut self.out, link, near(link))
                }
                // What nobody expected any more is answered as well.
                _ if third > 100 => (&mut self.out, third - 101, near(third - 101)),
                _ => (&mut self.back, third - 1, transmit.local.unwrap()),
            };
            let from = SocketAddr::new(from, UDP);
            let pipe = &mut pipes[link];
            let is_out = pipe.shape.outage.contains(&(now - self.begun_at));
            pipe.put(now, is_out, Packet { from, to, payload });
        }
    }

    /// A line of what the sender thinks of its paths.
    pub(crate) fn show(&self, sender: EndpointId, received: usize) {
        let mut line = format!("{:7.2} s {received:9}", self.now().as_secs_f64());
        for status in self.stack.paths(sender) {
            let link = usize::try_from(status.way.link.0).unwrap() - 1;
            let sign = if status.state == PathState::Active {
                ' '
            } else {
                '!'
            };
            line += &format!(
                " |{sign}cwnd {:6} out {:6} srtt {:4} rto {:4} carried {:8} lost {:3}",
                status.cwnd.get(),
                self.stack.outstanding(sender, status.path).get(),
                status.srtt.as_millis(),
                status.rto.as_millis(),
                self.out[link].carried,
                self.out[link].dropped,
            );
        }
        eprintln!("{line}");
    }
}
