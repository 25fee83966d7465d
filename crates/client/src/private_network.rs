//! A command in a network of its own: what captures all it sends where there is no right to hooks.
//!
//! Owns the addresses of that network (this machine's, so that programs see what they would see
//! plainly), and what arrives from it, carried through the session. Everything vanishes with the
//! process.

mod near_pings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::{Duration, Prefix};
use tabane_linux::{
    interfaces::{self, Interface},
    private_net::{self, Arrival, Entry, PrivateNet, PrivateNetError, Voice},
};
use tabane_tunnel::PacketFlow;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::associations::{Answer, Beginning};
use crate::dispatcher::{ACCEPT_PAUSE, Dispatcher};
use crate::far_ends::FarEnds;
use crate::open_connections::OpenConnections;
use crate::route::Route;
use crate::rule_book::RuleBook;

/// The hidden command that makes the network.
const HELPER: &str = "private-network";
/// The device, where this machine has none with an address.
const NAME: &str = "tabane0";
/// Where this machine has no IPv4 of its own (RFC 7335).
const NO_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 0, 2));
/// The same for IPv6: a unique local address, so that `getaddrinfo` puts IPv6 last (RFC 6724).
const NO_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd74, 0x6162, 0x616e, 0, 0, 0, 0, 1));
/// The bits of an IPv4 address without a wire.
const HOST: u8 = 32;
/// Pings that wait for the relay, or to be sent; more are lost like any packet.
const MAX_PINGS: usize = 64;
/// Pause before a relay that serves no pings is asked again.
const PING_PAUSE: Duration = Duration::from_secs(10);

/// A network for one command.
pub struct PrivateNetwork {
    entry: Entry,
    /// Taken when it begins to serve.
    net: Option<PrivateNet>,
    direct: Rc<[Prefix]>,
    tasks: Vec<JoinHandle<()>>,
}

impl PrivateNetwork {
    /// Makes the network; what goes to `direct` is not carried.
    pub async fn set_up(direct: &[Prefix]) -> Result<Self> {
        let own = own_addresses();
        let interfaces = interfaces::list().await.unwrap_or_default();
        let has = |it: &&Interface| it.addresses.iter().any(|one| own.contains(&one.address));
        // As programs know it, which may bind to it.
        let name = interfaces.iter().find(has).map(|it| it.name.as_str());
        let mut addresses = interfaces.iter().flat_map(|it| &it.addresses);
        let bits = addresses.find(|one| one.address == own[0]);
        let bits = bits.map_or(HOST, |one| one.prefix_bits);
        let (net, entry) = PrivateNet::make(helper(name.unwrap_or(NAME), own, bits))?;
        Ok(Self {
            entry,
            net: Some(net),
            direct: direct.into(),
            tasks: Vec::new(),
        })
    }

    /// Has the child that `command` will start live in the network.
    pub fn place_child(&self, command: &mut Command) -> Result<()> {
        self.entry
            .place_child(command)
            .context("cannot move the command into its network")
    }

    /// Carries from here on what arrives. Must be called within the `LocalSet` of the clients.
    pub fn serve(&mut self, far_ends: &FarEnds, connections: &OpenConnections, rules: &RuleBook) {
        let Some(net) = self.net.take() else {
            return;
        };
        let dispatcher =
            Dispatcher::for_command(far_ends.clone(), connections.clone(), rules.clone());
        let (pings, waiting) = mpsc::channel(MAX_PINGS);
        let (far, for_relay) = mpsc::channel(MAX_PINGS);
        let direct = self.direct.clone();
        let sorting = near_pings::sort(far_ends.clone(), direct, net.voice(), waiting, far);
        self.tasks.push(tokio::task::spawn_local(sorting));
        let pinging = carry_pings(far_ends.clone(), net.voice(), for_relay);
        self.tasks.push(tokio::task::spawn_local(pinging));
        let serving = serve(dispatcher, net, self.direct.clone(), pings);
        self.tasks.push(tokio::task::spawn_local(serving));
    }

    /// Processes that the command has left running in its network.
    pub fn leftovers(&self) -> usize {
        self.entry.processes().unwrap_or(0)
    }
}

impl Drop for PrivateNetwork {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Whether this user can have such a network.
pub fn try_out() -> Result<(), PrivateNetError> {
    private_net::try_out(helper(NAME, [NO_V4, NO_V6], HOST))
}

/// Makes the network in a process of its own.
fn helper(device: &str, [v4, v6]: [IpAddr; 2], bits: u8) -> Command {
    let mut helper = Command::new("/proc/self/exe");
    helper.args([HELPER, device]);
    helper.args([v4.to_string(), bits.to_string(), v6.to_string()]);
    helper.stderr(Stdio::null());
    helper
}

/// What this machine calls itself towards the world.
fn own_addresses() -> [IpAddr; 2] {
    let towards = |unspecified: IpAddr, dest: IpAddr| {
        // Nothing is sent.
        let socket = UdpSocket::bind((unspecified, 0)).ok()?;
        socket.connect((dest, 53)).ok()?;
        let own = socket.local_addr().ok()?.ip();
        (!own.is_loopback() && !own.is_unspecified()).then_some(own)
    };
    // Documentation's: routed as whatever nobody knows better.
    let v4 = towards(
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv4Addr::new(192, 0, 2, 1).into(),
    );
    let v6 = towards(
        Ipv6Addr::UNSPECIFIED.into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    );
    [v4.unwrap_or(NO_V4), v6.unwrap_or(NO_V6)]
}

/// Takes what the command does for ever.
async fn serve(
    dispatcher: Dispatcher,
    mut net: PrivateNet,
    direct: Rc<[Prefix]>,
    pings: mpsc::Sender<Vec<u8>>,
) {
    let associations = dispatcher.associations();
    let voice = net.voice();
    let stays_here = |dest: SocketAddr| {
        let is_direct = direct.iter().any(|prefix| prefix.contains(dest.ip()));
        is_direct || is_link_local(dest.ip())
    };
    let placed = |mut route: Route, dest: SocketAddr| {
        route.stays_here |= stays_here(dest);
        route
    };
    loop {
        let received = net.recv(|arrival| match arrival {
            Arrival::Call(call) => {
                let route = placed(dispatcher.route(call.original), call.original.dest);
                dispatcher.carry(call.caller, route);
            }
            Arrival::Datagram {
                flow,
                original,
                payload,
            } => {
                let question = dispatcher.site_question(original.dest, payload);
                associations.send(&(flow, question), payload, || {
                    let route = dispatcher.route_datagram(original, question, payload);
                    let route = match question {
                        Some(_) => route,
                        None => placed(route, original.dest),
                    };
                    let (answering, telling) = (voice.clone(), voice.clone());
                    let deliver = move |answer: Answer<'_>| match answer {
                        Answer::Datagram(payload) => {
                            answering.datagram(flow.dest, flow.app, payload)
                        }
                        Answer::Refused => answering.refuse(flow),
                    };
                    let stranger = move |from: SocketAddr, payload: &[u8]| {
                        telling.datagram(from, flow.app, payload);
                    };
                    Beginning {
                        route,
                        deliver: dispatcher.listen(flow.dest, question, payload, Box::new(deliver)),
                        socket: Some((flow.app, Box::new(stranger))),
                        holder: None,
                    }
                })
            }
            Arrival::Icmp(packet) => drop(pings.try_send(packet.to_vec())),
        });
        if let Err(error) = received.await {
            tracing::warn!(%error, "cannot receive what the command sends");
            sleep(ACCEPT_PAUSE).await;
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Takes the command's pings to the relay, and the answers back.
async fn carry_pings(far_ends: FarEnds, voice: Voice, mut waiting: mpsc::Receiver<Vec<u8>>) {
    while let Some(first) = waiting.recv().await {
        let Some(relay) = far_ends.relay() else {
            continue;
        };
        match relay.open_packets(false).await {
            Ok(flow) => pump(&flow, &voice, first, &mut waiting).await,
            Err(error) => {
                tracing::info!(%error, "the relay carries no pings");
                sleep(PING_PAUSE).await;
            }
        }
    }
}

async fn pump(
    flow: &PacketFlow,
    voice: &Voice,
    first: Vec<u8>,
    waiting: &mut mpsc::Receiver<Vec<u8>>,
) {
    // Lost like any packet where it cannot be sent.
    let _ = flow.send(&first);
    loop {
        tokio::select! {
            ping = waiting.recv() => match ping {
                Some(ping) => drop(flow.send(&ping)),
                None => return,
            },
            answer = flow.recv() => match answer {
                Ok(packet) if flow.assignment().expects(&packet) => voice.packet(&packet),
                Ok(_) => tracing::debug!("the relay sends a packet that nobody asked for"),
                Err(error) => {
                    tracing::debug!(%error, "the flow of pings ended");
                    return;
                }
            },
        }
    }
}
