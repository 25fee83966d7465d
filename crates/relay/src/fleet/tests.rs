//! Relays of a fleet against a real etcd: what all of them together admit, lend and turn away.
//!
//! Each relay is what a relay's own thread has of its fleet, with the fleet's thread behind it.

mod away;
mod etcd_in_trouble;
mod lists;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tabane_base::{Bytes, Rng, Seed};
use tabane_core::{CloseReason, PublicKey};
use tabane_store::{Scratch, Token, secret};

use super::exchange::{FleetOrder, Order, Stage, Wish};
use super::keeper::FleetKeeper;
use super::records::{ALIVE, Alive};
use super::{FleetBook, FleetOwner};
use crate::access::{AccessAnswer, TokenEntry, TokenUses, UserEntry, UserName};
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

    fn add_user(&self, user: &UserEntry) {
        self.book
            .update(|list| list.add_user(user.clone()))
            .unwrap()
            .unwrap();
    }

    fn add_tokens(&self, tokens: &[TokenEntry]) {
        let add = |list: &mut crate::access::AccessList| {
            tokens
                .iter()
                .for_each(|it| list.add_token(it.clone()).unwrap());
        };
        self.book.update(add).unwrap();
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

    fn keeper(&self) -> &FleetKeeper {
        self.keeper.as_ref().unwrap()
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
fn a_volume_is_never_overdrawn_by_relays_that_are_killed_and_cut_off() {
    const VOLUME: u64 = 10_000_000_000;
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let user = ann(Some("10GB/month"));
        world.add_user(&user);
        let admits = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&admits));
        let mut relays = world.three().await;
        let mut rng = Seed(u64::from_le_bytes(secret::random())).rng("quota");
        // What passed in all, and what each relay's life has counted.
        let (mut passed, mut kills) = (0, 0);
        let mut counted = [0_u64; 3];
        for relay in &relays {
            let answer = relay.enrol(key(), &admits.token).await.unwrap();
            assert_eq!(answer, AccessAnswer::Enrolled(Some(user.name.clone())));
        }
        for turn in 0..600 {
            let at = rng.below(3) as usize;
            match turn {
                // Etcd goes in the middle of it, and comes back.
                200 => world.server.kill_all(),
                230 => {
                    world.server.run_all();
                    wait_for(&Etcd::new(world.at.clone())).await;
                    for relay in &relays {
                        let news = relay.keeper().news();
                        until("etcd is back", || news.borrow().away.is_none()).await;
                    }
                }
                300 | 350 | 400 => {
                    relays[at].kill();
                    relays[at].start(&world.at).await.unwrap();
                    kills += 1;
                    let news = relays[at].keeper().news();
                    let holding = news.borrow().holdings.get(&user.name).cloned();
                    counted[at] = holding.unwrap().used;
                }
                _ => passed += use_some(&relays[at], &user, &mut counted[at], &mut rng).await,
            }
            assert!(passed <= VOLUME, "{passed} bytes");
        }
        // Then everything that is left, by all of them in turn.
        let mut idle = 0;
        while idle < 60 {
            let at = idle % 3;
            let used = use_some(&relays[at], &user, &mut counted[at], &mut rng).await;
            idle = if used > 0 { 0 } else { idle + 1 };
            passed += used;
        }
        assert!(passed <= VOLUME, "{passed} bytes");
        let lost = VOLUME - passed;
        eprintln!("{passed} bytes passed; {kills} kills took {lost}");
        // What one holds at a time is what was lent and the next one, each as large as it gets
        // where it is used that fast.
        let (volume, ever) = (Bytes::new(VOLUME), Bytes::MAX);
        let part = tabane_fleet::allotment_at(volume, ever, Duration::ZERO).get();
        assert!(lost <= kills * 2 * part, "{lost} of {part} at a time");
        for relay in &mut relays {
            relay.keeper.take().unwrap().close();
        }
        let usage = world.book.usage().unwrap();
        assert!(
            usage
                .of(&user, tabane_store::wall_clock::unix_seconds())
                .get()
                >= passed
        );
    });
}

/// Has a part of what a relay holds pass there, and tells so; how much.
async fn use_some(relay: &Member, user: &UserEntry, counted: &mut u64, rng: &mut Rng) -> u64 {
    let holding = relay
        .keeper()
        .news()
        .borrow()
        .holdings
        .get(&user.name)
        .cloned();
    let holding = holding.unwrap();
    let left = holding.lent.saturating_sub(*counted);
    let bytes = (rng.below(60_000_000)).min(left);
    *counted += bytes;
    let wish = Wish {
        user: user.name.clone(),
        period: holding.period.clone(),
        used: Bytes::new(*counted),
        sessions: 1,
    };
    relay.keeper().order(Order::Used(vec![wish]));
    // More may come of it, or not: etcd may be away, or everything be lent.
    let mut news = relay.keeper().news();
    let more = news.wait_for(|it| {
        it.holdings
            .get(&user.name)
            .is_some_and(|it| it.lent > holding.lent)
    });
    let _ = tokio::time::timeout(Duration::from_millis(15), more).await;
    bytes
}

#[test]
fn what_is_revoked_anywhere_is_revoked_everywhere_within_a_second() {
    block_on(async {
        let Some(world) = World::make(3).await else {
            return;
        };
        let relays = world.three().await;
        world.add_user(&ann(None));
        let admits = token(TokenUses::Many, Some("ann".parse().unwrap()));
        world.add_tokens(std::slice::from_ref(&admits));
        let clients: Vec<PublicKey> = (0..20).map(|_| key()).collect();
        for client in &clients {
            relays[0].enrol(*client, &admits.token).await.unwrap();
        }
        let is_revoked = |relay: &Member, client: PublicKey| {
            let verdict = relay.keeper().list().recognise(client, None, 0);
            verdict == Some(AccessAnswer::RefusedRevoked)
        };
        let mut slowest = Duration::ZERO;
        for client in &clients {
            world
                .book
                .update(|list| list.set_revoked(*client, true))
                .unwrap()
                .unwrap();
            for relay in &relays {
                slowest = slowest.max(until("revoked", || is_revoked(relay, *client)).await);
            }
        }
        eprintln!("revoked everywhere after at most {slowest:?}");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        // A user goes while its device is known everywhere.
        world
            .book
            .update(|list| list.set_revoked(clients[0], false))
            .unwrap()
            .unwrap();
        world
            .book
            .update(|list| list.remove_user(&"ann".parse().unwrap()))
            .unwrap()
            .unwrap();
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
        let admits = token(TokenUses::Many, None);
        world.add_tokens(std::slice::from_ref(&admits));
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let copy = oslo.state.join("fleet.copy");
        let text = client.to_string();
        let has_client = || std::fs::read_to_string(&copy).is_ok_and(|it| it.contains(&text));
        until("the copy", has_client).await;
        world.server.kill_all();
        let news = oslo.keeper().news();
        until("it is seen", || news.borrow().away.is_some()).await;
        let is_known = |member: &Member| {
            let verdict = member.keeper().list().recognise(client, None, 0);
            verdict == Some(AccessAnswer::Known(None))
        };
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
        let error = format!("{:#}", FleetOwner::found(&stranger, other).unwrap_err());
        assert!(error.contains("already"), "{error}");
        // Who is let in by one owner is not by the other's.
        let error = format!(
            "{:#}",
            world.owner.add("rome", None, None, None).unwrap_err()
        );
        assert!(error.contains("no relay asks"), "{error}");
    });
}

/// Of every kind there is: each value as it stands, cut in half.
#[test]
fn whatever_is_half_written_all_goes_on_by_what_was_there_before() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let user = ann(Some("1GB/month"));
        world.add_user(&user);
        let admits = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&admits));
        let oslo = world.relay("oslo").await;
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let etcd = Etcd::new(world.at.clone());
        let snapshot = etcd.list("fleet/").await.unwrap();
        let kinds = [
            "fleet", "list", "user/", "token/", "client/", "volume/", "held/", "alive/",
        ];
        let mut damaged = Vec::new();
        for kind in kinds {
            let place = format!("fleet/{kind}");
            let of_kind = snapshot
                .entries
                .iter()
                .filter(|it| it.key.starts_with(&place));
            let before = damaged.len();
            damaged.extend(of_kind.map(|it| Change::Put {
                key: it.key.clone(),
                value: it.value[..it.value.len() / 2].to_vec(),
                lease: it.lease,
            }));
            assert!(damaged.len() > before, "there is no {kind}");
        }
        etcd.change(&[], &damaged).await.unwrap();
        let last = UserEntry::new("bob".parse().unwrap(), 0);
        let value = serde_json::to_vec(&last).unwrap();
        let marker = Change::put("fleet/user/bob".to_owned(), value);
        etcd.change(&[], &[marker]).await.unwrap();
        until("bob", || oslo.keeper().list().users().len() == 2).await;

        let verdict = oslo.keeper().list().recognise(client, None, 0);
        assert_eq!(verdict, Some(AccessAnswer::Known(Some(user.name.clone()))));
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(Some(user.name.clone()))));
        let holding = || oslo.keeper().news().borrow().holdings[&user.name].clone();
        let lent = holding().lent;
        oslo.keeper().order(Order::Used(vec![Wish {
            user: user.name.clone(),
            period: holding().period,
            used: Bytes::new(lent),
            sessions: 1,
        }]));
        until("more is lent", || holding().lent > lent).await;
        let news = oslo.keeper().news().borrow().clone();
        assert_eq!((news.away, news.sent_away), (None, None));
    });
}

#[test]
fn a_value_that_is_half_written_takes_nobodys_place() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        world.add_user(&ann(None));
        let oslo = world.relay("oslo").await;
        let etcd = Etcd::new(world.at.clone());
        let damage = Change::put("fleet/user/ann".to_owned(), b"{\"name\":\"an".to_vec());
        let marker = serde_json::to_vec(&UserEntry::new("bob".parse().unwrap(), 0)).unwrap();
        let marker = Change::put("fleet/user/bob".to_owned(), marker);
        etcd.change(&[], &[damage, marker]).await.unwrap();
        until("bob", || oslo.keeper().list().users().len() == 2).await;
        assert_eq!(oslo.keeper().list().users()[0], ann(None));
        assert_eq!(world.owner.report().unwrap().odd, ["user/ann"]);
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

/// Whoever has the name next begins anew, as at a relay alone, and etcd keeps nothing for good.
#[test]
fn a_user_that_is_removed_leaves_nothing_behind() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let user = ann(Some("1MB/month"));
        world.add_user(&user);
        let admits = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&admits));
        let oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let holding = || {
            oslo.keeper()
                .news()
                .borrow()
                .holdings
                .get(&user.name)
                .cloned()
        };
        until("it is lent", || holding().is_some_and(|it| it.lent > 0)).await;
        world
            .book
            .update(|list| list.remove_user(&user.name))
            .unwrap()
            .unwrap();
        let etcd = Etcd::new(world.at.clone());
        for key in ["volume/ann", "held/ann/oslo"] {
            let left = etcd.get(&format!("fleet/{key}")).await.unwrap();
            assert!(left.is_none(), "{key}");
        }
        world.add_user(&user);
        let again = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&again));
        oslo.enrol(key(), &again.token).await.unwrap();
        until("it is lent anew", || {
            holding().is_some_and(|it| it.lent > 0)
        })
        .await;
    });
}

#[test]
fn a_relays_place_goes_to_its_next_process_with_what_it_was_lent() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let user = ann(Some("1GB/month"));
        world.add_user(&user);
        let admits = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&admits));
        let mut oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let holding = |keeper: &FleetKeeper| {
            let news = keeper.news().borrow().clone();
            news.holdings.get(&user.name).cloned().unwrap_or_default()
        };
        let used = |keeper: &FleetKeeper, bytes, sessions| {
            keeper.order(Order::Used(vec![Wish {
                user: user.name.clone(),
                period: holding(keeper).period,
                used: Bytes::new(bytes),
                sessions,
            }]));
        };
        let etcd = Etcd::new(world.at.clone());
        let alive = async || {
            let entry = etcd.get("fleet/alive/oslo").await.unwrap();
            entry.map(|entry| (entry.lease, entry.value))
        };
        let before = alive().await.unwrap();

        let old = oslo.keeper.take().unwrap();
        used(&old, 3_000_000, 1);
        old.tell_all().await.unwrap();
        let new = oslo.process(&world.at, Some(std::process::id())).await;
        let new = new.unwrap();
        // All that is not used is there to be used yet, and nobody has gone.
        assert_eq!(holding(&new), holding(&old));
        assert_eq!(holding(&new).used, 3_000_000);
        assert_eq!(alive().await.unwrap().0, before.0);

        old.leave_place().await.unwrap();
        new.take_place(false);
        let begin = Instant::now();
        while alive().await.unwrap().0 == before.0 {
            assert!(begin.elapsed() < Duration::from_secs(10), "it is not taken");
        }
        // Sessions of the old one use more, which the new one hears of, and borrows for.
        let lent = holding(&new).lent;
        used(&new, lent, 0);
        until("more is lent to both", || {
            holding(&new).lent > lent && holding(&old) == holding(&new)
        })
        .await;
        let lent = holding(&new).lent;
        old.close();
        assert_eq!(holding(&new).lent, lent, "nothing of it is given back");
        assert!(alive().await.is_some(), "nor is the relay gone");

        // The next one comes to nothing, and what was left is had again.
        new.take_place(true);
        new.leave_place().await.unwrap();
        new.take_place(true);
        let held = alive().await.unwrap().0;
        assert_ne!(held, before.0);
        used(&new, lent, 1);
        until("more is lent", || holding(&new).lent > lent).await;
        new.close();
        assert!(alive().await.is_none(), "it says good-bye");
        let usage = world.book.usage().unwrap();
        assert_eq!(usage.of(&user, world.book.now().unwrap()), Bytes::new(lent));
    });
}

#[test]
fn an_older_snapshot_gives_back_no_volume() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let user = ann(Some("100MB/month"));
        world.add_user(&user);
        let admits = token(TokenUses::Many, Some(user.name.clone()));
        world.add_tokens(std::slice::from_ref(&admits));
        let oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let snapshot = world.scratch.path().join("snapshot");
        world.server.save(&snapshot);
        let lent = || {
            let news = oslo.keeper().news().borrow().clone();
            news.holdings.get(&user.name).map_or(0, |it| it.lent)
        };
        for used in [1_000_000, 2_000_000, 3_000_000] {
            let period = oslo.keeper().news().borrow().holdings[&user.name]
                .period
                .clone();
            oslo.keeper().order(Order::Used(vec![Wish {
                user: user.name.clone(),
                period,
                used: Bytes::new(used),
                sessions: 1,
            }]));
            until("more is lent", || lent() > used).await;
        }
        let before = lent();
        world.server.restore(&snapshot);
        wait_for(&Etcd::new(world.at.clone())).await;
        let etcd = Etcd::new(world.at.clone());
        let begin = Instant::now();
        loop {
            let entry = etcd.get("fleet/volume/ann").await.unwrap().unwrap();
            let account: tabane_fleet::Account = serde_json::from_slice(&entry.value).unwrap();
            // More may be lent by then: what was used last came close to the end of a large part.
            if account.lent >= before {
                break;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "{account:?}, {before} were lent"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(lent() >= before);
        assert_eq!(oslo.keeper().news().borrow().stage, Stage::Serving);
    });
}
