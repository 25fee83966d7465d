//! Quantities as fields of a file, and shares: "1.5%".

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use tabane_base::{Quantity, scaled_number};

use crate::jitter::JitterShape;
use crate::loss::Probability;
use crate::radio::Radio;

impl Quantity for Probability {
    const EXPECTED: &'static str = "a share such as \"1.5%\", from 0% to 100%";
    fn parse(text: &str) -> Option<Self> {
        let billionths = scaled_number(text, &[("%", 10_000_000)])?;
        Self::new(billionths as f64 / 1e9)
    }
}

impl Quantity for JitterShape {
    const EXPECTED: &'static str = "uniform, exponential, correlated or spikes";
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == text)
    }
}

impl Quantity for Radio {
    const EXPECTED: &'static str = "a kind of radio link and a seed, such as \"walk/7\" (walk, \
                                    steps, bursts, handovers, outages, narrow, jitter, drift)";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A quantity as a field of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: Quantity> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor<T>(PhantomData<T>);

        impl<T: Quantity> Visitor<'_> for TextVisitor<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::parse(text)
                    .map(Text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shares() {
        assert_eq!(Probability::parse("0.5%"), Probability::new(0.005));
        assert_eq!(Probability::parse("101%"), None);
        assert_eq!(Probability::parse("%"), None);
    }
}
