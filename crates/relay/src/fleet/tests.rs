//! Relays of a fleet against a real etcd: what all of them together admit, lend and turn away.
//!
//! Each relay is what a relay's own thread has of its fleet, with the fleet's thread behind it.

mod away;
mod etcd_in_trouble;
mod half_written;
mod hostile_etcd;
mod lists;
mod restored;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Rng, Seed};
use tabane_core::{CloseReason, PublicKey};
use tabane_fleet::Allotment;
use tabane_store::{Scratch, Token, secret};
use tokio::sync::{mpsc, watch};

use super::exchange::{FleetOrder, News, Order, Stage, Wish};
use super::keeper::FleetKeeper;
use super::records::{ALIVE, Alive};
use super::worker::Worker;
use super::{FleetBook, FleetOwner};
use crate::access::{AccessAnswer, AccessList, TokenEntry, TokenUses, UserEntry, UserName};
use crate::etcd::server::{Server, wait_for};
use crate::etcd::{Change, Etcd, FleetAddress};
use crate::state::RelayState;

/// A fleet with its owner.
struct World {
    server: Server,
    scratch: Scratch,
    at: FleetAddress,
    owner: FleetOwner,
    book: FleetBook,
}

/// A relay's directory, and the relay while it runs.
struct Member {
    state: PathBuf,
    name: String,
    keeper: Option<FleetKeeper>,
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// Asks again until it is so; etcd tells other threads, not this one.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "not within 30 s: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begin.elapsed()
}

impl World {
    async fn make(members: usize) -> Option<Self> {
        Self::of(Server::start(members)?).await
    }

    async fn of(server: Server) -> Option<Self> {
        wait_for(&Etcd::new(server.address("test"))).await;
        let at = server.address("fleet");
        let scratch = Scratch::make();
        let state = RelayState::locate(Some(scratch.path().join("owner"))).unwrap();
        let (owner, is_new) = FleetOwner::found(&state, at.clone()).unwrap();
        assert!(is_new);
        let book = FleetBook::new(state.fleet().unwrap().unwrap());
        Some(Self {
            server,
            scratch,
            at,
            owner,
            book,
        })
    }

    /// A relay that the owner has let in.
    async fn relay(&self, name: &str) -> Member {
        let mut member = Member {
            state: self.scratch.path().join(name),
            name: name.to_owned(),
            keeper: None,
        };
        let letting_in = async {
            until("it asks", || {
                self.owner.add(name, None, None, Some(7)).is_ok()
            })
            .await;
        };
        let (started, ()) = tokio::join!(member.start(&self.at), letting_in);
        started.unwrap();
        member
    }

    async fn three(&self) -> [Member; 3] {
        [
            self.relay("oslo").await,
            self.relay("rome").await,
            self.relay("lima").await,
        ]
    }

    fn set_revoked(&self, client: PublicKey, is_revoked: bool) {
        let set = |list: &mut AccessList| list.set_revoked(client, is_revoked);
        self.book.update(set).unwrap().unwrap();
    }

    fn remove_user(&self, name: &UserName) {
        let remove = |list: &mut AccessList| list.remove_user(name);
        self.book.update(remove).unwrap().unwrap();
    }

    fn add_user(&self, user: &UserEntry) {
        let add = |list: &mut AccessList| list.add_user(user.clone());
        self.book.update(add).unwrap().unwrap();
    }

    fn add_tokens(&self, tokens: &[TokenEntry]) {
        let add = |list: &mut AccessList| {
            let mut tokens = tokens.iter();
            tokens.try_for_each(|it| list.add_token(it.clone()))
        };
        self.book.update(add).unwrap().unwrap();
    }

    /// A token that lets in any number of this user's clients, or of nobody's.
    fn token(&self, user: Option<UserName>) -> TokenEntry {
        let token = token(TokenUses::Many, user);
        self.add_tokens(std::slice::from_ref(&token));
        token
    }

    /// Ann, who may use so much, and a token of hers.
    fn ann(&self, volume: &str) -> (UserEntry, TokenEntry) {
        let user = ann(Some(volume));
        self.add_user(&user);
        let token = self.token(Some(user.name.clone()));
        (user, token)
    }
}

impl Member {
    async fn start(&mut self, at: &FleetAddress) -> anyhow::Result<()> {
        self.keeper = Some(self.process(at, None).await?);
        Ok(())
    }

    /// A process of it, after another one or by itself.
    async fn process(
        &self,
        at: &FleetAddress,
        predecessor: Option<u32>,
    ) -> anyhow::Result<FleetKeeper> {
        let state = RelayState::locate(Some(self.state.clone()))?;
        let order = FleetOrder {
            etcd: at.clone(),
            name: self.name.clone(),
            region: String::new(),
        };
        let addresses = vec!["192.0.2.1:4510".parse::<std::net::SocketAddr>()?.into()];
        let key = state.identity()?.public_key();
        FleetKeeper::start(order, &self.state, (key, predecessor), addresses).await
    }

    /// Its thread of the fleet, to run beside the test; what it says, and how it is told anything.
    fn worker(
        &self,
        at: &FleetAddress,
    ) -> (Worker, watch::Receiver<News>, mpsc::UnboundedSender<Order>) {
        let state = RelayState::locate(Some(self.state.clone())).unwrap();
        let order = FleetOrder {
            etcd: at.clone(),
            name: self.name.clone(),
            region: String::new(),
        };
        let own = (state.identity().unwrap().public_key(), None);
        let (news, seen) = watch::channel(News::default());
        let (list, _) = watch::channel((0, Arc::from([])));
        let (loads, _) = watch::channel(Arc::from([]));
        let (orders, to_do) = mpsc::unbounded_channel();
        let tells = (news, list, loads);
        let worker = Worker::new(order, &self.state, own, Vec::new(), tells, to_do);
        (worker.unwrap(), seen, orders)
    }

    fn keeper(&self) -> &FleetKeeper {
        self.keeper.as_ref().unwrap()
    }

    fn knows(&self, client: PublicKey) -> Option<AccessAnswer> {
        self.keeper().list().recognise(client, None, 0)
    }

    /// Ends as if it had been killed.
    fn kill(&mut self) {
        self.keeper.take().unwrap().die();
    }

    async fn enrol(&self, key: PublicKey, token: &Token) -> Result<AccessAnswer, CloseReason> {
        let shown = vec![(key, Some(token.as_str().as_bytes().to_vec()))];
        let answered = self.keeper().enrol(shown).await;
        answered
            .map(|(answers, _)| answers[0].clone())
            .map_err(|it| it.0)
    }
}

fn token(uses: TokenUses, user: Option<UserName>) -> TokenEntry {
    TokenEntry {
        token: Token::from_random(secret::random()),
        uses,
        created_at: 0,
        expires_at: None,
        user,
    }
}

/// What the user was lent at a relay, and how much of it is used.
fn holding(keeper: &FleetKeeper, user: &UserEntry) -> Allotment {
    let news = keeper.news();
    let holding = news.borrow().holdings.get(&user.name).cloned();
    holding.unwrap_or_default()
}

/// Tells of so many bytes that the user has had pass in all, in one session.
fn tell_used(keeper: &FleetKeeper, user: &UserEntry, bytes: u64) {
    tell_used_in(keeper, user, bytes, 1);
}

/// The same, in so many sessions.
fn tell_used_in(keeper: &FleetKeeper, user: &UserEntry, bytes: u64, sessions: usize) {
    keeper.order(Order::Used(vec![Wish {
        user: user.name.clone(),
        period: holding(keeper, user).period,
        used: Bytes::new(bytes),
        sessions,
    }]));
}

fn key() -> PublicKey {
    PublicKey(secret::random())
}

fn ann(volume: Option<&str>) -> UserEntry {
    UserEntry {
        volume: volume.map(|text| text.parse().unwrap()),
        ..UserEntry::new("ann".parse().unwrap(), 0)
    }
}

#[test]
fn of_three_relays_that_are_shown_one_token_at_once_one_admits() {
    const ROUNDS: usize = 1_000;
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let [oslo, rome, lima] = world.three().await;
        let tokens: Vec<TokenEntry> = (0..ROUNDS).map(|_| token(TokenUses::ONE, None)).collect();
        world.add_tokens(&tokens);
        let (mut admitted, begin) = (0, Instant::now());
        for entry in &tokens {
            let shown = &entry.token;
            let (a, b, c) = tokio::join!(
                oslo.enrol(key(), shown),
                rome.enrol(key(), shown),
                lima.enrol(key(), shown),
            );
            let answers = [a.unwrap(), b.unwrap(), c.unwrap()];
            let is_in = |it: &&AccessAnswer| **it == AccessAnswer::Enrolled(None);
            let won = answers.iter().filter(is_in).count();
            assert_eq!(won, 1, "{answers:?}");
            admitted += won;
        }
        eprintln!("{ROUNDS} rounds in {:?}", begin.elapsed());
        assert_eq!(admitted, ROUNDS);
        let list = world.book.read().unwrap();
        assert_eq!((list.clients().len(), list.tokens().len()), (ROUNDS, 0));
    });
}

#[test]
fn what_is_revoked_anywhere_is_revoked_everywhere_within_a_second() {
    block_on(async {
        let Some(world) = World::make(3).await else {
            return;
        };
        let relays = world.three().await;
        world.add_user(&ann(None));
        let admits = world.token(Some("ann".parse().unwrap()));
        let clients: Vec<PublicKey> = (0..20).map(|_| key()).collect();
        for client in &clients {
            relays[0].enrol(*client, &admits.token).await.unwrap();
        }
        let is_revoked = |relay: &Member, client: PublicKey| {
            relay.knows(client) == Some(AccessAnswer::RefusedRevoked)
        };
        let mut slowest = Duration::ZERO;
        for client in &clients {
            world.set_revoked(*client, true);
            for relay in &relays {
                slowest = slowest.max(until("revoked", || is_revoked(relay, *client)).await);
            }
        }
        eprintln!("revoked everywhere after at most {slowest:?}");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        // A user goes while its device is known everywhere.
        world.set_revoked(clients[0], false);
        world.remove_user(&"ann".parse().unwrap());
        for relay in &relays {
            until("removed", || {
                relay.keeper().list().users().is_empty() && is_revoked(relay, clients[0])
            })
            .await;
        }
        let refused = relays[1].enrol(key(), &admits.token).await.unwrap();
        assert_eq!(
            refused,
            AccessAnswer::RefusedUnknown,
            "its token went with it"
        );
    });
}

#[test]
fn without_etcd_known_clients_are_served_over_a_restart_and_new_ones_are_told_to_wait() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let mut oslo = world.relay("oslo").await;
        let admits = world.token(None);
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let copy = oslo.state.join("fleet.copy");
        let text = client.to_string();
        let has_client = || std::fs::read_to_string(&copy).is_ok_and(|it| it.contains(&text));
        until("the copy", has_client).await;
        world.server.kill_all();
        let news = oslo.keeper().news();
        until("it is seen", || news.borrow().away.is_some()).await;
        let is_known = |member: &Member| member.knows(client) == Some(AccessAnswer::Known(None));
        assert!(is_known(&oslo));
        let begin = Instant::now();
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        assert!(begin.elapsed() < Duration::from_secs(1), "at once");

        oslo.kill();
        oslo.start(&world.at).await.unwrap();
        assert!(is_known(&oslo), "from the copy");
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        world.server.run_all();
        let news = oslo.keeper().news();
        until("etcd is back", || news.borrow().away.is_none()).await;
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(None)));
    });
}

#[test]
fn two_fleets_in_one_etcd_know_nothing_of_each_other() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let mut oslo = world.relay("oslo").await;
        let other = world.server.address("other");
        let owner = RelayState::locate(Some(world.scratch.path().join("else"))).unwrap();
        FleetOwner::found(&owner, other.clone()).unwrap();
        let book = FleetBook::new(owner.fleet().unwrap().unwrap());
        let theirs = token(TokenUses::Many, None);
        book.update(|list| list.add_token(theirs.clone()))
            .unwrap()
            .unwrap();
        let answer = oslo.enrol(key(), &theirs.token).await;
        assert_eq!(answer, Ok(AccessAnswer::RefusedUnknown));
        oslo.keeper.take().unwrap().close();
        let error = format!("{:#}", oslo.start(&other).await.unwrap_err());
        assert!(error.contains("is of the fleet"), "{error}");
        let error = format!(
            "{:#}",
            oslo.start(&world.server.address("none")).await.unwrap_err()
        );
        assert!(error.contains("tabane fleet init"), "{error}");
        // Another owner's key makes no fleet where one is.
        let stranger = RelayState::locate(Some(world.scratch.path().join("third"))).unwrap();
        let error = FleetOwner::found(&stranger, other.clone()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("already"), "{error}");
        // Nor does a slip of the pen in its owner's own directory.
        let error = FleetOwner::found(&owner, world.server.address("othre")).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("belongs to the fleet in"), "{error}");
        assert_eq!(owner.fleet().unwrap().unwrap().etcd, other);
        let etcd = Etcd::new(world.at.clone());
        assert!(etcd.get("othre/fleet").await.unwrap().is_none());
        // Who is let in by one owner is not by the other's.
        let error = format!(
            "{:#}",
            world.owner.add("rome", None, None, None).unwrap_err()
        );
        assert!(error.contains("no relay asks"), "{error}");
    });
}

#[test]
fn a_relay_is_drained_and_removed_by_its_owner_and_its_name_is_one_machines() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let oslo = world.relay("oslo").await;
        let report = world.owner.report().unwrap();
        assert_eq!(
            (report.relays[0].state.name(), report.relays[0].capacity),
            ("up", 7)
        );
        world.owner.drain("oslo", true).unwrap();
        let why = oslo.keeper().sent_away().await;
        assert!(why.contains("drains"), "{why}");
        world.owner.drain("oslo", false).unwrap();
        world.owner.remove("oslo").unwrap();
        let error = format!("{:#}", world.owner.remove("oslo").unwrap_err());
        assert!(error.contains("no relay of the fleet"), "{error}");

        let mut rome = world.relay("rome").await;
        rome.keeper.take().unwrap().close();
        // The same key on another machine, which runs.
        let etcd = Etcd::new(world.at.clone());
        let lease = etcd.grant(120).await.unwrap();
        let elsewhere = Alive {
            machine: "another".to_owned(),
            ..Alive::default()
        };
        let holds = Change::Put {
            key: format!("fleet/{ALIVE}rome"),
            value: serde_json::to_vec(&elsewhere).unwrap(),
            lease,
        };
        etcd.change(&[], &[holds]).await.unwrap();
        let error = format!("{:#}", rome.start(&world.at).await.unwrap_err());
        assert!(error.contains("another machine or process"), "{error}");
    });
}
