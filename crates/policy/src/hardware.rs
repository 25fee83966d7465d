//! The address of a network card.

use std::fmt;

/// What a card is called on its wire (EUI-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HardwareAddress(pub [u8; 6]);

impl HardwareAddress {
    /// Reads `aa:bb:cc:dd:ee:ff`, or the same with dashes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut bytes = [0; 6];
        let mut parts = text.split(separator);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2)?;
            let is_hex = part.bytes().all(|it| it.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_hex)?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |text| HardwareAddress::parse(text).map(|it| it.to_string());
        let usual = Some("0a:1b:2c:3d:4e:5f".to_owned());
        assert_eq!(read("0A:1b:2c:3d:4e:5f"), usual);
        assert_eq!(read("0a-1b-2c-3d-4e-5f"), usual);
        for bad in [
            "",
            "0a:1b:2c:3d:4e",
            "0a:1b:2c:3d:4e:5f:60",
            "0a:1b:2c:3d:4e:+f",
            "0a:1b:2c:3d:4e:5g",
            "a:1b:2c:3d:4e:5f",
            "0a:1b-2c:3d:4e:5f",
            "::1",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
