//! By where a link's packets leave this host.

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;

/// An interface, and one gateway behind it where it has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The interface's name, as the kernel has it.
    pub interface: String,
    /// What leads packets to the gateway ([`GatewayRoute`](crate::gateways::GatewayRoute)). `None`:
    /// the routing table chooses.
    pub mark: Option<u32>,
}

impl Egress {
    /// Whatever gateway the routing table has for this interface.
    #[must_use]
    pub fn interface(name: &str) -> Self {
        Self {
            interface: name.to_owned(),
            mark: None,
        }
    }

    /// Has everything that `socket` sends leave here, whatever the routing table says.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`: the interface is gone, or we may not mark (`CAP_NET_ADMIN`).
    pub fn take(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        socket.bind_device(Some(self.interface.as_bytes()))?;
        match self.mark {
            Some(mark) => socket.set_mark(mark),
            None => Ok(()),
        }
    }
}
