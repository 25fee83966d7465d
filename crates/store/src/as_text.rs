//! Values that stand in a file as the text people write: read through `FromStr`.

/// Has a type read so.
macro_rules! read_as_text {
    ($name:ty) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
                let text = String::deserialize(text)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use read_as_text;
