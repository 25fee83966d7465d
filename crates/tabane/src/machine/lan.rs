//! Hosts behind this machine: what they send through it, taken up by TPROXY and carried.
//!
//! Owns the sockets. Which packets come here is the filter's affair; where they go, the carrier's.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_linux::routing::Routing;
use tabane_linux::transparent::Transparent;
use tabane_policy::Protocol;

use super::filter::LAN;
use crate::carrier::{ACCEPT_PAUSE, Carrier};
use crate::plain;

const MAX_DATAGRAM: usize = 65_535;

/// The sockets for hosts behind this machine.
#[derive(Debug)]
pub(super) struct Lan {
    sockets: Rc<Transparent>,
}

impl Lan {
    pub(super) async fn set_up(routing: &Routing) -> Result<Self> {
        let sockets = Transparent::open(plain::MARK);
        let sockets = Rc::new(sockets.context("cannot open sockets for hosts behind this one")?);
        routing.add_local(LAN.table).await?;
        routing.add_rule(LAN).await?;
        Ok(Self { sockets })
    }

    pub(super) fn port(&self) -> u16 {
        self.sockets.port()
    }

    /// Takes connections for ever.
    pub(super) fn serve_tcp(&self, carrier: Carrier) -> impl Future<Output = ()> + use<> {
        let sockets = self.sockets.clone();
        async move {
            loop {
                match sockets.accept().await {
                    Ok((stream, dest)) => {
                        carrier.carry(stream, carrier.route_to(dest, Protocol::Tcp));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of the LAN");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Takes datagrams for ever.
    pub(super) fn serve_udp(&self, carrier: Carrier) -> impl Future<Output = ()> + use<> {
        let sockets = self.sockets.clone();
        async move {
            let associations = carrier.associations::<(SocketAddr, SocketAddr)>();
            let mut buffer = vec![0; MAX_DATAGRAM];
            loop {
                let (length, from, dest) = match sockets.recv(&mut buffer).await {
                    Ok(received) => received,
                    Err(error) => {
                        tracing::warn!(%error, "cannot receive datagrams of the LAN");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                associations.send(&(from, dest), &buffer[..length], || {
                    let impostor = sockets.impostor(dest);
                    if let Err(error) = &impostor {
                        tracing::warn!(%error, %dest, "cannot answer the LAN");
                    }
                    let deliver = move |answer: &[u8]| {
                        if let Ok(impostor) = &impostor {
                            // Lost like any datagram.
                            let _ = impostor.try_send(from, answer);
                        }
                    };
                    (
                        carrier.route_to(dest, Protocol::Udp),
                        carrier.listen(dest, Box::new(deliver)),
                    )
                });
            }
        }
    }
}
