//! The end that associations come to.
//!
//! Owns one socket for all addresses of this host, the endpoint that listens there, and the watch
//! over the addresses: those that come are told to peers, which make paths of them.

use std::net::{IpAddr, Ipv4Addr};

use crate::{EndpointId, LinkId};
use anyhow::{Context, Result};
use tabane_linux::interfaces::{self, Watch};

use super::conversation::INDICATION;
use super::driver::Driver;

/// The one socket.
const SOCKET: LinkId = LinkId(0);

/// See the module.
pub(crate) struct Home {
    pub endpoint: EndpointId,
    locals: Vec<Ipv4Addr>,
    watch: Option<Watch>,
}

impl Home {
    /// Takes associations at an SCTP port, in a UDP port.
    pub(crate) async fn open(driver: &mut Driver, port: u16, udp_port: u16) -> Result<Self> {
        let locals = own_addresses().await?;
        driver.open(SOCKET, None, Ipv4Addr::UNSPECIFIED, udp_port)?;
        let endpoint = driver
            .stack
            .open(&locals, port, INDICATION)
            .with_context(|| format!("SCTP port {port}"))?;
        driver.stack.listen(endpoint)?;
        Ok(Self {
            endpoint,
            locals,
            // Without it, addresses that come later are not noticed.
            watch: Watch::start().ok(),
        })
    }

    /// Waits until interfaces or addresses may have changed.
    pub(crate) async fn changed(&mut self) {
        let news = match &mut self.watch {
            Some(watch) => watch.changed().await,
            None => None,
        };
        if news.is_none() {
            self.watch = None;
            std::future::pending().await
        }
    }

    /// Looks again. `accepted` are endpoints of associations that came here.
    pub(crate) async fn follow(
        &mut self,
        driver: &mut Driver,
        accepted: impl Iterator<Item = EndpointId>,
    ) -> Result<()> {
        let now = own_addresses().await?;
        let accepted: Vec<EndpointId> = accepted.collect();
        for local in now.iter().filter(|local| !self.locals.contains(local)) {
            // The one that listens comes last: the stack gives an address to no second endpoint of
            // a port, save to those it knew before.
            for endpoint in accepted.iter().chain([&self.endpoint]) {
                if let Err(error) = driver.stack.add_local(*endpoint, SOCKET, *local) {
                    tracing::warn!(%local, %error, "a peer is not told of a new address");
                }
            }
        }
        self.locals = now;
        Ok(())
    }
}

/// Every IPv4 address of this host that others may reach, and loopback.
async fn own_addresses() -> Result<Vec<Ipv4Addr>> {
    let interfaces = interfaces::list()
        .await
        .context("cannot list the interfaces")?;
    let v4 = |address| match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    };
    let up = interfaces.iter().filter(|interface| interface.up);
    let mut found: Vec<Ipv4Addr> = up
        .flat_map(|interface| interface.global_addresses().filter_map(v4))
        .collect();
    found.push(Ipv4Addr::LOCALHOST);
    Ok(found)
}
