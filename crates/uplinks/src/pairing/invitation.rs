//! What one machine shows so that another can pair with it: the code, and where it is to be used.
//!
//! Pure: which addresses there are is the caller's.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tabane_base::{Destination, Host};
use tabane_linux::interfaces::{Interface, Kind};
use tabane_neighbour::Code;

use crate::lending::LENDING_PORT;

/// Places in an invitation: more make a picture that is hard to read from a screen.
const MAX_PLACES: usize = 3;
/// `123-456`, or `123-456@192.0.2.7:4511` with the places to try, divided by commas; behind the
/// command as well.
#[derive(Clone, Debug)]
pub struct Invitation {
    pub(super) code: Code,
    pub(super) places: Vec<Destination>,
}

impl Invitation {
    /// The command, in whose place an invitation may be pasted with it.
    pub const COMMAND: &str = "tabane share pair ";

    /// To this machine, which has `interfaces` and listens on `port`.
    pub(super) fn here(code: Code, interfaces: &[Interface], port: u16) -> Self {
        let near = interfaces
            .iter()
            .filter(|it| it.up && it.kind != Kind::Loopback);
        let mut addresses: Vec<(bool, IpAddr)> = near
            .flat_map(|it| {
                // Machines' own bridges and the like lead nowhere.
                let leads_nowhere = it.default_routes.is_empty();
                it.global_addresses().map(move |at| (leads_nowhere, at))
            })
            .collect();
        // Neighbours are on networks of private addresses, as a rule.
        let is_private = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.is_private(),
            IpAddr::V6(v6) => v6.is_unique_local(),
        };
        addresses.sort_by_key(|(leads_nowhere, address)| {
            let is_public = !is_private(address);
            (address.is_ipv6(), is_public, *leads_nowhere, *address)
        });
        addresses.truncate(MAX_PLACES);
        let host = addresses.into_iter().map(|(_, address)| Host::Ip(address));
        let places = host.map(|host| Destination { host, port });
        Self {
            code,
            places: places.collect(),
        }
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.places.iter().map(ToString::to_string);
        match &places.collect::<Vec<_>>()[..] {
            [] => write!(f, "{}", self.code),
            places => write!(f, "{}@{}", self.code, places.join(",")),
        }
    }
}

impl FromStr for Invitation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = text.strip_prefix(Self::COMMAND).unwrap_or(text);
        let (code, places) = match text.split_once('@') {
            Some((code, places)) => (code, places.split(',').collect()),
            None => (text, Vec::new()),
        };
        let place = |text: &str| Destination::parse(text, Some(LENDING_PORT));
        let places = places.into_iter().map(place).collect::<Result<_, _>>();
        Ok(Self {
            code: code.parse::<Code>().map_err(|error| error.to_string())?,
            places: places.map_err(|error| error.to_string())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_what_is_read() {
        for text in ["123-456", "123-456@192.0.2.7:4511,[2001:db8::7]:4599"] {
            let invitation: Invitation = text.parse().unwrap();
            assert_eq!(invitation.to_string(), text);
            let pasted: Invitation = format!(" {}{text}\n", Invitation::COMMAND).parse().unwrap();
            assert_eq!(pasted.to_string(), text);
        }
        let short: Invitation = "123456@nas".parse().unwrap();
        assert_eq!(short.to_string(), "123-456@nas:4511");
        for wrong in ["12345", "123-456@", "123-456@a:b:c", "@192.0.2.7", ""] {
            assert!(wrong.parse::<Invitation>().is_err(), "{wrong}");
        }
    }
}
