//! Ranges of addresses on the wire [P-T.11].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tabane_base::Prefix;

/// The first byte of an address.
pub(crate) mod address_type {
    pub(crate) const NAME: u8 = 3;
    pub(crate) const V4: u8 = 4;
    pub(crate) const V6: u8 = 6;
}

/// Bytes that are no range, or one with an address that is not its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRange;

/// The range that begins with its first address, as it is told and compared.
pub(crate) fn canonical(prefix: Prefix) -> Prefix {
    let address = prefix.nth(0).unwrap_or(prefix.address);
    Prefix { address, ..prefix }
}

/// Writes an address.
pub(crate) fn emit_ip(ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => {
            out.push(address_type::V4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(address_type::V6);
            out.extend(ip.octets());
        }
    }
}

pub(crate) fn emit_prefix(prefix: Prefix, out: &mut Vec<u8>) {
    let prefix = canonical(prefix);
    emit_ip(prefix.address, out);
    out.push(prefix.bits);
}

/// Reads a range and gives it with the number of bytes it took; `None` where more are needed.
pub(crate) fn parse_prefix(bytes: &[u8]) -> Result<Option<(Prefix, usize)>, BadRange> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let (address, most) = match kind {
        address_type::V4 => {
            let octets = rest.first_chunk::<4>();
            (octets.map(|it| IpAddr::from(Ipv4Addr::from(*it))), 32)
        }
        address_type::V6 => {
            let octets = rest.first_chunk::<16>();
            (octets.map(|it| IpAddr::from(Ipv6Addr::from(*it))), 128)
        }
        _ => return Err(BadRange),
    };
    let length = usize::from(most) / 8;
    let (Some(address), Some(&bits)) = (address, rest.get(length)) else {
        return Ok(None);
    };
    let prefix = Prefix { address, bits };
    if bits > most || canonical(prefix) != prefix {
        return Err(BadRange);
    }
    Ok(Some((prefix, 1 + length + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_by_their_first_address() {
        let mut bytes = Vec::new();
        emit_prefix(Prefix::parse("192.168.20.7/24").unwrap(), &mut bytes);
        assert_eq!(bytes, [4, 192, 168, 20, 0, 24]);
        assert_eq!(
            canonical(Prefix::parse("::1/0").unwrap()).to_string(),
            "::/0"
        );
    }
}
