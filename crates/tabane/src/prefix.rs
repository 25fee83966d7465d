//! Address ranges as users write them: `192.168.0.0/16`, `2001:db8::/32`, or one address.

use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use tabane_linux::hooks::Prefix;

/// A range that goes its own way, without the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectPrefix(pub(crate) Prefix);

impl FromStr for DirectPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || format!("'{text}' is no address range; write it like 192.168.0.0/16");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| advice())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|&bits| bits <= most)
                .ok_or_else(advice)?,
            None => most,
        };
        Ok(Self(Prefix { address, bits }))
    }
}

impl<'de> Deserialize<'de> for DirectPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_addresses() {
        let bits = |text: &str| text.parse::<DirectPrefix>().map(|prefix| prefix.0.bits);
        assert_eq!(bits("10.0.0.0/8"), Ok(8));
        assert_eq!(bits("192.0.2.1"), Ok(32));
        assert_eq!(bits("2001:db8::/32"), Ok(32));
        for bad in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10/8",
            "::/129",
            "a/1",
            "10.0.0.0/-1",
        ] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }
}
