//! Settings of sessions and endpoints: plain values, checked once.

use tabane_base::{Bytes, Duration};
use thiserror::Error;

use crate::congestion::Kind as ControllerKind;
use crate::memory_pool::MemoryPool;
use crate::parameters::Parameters;
use crate::probe;
use crate::scheduler::SchedulerKind;
use crate::steering::Steering;
use crate::stream::window;

/// Paths that may be open in one session at once: more links than a machine has, few enough that
/// walking over all of them per packet costs nothing.
pub(crate) const MAX_PATHS: usize = 16;
/// Streams one end may have open at once, by the other's leave: a browser's tabs times a few
/// hundred connections; each costs some 500 bytes while idle.
pub(crate) const MAX_STREAMS: u64 = 4_096;
/// How long a receiver may sit on an acknowledgement.
pub(crate) const MAX_ACK_DELAY: Duration = Duration::from_millis(5);
/// The largest credit granted beyond what a stream's reader has taken.
const MAX_CREDIT: Bytes = Bytes::mega(16);
/// Half of AES-GCM's confidentiality limit of 2^23 packets (RFC 9001 §6.6), which leaves the other
/// half to a peer slow to answer a change of keys.
const PACKETS_PER_KEY_MAX: u64 = 1 << 22;
/// Memory for received data that fast and far paths use up; with more nothing is sent again in
/// advance, and readers who stand still may have some of it.
pub(crate) const LITTLE_MEMORY: u64 = 8_000_000;
/// How far credit may exceed memory: 50 Mbit/s over 150 ms beside as much over 5 ms need 2 MB to
/// be used, and hold 0.1 of it out of order.
const CREDIT_PER_MEMORY: u64 = 16;

/// How sessions of an endpoint behave. Both ends may differ.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Which path the next packet takes.
    pub scheduler: SchedulerKind,
    /// How fast a path may be used.
    pub controller: ControllerKind,
    /// Memory for received data not yet read, in and out of order, for all streams together; less
    /// where the pool is short.
    pub receive_memory: Bytes,
    /// Memory for written data not yet acknowledged, per stream.
    pub send_memory: Bytes,
    /// The same for all streams of all sessions whose configurations are clones of this one, as
    /// those of an endpoint are.
    pub send_pool: MemoryPool,
    /// The same for received data not yet read, datagrams included: however many sessions somebody
    /// opens and leaves unread, others find as much free as each of those holds.
    pub receive_pool: MemoryPool,
    /// A datagram that waits for longer to leave is dropped; a sixth of it is the longest queue
    /// that may stand. Video sends a frame at once, which may take a slow link so long; later than
    /// that, what is said in a call is better lost. Of flows handed out within a deadline nothing
    /// older than that is sent once more than passes has been offered for so long.
    pub datagram_wait: Duration,
    /// A path silent for so long is probed, so that NATs keep its mapping. RFC 4787 REQ-5 has
    /// NATs keep one for two minutes, but 30 s is met in the field.
    pub keep_alive: Duration,
    /// The session ends when nothing was heard on any path for so long.
    pub idle_timeout: Duration,
    /// A handshake that takes longer has failed.
    pub handshake_timeout: Duration,
    /// The largest UDP payload worth trying on IPv4; IPv6 gets 20 bytes less.
    pub max_udp_payload: u16,
    /// Paths are measured by packets of their own, within 0.1 % of what they carry [P-10].
    pub probes: bool,
    /// Paths called metered are measured as well.
    pub probe_metered: bool,
    /// Packet keys are changed after so many packets.
    pub packets_per_key: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            scheduler: SchedulerKind::Tabane,
            controller: ControllerKind::Tabane,
            receive_memory: Bytes::mega(16),
            send_memory: Bytes::mega(16),
            send_pool: MemoryPool::default(),
            receive_pool: MemoryPool::default(),
            datagram_wait: Duration::from_millis(100),
            keep_alive: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(300),
            handshake_timeout: Duration::from_secs(10),
            max_udp_payload: 1472,
            probes: true,
            probe_metered: false,
            packets_per_key: PACKETS_PER_KEY_MAX,
        }
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Too small or too large a value.
    #[error("{name} is {value}, it must be between {least} and {most}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: u64,
        /// The smallest value that works.
        least: u64,
        /// The largest value that works.
        most: u64,
    },
    /// The key pair cannot be used for TLS.
    #[error("the key cannot be used: {0}")]
    Key(String),
}

impl SessionConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let millis = |span: Duration| span.as_millis() as u64;
        let checks = [
            ("receive_memory", self.receive_memory.get(), 16_384, 1 << 32),
            ("send_memory", self.send_memory.get(), 16_384, 1 << 32),
            ("datagram_wait (ms)", millis(self.datagram_wait), 1, 60_000),
            ("keep_alive (ms)", millis(self.keep_alive), 100, 3_600_000),
            (
                "idle_timeout (ms)",
                millis(self.idle_timeout),
                1_000,
                86_400_000,
            ),
            (
                "handshake_timeout (ms)",
                millis(self.handshake_timeout),
                100,
                600_000,
            ),
            ("max_udp_payload", self.max_udp_payload.into(), 1_200, 9_000),
            (
                "packets_per_key",
                self.packets_per_key,
                16,
                PACKETS_PER_KEY_MAX,
            ),
        ];
        for (name, value, least, most) in checks {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::OutOfRange {
                    name,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }

    /// How far beyond its reader a stream's sender may go at the most. Credit is not memory: it
    /// exceeds small memories, because data waiting for order on unequal paths is a small part of
    /// what is in flight; what does not fit is shed [P-6.6].
    pub(crate) fn credit(&self) -> Bytes {
        let wanted = Bytes::new(self.receive_memory.get().saturating_mul(CREDIT_PER_MEMORY));
        wanted.min(MAX_CREDIT.max(self.receive_memory))
    }

    /// What a stream is granted at first. Little memory goes with little waste, and data that waits
    /// for order needs the credit.
    fn stream_credit(&self) -> Bytes {
        let first = match self.receive_memory.get() {
            0..LITTLE_MEMORY => window::STEADY,
            _ => window::UNPROVED,
        };
        self.credit().min(Bytes::new(first))
    }

    /// What all streams together may be ahead of their readers. What is left unread counts, and
    /// what was sent in vain of streams that were held since [P-6.9].
    fn session_credit(&self) -> Bytes {
        let streams = match self.receive_memory.get() {
            0..LITTLE_MEMORY => 2,
            _ => 4,
        };
        Bytes::new(streams * self.credit().get())
    }

    pub(crate) fn parameters(&self, reset_token: Option<[u8; 16]>) -> Parameters {
        Parameters {
            session_credit: self.session_credit(),
            stream_credit: self.stream_credit(),
            streams: MAX_STREAMS,
            idle_timeout: self.idle_timeout,
            max_ack_delay: MAX_ACK_DELAY,
            max_udp_payload: self.max_udp_payload,
            paths: MAX_PATHS as u32,
            probes: if self.probes { probe::MOST } else { 0 },
            classes: true,
            receive_memory: Some(self.receive_memory),
            go_away: true,
            holds: true,
            reset_token,
        }
    }
}

/// How an endpoint treats sessions that others open.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Sessions served at once; more are refused.
    pub max_sessions: usize,
    /// Handshakes, and sessions whose client is not admitted yet, kept at once: what strangers
    /// can make the relay hold, 30 kB each. More are dropped, and come again by their client's
    /// repetition.
    pub max_handshakes: usize,
    /// When new addresses must prove themselves before any state is kept for them.
    pub retry: RetryPolicy,
    /// Whether whoever asks is told our key [P-2.7]: for ends that let strangers in.
    pub is_open: bool,
    /// Which of a server's workers this end is.
    pub steering: Steering,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_sessions: 10_000,
            max_handshakes: 1_024,
            retry: RetryPolicy::UnderLoad(64),
            is_open: false,
            steering: Steering::default(),
        }
    }
}

/// When an address must prove itself first (RFC 9000 §8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Always; costs every session one round trip.
    Always,
    /// While more than so many handshakes are under way.
    UnderLoad(usize),
}
