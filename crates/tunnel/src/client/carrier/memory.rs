//! What one network has taught of carriers, in a word that can be kept.

use std::fmt;
use std::str::FromStr;

use tabane_base::Rate;

/// What carries a link's packets in one network, by experience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierMemory {
    /// UDP to the relay's own port.
    Usual,
    /// UDP to another port of the relay's.
    Port(u16),
    /// TLS: UDP gets no answer.
    Silent,
    /// TLS: UDP is answered, and carries far less.
    Policed(PolicedRates),
}

/// UDP that is policed, beside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicedRates {
    /// It is so towards here; else away from here.
    pub is_inbound: bool,
    /// What UDP carried.
    pub udp: Rate,
    /// What TLS carried in its place.
    pub tls: Rate,
}

/// A text is no [`CarrierMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected udp, udp:PORT, tls, or tls in|out UDP-RATE TLS-RATE in bit/s")]
pub struct CarrierMemoryError;

impl CarrierMemory {
    /// Whether TLS carries.
    pub(crate) const fn is_tls(self) -> bool {
        matches!(self, Self::Silent | Self::Policed(_))
    }
}

impl fmt::Display for CarrierMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("udp"),
            Self::Port(port) => write!(f, "udp:{port}"),
            Self::Silent => f.write_str("tls"),
            Self::Policed(it) => {
                let way = if it.is_inbound { "in" } else { "out" };
                write!(f, "tls {way} {} {}", it.udp.as_bps(), it.tls.as_bps())
            }
        }
    }
}

impl FromStr for CarrierMemory {
    type Err = CarrierMemoryError;

    fn from_str(text: &str) -> Result<Self, CarrierMemoryError> {
        let rate = |text: &str| {
            let bps = text.parse().map_err(|_| CarrierMemoryError)?;
            Ok(Rate::from_bps(bps))
        };
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["udp"] => Ok(Self::Usual),
            ["tls"] => Ok(Self::Silent),
            ["tls", way @ ("in" | "out"), udp, tls] => Ok(Self::Policed(PolicedRates {
                is_inbound: way == "in",
                udp: rate(udp)?,
                tls: rate(tls)?,
            })),
            [word] => {
                let port = word.strip_prefix("udp:").and_then(|it| it.parse().ok());
                port.filter(|port| *port > 0)
                    .map(Self::Port)
                    .ok_or(CarrierMemoryError)
            }
            _ => Err(CarrierMemoryError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_nothing_else_is() {
        let policed = PolicedRates {
            is_inbound: true,
            udp: Rate::from_bps(1_000_000),
            tls: Rate::from_bps(48_000_000),
        };
        for (memory, text) in [
            (CarrierMemory::Usual, "udp"),
            (CarrierMemory::Port(443), "udp:443"),
            (CarrierMemory::Silent, "tls"),
            (CarrierMemory::Policed(policed), "tls in 1000000 48000000"),
        ] {
            assert_eq!(memory.to_string(), text);
            assert_eq!(text.parse(), Ok(memory));
        }
        for text in [
            "",
            "UDP",
            "udp:0",
            "udp:65536",
            "tls in 1",
            "tls up 1 2",
            "tls in 1 -2",
            "tls ",
        ] {
            assert_eq!(
                text.parse::<CarrierMemory>(),
                Err(CarrierMemoryError),
                "{text}"
            );
        }
    }
}
