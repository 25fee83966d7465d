//! What a session tells its driver.

use crate::{CloseReason, PathDownReason, PathId, PublicKey, StreamId};

/// Something happened that the driver may want to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Server: the client proved this key and showed this token. Answer with
    /// [`Session::admit`](crate::Session::admit) or close it as `Unauthorised`.
    Authorise {
        /// The client's proven key.
        key: PublicKey,
        /// What it presented to be let in the first time.
        token: Option<Vec<u8>>,
    },
    /// The session is up and admitted; streams, datagrams and more paths may be opened.
    Connected,
    /// Client: the server goes down soon; what is open goes on, what is new should go elsewhere.
    SentAway,
    /// A path carries data (again).
    PathUp(PathId),
    /// A path carries no data at present.
    PathDown(PathId, PathDownReason),
    /// The peer opened a stream.
    StreamOpened(StreamId),
    /// A stream has data, its end or its reset to read.
    StreamReadable(StreamId),
    /// A stream whose `write` came back short takes data again.
    StreamWritable(StreamId),
    /// The peer abandoned its sending side.
    StreamReset {
        /// Which stream.
        id: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// The peer reads no more of our sending side.
    StreamStopped {
        /// Which stream.
        id: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// There are datagrams to take.
    DatagramsReadable,
    /// The session ended; nothing more will come.
    Closed(CloseReason),
}

/// What the next timer is for, so that a busy loop names its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerReason {
    /// A handshake flight is repeated or given up.
    Handshake,
    /// The pacer of this path lets the next packet out.
    Pacing(PathId),
    /// A delayed acknowledgement is due.
    Ack,
    /// A packet on this path counts as lost, or a probe is due.
    LossDetection(PathId),
    /// An address is challenged again.
    Validation(PathId),
    /// A path that was silent is probed or kept alive.
    KeepAlive(PathId),
    /// A train of probes leaves.
    Probe(PathId),
    /// A larger packet size is tried.
    Mtu(PathId),
    /// Old packet keys are forgotten.
    KeyDiscard,
    /// The session is given up, or its closing is over.
    Idle,
    /// Fragments of a datagram that will not be completed.
    Reassembly,
}
