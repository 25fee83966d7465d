//! `--udp-order`: how UDP flows are handed out, as the user says it.

use std::str::FromStr;

use tabane_base::Duration;
use tabane_core::DatagramOrder;

/// The deadline when nothing is said: a frame of video at 40 a second, and less than a person
/// hears in a call.
const DEFAULT: Duration = Duration::from_millis(25);
/// No program that is content with UDP waits for longer.
const MAX_MS: u64 = 1_000;

/// What `--udp-order` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOrder(pub DatagramOrder);

impl Default for UdpOrder {
    fn default() -> Self {
        Self(DatagramOrder::Within(DEFAULT))
    }
}

/// Not an order.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither `at-once` nor a number of milliseconds from 1 to {MAX_MS}")]
pub struct NoOrder(String);

impl FromStr for UdpOrder {
    type Err = NoOrder;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "at-once" {
            return Ok(Self(DatagramOrder::AtOnce));
        }
        match text.parse() {
            Ok(ms) if (1..=MAX_MS).contains(&ms) => {
                Ok(Self(DatagramOrder::Within(Duration::from_millis(ms))))
            }
            _ => Err(NoOrder(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_nonsense_is_named() {
        let within = |ms| UdpOrder(DatagramOrder::Within(Duration::from_millis(ms)));
        assert_eq!(
            "at-once".parse::<UdpOrder>().unwrap().0,
            DatagramOrder::AtOnce
        );
        assert_eq!("25".parse::<UdpOrder>().unwrap(), UdpOrder::default());
        assert_eq!("1000".parse::<UdpOrder>().unwrap(), within(1_000));
        for nonsense in ["", "0", "1001", "-5", "25ms", "order"] {
            let error = nonsense.parse::<UdpOrder>().unwrap_err();
            assert!(error.to_string().contains("at-once"), "{error}");
        }
    }
}
