//! Neighbours whose links may be borrowed: who is wanted, and what they are called as links.
//!
//! A neighbour's link goes by the neighbour's name, in the policy and wherever links are listed.
//! Who keeps such links in use is `web_links` for web mode, `link_follower` for sessions. A
//! neighbour that is not where it was is looked for on the local networks, and known by its key.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::{Destination, Duration};
use tabane_core::{Identity, PublicKey};
use tabane_fetch::{Connecting, DeviceWay, Way};
use tabane_linux::interfaces::Interface;
use tabane_linux::threads::aside;
use tabane_neighbour::{NeighbourWay, is_there};
use tabane_policy::LinkFacts;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::near_by;
use tabane_store::{NeighbourEntry, RelayName, Store, UsageError, wall_clock::unix_seconds};

/// The word that policy files have for a neighbour's link.
pub const KIND: &str = "neighbour";
/// How long a neighbour on the local network may take to prove that it is there.
const NEAR_TIME: Duration = Duration::from_secs(1);
/// What a neighbour does not acknowledge for so long it will not: its network is ours. One that
/// sleeps or moves says nothing, and connections that are kept for the next request go on to it.
const UNHEARD_TIME: Duration = Duration::from_secs(6);
/// How long one that has moved is looked for: two questions and their answers (RFC 6762 §5.2).
const LOOK_TIME: Duration = Duration::from_millis(1_800);
/// After a look in vain none is taken for so long; twice as long each time, and at most this.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LAST_PAUSE: Duration = Duration::from_secs(240);

/// A neighbour who lends its link. Copies are the same.
#[derive(Clone, Debug)]
pub struct Lender {
    /// What the user calls it.
    pub name: RelayName,
    /// The key it proves.
    pub key: PublicKey,
    whereabouts: Rc<Whereabouts>,
}

/// Where a neighbour listens, as far as is known, and when it may be looked for again.
#[derive(Debug)]
struct Whereabouts {
    at: RefCell<Destination>,
    look_at: Cell<Option<Instant>>,
    pause: Cell<Duration>,
    store: Store,
}

/// The way by a neighbour, wherever it is.
struct LentWay {
    lender: Lender,
    identity: Identity,
    /// With the place it leads by.
    way: RefCell<(Destination, Rc<NeighbourWay>)>,
}

/// The neighbours that are named; all that are known, where none is. One that is not there costs
/// nothing but a try.
pub fn find(wanted: &[RelayName], store: &Store) -> Result<Vec<Lender>> {
    let known = store.neighbours()?;
    for name in wanted {
        if known.iter().all(|(other, _)| other != name) {
            let text = format!("no neighbour is called '{name}'; `tabane share list` lists them");
            return Err(UsageError::new(text).into());
        }
    }
    let is_wanted = |name: &RelayName| wanted.is_empty() || wanted.contains(name);
    let known = known.into_iter().filter(|(name, _)| is_wanted(name));
    known
        .map(|(name, entry)| Lender::new(name, &entry, store))
        .collect()
}

impl Lender {
    fn new(name: RelayName, entry: &NeighbourEntry, store: &Store) -> Result<Self> {
        let damaged = || format!("neighbours/{name}.toml is damaged: remove it and pair again");
        let at = Destination::parse(&entry.address, None).with_context(damaged)?;
        Ok(Self {
            key: entry.key.parse().with_context(damaged)?,
            whereabouts: Rc::new(Whereabouts {
                at: RefCell::new(at),
                look_at: Cell::new(None),
                pause: Cell::new(FIRST_PAUSE),
                store: store.clone(),
            }),
            name,
        })
    }

    /// Where it listens, as far as is known.
    pub fn at(&self) -> Destination {
        self.whereabouts.at.borrow().clone()
    }

    /// Its link as policy files know it.
    pub fn facts(&self) -> LinkFacts<'_> {
        LinkFacts {
            name: self.name.as_str(),
            interface: self.name.as_str(),
            kind: KIND,
            metered: None,
        }
    }

    /// Whether an interface has its name: that is the link, then, and this one is not used.
    pub fn is_shadowed(&self, interfaces: &[Interface]) -> bool {
        interfaces.iter().any(|it| it.name == self.name.as_str())
    }

    /// The way to the web by its link.
    pub fn way(&self, identity: &Identity) -> Result<Rc<dyn Way>> {
        let way = RefCell::new((self.at(), self.way_by_present_place(identity)?));
        Ok(Rc::new(LentWay {
            lender: self.clone(),
            identity: identity.clone(),
            way,
        }))
    }

    fn way_by_present_place(&self, identity: &Identity) -> Result<Rc<NeighbourWay>> {
        let (host, port) = place(&self.at());
        let near = Rc::new(DeviceWay::unbound().unheard_for(UNHEARD_TIME));
        let way = NeighbourWay::new(identity, self.name.as_str(), (&host, port), self.key, near);
        Ok(Rc::new(way.context("TLS")?))
    }

    /// Whether it is where it was last, shown by its key.
    pub async fn answers(&self, identity: &Identity, mark: Option<u32>) -> io::Result<()> {
        self.proves(identity, &self.at(), mark).await
    }

    async fn proves(
        &self,
        identity: &Identity,
        at: &Destination,
        mark: Option<u32>,
    ) -> io::Result<()> {
        let (host, port) = place(at);
        let proof = is_there(identity, (&host, port), self.key, mark);
        timeout(NEAR_TIME, proof).await?
    }

    /// Looks for it on the local networks if it is not where it was, and not too often in vain.
    /// `true` where it was found elsewhere; that is remembered. Sockets carry `mark`.
    pub async fn look(&self, identity: &Identity, mark: Option<u32>) -> bool {
        let Whereabouts { look_at, pause, .. } = &*self.whereabouts;
        let now = Instant::now();
        if look_at.get().is_some_and(|at| now < at) {
            return false;
        }
        // Nobody else looks meanwhile.
        look_at.set(Some(now + pause.get()));
        if self.answers(identity, mark).await.is_ok() {
            return false;
        }
        let Some(at) = self.search(identity, mark).await else {
            pause.set((pause.get() * 2).min(LAST_PAUSE));
            return false;
        };
        look_at.set(None);
        pause.set(FIRST_PAUSE);
        tracing::info!(neighbour = %self.name, %at, "the neighbour has moved");
        self.whereabouts.at.replace(at.clone());
        // It is called again the next time.
        if near_by::is_of_link(&at) {
            return true;
        }
        let (store, name) = (self.whereabouts.store.clone(), self.name.clone());
        let key = self.key.to_string();
        // No packet waits for the disk; who looked does, so that it is kept when a command ends.
        let keeping = aside(move || {
            if let Err(error) = store.move_neighbour(&name, &key, &at) {
                tracing::warn!(neighbour = %name, "where it is now is not kept: {error:#}");
            }
        });
        let _ = keeping.await;
        true
    }

    /// Where somebody proves its key who has announced itself with it, or answers to it.
    async fn search(&self, identity: &Identity, mark: Option<u32>) -> Option<Destination> {
        let announced = async {
            self.first_to_prove(identity, self.announced().await, mark)
                .await
        };
        let called = async {
            let answered = timeout(LOOK_TIME, self.call(mark)).await.ok()?;
            self.first_to_prove(identity, vec![answered?], mark).await
        };
        tokio::select! {
            Some(at) = announced => Some(at),
            Some(at) = called => Some(at),
            else => None,
        }
    }

    async fn announced(&self) -> Vec<Destination> {
        let is_it = |found: &near_by::Found| found.key == self.key;
        let found = near_by::find(LOOK_TIME, is_it).await;
        let found = found.inspect_err(|error| tracing::debug!("not looked for: {error:#}"));
        let mut found = found.unwrap_or_default().into_iter();
        found.find(is_it).map(|found| found.at).unwrap_or_default()
    }

    /// One that announces nothing answers at its port on any network of ours.
    async fn call(&self, mark: Option<u32>) -> Option<Destination> {
        let networks = near_by::networks(self.at().port).await;
        let now = std::time::Duration::from_secs(unix_seconds());
        let answered = tabane_neighbour::call(self.key, &networks, now, mark).await;
        let answered = answered.inspect_err(|error| tracing::debug!(%error, "not called"));
        Some(near_by::place_of(answered.ok()?).await)
    }

    async fn first_to_prove(
        &self,
        identity: &Identity,
        places: Vec<Destination>,
        mark: Option<u32>,
    ) -> Option<Destination> {
        for at in places {
            if self.proves(identity, &at, mark).await.is_ok() {
                return Some(at);
            }
        }
        None
    }
}

impl LentWay {
    fn present(&self) -> Rc<NeighbourWay> {
        let mut way = self.way.borrow_mut();
        let at = self.lender.at();
        if way.0 != at
            && let Ok(new) = self.lender.way_by_present_place(&self.identity)
        {
            *way = (at, new);
        }
        Rc::clone(&way.1)
    }
}

impl Way for LentWay {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            let (told, outcome) = oneshot::channel();
            let (lender, identity) = (self.lender.clone(), self.identity.clone());
            // Beside the connection: who waits for it has other links, and may give it up for them.
            tokio::task::spawn_local(async move {
                if is_doubtful(outcome).await {
                    lender.look(&identity, None).await;
                }
            });
            let connected = self.present().connect(host, port).await;
            // Nobody listens where that has taken long.
            let _ = told.send(connected.is_ok());
            connected
        })
    }
}

/// Whether a connection that tells how it ended makes one wonder where the neighbour is: it
/// failed, was given up, or has said nothing for longer than a neighbour takes.
async fn is_doubtful(outcome: oneshot::Receiver<bool>) -> bool {
    match timeout(NEAR_TIME, outcome).await {
        Ok(Ok(is_connected)) => !is_connected,
        Ok(Err(_)) | Err(_) => true,
    }
}

/// Host and port, as sockets are told.
pub fn place(at: &Destination) -> (String, u16) {
    let host = at.host.to_string();
    (host.trim_matches(['[', ']']).to_owned(), at.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_fails_is_late_or_was_given_up_makes_one_wonder() {
        for (told, expected) in [(Some(true), false), (Some(false), true), (None, true)] {
            let (tell, outcome) = oneshot::channel();
            match told {
                Some(is_connected) => tell.send(is_connected).unwrap(),
                None => drop(tell),
            }
            assert_eq!(is_doubtful(outcome).await, expected, "{told:?}");
        }
        let (_late, outcome) = oneshot::channel();
        let begin = Instant::now();
        assert!(is_doubtful(outcome).await);
        assert_eq!(begin.elapsed().as_millis(), 1_000);
    }
}
