//! What is neither TCP nor UDP, of the whole machine, through the session: pings, and every other
//! protocol where the relay gives addresses for it.
//!
//! Owns the TUN device that such packets are routed to, its addresses, and the route, which is
//! there only while the relay serves them: without it they go as they would without us. Which
//! packets come here, and that they bear the device's address, is the filter's affair. Others'
//! packets for hosts of this site come in by the same device, while it has addresses.

use std::cell::{Cell, RefCell};
use std::fs;
use std::iter;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tabane_base::{Duration, Prefix};
use tabane_linux::{interfaces, routing::Routing, tun::Tun};
use tabane_tunnel::{Assignment, Client, Lodging, OpenError, PacketFlow};
use tokio::time::{interval, sleep};

use super::filter::{self, ECHO, Filter, Lodged};
use crate::sites::Sites;

const NAME: &str = "tabane%d";
/// Larger than any packet that programs send, so that none comes in fragments; smaller than what
/// a flow of the tunnel takes. Where there are no addresses, nobody else's link follows.
const PINGS_MTU: u32 = 65_000;
const MAX_PACKET: usize = 65_535;
/// The device's address while it has none of the relay's (RFC 7600 §4.8): nobody's, and nothing
/// bears it. Without any, the kernel lets no answers for hosts behind this one in.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8));
/// Pause before a flow that ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// The same where another session is expected.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// The same where the relay does not serve them, or has no address left; its owner may mend that.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// How often is looked whether links carry larger packets, or smaller ones, than before.
const MTU_INTERVAL: Duration = Duration::from_secs(5);

/// A TUN device that is up.
#[derive(Debug)]
pub(super) struct Packets {
    tun: Rc<Tun>,
    index: u32,
    routing: Rc<Routing>,
    filter: Rc<RefCell<Filter>>,
    /// Better nowhere than without the relay.
    is_strict: bool,
    /// Addresses cannot be used here, so none are asked for.
    only_pings: Cell<bool>,
    /// What the user was told last.
    told: Cell<Option<Lodging>>,
}

impl Packets {
    /// Makes the device. Nothing is routed to it yet, unless it is `strict`: then what the relay
    /// does not carry ends in it.
    pub(super) async fn set_up(
        routing: Rc<Routing>,
        filter: Rc<RefCell<Filter>>,
        is_strict: bool,
    ) -> Result<Self> {
        let tun = Rc::new(Tun::open(NAME)?);
        // Answers come in here from anywhere. Their mark, which the filter puts on them, tells the
        // kernel's check of the way back that this is where such senders are reached. Those for
        // hosts behind lose the mark before they are routed, so the check is the loose one.
        set("ipv4", tun.name(), "src_valid_mark", "1");
        set("ipv4", tun.name(), "rp_filter", "2");
        // Nobody lives on this wire: no address of its own, no questions.
        set("ipv6", tun.name(), "addr_gen_mode", "1");
        set("ipv6", tun.name(), "use_oif_addrs_only", "1");
        let index = routing.bring_up(tun.name(), PINGS_MTU).await?;
        routing.add_address(index, NOBODY, 32).await?;
        routing.add_rule(ECHO).await?;
        if is_strict {
            routing.add_default(ECHO.table, index).await?;
        }
        Ok(Self {
            tun,
            index,
            routing,
            filter,
            is_strict,
            only_pings: Cell::new(false),
            told: Cell::new(None),
        })
    }

    pub(super) fn name(&self) -> &str {
        self.tun.name()
    }

    /// Carries packets for ever, whenever the relay can be reached.
    pub(super) async fn serve(self, client: Client, sites: Sites) {
        loop {
            client.until_reachable(true).await;
            let carried = self.carry(&client, &sites).await;
            sites.set_device(None);
            let pause = match carried {
                Err(error) => {
                    tracing::warn!("pings and other protocols are not carried: {error:#}");
                    LONG_PAUSE
                }
                Ok(()) => PAUSE,
            };
            sleep(pause).await;
        }
    }

    async fn carry(&self, client: &Client, sites: &Sites) -> Result<()> {
        let mut flow = match client.open_packets(!self.only_pings.get()).await {
            Ok(flow) => flow,
            Err(error @ OpenError::Refused(_)) => {
                return Err(error).context("the relay does not serve them");
            }
            // There is no session after all.
            Err(_) => return Ok(()),
        };
        let assignment = flow.assignment();
        self.tell(assignment);
        if let Err(error) = self.move_in(&flow).await {
            tracing::warn!("only pings are carried beside TCP and UDP: {error:#}");
            self.only_pings.set(true);
            return self.move_out().await;
        }
        self.routing.add_default(ECHO.table, self.index).await?;
        let is_lodged = assignment.lodging == Lodging::Given;
        sites.set_device(is_lodged.then(|| self.tun.clone()));
        let result = loop {
            tokio::select! {
                result = self.pump(&flow) => if result.is_err() {
                    break result;
                },
                () = client.until_given_up() => break Ok(()),
                // Somebody may have left meanwhile.
                () = sleep(LONG_PAUSE), if assignment.lodging == Lodging::Full => break Ok(()),
            }
            match self.follow(client, assignment).await {
                Some(next) => flow = next,
                None => break Ok(()),
            }
        };
        self.move_out().await?;
        result
    }

    /// The flow by the next session, if that is there within a moment and the relay gives what it
    /// gave before: then what is under way goes on as it is, and only waits.
    async fn follow(&self, client: &Client, before: Assignment) -> Option<PacketFlow> {
        let next = async {
            loop {
                // It may not be known yet that the last one is over.
                sleep(SHORT_PAUSE).await;
                client.until_reachable(true).await;
                match client.open_packets(!self.only_pings.get()).await {
                    Ok(next) => return Some(next),
                    Err(OpenError::Refused(_)) => return None,
                    Err(_) => {}
                }
            }
        };
        tokio::select! {
            next = next => next.filter(|next| next.assignment() == before),
            () = client.until_given_up() => None,
        }
    }

    /// Gives the device the addresses that the relay has given, if any.
    async fn move_in(&self, flow: &PacketFlow) -> Result<()> {
        let assignment = flow.assignment();
        let interfaces = interfaces::list().await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        for address in assignment.addresses() {
            let others = interfaces.iter().filter(|it| it.index != self.index);
            for (name, own) in others.flat_map(|it| it.addresses.iter().map(|own| (&it.name, own)))
            {
                let network = Prefix {
                    address: own.address,
                    bits: own.prefix_bits,
                };
                if network.bits > 0 && network.contains(address) {
                    bail!(
                        "the relay gives {address}, which belongs to {network}, the network of \
                         {name}; its owner had better choose another --pool"
                    );
                }
            }
        }
        let v4 = assignment.v4.map_or(NOBODY, IpAddr::V4);
        self.live_at(iter::once(v4).chain(assignment.v6.map(IpAddr::V6)))
            .await?;
        if assignment.lodging == Lodging::Given {
            self.set_mtu(flow.room().into()).await?;
        }
        self.filter.borrow_mut().set_lodged(Lodged {
            v4: assignment.v4.is_some(),
            v6: assignment.v6.is_some(),
        })
    }

    /// The other way about. Where the rules cannot be changed the way ends all the same: what they
    /// still lead there would be lost.
    async fn move_out(&self) -> Result<()> {
        let unruled = self.filter.borrow_mut().set_lodged(Lodged::default());
        filter::forget_lodged();
        // Before the addresses, so that nothing leaves with a wrong one.
        if !self.is_strict {
            self.routing.remove_default(ECHO.table, self.index).await?;
        }
        unruled?;
        self.live_at(iter::once(NOBODY)).await?;
        self.set_mtu(PINGS_MTU).await
    }

    async fn live_at(&self, addresses: impl Iterator<Item = IpAddr>) -> Result<()> {
        self.routing.remove_addresses(self.index).await?;
        for address in addresses {
            let bits = Prefix::host(address).bits;
            self.routing.add_address(self.index, address, bits).await?;
        }
        Ok(())
    }

    /// The kernel tells whoever sends larger packets, here or behind this machine.
    async fn set_mtu(&self, mtu: u32) -> Result<()> {
        self.routing.bring_up(self.tun.name(), mtu).await?;
        Ok(())
    }

    fn tell(&self, assignment: Assignment) {
        let lodging = assignment.lodging;
        if self.told.replace(Some(lodging)) == Some(lodging) {
            return;
        }
        let addresses: Vec<_> = assignment.addresses().map(|it| it.to_string()).collect();
        match lodging {
            Lodging::NoPool => tracing::info!(
                "the relay has no address pool: pings are carried, and what is neither TCP nor \
                 UDP goes as without tabane"
            ),
            Lodging::Given => tracing::info!(
                "what is neither TCP nor UDP is carried, too, as {} at the relay",
                addresses.join(" and ")
            ),
            Lodging::Full => tracing::warn!(
                "the relay's address pool is full: pings are carried, and what is neither TCP nor \
                 UDP goes as without tabane until an address is free"
            ),
        }
    }

    /// Moves packets until the flow ends.
    async fn pump(&self, flow: &PacketFlow) -> Result<()> {
        let mut buffer = vec![0; MAX_PACKET];
        let mut looks = interval(MTU_INTERVAL);
        let assignment = flow.assignment();
        let is_lodged = assignment.lodging == Lodging::Given;
        let mut is_strange = false;
        // Another session may not carry what the last one did yet.
        let mut mtu = 0;
        loop {
            tokio::select! {
                received = self.tun.recv(&mut buffer) => {
                    let length = received.context("the TUN device failed")?;
                    let packet = &buffer[..length];
                    if !is_for_groups(packet) {
                        // Lost like any packet.
                        let _ = flow.send(packet);
                    }
                }
                answer = flow.recv() => match answer {
                    // Lost like any packet where the kernel has no room.
                    Ok(packet) if assignment.expects(&packet) => drop(self.tun.try_send(&packet)),
                    Ok(_) => {
                        if !mem::replace(&mut is_strange, true) {
                            tracing::warn!("the relay sends packets that nobody asked for");
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the flow of packets ended");
                        return Ok(());
                    }
                },
                _ = looks.tick(), if is_lodged => {
                    if flow.room() != mtu {
                        mtu = flow.room();
                        self.set_mtu(mtu.into()).await?;
                    }
                }
            }
        }
    }
}

/// The kernel's own chatter on a new wire (RFC 3810, RFC 4861), which leads nowhere.
fn is_for_groups(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(16).is_some_and(|first| *first >= 224),
        Some(6) => packet.get(24) == Some(&0xff),
        _ => true,
    }
}

/// Sets a value of an interface in /proc/sys, where there is such a value.
fn set(family: &str, interface: &str, name: &str, value: &str) {
    let path = format!("/proc/sys/net/{family}/conf/{interface}/{name}");
    if let Err(error) = fs::write(&path, value) {
        tracing::debug!(%error, path, "not set");
    }
}
