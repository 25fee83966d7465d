//! The tables of a scenario file as they are written.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use tabane_base::{Bytes, Duration, Quantity, Rate};
use toml::Spanned;

use super::direction::{PerDirection, TraceName};
use crate::jitter::JitterShape;
use crate::loss::{LossModel, Probability};
use crate::quantity::Text;
use crate::radio::Radio;

/// Long enough for start-up not to rule the mean (the figure of `scenarios.md`).
const DURATION_DEFAULT: Duration = Duration::from_secs(20);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) why: String,
    #[serde(default = "duration_default")]
    pub(super) duration: Text<Duration>,
    pub(super) link: Vec<LinkTable>,
    #[serde(default)]
    pub(super) variant: Vec<VariantTable>,
}

fn duration_default() -> Text<Duration> {
    Text(DURATION_DEFAULT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkTable {
    pub(super) name: Spanned<String>,
    pub(super) rate: Option<Spanned<PerDirection<Text<Rate>>>>,
    pub(super) trace: Option<Spanned<PerDirection<TraceName>>>,
    pub(super) radio: Option<Spanned<Text<Radio>>>,
    pub(super) queue: Option<PerDirection<Text<Bytes>>>,
    pub(super) delay: Option<PerDirection<Text<Duration>>>,
    pub(super) jitter: Option<PerDirection<Text<Duration>>>,
    pub(super) jitter_shape: Option<PerDirection<Text<JitterShape>>>,
    #[serde(default)]
    pub(super) loss: PerDirection<Loss>,
    #[serde(default)]
    pub(super) change: Vec<ChangeTable>,
    #[serde(default)]
    pub(super) outage: Vec<OutageTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeTable {
    pub(super) at: Spanned<Text<Duration>>,
    pub(super) every: Option<Spanned<Text<Duration>>>,
    pub(super) rate: Option<PerDirection<Text<Rate>>>,
    pub(super) delay: Option<PerDirection<Text<Duration>>>,
    pub(super) loss: Option<PerDirection<Loss>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutageTable {
    pub(super) at: Spanned<Text<Duration>>,
    #[serde(rename = "for")]
    pub(super) lasts: Spanned<Text<Duration>>,
    pub(super) every: Option<Spanned<Text<Duration>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VariantTable {
    pub(super) name: String,
    pub(super) links: Spanned<Vec<Spanned<String>>>,
}

/// `"1%"`, or a table with the probabilities of the Gilbert–Elliott model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loss(pub(super) LossModel);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BurstTable {
    good_to_bad: Text<Probability>,
    bad_to_good: Text<Probability>,
    #[serde(default = "never")]
    loss_good: Text<Probability>,
    #[serde(default = "always")]
    loss_bad: Text<Probability>,
}

fn never() -> Text<Probability> {
    Text(Probability::ZERO)
}

fn always() -> Text<Probability> {
    Text(Probability::ONE)
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LossVisitor;

        impl<'de> Visitor<'de> for LossVisitor {
            type Value = Loss;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "{}, or a table {{ good_to_bad = …, bad_to_good = … }}",
                    Probability::EXPECTED
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let p = Probability::parse(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Loss(if p == Probability::ZERO {
                    LossModel::None
                } else {
                    LossModel::Random(p)
                }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let table = BurstTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Loss(LossModel::GilbertElliott {
                    good_to_bad: table.good_to_bad.0,
                    bad_to_good: table.bad_to_good.0,
                    loss_good: table.loss_good.0,
                    loss_bad: table.loss_bad.0,
                }))
            }
        }

        deserializer.deserialize_any(LossVisitor)
    }
}
