//! The world without privilege: a relay on loopback, with one emulated link per UDP port to it.
//!
//! ```text
//!  curl ── SOCKS5 ── client (ours) ── 127.0.0.1:a ═ wifi ═ ─┬─ tabane relay ── web server (ours)
//!                                  ── 127.0.0.1:b ═ lte  ═ ─┘
//! ```

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use anyhow::{Context, Result};
use tabane_base::{Host, Seed};
use tabane_core::{Identity, SessionConfig};
use tabane_lab::{Control, Loopback, LoopbackLink};
use tabane_netem::Scenario;
use tabane_tunnel::{Client, ClientConfig, HostMonitor, LinkBind, RelayPeer, SessionNumbers};
use tokio::task::JoinHandle;

use super::relay::RelayProcess;
use super::{Fetch, LinkChoice, curl};
use crate::demo::directory::Directory;
use crate::demo::web_server::WebServer;
use tabane_client::{OpenConnections, ProxyListener, UdpOrder};
use tabane_store::{RelayEntry, secret};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Everything there is in this world; gone when dropped.
#[derive(Debug)]
pub(crate) struct LoopbackWorld {
    web: WebServer,
    relay: RelayProcess,
    links: Loopback,
    /// The relay writes into it.
    _directory: Directory,
}

impl LoopbackWorld {
    pub(super) async fn build(scenario: &Scenario) -> Result<Self> {
        let directory = Directory::create()?;
        let listener = TcpListener::bind(ANY_PORT).context("cannot start the web server")?;
        let web = WebServer::start(listener)?;
        let program = Command::new(super::own_program()?);
        let relay = RelayProcess::start(program, ANY_PORT, &directory).await?;
        let links = Loopback::up(scenario, address_of(relay.entry())?, Seed(1))?;
        Ok(Self {
            web,
            relay,
            links,
            _directory: directory,
        })
    }

    pub(super) fn control(&self) -> &Control {
        self.links.control()
    }

    pub(super) async fn fetch(&self, way: LinkChoice, seconds: u32) -> Result<Fetch> {
        let all = self.links.links();
        let links = match way {
            LinkChoice::Alone(link) => &all[link..=link],
            LinkChoice::Together => all,
        };
        let session = ProxySession::connect(self.relay.entry(), links).await?;
        let mut command = Command::new("curl");
        curl::arguments(&mut command, seconds);
        command.args(["--proxy", &format!("socks5h://{}", session.address)]);
        command.arg(self.web.url());
        Ok(Fetch::through(command, session))
    }

    pub(super) async fn down(self) {
        self.relay.stop().await;
    }
}

/// A client over some of the links, and the proxy that leads into it.
pub(super) struct ProxySession {
    client: Client,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl ProxySession {
    async fn connect(relay: &RelayEntry, links: &[LoopbackLink]) -> Result<Self> {
        let bind = |link: &LoopbackLink| LinkBind {
            name: link.name.clone(),
            egress: None,
            translators: Vec::new(),
            v4: Some(Ipv4Addr::LOCALHOST),
            v6: None,
            relay_addrs: Some(vec![vec![link.address]]),
            policy: tabane_core::PathPolicy::default(),
            carrier: tabane_tunnel::CarrierWish::default(),
            memory: None,
        };
        let config = ClientConfig {
            merits: Vec::new(),
            identity: Identity::from_seed(secret::random()),
            relays: vec![RelayPeer {
                name: "relay".to_owned(),
                key: relay.key,
                addrs: links.iter().map(|link| link.address).collect(),
                token: Some(relay.token.as_str().as_bytes().to_vec()),
                udp_ports: Vec::new(),
                tls: None,
            }],
            links: links.iter().map(bind).collect(),
            session: SessionConfig::default(),
            monitor: HostMonitor::default(),
            udp_order: UdpOrder::default().0,
            seed: secret::random(),
            numbers: SessionNumbers::default(),
            proxy: None,
            mark: None,
        };
        let listener = ProxyListener::bind(ANY_PORT).await?;
        let client = Client::connect(config).await?;
        Ok(Self {
            address: listener.address(),
            serving: tokio::task::spawn_local(listener.serve(
                client.clone().into(),
                OpenConnections::default(),
                tabane_client::RuleBook::default(),
            )),
            client,
        })
    }

    pub(super) async fn close(self) {
        self.serving.abort();
        self.client.close().await;
    }
}

fn address_of(relay: &RelayEntry) -> Result<SocketAddr> {
    let address = relay
        .addresses
        .iter()
        .find_map(|address| match address.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, address.port)),
            Host::Name(_) => None,
        });
    address.context("the relay announces no address")
}
