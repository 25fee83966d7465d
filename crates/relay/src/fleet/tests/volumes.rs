//! What relays are lent of a user's volume: by all of them together, over kills, an upgrade and an
//! etcd that was restored.

use super::*;

#[test]
fn a_volume_is_never_overdrawn_by_relays_that_are_killed_and_cut_off() {
    const VOLUME: u64 = 10_000_000_000;
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("10GB/month");
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
                    counted[at] = holding(relays[at].keeper(), &user).used;
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
    let holding = holding(relay.keeper(), user);
    let left = holding.lent.saturating_sub(*counted);
    let bytes = (rng.below(60_000_000)).min(left);
    *counted += bytes;
    tell_used(relay.keeper(), user, *counted);
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

/// Whoever has the name next begins anew, as at a relay alone, and etcd keeps nothing for good.
#[test]
fn a_user_that_is_removed_leaves_nothing_behind() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("1MB/month");
        let oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let lent = || holding(oslo.keeper(), &user).lent;
        until("it is lent", || lent() > 0).await;
        world.remove_user(&user.name);
        let etcd = Etcd::new(world.at.clone());
        for key in ["volume/ann", "held/ann/oslo"] {
            let left = etcd.get(&format!("fleet/{key}")).await.unwrap();
            assert!(left.is_none(), "{key}");
        }
        world.add_user(&user);
        let again = world.token(Some(user.name.clone()));
        oslo.enrol(key(), &again.token).await.unwrap();
        until("it is lent anew", || lent() > 0).await;
    });
}

#[test]
fn a_relays_place_goes_to_its_next_process_with_what_it_was_lent() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("1GB/month");
        let mut oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let holding = |keeper| holding(keeper, &user);
        let etcd = Etcd::new(world.at.clone());
        let alive = async || {
            let entry = etcd.get("fleet/alive/oslo").await.unwrap();
            entry.map(|entry| (entry.lease, entry.value))
        };
        let before = alive().await.unwrap();

        let old = oslo.keeper.take().unwrap();
        tell_used(&old, &user, 3_000_000);
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
        tell_used_in(&new, &user, lent, 0);
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
        let lease = etcd.grant(120).await.unwrap();
        let mut next: Alive = serde_json::from_slice(&alive().await.unwrap().1).unwrap();
        // One that has another number, and is still listed as a process.
        (next.process, next.version) = (1, "next".to_owned());
        let holds = Change::Put {
            key: "fleet/alive/oslo".to_owned(),
            value: serde_json::to_vec(&next).unwrap(),
            lease,
        };
        etcd.change(&[], &[holds]).await.unwrap();
        let (mut view, begin) = (new.view(), Instant::now());
        while view.look().await.unwrap().relays[0].version != "next" {
            assert!(begin.elapsed() < Duration::from_secs(30), "it is not seen");
        }
        new.take_place(true);
        let held = alive().await.unwrap().0;
        assert_ne!(held, before.0);
        tell_used(&new, &user, lent);
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
        let (user, admits) = world.ann("100MB/month");
        let oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let snapshot = world.scratch.path().join("snapshot");
        world.server.save(&snapshot);
        let lent = || holding(oslo.keeper(), &user).lent;
        for used in [1_000_000, 2_000_000, 3_000_000] {
            tell_used(oslo.keeper(), &user, used);
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
