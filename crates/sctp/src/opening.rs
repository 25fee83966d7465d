//! How an endpoint is opened: options and addresses of its socket.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::association::SctpError;
use crate::ffi;
use crate::library::{self, Library, Socket};

/// What the stack does not know of.
const UDP_HEADER: u32 = 8;

/// What an endpoint is to be.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) first: Ipv4Addr,
    pub(crate) others: &'a [Ipv4Addr],
    /// 0: any.
    pub(crate) port: u16,
    pub(crate) adaptation: u32,
    /// [`crate::Settings::mtu`].
    pub(crate) mtu: u32,
}

impl Order<'_> {
    /// Makes a socket so; gives its port.
    pub(crate) fn apply(&self, library: &Library, socket: &Socket) -> Result<u16, SctpError> {
        for kind in [
            ffi::SCTP_ASSOC_CHANGE,
            ffi::SCTP_SHUTDOWN_EVENT,
            ffi::SCTP_ADAPTATION_INDICATION,
        ] {
            let on = ffi::EventOn {
                se_assoc_id: ffi::SCTP_FUTURE_ASSOC,
                se_type: kind,
                se_on: 1,
            };
            library.set(socket, ffi::SCTP_EVENT, &on, "ask for notifications")?;
        }
        library.set(
            socket,
            ffi::SCTP_RECVRCVINFO,
            &1_u32,
            "ask for message details",
        )?;
        library.set(socket, ffi::SCTP_NODELAY, &1_u32, "switch Nagle's rule off")?;
        let indication = ffi::SetAdaptation {
            ssb_adaptation_ind: self.adaptation,
        };
        library.set(
            socket,
            ffi::SCTP_ADAPTATION_LAYER,
            &indication,
            "say who we are",
        )?;
        // For associations to come: no search for larger packets, which the sockets would refuse,
        // and no path is ever given up (`pulse.rs` says why).
        let paths = ffi::PaddrParams {
            spp_pathmtu: self.mtu.saturating_sub(UDP_HEADER),
            spp_flags: ffi::SPP_PMTUD_DISABLE,
            spp_pathmaxrxt: u16::MAX,
            ..library::zero()
        };
        let name = ffi::SCTP_PEER_ADDR_PARAMS;
        library.set(socket, name, &paths, "limit the size of packets")?;
        library.know_address(self.first);
        library.bind(socket, SocketAddrV4::new(self.first, self.port))?;
        let port = library.port(socket).unwrap_or(self.port);
        for other in self.others {
            library.know_address(*other);
            let other = SocketAddrV4::new(*other, port);
            library.add_address(socket, other)?;
        }
        Ok(port)
    }
}
