//! Bytes become values once, here; above this module nobody indexes a byte slice.
//!
//! Every decoder is total: any bytes give a value or an error, never a panic [P-1.3].

mod class;
mod cursor;
mod frame;
mod header;

pub(crate) use class::{CLASS_MAX, STREAM_CLASS_MAX};
pub(crate) use cursor::{Cursor, Malformed, VARINT_MAX, put_varint};
pub(crate) use frame::{
    ACK_RESERVE, AckFrame, Frame, MAX_ACK_RANGES, MAX_ACK_TIMES, PROBE_REPORT_MAX, SHED_MAX,
    StreamHeader, datagram_copy_header_len, datagram_header_len, emit_ack, emit_datagram,
    emit_datagram_copy, emit_fragment, emit_shed, parse_frame,
};
pub(crate) use header::{
    HANDSHAKE_PN_LEN, INQUIRY_VERSION, LongError, LongHeader, LongKind, MIN_INITIAL_SIZE,
    ShortHeader, expand_packet_number, inquiry_answer, inquiry_answer_key, is_long,
    packet_number_len, parse_version_negotiation, put_packet_number, version_header,
    version_negotiation,
};

/// The one version of `docs/protocol.md` that this program speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// Bytes the AEAD adds to every packet (RFC 5116).
pub(crate) const TAG_LEN: usize = 16;
