//! Relays that find another etcd than they left: one of an older day, or one that names them twice
//! or has others by a user's name; and what all of that costs.

use std::sync::atomic::Ordering;

use tabane_fleet::Account;

use super::etcd_in_trouble::Way;
use super::*;
use crate::etcd::MAX_OPERATIONS;

async fn account(etcd: &Etcd, user: &UserEntry) -> Account {
    let entry = etcd.get(&format!("fleet/volume/{}", user.name)).await;
    serde_json::from_slice(&entry.unwrap().unwrap().value).unwrap()
}

/// Uses all that is lent, until so much is.
async fn use_up(keeper: &FleetKeeper, user: &UserEntry, bytes: u64) -> u64 {
    loop {
        let lent = holding(keeper, user).lent;
        if lent >= bytes {
            return lent;
        }
        tell_used(keeper, user, lent);
        until("more is lent", || holding(keeper, user).lent > lent).await;
    }
}

#[test]
fn an_older_snapshot_gives_back_no_volume_of_a_relay_that_was_down() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("100MB/month");
        let bob = UserEntry {
            name: "bob".parse().unwrap(),
            ..user.clone()
        };
        world.add_user(&bob);
        let bobs = world.token(Some(bob.name.clone()));
        let mut oslo = world.relay("oslo").await;
        for it in [&admits, &bobs] {
            oslo.enrol(key(), &it.token).await.unwrap();
        }
        let snapshot = world.scratch.path().join("snapshot");
        world.server.save(&snapshot);
        let lent = use_up(oslo.keeper(), &user, 3_000_000).await;
        use_up(oslo.keeper(), &bob, 3_000_000).await;
        oslo.kill();
        world.server.restore(&snapshot);
        let etcd = Etcd::new(world.at.clone());
        wait_for(&etcd).await;
        // Whoever has a name next owes nothing for the one before.
        world.remove_user(&bob.name);
        world.add_user(&bob);
        oslo.start(&world.at).await.unwrap();
        let known = holding(oslo.keeper(), &user);
        assert_eq!((known.lent, known.used), (lent, lent));
        assert_eq!(account(&etcd, &user).await.lent, lent);
        assert_eq!(holding(oslo.keeper(), &bob), Allotment::default());
    });
}

#[test]
fn a_copy_that_is_older_than_etcd_takes_no_volume() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("100MB/month");
        let mut oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        use_up(oslo.keeper(), &user, 3_000_000).await;
        let copy = oslo.state.join("fleet.copy");
        let text = std::fs::read(&copy).unwrap();
        // What is not used is given back, and the copy does not come to know of it.
        oslo.keeper.take().unwrap().close();
        let etcd = Etcd::new(world.at.clone());
        let left = account(&etcd, &user).await;
        std::fs::write(&copy, text).unwrap();
        oslo.start(&world.at).await.unwrap();
        assert_eq!(account(&etcd, &user).await, left);
    });
}

#[test]
fn a_relay_that_was_killed_with_many_users_is_back_by_a_few_questions() {
    const USERS: usize = 300;
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let mut oslo = world.relay("oslo").await;
        oslo.kill();
        let user = |n: usize| UserEntry {
            name: format!("u{n}").parse().unwrap(),
            ..ann(Some("100MB/month"))
        };
        let users: Vec<UserEntry> = (0..USERS).map(user).collect();
        let add = |list: &mut AccessList| {
            let mut users = users.iter();
            users.try_for_each(|user| list.add_user(user.clone()))
        };
        world.book.update(add).unwrap().unwrap();
        let held: Vec<Change> = users
            .iter()
            .flat_map(|user| {
                let held = br#"{"period":"2026-11","lent":5000000,"used":0}"#;
                let account = br#"{"period":"2026-11","lent":5000000}"#;
                let at = |place: String, value: &[u8]| Change::put(place, value.to_vec());
                [
                    at(format!("fleet/held/{}/oslo", user.name), held),
                    at(format!("fleet/volume/{}", user.name), account),
                ]
            })
            .collect();
        let etcd = Etcd::new(world.at.clone());
        for part in held.chunks(MAX_OPERATIONS) {
            etcd.change(&[], part).await.unwrap().unwrap();
        }
        let way = Way::to(world.server.port(), 0);
        oslo.start(&way.address()).await.unwrap();
        let parts = way.parts.load(Ordering::Relaxed);
        eprintln!("{USERS} users by {parts} parts of answers");
        let news = oslo.keeper().news().borrow().clone();
        assert_eq!(news.holdings.len(), USERS);
        let is_used = |it: &Allotment| it.used == it.lent && it.lent == 5_000_000;
        assert!(news.holdings.values().all(is_used));
        // One answer about each would be 300.
        assert!(parts < 100, "{parts}");
    });
}

/// The relay's thread runs on the test's here: it sees nothing while the test waits for no event.
#[test]
fn a_name_that_changes_hands_while_etcd_is_away_takes_no_volume_with_it() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("100MB/month");
        let mut oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        oslo.keeper.take().unwrap().close();
        let (worker, mut seen, orders) = oslo.worker(&world.at);
        let test = async {
            let has_some = |news: &News| news.holdings.contains_key(&user.name);
            let lent = seen.wait_for(has_some).await.unwrap().holdings[&user.name].clone();
            let wish = Wish {
                user: user.name.clone(),
                period: lent.period,
                used: Bytes::new(lent.used),
                sessions: 1,
            };
            orders.send(Order::Used(vec![wish])).unwrap();
            let has_more = |news: &News| news.holdings[&user.name].lent > lent.lent;
            seen.wait_for(has_more).await.unwrap();

            world.server.kill_all();
            world.server.run_all();
            let at = world.at.clone();
            let waiting = std::thread::spawn(move || block_on(wait_for(&Etcd::new(at))));
            waiting.join().unwrap();
            world.remove_user(&user.name);
            world.add_user(&user);
            let bob = UserEntry::new("bob".parse().unwrap(), 0);
            world.add_user(&bob);
            let has_bob = |news: &News| news.list.user(&bob.name).is_some();
            let news = seen.wait_for(has_bob).await.unwrap().clone();
            assert_eq!(news.holdings.get(&user.name), None);
            let etcd = Etcd::new(world.at.clone());
            let left = etcd.get("fleet/volume/ann").await.unwrap();
            assert!(left.is_none(), "{left:?}");
        };
        tokio::select! {
            () = worker.run() => panic!("it ends by itself"),
            () = test => {}
        }
    });
}

/// As where a machine is cloned with its state directory: both have what one was lent.
#[test]
fn a_relay_whose_place_another_one_has_lends_nothing() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("100MB/month");
        let oslo = world.relay("oslo").await;
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let lent = use_up(oslo.keeper(), &user, 3_000_000).await;
        let etcd = Etcd::new(world.at.clone());
        let lease = etcd.grant(120).await.unwrap();
        let clone = Alive {
            machine: "another".to_owned(),
            ..Alive::default()
        };
        let place = format!("fleet/{ALIVE}oslo");
        let holds = Change::Put {
            key: place.clone(),
            value: serde_json::to_vec(&clone).unwrap(),
            lease,
        };
        etcd.change(&[], &[holds]).await.unwrap();
        let held = || holding(oslo.keeper(), &user);
        until("nothing is left here", || held().lent == 0).await;
        // Whoever comes is let in, and is lent nothing; nor does it count what it did not lend.
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(Some(user.name.clone()))));
        tell_used(oslo.keeper(), &user, lent);
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(Some(user.name.clone()))));
        assert_eq!((held().lent, account(&etcd, &user).await.lent), (0, lent));
        // The other one ends: what was lent to either is used.
        etcd.revoke(lease).await.unwrap();
        until("it has its place again", || held().lent > 0).await;
        assert_eq!((held().lent, held().used), (lent, lent));
        oslo.enrol(key(), &admits.token).await.unwrap();
        until("more is lent", || held().lent > lent).await;
        assert!(etcd.get(&place).await.unwrap().is_some());
    });
}
