//! The addresses that a relay gives to clients, as users write them.

use std::str::FromStr;

use tabane_base::Prefix;

use crate::as_text::read_as_text;
use crate::prefix::PRIVATE;

/// A range of addresses for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolRange(pub Prefix);

impl FromStr for PoolRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = Prefix::parse(text).ok_or_else(|| {
            format!("'{text}' is no address range; write it like 100.64.16.0/20 or fd00:1::/64")
        })?;
        let width = if prefix.address.is_ipv4() { 32 } else { 128 };
        let is_private = PRIVATE.iter().any(|range| {
            let range = Prefix::parse(range).expect("the list has ranges only");
            range.contains(prefix.address) && range.bits <= prefix.bits
        });
        if !is_private {
            return Err(format!(
                "{text} is not within {}: a pool takes addresses that nobody on the internet has",
                PRIVATE.join(", ")
            ));
        }
        if width - prefix.bits < 2 {
            return Err(format!(
                "{text} has no room: one address is the relay's own"
            ));
        }
        Ok(Self(prefix))
    }
}

read_as_text!(PoolRange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_private_and_has_room() {
        for good in [
            "100.64.16.0/20",
            "10.9.0.0/30",
            "fd00:1::/64",
            "192.168.9.0/24",
        ] {
            assert!(good.parse::<PoolRange>().is_ok(), "{good}");
        }
        for (bad, word) in [
            ("8.8.8.0/24", "nobody on the internet"),
            ("10.0.0.0/7", "nobody on the internet"),
            ("2001:db8::/64", "nobody on the internet"),
            ("100.64.0.1", "no room"),
            ("fd00::/127", "no room"),
            ("pool", "no address range"),
        ] {
            let error = bad.parse::<PoolRange>().unwrap_err();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }
}
