//! What the ends promise each other in the handshake [P-3.5]: tag, length, value.

use tabane_base::{Bytes, Duration};

use crate::wire::{Cursor, Malformed, put_varint};

mod tag {
    pub(super) const SESSION_CREDIT: u64 = 0x04;
    pub(super) const STREAM_CREDIT: u64 = 0x05;
    pub(super) const STREAMS: u64 = 0x08;
    pub(super) const IDLE_TIMEOUT_MS: u64 = 0x01;
    pub(super) const MAX_ACK_DELAY_US: u64 = 0x0b;
    pub(super) const MAX_UDP_PAYLOAD: u64 = 0x03;
    pub(super) const RESET_TOKEN: u64 = 0x02;
    pub(super) const PATHS: u64 = 0x0e;
    pub(super) const PROBES: u64 = 0x12;
    pub(super) const RECEIVE_MEMORY: u64 = 0x13;
    pub(super) const GO_AWAY: u64 = 0x14;
}

/// Added to the number of paths by an end that takes classes: to older ones, which open no more
/// than 16 themselves, it is a generous limit.
const TAKES_CLASSES: u64 = 0x20;
/// Added by an end that understands STREAM_HOLD to its saying that it understands GO_AWAY.
const UNDERSTANDS_HOLD: u64 = 2;

/// One end's limits, and the token by which a restarted server may end the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) session_credit: Bytes,
    pub(crate) stream_credit: Bytes,
    pub(crate) streams: u64,
    pub(crate) idle_timeout: Duration,
    pub(crate) max_ack_delay: Duration,
    pub(crate) max_udp_payload: u16,
    pub(crate) paths: u32,
    /// The longest train of probes this end takes; 0 for none [P-10.1].
    pub(crate) probes: u64,
    /// This end takes classes [P-11.1].
    pub(crate) classes: bool,
    /// Memory for received data. Who says so also understands SHED [P-6.8].
    pub(crate) receive_memory: Option<Bytes>,
    /// This end understands GO_AWAY [P-9.5].
    pub(crate) go_away: bool,
    /// This end understands STREAM_HOLD [P-6.9].
    pub(crate) holds: bool,
    pub(crate) reset_token: Option<[u8; 16]>,
}

impl Default for Parameters {
    /// What an end that says nothing of a limit grants: nothing.
    fn default() -> Self {
        Self {
            session_credit: Bytes::ZERO,
            stream_credit: Bytes::ZERO,
            streams: 0,
            idle_timeout: Duration::MAX,
            max_ack_delay: Duration::from_millis(25),
            max_udp_payload: 1200,
            paths: 1,
            probes: 0,
            classes: false,
            receive_memory: None,
            go_away: false,
            holds: false,
            reset_token: None,
        }
    }
}

impl Parameters {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let classes = if self.classes { TAKES_CLASSES } else { 0 };
        let holds = if self.holds { UNDERSTANDS_HOLD } else { 0 };
        let numbers = [
            (tag::SESSION_CREDIT, self.session_credit.get()),
            (tag::STREAM_CREDIT, self.stream_credit.get()),
            (tag::STREAMS, self.streams),
            (tag::IDLE_TIMEOUT_MS, clamp(self.idle_timeout.as_millis())),
            (tag::MAX_ACK_DELAY_US, clamp(self.max_ack_delay.as_micros())),
            (tag::MAX_UDP_PAYLOAD, self.max_udp_payload.into()),
            (tag::PATHS, u64::from(self.paths) | classes),
            (tag::PROBES, self.probes),
            (tag::GO_AWAY, u64::from(self.go_away) | holds),
        ];
        let memory = self
            .receive_memory
            .map(|memory| (tag::RECEIVE_MEMORY, memory.get()));
        for (tag, value) in numbers.into_iter().chain(memory) {
            put_varint(&mut out, tag);
            let mut field = Vec::new();
            put_varint(&mut field, value);
            put_varint(&mut out, field.len() as u64);
            out.extend_from_slice(&field);
        }
        if let Some(token) = self.reset_token {
            put_varint(&mut out, tag::RESET_TOKEN);
            put_varint(&mut out, 16);
            out.extend_from_slice(&token);
        }
        out
    }

    /// Unknown tags are skipped, so that later versions may add some.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let mut parameters = Self::default();
        while !cursor.is_empty() {
            let tag = cursor.varint()?;
            let mut field = Cursor::new(cursor.prefixed()?);
            match tag {
                tag::SESSION_CREDIT => parameters.session_credit = Bytes::new(field.varint()?),
                tag::STREAM_CREDIT => parameters.stream_credit = Bytes::new(field.varint()?),
                tag::STREAMS => parameters.streams = field.varint()?,
                tag::IDLE_TIMEOUT_MS => {
                    parameters.idle_timeout = Duration::from_millis(field.varint()?);
                }
                tag::MAX_ACK_DELAY_US => {
                    parameters.max_ack_delay = Duration::from_micros(field.varint()?);
                }
                tag::MAX_UDP_PAYLOAD => {
                    let size = field.varint()?.clamp(1200, 65_527);
                    parameters.max_udp_payload = size as u16;
                }
                tag::PATHS => {
                    let paths = field.varint_u32()?;
                    parameters.classes = u64::from(paths) & TAKES_CLASSES != 0;
                    parameters.paths = paths & !(TAKES_CLASSES as u32);
                }
                tag::PROBES => parameters.probes = field.varint()?,
                tag::GO_AWAY => {
                    let understood = field.varint()?;
                    parameters.go_away = understood != 0;
                    parameters.holds = understood & UNDERSTANDS_HOLD != 0;
                }
                tag::RECEIVE_MEMORY => {
                    parameters.receive_memory = Some(Bytes::new(field.varint()?));
                }
                tag::RESET_TOKEN => parameters.reset_token = Some(field.array()?),
                _ => {}
            }
        }
        if parameters.max_ack_delay > Duration::from_secs(1) {
            return Err(Malformed);
        }
        Ok(parameters)
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value)
        .unwrap_or(u64::MAX)
        .min(crate::wire::VARINT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_the_wire_and_truncation_is_refused() {
        let parameters = Parameters {
            session_credit: Bytes::mega(32),
            stream_credit: Bytes::mega(16),
            streams: 1024,
            idle_timeout: Duration::from_secs(300),
            max_ack_delay: Duration::from_millis(5),
            max_udp_payload: 1472,
            paths: 16,
            probes: 32,
            classes: true,
            receive_memory: Some(Bytes::kilo(64)),
            go_away: true,
            holds: true,
            reset_token: Some([3; 16]),
        };
        let bytes = parameters.emit();
        assert_eq!(Parameters::parse(&bytes), Ok(parameters));
        assert_eq!(Parameters::parse(&bytes[..bytes.len() - 1]), Err(Malformed));
    }
}
