//! What can be chosen before the stack starts. All of it holds for the whole process.

use std::ffi::c_int;

use tabane_base::{Bytes, Duration};

use crate::ffi;

/// RFC 9260 §16 has 10. The association lives until every way has been silent for about a minute,
/// if there is one; probes count as well, also of paths that have worked and lead nowhere any more,
/// so with three it is a quarter of that.
const ASSOCIATION_RETRANSMISSIONS: u32 = 24;
/// Tries of INIT, one a second; who connects has a deadline of its own, ten minutes at most.
const INIT_RETRANSMISSIONS: u32 = 1_000;
const INIT_RTO: Duration = Duration::from_secs(1);
/// Chunks of the most that may wait: 32 MB of full packets.
const CHUNKS_MAX: u32 = 24_000;
/// How long an acknowledgement may wait for a second packet, as a receiver.
const SACK_DELAY: Duration = Duration::from_millis(40);

/// How the stack uses an association's paths when a message names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multipath {
    /// The primary path alone, as RFC 9260 §6.4 has it; others when it fails.
    Primary,
    /// All paths at once (CMT, Iyengar, Amer and Stewart 2006): the sender alone keeps account of
    /// gaps, windows and retransmissions per path, any receiver will do.
    #[default]
    Concurrent,
}

/// The families of addresses that an endpoint may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    /// IPv4 alone. Packets hold 20 bytes more, since no header of IPv6 has to fit.
    #[default]
    V4,
    /// IPv4 and IPv6.
    Both,
}

/// Settings of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How paths are used.
    pub multipath: Multipath,
    /// Whether packets that the stack leaves lying are sent again (`rescue.rs`).
    pub rescue: bool,
    /// Whether a path's slow start ends before its queue is full (`brake.rs`).
    pub brake: bool,
    /// What may wait to be sent or acknowledged per association.
    pub send_buffer: Bytes,
    /// What may wait to be read; the window that peers are told. Unequal paths need twice the sum
    /// of their bandwidth-delay products, queues included, or the slow one holds the fast one up.
    pub receive_buffer: Bytes,
    /// The largest packet, from the IP header on, in bytes. It is not searched for, and UDP packets
    /// are not fragmented, so it should pass everywhere.
    pub mtu: u32,
    /// Bounds of the retransmission timeout. The lower one must exceed the peer's delay of
    /// acknowledgements, 200 ms by RFC 9260 §6.2, and what a deep queue of a slow link adds within
    /// a few round trips of slow start: with 300 ms, 50 packets at 1 Mbit/s cause false alarms.
    pub rto_min: Duration,
    /// See `rto_min`.
    pub rto_max: Duration,
    /// Between two probes of an idle path.
    pub heartbeat: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            multipath: Multipath::default(),
            rescue: true,
            brake: true,
            send_buffer: Bytes::mega(4),
            receive_buffer: Bytes::mega(8),
            mtu: 1_400,
            rto_min: Duration::from_millis(600),
            rto_max: Duration::from_secs(4),
            heartbeat: Duration::from_secs(1),
        }
    }
}

/// A setter of the library, and what to hand it.
pub(crate) type Tunable = (unsafe extern "C" fn(u32) -> c_int, u32);

impl Settings {
    /// The library's settings, in its units.
    pub(crate) fn tunables(&self) -> Vec<Tunable> {
        let ms = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let bytes = |n: tabane_base::Bytes| u32::try_from(n.get()).unwrap_or(u32::MAX);
        let concurrent = u32::from(self.multipath == Multipath::Concurrent);
        vec![
            (ffi::usrsctp_sysctl_set_sctp_cmt_on_off, concurrent),
            // First come, first served. The default one, by streams, never ends when CMT is off
            // and an association's first message goes to another path than the primary one.
            (
                ffi::usrsctp_sysctl_set_sctp_default_ss_module,
                ffi::SCTP_SS_FIRST_COME,
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_sendspace,
                bytes(self.send_buffer),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_recvspace,
                bytes(self.receive_buffer),
            ),
            (ffi::usrsctp_sysctl_set_sctp_max_chunks_on_queue, CHUNKS_MAX),
            // We say which addresses come and go.
            (ffi::usrsctp_sysctl_set_sctp_auto_asconf, 0),
            (ffi::usrsctp_sysctl_set_sctp_asconf_enable, 1),
            (ffi::usrsctp_sysctl_set_sctp_no_csum_on_loopback, 0),
            (
                ffi::usrsctp_sysctl_set_sctp_delayed_sack_time_default,
                ms(SACK_DELAY),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_heartbeat_interval_default,
                ms(self.heartbeat),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_rto_min_default,
                ms(self.rto_min),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_rto_max_default,
                ms(self.rto_max),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_rto_initial_default,
                ms(INIT_RTO),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_init_rto_max_default,
                ms(INIT_RTO),
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_init_rtx_max_default,
                INIT_RETRANSMISSIONS,
            ),
            (
                ffi::usrsctp_sysctl_set_sctp_assoc_rtx_max_default,
                ASSOCIATION_RETRANSMISSIONS,
            ),
            // A path is left alone from its first timeout on, until it answers (RFC 7829); of
            // associations of our own making, only where we say so (`stack/paths.rs`).
            (ffi::usrsctp_sysctl_set_sctp_path_pf_threshold, 0),
        ]
    }
}
