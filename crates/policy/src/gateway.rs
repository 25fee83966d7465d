//! A gateway that the user has named: one of several behind an interface, as a link of its own.

use std::net::IpAddr;

use crate::reader::{Fields, Reader};

/// `interface` and `gateway` of a `[[link]]`, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The link's name.
    pub name: String,
    /// The interface that the gateway is behind.
    pub interface: String,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The line of its entry.
    pub line: usize,
}

impl Gateway {
    /// What an entry says of it, if anything.
    pub(crate) fn read(
        reader: &mut Reader<'_>,
        fields: &mut Fields<'_>,
        name: Option<&str>,
    ) -> Option<Self> {
        let line = fields.line;
        let interface = reader.text(fields, "interface");
        let expected = "the address of a router, such as \"192.168.1.1\"";
        let addresses = reader.list(fields, "gateway", expected, |value| {
            let address: IpAddr = value.as_str()?.parse().ok()?;
            let leads_on = !address.is_unspecified() && !address.is_multicast();
            (leads_on && !address.is_loopback()).then_some(address)
        });
        let (interface, addresses) = match (interface, addresses) {
            (None, None) => return None,
            (Some(interface), Some(addresses)) => (interface, addresses),
            (Some(_), None) => {
                let what = "interface: goes with gateway, the router behind it; a link without one \
                            is called as its interface";
                reader.fault(line, what);
                return None;
            }
            (None, Some(_)) => {
                reader.fault(line, "gateway: goes with interface, which it is behind");
                return None;
            }
        };
        let one_each = |is_v4| addresses.iter().filter(|it| it.is_ipv4() == is_v4).count() <= 1;
        if !(one_each(true) && one_each(false)) {
            let what = "gateway: one address of each family at most; another is another link's";
            reader.fault(line, what);
        }
        let is_sound = |name: &&str| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"*?/%\"".contains(&byte);
            !name.is_empty() && name.bytes().all(is_plain)
        };
        let Some(name) = name.filter(is_sound) else {
            let what = "gateway: its link has a name of its own, such as name = \"dsl\"";
            reader.fault(line, what);
            return None;
        };
        (!addresses.is_empty()).then(|| Self {
            name: name.to_owned(),
            interface,
            addresses,
            line,
        })
    }
}
