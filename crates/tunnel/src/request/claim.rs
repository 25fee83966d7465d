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
    /// Where.
    pub ports: PortRange,
}

impl PortClaim {
    pub(super) fn emit(self, name: Option<&HostName>, out: &mut Vec<u8>) {
        out.push(protocol_byte(self.protocol));
        out.extend(self.ports.first().to_be_bytes());
        out.extend(self.ports.last().to_be_bytes());
        let name = name.map_or("", HostName::as_str);
        out.push(u8::try_from(name.len()).expect("names have at most 253 bytes"));
        out.extend(name.as_bytes());
    }
}

/// Reads a claim, as a request without its kind.
pub(super) fn parse_claim(bytes: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
    /// Protocol, first and last port, length of the name.
    const HEAD: usize = 1 + 2 + 2 + 1;
    let protocol = match bytes.first() {
        None => return Ok(None),
        Some(byte) => protocol_of(*byte).ok_or(RequestError::Kind)?,
    };
    let Some((&[_, a, b, c, d, len], rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let ports = PortRange::new(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let ports = ports.ok_or(RequestError::Port)?;
    let len = usize::from(len);
    if len > MAX_NAME {
        return Err(RequestError::Name);
    }
    let Some(name) = rest.get(..len) else {
        return Ok(None);
    };
    let target = match len {
        0 => Target::Anywhere,
        _ => {
            let name = std::str::from_utf8(name).map_err(|_| RequestError::Name)?;
            let name = HostName::new(name).map_err(|_| RequestError::Name)?;
            let port = ports.first();
            Target::Name { name, port }
        }
    };
    let transport = Transport::Exposure(PortClaim { protocol, ports });
    Ok(Some((Request { transport, target }, HEAD + len)))
}
