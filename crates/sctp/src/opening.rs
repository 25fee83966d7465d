//! How an endpoint is opened: options and addresses of its socket.

use std::net::{IpAddr, SocketAddr};

use crate::association::SctpError;
use crate::ffi;
use crate::library::{self, Library, Socket};

/// What the stack does not know of.
const UDP_HEADER: u32 = 8;

/// What an endpoint is to be.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) first: IpAddr,
    pub(crate) others: &'a [IpAddr],
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
        limit_packets(library, socket, self.mtu)?;
        library.know_address(self.first);
        library.bind(socket, SocketAddr::new(self.first, self.port))?;
        let port = library.port(socket).unwrap_or(self.port);
        for other in self.others {
            library.know_address(*other);
            let other = SocketAddr::new(*other, port);
            library.add_address(socket, other)?;
        }
        Ok(port)
    }
}

/// For a socket's associations to come: packets of at most this size from the IP header on, no
/// search for larger ones, which our sockets would refuse, and no path is ever given up (`pulse.rs`
/// says why).
pub(crate) fn limit_packets(library: &Library, socket: &Socket, mtu: u32) -> Result<(), SctpError> {
    let paths = ffi::PaddrParams {
        spp_pathmtu: mtu.saturating_sub(UDP_HEADER),
        spp_flags: ffi::SPP_PMTUD_DISABLE,
        spp_pathmaxrxt: u16::MAX,
        ..library::zero()
    };
    let name = ffi::SCTP_PEER_ADDR_PARAMS;
    Ok(library.set(socket, name, &paths, "limit the size of packets")?)
}
