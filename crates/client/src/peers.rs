//! A machine that speaks tabane itself: what leads to it, and the session straight to it.
//!
//! Owns when a session is begun (with the first connection that it would serve), how long that one
//! waits, and that whoever does not answer is not asked each time. When a session is given up
//! `standing` says; what is carried is the dispatcher's affair.

mod standing;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Result;
use tabane_base::Duration;
use tabane_core::{CloseReason, PublicKey};
use tabane_linux::threads::aside;
use tabane_tunnel::{Client, Happening, RelayPeer, Target};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client_session::resolve;
use crate::peer_memory::Absence;
use crate::surroundings::Surroundings;
use standing::{End, Standing, Step};
use tabane_store::{PeerEntry, RelayName};

/// How long a connection waits for a session that is being set up: two round trips over the
/// slowest links in use. After that it goes another way.
const HEAD_START: Duration = Duration::from_secs(1);
/// Names are looked up again after this, or sooner where that failed.
const NAMES_LAST: Duration = Duration::from_secs(600);
const FIRST_RESOLVE_PAUSE: Duration = Duration::from_millis(500);
const LAST_RESOLVE_PAUSE: Duration = Duration::from_secs(60);

/// A peer with its session, if there is one.
pub(crate) struct Peer {
    name: RelayName,
    entry: PeerEntry,
    /// Where it listens; empty while its names are not resolved.
    addrs: watch::Sender<Vec<SocketAddr>>,
    /// The session, answered or not.
    session: watch::Sender<Option<Client>>,
    /// Connections wait so long for the session.
    wait_until: Cell<Instant>,
    keeper: RefCell<Option<AbortHandle>>,
    /// It does not want us, or is not who it should be.
    is_refused: Cell<bool>,
    /// It has proved its key before; nobody waits for who has not.
    is_proved: Cell<bool>,
}

impl Peer {
    /// Nothing is sent before [`session`](Self::session) is called.
    pub(crate) fn new(name: RelayName, entry: PeerEntry) -> Self {
        Self {
            name,
            entry,
            addrs: watch::Sender::new(Vec::new()),
            session: watch::Sender::new(None),
            wait_until: Cell::new(Instant::now()),
            keeper: RefCell::new(None),
            is_refused: Cell::new(false),
            is_proved: Cell::new(true),
        }
    }

    /// Somebody who has said that this is its key, and has not proved it yet.
    pub(crate) fn unproved(name: RelayName, entry: PeerEntry) -> Self {
        let peer = Self::new(name, entry);
        peer.is_proved.set(false);
        peer
    }

    pub(crate) fn name(&self) -> &RelayName {
        &self.name
    }

    pub(crate) fn key(&self) -> PublicKey {
        self.entry.key
    }

    /// The session, whether it has been answered or not.
    pub(crate) fn client(&self) -> Option<Client> {
        self.session.borrow().clone()
    }

    /// The addresses that lead to it, as far as they are known.
    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs.borrow().clone()
    }

    /// What was pinned.
    pub(crate) fn entry(&self) -> &PeerEntry {
        &self.entry
    }

    /// Looks up its names, now and then again, and tells `changed`; does not return where it has
    /// any.
    pub(crate) async fn follow_names(&self, changed: impl Fn()) {
        let resolve = || resolve(&self.entry.addresses);
        self.follow_by(resolve, changed).await;
    }

    async fn follow_by(
        &self,
        resolve: impl AsyncFn() -> Result<Vec<SocketAddr>>,
        changed: impl Fn(),
    ) {
        let mut pause = FIRST_RESOLVE_PAUSE;
        loop {
            match resolve().await {
                Ok(mut found) => {
                    found.sort_unstable();
                    pause = FIRST_RESOLVE_PAUSE;
                    if *self.addrs.borrow() != found {
                        self.addrs.send_replace(found);
                        changed();
                    }
                    sleep(NAMES_LAST).await;
                }
                Err(error) => {
                    tracing::debug!(peer = %self.name, "{error:#}");
                    sleep(pause).await;
                    pause = (pause * 2).min(LAST_RESOLVE_PAUSE);
                }
            }
        }
    }

    /// Waits until its names are known, or it is `deadline`.
    pub(crate) async fn resolved(&self, deadline: Instant) {
        let mut addrs = self.addrs.subscribe();
        // Without them it is not found, which is as well.
        let _ = timeout_at(deadline, addrs.wait_for(|addrs| !addrs.is_empty())).await;
    }

    /// What to ask it for when a program wants `target`; `None` where that is another machine.
    pub(crate) fn serves(&self, target: &Target) -> Option<Target> {
        let addrs = self.addrs.borrow();
        match target {
            Target::Address(address) => {
                let ip = address.ip().to_canonical();
                let is_own = self.entry.has_address(ip)
                    || addrs.iter().any(|own| own.ip().to_canonical() == ip);
                is_own.then(|| target.clone())
            }
            // At the peer its own name may mean loopback, which is not served.
            Target::Name { name, port } if self.entry.is_called(name.as_str()) => {
                let own = addrs
                    .iter()
                    .find(|own| own.is_ipv4())
                    .or_else(|| addrs.first())?;
                Some(Target::Address(SocketAddr::new(own.ip(), *port)))
            }
            Target::Name { .. } | Target::Resolver | Target::Anywhere => None,
        }
    }

    /// A session that can be used now, or in a moment; `None` where connections had better go
    /// another way.
    pub(crate) async fn session(
        self: &Rc<Self>,
        surroundings: &Rc<Surroundings>,
    ) -> Option<Client> {
        if self.keeper.borrow().is_none() {
            self.begin(surroundings)?;
        }
        let reachable = async {
            let mut session = self.session.subscribe();
            let begun = session.wait_for(Option::is_some).await;
            let client = begun.ok()?.clone()?;
            if client.is_reachable() {
                return Some(client);
            }
            tokio::select! {
                () = client.until_reachable(true) => Some(client),
                _ = client.closed() => None,
            }
        };
        // At once where there is no time left to wait.
        timeout_at(self.wait_until.get(), reachable).await.ok()?
    }

    /// Begins a session, unless that was in vain a moment ago.
    fn begin(self: &Rc<Self>, surroundings: &Rc<Surroundings>) -> Option<()> {
        if self.is_refused.get() || self.addrs.borrow().is_empty() {
            return None;
        }
        let absence = surroundings.memory.absence(&self.key().to_string());
        let head_start = head_start(absence, self.is_proved.get())?;
        self.wait_until.set(Instant::now() + head_start);
        let (peer, surroundings) = (self.clone(), surroundings.clone());
        let keeping = tokio::task::spawn_local(async move {
            peer.keep(&surroundings).await;
            peer.session.send_replace(None);
            peer.keeper.take();
        });
        self.keeper.replace(Some(keeping.abort_handle()));
        Some(())
    }

    /// Sets up a session and looks after it until it is over.
    async fn keep(&self, surroundings: &Surroundings) {
        let relay = RelayPeer {
            name: self.name.to_string(),
            key: self.key(),
            addrs: self.addrs(),
            token: self.entry.token.as_ref().map(|it| it.as_str().into()),
            udp_ports: Vec::new(),
            tls: None,
        };
        let (client, follower) = match surroundings.start(relay).await {
            Ok(started) => started,
            Err(error) => {
                tracing::warn!("peer {} cannot be asked: {error:#}", self.name);
                return;
            }
        };
        self.session.send_replace(Some(client.clone()));
        let end = self.attend(&client, surroundings).await;
        follower.abort();
        let key = self.key().to_string();
        match &end {
            End::Idle => {}
            End::Silent => surroundings.memory.on_silence(&key),
            End::Refused(reason) => {
                self.is_refused.set(true);
                self.note(surroundings, Some(&reason.to_string()));
                // Nobody has named this one.
                match self.is_proved.get() {
                    true => tracing::warn!("{}", self.refusal(reason)),
                    false => tracing::info!("{}", self.refusal(reason)),
                }
            }
        }
        self.session.send_replace(None);
        client.close().await;
    }

    /// Follows a session until there is no use in it.
    async fn attend(&self, client: &Client, surroundings: &Surroundings) -> End {
        let mut standing = Standing::new(client, surroundings.patience());
        loop {
            match standing.next().await {
                Step::Answers => {
                    if !self.is_proved.replace(true) {
                        self.trust(surroundings).await;
                    }
                    self.note(surroundings, None);
                    surroundings.memory.on_answer(&self.key().to_string());
                }
                Step::FallsSilent => {
                    self.note(surroundings, Some("it does not answer"));
                    // What comes now goes another way at once.
                    self.wait_until.set(Instant::now());
                }
                Step::Over(end) => {
                    if matches!(end, End::Idle) {
                        self.note(surroundings, Some("nothing to carry"));
                    }
                    return end;
                }
            }
        }
    }

    /// Keeps the key of who has just been met; no packet waits for the disk.
    async fn trust(&self, surroundings: &Surroundings) {
        let (name, entry, key) = (self.name.clone(), self.entry.clone(), self.key());
        let store = surroundings.store.clone();
        let keeping = aside(move || match store.put_peer(&name, &entry) {
            Ok(_) => tracing::warn!(
                "{name} speaks tabane, and is trusted from here on by the key that it showed: \
                 {key} (`tabane peer remove {name}` forgets it)"
            ),
            Err(error) => tracing::warn!("{name} is a peer for this time only: {error:#}"),
        });
        let _ = keeping.await;
    }

    /// Looks after its session no more; gives it away.
    pub(crate) fn stop(&self) -> Option<Client> {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
        self.session.send_replace(None)
    }

    fn note(&self, surroundings: &Surroundings, why: Option<&str>) {
        let peer = self.name.to_string();
        match why {
            None => tracing::info!(peer, "reached straight from here on"),
            Some(why) => tracing::info!(peer, why, "not reached straight any more"),
        }
        surroundings.journal.record(match why {
            None => Happening::PeerUp { peer },
            Some(why) => Happening::PeerDown {
                peer,
                why: why.to_owned(),
            },
        });
    }

    /// What the user should know.
    fn refusal(&self, reason: &CloseReason) -> String {
        let name = &self.name;
        let advice = match reason {
            CloseReason::WrongPeerKey => format!(
                "whoever answers at {} has another key than the one that was pinned; if its \
                 owner says that it is new, `tabane peer remove {name}` and add it again",
                self.entry.addresses[0]
            ),
            other => other.to_string(),
        };
        format!("peer {name} is not used: {advice}")
    }
}

/// How long connections wait for a session that begins now; `None` where none is to begin.
const fn head_start(absence: Absence, is_proved: bool) -> Option<Duration> {
    match absence {
        Absence::None if is_proved => Some(HEAD_START),
        Absence::None | Absence::Over => Some(Duration::ZERO),
        Absence::Lasting => None,
    }
}

#[cfg(test)]
mod tests;
