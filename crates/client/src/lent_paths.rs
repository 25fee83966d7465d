//! Neighbours' links as paths of a session: each neighbour is asked to pass datagrams on to the
//! relays, for as long as it is there.
//!
//! Owns a task for each neighbour, and its patience. Whether and how such a path is used is the
//! policy's, kept by `link_follower`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{Identity, PathPolicy};
use tabane_linux::interfaces::Interface;
use tabane_neighbour::Leash;
use tabane_tunnel::{Client, LinkBind};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use tabane_store::RelayName;
use tabane_uplinks::{
    LinkPolicy,
    lent_links::{Lender, place},
};

/// Pauses before a neighbour that is away is asked again: first and longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// How often relays are looked at that may have got other addresses.
const MOVE_INTERVAL: Duration = Duration::from_secs(5);

/// Where datagrams for each relay go by way of a neighbour; none for a relay that it does not
/// pass any on to.
type Places = Vec<Vec<SocketAddr>>;

/// What each neighbour has said when it was asked last: whether it lends its link. Those that have
/// not been asked to the end are missing.
pub(crate) type Answers = BTreeMap<RelayName, Result<(), String>>;

/// The neighbours that may carry a session, and those that do at present. None by default.
#[derive(Default)]
pub(crate) struct LentPaths {
    lenders: Vec<Lender>,
    /// Those that the user named, and so insists on.
    insisted: Vec<RelayName>,
    open: Rc<RefCell<BTreeMap<RelayName, Places>>>,
    changed: Rc<Notify>,
    answers: watch::Sender<Answers>,
    /// Ended with this.
    _tasks: JoinSet<()>,
}

/// What every task needs.
#[derive(Clone)]
struct Asking {
    identity: Rc<Identity>,
    client: Client,
    mark: Option<u32>,
    open: Rc<RefCell<BTreeMap<RelayName, Places>>>,
    changed: Rc<Notify>,
    answers: watch::Sender<Answers>,
}

impl LentPaths {
    /// Begins to ask the neighbours on behalf of `client`, with sockets that carry `mark`. Must be
    /// called within a `LocalSet`.
    pub(crate) fn start(
        lenders: Vec<Lender>,
        insisted: Vec<RelayName>,
        identity: Identity,
        client: &Client,
        mark: Option<u32>,
    ) -> Self {
        let asking = Asking {
            identity: Rc::new(identity),
            client: client.clone(),
            mark,
            open: Rc::default(),
            changed: Rc::default(),
            answers: watch::Sender::default(),
        };
        let mut tasks = JoinSet::new();
        for lender in &lenders {
            tasks.spawn_local(asking.clone().keep(lender.clone()));
        }
        Self {
            lenders,
            insisted,
            open: asking.open,
            changed: asking.changed,
            answers: asking.answers,
            _tasks: tasks,
        }
    }

    /// All of them, there or not.
    pub(crate) fn lenders(&self) -> &[Lender] {
        &self.lenders
    }

    /// Waits until [`links`](Self::links) may be others.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What the neighbours say, as it changes.
    pub(crate) fn answers(&self) -> watch::Receiver<Answers> {
        self.answers.subscribe()
    }

    /// All of them, each with why it is not used.
    pub(crate) fn all(&self, policy: &LinkPolicy) -> Vec<(&Lender, Option<String>)> {
        let answers = self.answers.borrow();
        let open = self.open.borrow();
        let why = |lender: &Lender| {
            let insists = self.insisted.contains(&lender.name);
            let terms = policy.terms_of(&lender.facts());
            let by_policy = terms.why_unused().filter(|_| !insists);
            by_policy.or_else(|| match answers.get(&lender.name) {
                _ if open.contains_key(&lender.name) => None,
                Some(Err(error)) => Some(format!("the neighbour is away ({error})")),
                Some(Ok(())) | None => Some("the neighbour is being asked".to_owned()),
            })
        };
        let lenders = self.lenders.iter();
        lenders.map(|lender| (lender, why(lender))).collect()
    }

    /// The links by those that are there, as far as the policy lets them be used.
    pub(crate) fn links(&self, interfaces: &[Interface], policy: &LinkPolicy) -> Vec<LinkBind> {
        let open = self.open.borrow();
        let lenders = self.lenders.iter();
        let lenders = lenders.filter(|lender| !lender.is_shadowed(interfaces));
        let links = lenders.filter_map(|lender| {
            let places = open.get(&lender.name)?.clone();
            let insists = self.insisted.contains(&lender.name);
            let path = policy.terms_of(&lender.facts()).path;
            let path = path.or_else(|| insists.then(PathPolicy::default))?;
            Some(LinkBind::by_way_of(lender.name.as_str(), places).with_policy(path))
        });
        links.collect()
    }
}

impl Asking {
    async fn keep(self, lender: Lender) {
        let mut pause = FIRST_PAUSE;
        let mut is_told = false;
        loop {
            let relays = self.client.relay_addrs();
            match self.ask(&lender, &relays).await {
                Ok((places, leashes)) => {
                    tracing::info!(neighbour = %lender.name, "lends its link");
                    (pause, is_told) = (FIRST_PAUSE, false);
                    self.set(&lender, Some(places));
                    self.note(&lender, Ok(()));
                    let why = self.until_lost(leashes, &relays).await;
                    tracing::info!(neighbour = %lender.name, why, "lends its link no more");
                    self.set(&lender, None);
                    // Where it fell silent because it moved, to ask it there would take its time.
                    if lender.look(&self.identity, self.mark).await {
                        continue;
                    }
                }
                Err(error) => {
                    if lender.look(&self.identity, self.mark).await {
                        continue;
                    }
                    if std::mem::replace(&mut is_told, true) {
                        tracing::debug!(neighbour = %lender.name, %error, "lends no link yet");
                    } else {
                        tracing::info!(neighbour = %lender.name, %error, "lends no link now");
                    }
                    self.note(&lender, Err(error.to_string()));
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// For each relay the first of its addresses that the neighbour passes datagrams on to.
    async fn ask(
        &self,
        lender: &Lender,
        relays: &[Vec<SocketAddr>],
    ) -> io::Result<(Places, Vec<Leash>)> {
        let (host, port) = place(&lender.at());
        let mut failure = io::Error::other("no relay's address is known yet");
        let mut places = vec![Vec::new(); relays.len()];
        let mut leashes = Vec::new();
        for (place, addrs) in places.iter_mut().zip(relays) {
            for to in addrs {
                let at = (&*host, port);
                match Leash::open(&self.identity, at, lender.key, *to, self.mark).await {
                    Ok(leash) => {
                        place.push(leash.at());
                        leashes.push(leash);
                        break;
                    }
                    Err(error) => failure = error,
                }
            }
        }
        match leashes.is_empty() {
            true => Err(failure),
            false => Ok((places, leashes)),
        }
    }

    async fn until_lost(&self, leashes: Vec<Leash>, relays: &[Vec<SocketAddr>]) -> String {
        let mut watched = JoinSet::new();
        for mut leash in leashes {
            watched.spawn_local(async move { leash.lost().await });
        }
        let moved = async {
            while self.client.relay_addrs() == relays {
                sleep(MOVE_INTERVAL).await;
            }
        };
        tokio::select! {
            () = moved => "the relays have moved".to_owned(),
            Some(lost) = watched.join_next() => match lost {
                Ok(error) => error.to_string(),
                Err(error) => error.to_string(),
            },
        }
    }

    fn set(&self, lender: &Lender, places: Option<Places>) {
        let mut open = self.open.borrow_mut();
        match places {
            Some(places) => open.insert(lender.name.clone(), places),
            None => open.remove(&lender.name),
        };
        self.changed.notify_one();
    }

    fn note(&self, lender: &Lender, answer: Result<(), String>) {
        self.answers.send_modify(|answers| {
            answers.insert(lender.name.clone(), answer);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::tests::client_of_nobody;
    use tokio::task::LocalSet;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_is_asked_anew_five_seconds_after_the_relays_have_moved() {
        let body = async {
            let client = client_of_nobody();
            let asking = Asking {
                identity: Rc::new(Identity::from_seed([1; 32])),
                client: client.clone(),
                mark: None,
                open: Rc::default(),
                changed: Rc::default(),
                answers: watch::Sender::default(),
            };
            let relays = client.relay_addrs();
            let moved_after = Duration::from_secs(3_601);
            let moving = async {
                sleep(moved_after).await;
                client.set_relay_addrs(0, vec![SocketAddr::from(([192, 0, 2, 1], 1))]);
            };
            let begin = Instant::now();
            tokio::join!(asking.until_lost(Vec::new(), &relays), moving);
            let noticed_after = begin.elapsed() - moved_after;
            assert!(noticed_after <= MOVE_INTERVAL, "{noticed_after:?}");
        };
        LocalSet::new().run_until(body).await;
    }
}
