//! What a client asks for that has the relay listen for it [P-T.9].
//!
//! Owns its wire form.

use tabane_base::{PortRange, Protocol};

use super::{Request, RequestError, Transport, protocol_byte, protocol_of};
use crate::target::{HostName, MAX_NAME, Target};

/// Which of the relay's ports lead to a client that asks for it [P-T.9].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortClaim {
    /// How visitors come.
    pub protocol: Protocol,
    /// The ports asked for.
    pub ports: PortRange,
}

impl PortClaim {
    pub(super) fn emit(self, name: Option<&HostName>, out: &mut Vec<u8>) {
        out.push(protocol_byte(self.protocol));
        out.extend(self.ports.first().to_be_bytes());
        out.extend(self.ports.last().to_be_bytes());
        emit_name(name, out);
    }
}

/// Writes a name behind its length; 0 for none.
pub(crate) fn emit_name(name: Option<&HostName>, out: &mut Vec<u8>) {
    let name = name.map_or("", HostName::as_str);
    out.push(u8::try_from(name.len()).expect("names have at most 253 bytes"));
    out.extend(name.as_bytes());
}

/// Reads such a name.
pub(crate) fn parse_name(bytes: &[u8]) -> Result<Option<(Option<HostName>, usize)>, RequestError> {
    let Some((&len, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let len = usize::from(len);
    if len > MAX_NAME {
        return Err(RequestError::Name);
    }
    let Some(name) = rest.get(..len) else {
        return Ok(None);
    };
    if len == 0 {
        return Ok(Some((None, 1)));
    }
    let name = std::str::from_utf8(name).map_err(|_| RequestError::Name)?;
    let name = HostName::new(name).map_err(|_| RequestError::Name)?;
    Ok(Some((Some(name), 1 + len)))
}

/// Reads a claim, as a request without its kind.
pub(super) fn parse_claim(bytes: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
    /// Protocol, first and last port.
    const HEAD: usize = 1 + 2 + 2;
    let protocol = match bytes.first() {
        None => return Ok(None),
        Some(byte) => protocol_of(*byte).ok_or(RequestError::Kind)?,
    };
    let Some((&[_, a, b, c, d], rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let ports = PortRange::new(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let ports = ports.ok_or(RequestError::Port)?;
    let Some((name, len)) = parse_name(rest)? else {
        return Ok(None);
    };
    let port = ports.first();
    let target = name.map_or(Target::Anywhere, |name| Target::Name { name, port });
    let transport = Transport::Exposure(PortClaim { protocol, ports });
    Ok(Some((Request { transport, target }, HEAD + len)))
}
