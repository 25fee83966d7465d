//! Echo requests ("ping") of the whole machine, through the session.
//!
//! Owns the TUN device that they are routed to, and the route, which is there only while the relay
//! serves them: without it pings go as they would without us.

use std::fs;
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::Duration;
use tabane_linux::routing::Routing;
use tabane_linux::tun::Tun;
use tabane_tunnel::{Client, FlowError, UdpFlow};
use tokio::time::sleep;

use super::filter::ECHO;

const NAME: &str = "tabane%d";
/// Larger than any packet that programs send, so that none comes in fragments; smaller than what
/// a flow of the tunnel takes.
const MTU: u32 = 65_000;
const MAX_PACKET: usize = 65_535;
/// Pause before a flow that ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// The same where the relay does not serve pings; its owner may mend that.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// A TUN device that is up.
#[derive(Debug)]
pub(super) struct Ping {
    tun: Tun,
    index: u32,
    routing: Rc<Routing>,
}

impl Ping {
    /// Makes the device; nothing is routed to it yet.
    pub(super) async fn set_up(routing: Rc<Routing>) -> Result<Self> {
        let tun = Tun::open(NAME)?;
        // Answers come in here from anywhere. Their mark, which the filter puts on them, tells the
        // kernel's check of the way back that this is where such senders are reached.
        set("ipv4", tun.name(), "src_valid_mark", "1");
        // Nobody lives on this wire: no address, no questions.
        set("ipv6", tun.name(), "addr_gen_mode", "1");
        let index = routing.bring_up(tun.name(), MTU).await?;
        routing.add_rule(ECHO).await?;
        Ok(Self {
            tun,
            index,
            routing,
        })
    }

    pub(super) fn name(&self) -> &str {
        self.tun.name()
    }

    /// Carries pings for ever, whenever the relay can be reached.
    pub(super) async fn serve(self, client: Client) {
        loop {
            client.until_reachable(true).await;
            let pause = match self.carry(&client).await {
                Err(error) => {
                    tracing::warn!("pings are not carried: {error:#}");
                    LONG_PAUSE
                }
                Ok(()) => PAUSE,
            };
            sleep(pause).await;
        }
    }

    async fn carry(&self, client: &Client) -> Result<()> {
        let Ok(flow) = client.open_packets().await else {
            // There is no session after all.
            return Ok(());
        };
        match flow.opened().await {
            Ok(()) => {}
            Err(FlowError::Refused(status)) => {
                return Err(FlowError::Refused(status)).context("the relay does not serve them");
            }
            Err(_) => return Ok(()),
        }
        self.routing.add_default(ECHO.table, self.index).await?;
        let result = tokio::select! {
            result = self.pump(&flow) => result,
            () = client.until_reachable(false) => Ok(()),
        };
        self.routing.remove_default(ECHO.table, self.index).await?;
        result
    }

    /// Moves packets until the flow ends.
    async fn pump(&self, flow: &UdpFlow) -> Result<()> {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            tokio::select! {
                received = self.tun.recv(&mut buffer) => {
                    let length = received.context("the TUN device failed")?;
                    // Lost like any packet.
                    let _ = flow.send(&buffer[..length]);
                }
                answer = flow.recv() => match answer {
                    // The kernel refuses what is no packet.
                    Ok(packet) => drop(self.tun.try_send(&packet)),
                    Err(error) => {
                        tracing::debug!(%error, "the flow of pings ended");
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Sets a value of an interface in /proc/sys, where there is such a value.
fn set(family: &str, interface: &str, name: &str, value: &str) {
    let path = format!("/proc/sys/net/{family}/conf/{interface}/{name}");
    if let Err(error) = fs::write(&path, value) {
        tracing::debug!(%error, path, "not set");
    }
}
