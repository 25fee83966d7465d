//! Address ranges as users write them: `192.168.0.0/16`, `2001:db8::/32`, or one address.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use tabane_base::Prefix;

/// Ranges that are nobody's on the internet, and mean something else beyond a relay (RFC 1918,
/// RFC 6598, RFC 4193).
pub const PRIVATE: [&str; 5] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
];

/// A range that goes its own way, without the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectPrefix(pub Prefix);

impl FromStr for DirectPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = Prefix::parse(text);
        let advice = || format!("'{text}' is no address range; write it like 192.168.0.0/16");
        prefix.map(Self).ok_or_else(advice)
    }
}

impl<'de> Deserialize<'de> for DirectPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
