//! A relay from its start to its end: what is opened in which order, and what is put away.

use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use anyhow::Result;
use tabane_base::{Destination, Duration};
use tabane_core::{ServerConfig, SessionConfig};
use tabane_linux::threads::aside;
#[cfg(feature = "fleet")]
use tabane_store::UsageError;
use tabane_store::{JoinString, PoolRange, secret};
use tabane_tunnel::{
    Access, HostMonitor, OWN_MARK, Parting, Relay, RelayConfig, RelayError, RelayLimits,
    RelayMonitor, WebDoor, carrier::TLS_PORT, may_mark, system_resolvers,
};

use crate::access::TokenUses;
use crate::addresses::{default_listen, public_addresses, public_ips, public_name};
use crate::doors::{self, Doors};
use crate::exit::{self, ExitRules};
#[cfg(feature = "fleet")]
use crate::fleet::{FleetKeeper, FleetOrder};
use crate::gatekeeper::{Door, Gatekeeper, Newcomers};
use crate::keeper::{FileKeeper, Keeper};
use crate::room;
use crate::state::RelayState;
use crate::succession::{Estate, Upgrade};
use crate::view::RelayView;

/// What a relay is asked to be.
#[derive(Debug)]
pub struct RelayOrder {
    /// Where it listens for UDP; `None`: at the usual port of every address.
    pub listen: Option<SocketAddr>,
    /// Under which addresses clients reach it (`ADDR` or `ADDR:PORT`); none: those of this machine.
    pub public: Vec<String>,
    /// Which destinations it lets clients reach.
    pub access: Access,
    /// Whether strangers are let in.
    pub door: Door,
    /// The addresses it gives to clients.
    pub pool: Vec<PoolRange>,
    /// How many clients the token of the join string admits.
    pub token_uses: TokenUses,
    /// How it takes in TLS.
    pub doors: Doors,
    /// It listens for UDP at no other port than its own.
    pub listen_only: bool,
    /// Threads that serve sessions.
    pub workers: NonZeroU8,
    /// How its sessions send.
    pub session: SessionConfig,
    /// The fleet it is of.
    #[cfg(feature = "fleet")]
    pub fleet: Option<FleetOrder>,
}

/// A relay that listens.
pub struct RelayService {
    relay: Relay,
    gatekeeper: Rc<Gatekeeper>,
    newcomers: Newcomers,
    exit_rules: Option<ExitRules>,
    bound: SocketAddr,
    /// `None` where the fleet's etcd cannot be asked for a token.
    join_string: Option<JoinString>,
    upgrade: Upgrade,
    /// The link to the process that this one takes over from.
    before: Option<UnixStream>,
}

impl RelayService {
    /// Opens everything, and writes down under which addresses it is known. With an `estate` the
    /// process that left it serves all until [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// Each says what to do about it.
    pub async fn open(
        order: RelayOrder,
        state: &RelayState,
        estate: Option<Estate>,
    ) -> Result<Self> {
        let predecessor = estate.as_ref().map(|estate| estate.process);
        let (inheritance, mut inherited_doors, pool, before) = match estate {
            Some(it) => (Some(it.sockets), it.doors, it.pool, Some(it.link)),
            None => (None, Vec::new(), None, None),
        };
        let listen = order.listen.unwrap_or_else(default_listen);
        let identity = state.identity()?;
        let is_open = order.door != Door::Shut;
        let keeper = keeper(&order, state, listen, predecessor).await?;
        let (fleet_list, fleet_loads) = (keeper.fleet_list(), keeper.fleet_loads());
        let has_fleet = fleet_list.is_some();
        let (gatekeeper, newcomers) = Gatekeeper::open(keeper, order.door)?;
        let considering = gatekeeper.clone();
        let (exit, exit_rules) = exit::set_up(&order.pool, pool).await?.unzip();
        let (name, inherited) = (public_name(&order.public), inherited_doors.pop());
        let (doors, key) = (order.doors, identity.public_key());
        let web_doors = doors.open(key, name.as_deref(), inherited).await?;
        let listeners = listeners(&web_doors)?;
        let has_web = web_doors.iter().any(|door| door.port() == Some(TLS_PORT));
        let mut relay = Relay::bind(RelayConfig {
            identity: identity.clone(),
            listen: vec![listen],
            access: order.access,
            limits: RelayLimits::default(),
            server: ServerConfig {
                is_open,
                ..ServerConfig::default()
            },
            session: room::fitted(order.session),
            own_addresses: public_ips(&order.public),
            authorise: Box::new(move |applicant| considering.consider(applicant)),
            resolvers: system_resolvers(),
            monitor: HostMonitor::default(),
            seed: secret::random(),
            // On a machine that is up itself, the relay's sockets are not for its hooks.
            mark: may_mark().then_some(OWN_MARK),
            exit,
            workers: order.workers,
            inheritance,
            fleet_list,
            fleet_loads,
            web_doors,
        })
        .map_err(cannot_start)?;
        let bound = relay.local_addrs().first().copied().unwrap_or(listen);
        // Loopback drops no UDP, and who reaches a peer asks at the port of its line.
        let is_usual = order.access != Access::Own && !bound.ip().is_loopback();
        if is_usual && !order.listen_only {
            doors::listen_also(&mut relay, bound, has_web);
        }
        let addresses = public_addresses(&order.public, bound).await?;
        state.announce(&addresses)?;
        let join_string = join_string(state, order.token_uses, addresses, has_fleet).await?;
        let upgrade = Upgrade::new(relay.monitor(), gatekeeper.clone(), listeners);
        Ok(Self {
            upgrade,
            before,
            relay,
            gatekeeper,
            newcomers,
            exit_rules,
            bound,
            join_string,
        })
    }

    /// What can be seen and done of it while it runs.
    #[must_use]
    pub fn monitor(&self) -> RelayMonitor {
        self.relay.monitor()
    }

    /// The same for the control socket.
    pub fn view(&self) -> impl Fn() -> RelayView + use<> {
        let (monitor, gatekeeper) = (self.monitor(), self.gatekeeper.clone());
        move || RelayView::new(monitor.clone(), &gatekeeper)
    }

    /// How another process can go on here.
    #[must_use]
    pub fn upgrade(&self) -> Upgrade {
        self.upgrade.clone()
    }

    /// Whether another process serves until [`take_over`](Self::take_over).
    #[must_use]
    pub fn has_predecessor(&self) -> bool {
        self.before.is_some()
    }

    /// Takes what is new, where another process has served until now.
    ///
    /// # Errors
    /// The kernel refuses, or that process has ended.
    pub fn take_over(&mut self) -> Result<()> {
        match self.before.take() {
            Some(link) => self.upgrade.take_over(link),
            None => Ok(()),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// The line for clients; `None` while a fleet's etcd is away.
    #[must_use]
    pub const fn join_string(&self) -> Option<&JoinString> {
        self.join_string.as_ref()
    }

    /// Serves until `told`, then lets connections finish for `grace` or until `told_again`.
    pub async fn run(
        mut self,
        told: impl Future<Output = Parting>,
        grace: impl FnOnce(Parting) -> Duration,
        told_again: impl Future<Output = ()>,
    ) {
        let monitor = self.relay.monitor();
        let told = async {
            tokio::select! {
                parting = told => parting,
                why = self.gatekeeper.sent_away() => {
                    tracing::warn!("going down: {why}");
                    Parting::Down
                }
            }
        };
        tokio::select! {
            () = self.relay.run_and_drain(told, grace, told_again) => {}
            never = self.gatekeeper.work(self.newcomers, monitor) => never,
        }
        self.upgrade.tell();
        // Whoever has the pool to the last takes them away.
        if let Some(rules) = &mut self.exit_rules {
            rules.own(!self.upgrade.has_partner());
        }
        drop(self.exit_rules);
        self.gatekeeper.close();
    }
}

/// Where TLS is taken in, for the process that follows this one.
fn listeners(doors: &[WebDoor]) -> std::io::Result<Vec<OwnedFd>> {
    let listeners = doors.iter().map(|door| door.listener.as_fd());
    listeners
        .map(|listener| listener.try_clone_to_owned())
        .collect()
}

/// The line for new clients; `None` where the fleet's etcd cannot be asked for a token.
async fn join_string(
    state: &RelayState,
    uses: TokenUses,
    addresses: Vec<Destination>,
    has_fleet: bool,
) -> Result<Option<JoinString>> {
    // It may be asked, which is not to be waited for on this thread.
    let asked = state.clone();
    let token = aside(move || asked.current_token(uses)).await;
    match (token.map_err(anyhow::Error::from).flatten(), has_fleet) {
        (Ok(token), _) => state.join_string(addresses, token).map(Some),
        (Err(error), true) => {
            tracing::warn!("there is no line for new clients now: {error:#}");
            Ok(None)
        }
        (Err(error), false) => Err(error),
    }
}

/// Where the list is kept: by the fleet, or in the relay's own files.
async fn keeper(
    order: &RelayOrder,
    state: &RelayState,
    listen: SocketAddr,
    predecessor: Option<u32>,
) -> Result<Keeper> {
    #[cfg(feature = "fleet")]
    if let Some(fleet) = &order.fleet {
        let addresses = public_addresses(&order.public, listen).await?;
        let key = state.identity()?.public_key();
        let of = (key, predecessor);
        let keeper = FleetKeeper::start(fleet.clone(), state.root(), of, addresses).await?;
        return Ok(Keeper::Fleet(keeper));
    }
    #[cfg(feature = "fleet")]
    if let Some(fleet) = state.fleet()? {
        return Err(UsageError::new(format!(
            "{} belongs to the fleet in {}: add `--fleet {1}`, or name another directory with \
             --state",
            state.root().display(),
            fleet.etcd
        ))
        .into());
    }
    let _ = (order, listen, predecessor);
    Ok(Keeper::File(FileKeeper::new(state)?))
}

fn cannot_start(error: RelayError) -> anyhow::Error {
    match error {
        RelayError::Listen(_) => anyhow::Error::new(error)
            .context("the relay cannot start (is one running? --listen chooses another address)"),
        error => error.into(),
    }
}
