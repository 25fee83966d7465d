//! Who sends: hosts behind this machine, as rules name them.

use std::net::IpAddr;

use tabane_base::Prefix;
use toml::de::DeValue;

use crate::hardware::HardwareAddress;

/// A host, or some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Range(Prefix),
    Card(HardwareAddress),
}

/// A host behind this machine that sends something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Its address, where that is known.
    pub address: Option<IpAddr>,
    /// Its card's, where the kernel has heard of that.
    pub hardware: Option<HardwareAddress>,
}

impl Source {
    pub(crate) const EXPECTED: &str = "an address, a range such as \"192.168.1.0/28\", or a card's \
                                       address such as \"aa:bb:cc:dd:ee:ff\"";

    pub(crate) fn read(value: &DeValue<'_>) -> Option<Self> {
        let text = value.as_str()?;
        let card = HardwareAddress::parse(text).map(Self::Card);
        card.or_else(|| Prefix::parse(text).map(Self::Range))
    }

    pub(crate) fn fits(&self, sender: &Sender) -> bool {
        match self {
            Self::Range(range) => {
                let is_within = |ip: IpAddr| range.contains(ip.to_canonical());
                sender.address.is_some_and(is_within)
            }
            Self::Card(card) => sender.hardware == Some(*card),
        }
    }

    /// Whether all that the other fits, this fits as well.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Range(own), Self::Range(other)) => {
                own.bits <= other.bits && own.contains(other.address)
            }
            (Self::Card(own), Self::Card(other)) => own == other,
            (Self::Range(_), Self::Card(_)) | (Self::Card(_), Self::Range(_)) => false,
        }
    }
}
