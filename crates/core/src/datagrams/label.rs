//! What stands before the data of every datagram: whose it is, and where it belongs [P-7.5].
//!
//! Part of the datagram, so that whole ones, fragments and copies all bring it.

use bytes::Bytes;
use tabane_base::Duration;

use crate::wire::{Cursor, Malformed, put_varint};

/// Numbers a flow of datagrams within its session; chosen by whoever begins it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl FlowId {
    /// The largest there is: twice as much, and one, must be a varint (RFC 9000 §16).
    pub const MAX: u64 = (1 << 61) - 1;
}

/// How the datagrams of a flow are handed out at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramOrder {
    /// As they come.
    #[default]
    AtOnce,
    /// As they were sent: one that is so much later than the slowest path in use would bring it
    /// is waited for no longer.
    Within(Duration),
}

/// A datagram from the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its flow.
    pub flow: FlowId,
    /// How the sender wants the flow handed out.
    pub order: DatagramOrder,
    /// What was sent.
    pub data: Bytes,
}

/// Where a datagram stands among those of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: u64,
    /// The flow's deadline.
    pub(crate) deadline: Duration,
    /// By how much the path it travels on is ahead of the slowest that the flow uses; zero when it
    /// uses no other.
    pub(crate) lead: Duration,
}

/// Flow and place of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) flow: FlowId,
    pub(crate) place: Option<Place>,
}

impl Label {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let ordered = u64::from(self.place.is_some());
        put_varint(out, self.flow.0.min(FlowId::MAX) << 1 | ordered);
        if let Some(place) = &self.place {
            put_varint(out, place.number);
            put_varint(out, millis(place.deadline));
            put_varint(out, millis(place.lead));
        }
    }

    /// Takes the label off the front of a datagram; what is left is its data.
    pub(crate) fn parse(datagram: &mut Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(datagram);
        let first = cursor.varint()?;
        let place = if first & 1 == 1 {
            Some(Place {
                number: cursor.varint()?,
                deadline: Duration::from_millis(cursor.varint()?),
                lead: Duration::from_millis(cursor.varint()?),
            })
        } else {
            None
        };
        let used = datagram.len() - cursor.len();
        let label = Self {
            flow: FlowId(first >> 1),
            place,
        };
        let _ = datagram.split_to(used);
        Ok(label)
    }
}

/// Whole milliseconds, at least one of any span: zero has a meaning of its own.
fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_the_wire_and_cut_ones_are_refused() {
        let places = [
            None,
            Some(Place {
                number: 0,
                deadline: Duration::from_millis(25),
                lead: Duration::ZERO,
            }),
            Some(Place {
                number: (1 << 62) - 1,
                deadline: Duration::from_millis(400),
                lead: Duration::from_millis(80),
            }),
        ];
        for place in places {
            for flow in [0, 31, 32, FlowId::MAX].map(FlowId) {
                let label = Label { flow, place };
                let mut bytes = Vec::new();
                label.emit(&mut bytes);
                let len = bytes.len();
                bytes.extend(b"data");
                let mut datagram = Bytes::from(bytes);
                for cut in 0..len {
                    assert!(Label::parse(&mut datagram.slice(..cut)).is_err());
                }
                assert_eq!(Label::parse(&mut datagram), Ok(label));
                assert_eq!(datagram, &b"data"[..]);
            }
        }
    }

    #[test]
    fn a_label_in_order_takes_six_bytes_in_the_steady_state() {
        let mut out = Vec::new();
        let place = Place {
            number: 10_000,
            deadline: Duration::from_millis(25),
            lead: Duration::from_micros(50_300),
        };
        let flow = FlowId(4);
        let place = Some(place);
        Label { flow, place }.emit(&mut out);
        assert!(out.len() <= 6, "{}", out.len());
    }
}
