//! Values that may differ between the two directions of a link.
//!
//! Written plainly where both directions agree (`rate = "50mbit"`), else as a table with `down`
//! and `up`, or `both` for a value that is itself a table.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, Visitor};

use crate::link_spec::Direction;

/// A value per direction.
#[derive(Clone, Debug, Default)]
pub(super) struct PerDirection<T> {
    up: T,
    down: T,
}

impl<T> PerDirection<T> {
    pub(super) fn of(&self, direction: Direction) -> &T {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table<T> {
    both: Option<T>,
    down: Option<T>,
    up: Option<T>,
}

impl<'de, T: Deserialize<'de> + Clone> Deserialize<'de> for PerDirection<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DirectionVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Clone> Visitor<'de> for DirectionVisitor<T> {
            type Value = PerDirection<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a table { down = …, up = … }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let value = T::deserialize(StrDeserializer::new(text))?;
                Ok(PerDirection {
                    up: value.clone(),
                    down: value,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let table = Table::<T>::deserialize(MapAccessDeserializer::new(map))?;
                match (table.both, table.down, table.up) {
                    (Some(both), None, None) => Ok(PerDirection {
                        up: both.clone(),
                        down: both,
                    }),
                    (None, Some(down), Some(up)) => Ok(PerDirection { up, down }),
                    _ => Err(de::Error::custom("expected `down` and `up`, or `both`")),
                }
            }
        }

        deserializer.deserialize_any(DirectionVisitor(PhantomData))
    }
}

/// A trace to be looked up: `"name"`, or `{ file = "name", reversed = true }`.
#[derive(Clone, Debug)]
pub(super) struct TraceName {
    pub(super) file: String,
    pub(super) reversed: bool,
}

impl<'de> Deserialize<'de> for TraceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct TraceTable {
            file: String,
            #[serde(default)]
            reversed: bool,
        }

        struct TraceVisitor;

        impl<'de> Visitor<'de> for TraceVisitor {
            type Value = TraceName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a trace, or a table { file = …, reversed = true }")
            }

            fn visit_str<E: de::Error>(self, file: &str) -> Result<Self::Value, E> {
                Ok(TraceName {
                    file: file.to_owned(),
                    reversed: false,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let table = TraceTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(TraceName {
                    file: table.file,
                    reversed: table.reversed,
                })
            }
        }

        deserializer.deserialize_any(TraceVisitor)
    }
}
