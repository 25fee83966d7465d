//! The multipath engine: sessions of streams and datagrams over several paths at once.
//!
//! A pure state machine. Nothing here opens a socket, reads a clock or starts a thread; the driver
//! hands in datagrams, commands and the time, and takes out datagrams, events and the next timer.
//!
//! # Driving a [`Session`]
//! After every input (`Endpoint::handle_datagram`, `Session::handle_timeout`, any command) drain
//! the outputs in this order: [`Session::poll_transmit`] until it adds nothing,
//! [`Session::poll_event`] until `None`, then arm a timer for [`Session::poll_timeout`].
//!
//! The wire format and its rules are the numbered clauses of `docs/protocol.md`, cited as
//! `[P-3.2]`.

#![forbid(unsafe_code)]

mod class;
mod close;
mod config;
mod congestion;
mod crypto;
mod datagrams;
mod delivery;
mod distribution;
mod drops;
mod endpoint;
mod event;
mod forgery;
mod forward_delay;
mod fuzz;
mod handshake;
mod id;
mod identity;
mod inquiry;
mod lane;
mod lobby;
mod memory_pool;
pub mod monitor;
mod mtu;
mod overflow;
mod pacer;
mod parameters;
mod path;
mod policy;
mod probe;
mod ranges;
mod reading;
mod received;
mod recovery;
mod reinjection;
mod rest;
mod retry;
mod rtt;
mod scheduler;
mod secret_rng;
mod session;
mod snapshot;
mod steering;
mod stream;
mod tls;
mod trace;
mod transmit;
mod turns;
mod wire;

pub use class::{ClassId, ClassRule, MAX_CLASSES};
pub use close::{CloseReason, PathDownReason, one_line};
pub use config::{ConfigError, RetryPolicy, ServerConfig, SessionConfig};
pub use congestion::Kind as ControllerKind;
pub use datagrams::{Datagram, DatagramError, DatagramOrder, FlowId, datagram_memory};
pub use drops::{DropReason, Drops};
pub use endpoint::{ConnectError, Endpoint, EndpointCounters};
pub use event::{Event, TimerReason};
pub use forgery::{FIRST_SIZE, forge_first_packet};
pub use fuzz::fuzz_decoders;
pub use id::{FourTuple, PacketNumber, PathId, SessionHandle, SocketId, StreamId};
pub use identity::{Identity, KeyParseError, PublicKey, SIGNATURE_LENGTH};
pub use inquiry::{Inquiry, InquiryAnswer};
pub use lobby::{Admitted, Lobby};
pub use memory_pool::{MemoryPool, Part};
pub use policy::{MAX_PRIORITY, PathPolicy};
pub use reading::Reading;
pub use scheduler::SchedulerKind;
pub use session::{PathError, Session};
pub use snapshot::{
    ClosedPaths, PathSnapshot, PathStatus, SessionSnapshot, SessionStatus, TraceMetrics,
};
pub use steering::{Addressee, MAX_WORKERS, Steering};
pub use stream::{ReadState, StreamError};
pub use tls::{tls_client_config, tls_server_config};
pub use trace::{TraceEvent, TraceLog, Traced, TracedFrame};
pub use transmit::{Transmit, TransmitBatch};
pub use wire::PROTOCOL_VERSION;
