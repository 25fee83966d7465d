//! The end that associations come to.
//!
//! Owns one socket for all addresses of this host, of both families where it has IPv6, the endpoint
//! that listens there, and the watch over the addresses: those that come are told to peers, which
//! make paths of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{EndpointId, Families, LinkId};
use anyhow::{Context, Result};
use tabane_linux::interfaces::{self, Interface, Watch};

use super::conversation::INDICATION;
use super::driver::Driver;

/// The one socket.
const SOCKET: LinkId = LinkId(0);
/// The answer to an INIT lists all addresses in one packet, beside some 600 bytes; others are not
/// told of.
const ADDRESSES_MAX: usize = 32;

/// See the module.
pub(crate) struct Home {
    pub endpoint: EndpointId,
    locals: Vec<IpAddr>,
    watch: Option<Watch>,
}

impl Home {
    /// Takes associations at an SCTP port, in a UDP port.
    pub(crate) async fn open(driver: &mut Driver, port: u16, udp_port: u16) -> Result<Self> {
        let locals = own_addresses().await?;
        let everywhere = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        if driver.open(SOCKET, None, everywhere, udp_port).is_err() {
            // As on a host without IPv6; any other reason is one for this as well.
            driver.open(SOCKET, None, Ipv4Addr::UNSPECIFIED.into(), udp_port)?;
        }
        let endpoint = driver
            .stack
            .open(Families::Both, &locals, port, INDICATION)
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

/// Every address of this host that others may reach, and that of loopback.
async fn own_addresses() -> Result<Vec<IpAddr>> {
    let interfaces = interfaces::list()
        .await
        .context("cannot list the interfaces")?;
    let up = interfaces.iter().filter(|interface| interface.up);
    let mut found: Vec<IpAddr> = up.flat_map(Interface::global_addresses).collect();
    found.truncate(ADDRESSES_MAX);
    found.push(Ipv4Addr::LOCALHOST.into());
    Ok(found)
}
