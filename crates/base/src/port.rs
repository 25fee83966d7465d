//! Ports, and what runs between them.

use std::fmt;

/// What carries a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A connection.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ports that follow one another, at least one of them, and never port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// From `first` to `last`, both included; `None` where there is none, or 0 is one of them.
    #[must_use]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        match first == 0 || first > last {
            true => None,
            false => Some(Self { first, last }),
        }
    }

    /// Reads `443` or `8000-8100`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| -> Option<u16> {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Self::new(number(first)?, number(last)?)
    }

    /// The lowest.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last
    }

    /// How many they are.
    #[must_use]
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// Whether `port` is one of them.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// All of them, the lowest first.
    pub fn ports(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for text in ["1", "443", "8000-8100", "1-65535"] {
            assert_eq!(PortRange::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(PortRange::parse("7-7").unwrap().to_string(), "7");
        for bad in [
            "",
            "0",
            "0-1",
            "9-8",
            "65536",
            "-1",
            "+1",
            "1-",
            "1-2-3",
            "a",
            "8 ",
            "8000 - 8100",
        ] {
            assert_eq!(PortRange::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_ends_are_of_it() {
        let range = PortRange::new(8000, 8002).unwrap();
        assert_eq!(range.ports().collect::<Vec<_>>(), [8000, 8001, 8002]);
        assert_eq!(range.count(), 3);
        assert!(range.contains(8000) && range.contains(8002));
        assert!(!range.contains(7999) && !range.contains(8003));
        assert_eq!(PortRange::new(1, u16::MAX).unwrap().count(), 65_535);
    }
}
