//! Etcd that is away for ten minutes while its relay is busy, in virtual time.
//!
//! The relay's thread of the fleet runs beside the test here: etcd is real, and what passes while
//! it is away is no time at all.

use tokio::sync::oneshot;

use super::*;

const AWAY: Duration = Duration::from_secs(600);
/// As a busy relay tells what is used.
const TURN: Duration = Duration::from_millis(100);

#[test]
fn ten_minutes_without_etcd_change_nothing_for_known_clients_and_end_by_themselves() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("1GB/month");
        let mut oslo = world.relay("oslo").await;
        let (client, other) = (key(), key());
        for known in [client, other] {
            oslo.enrol(known, &admits.token).await.unwrap();
        }
        oslo.keeper.take().unwrap().close();

        let (worker, seen, orders) = oslo.worker(&world.at);
        tokio::select! {
            () = worker.run() => panic!("it ends by itself"),
            () = outlast(&mut world, &user, (client, other), seen, &orders) => {}
        }
    });
}

/// What the relay's own thread sees and says.
async fn outlast(
    world: &mut World,
    user: &UserEntry,
    (client, other): (PublicKey, PublicKey),
    mut seen: watch::Receiver<News>,
    orders: &mpsc::UnboundedSender<Order>,
) {
    seen.wait_for(|news| news.stage == Stage::Serving)
        .await
        .unwrap();
    let shown = vec![(client, None)];
    let (answer, answered) = oneshot::channel();
    orders.send(Order::Enrol { shown, answer }).unwrap();
    answered.await.unwrap().unwrap();
    let lent = seen
        .wait_for(|news| news.holdings.get(&user.name).is_some_and(|it| it.lent > 0))
        .await
        .unwrap()
        .holdings[&user.name]
        .clone();
    let used = |bytes: u64| {
        let wish = Wish {
            user: user.name.clone(),
            period: lent.period.clone(),
            used: Bytes::new(bytes),
            sessions: 1,
        };
        orders.send(Order::Used(vec![wish])).unwrap();
    };

    world.server.kill_all();
    seen.wait_for(|news| news.away.is_some()).await.unwrap();
    tokio::time::pause();
    let begin = tokio::time::Instant::now();
    let (mut changes, mut passed) = (0, 0);
    while begin.elapsed() < AWAY {
        tokio::time::sleep(TURN).await;
        // All that was lent, byte by byte, and no more: nothing more is lent.
        passed = (passed + lent.lent / 3_000).min(lent.lent);
        used(passed);
        changes += u32::from(seen.has_changed().unwrap());
        let news = seen.borrow_and_update();
        let is_known = |key| news.list.recognise(key, None, 0);
        assert_eq!(
            is_known(client),
            Some(AccessAnswer::Known(Some(user.name.clone())))
        );
        assert_eq!(news.holdings[&user.name], lent);
        assert!(news.away.is_some() && news.sent_away.is_none());
    }
    // It is looked for all the time, and no more often than every 5 s.
    println!("{changes} times something was told in {AWAY:?}");
    assert!((60..=180).contains(&changes), "{changes}");

    tokio::time::resume();
    world.server.run_all();
    wait_for(&Etcd::new(world.at.clone())).await;
    world.set_revoked(other, true);
    let is_revoked = |news: &News| {
        let verdict = news.list.recognise(other, None, 0);
        verdict == Some(AccessAnswer::RefusedRevoked)
    };
    seen.wait_for(|news| news.away.is_none() && is_revoked(news))
        .await
        .unwrap();
    // What passed meanwhile is told, and more is lent without being asked for again.
    seen.wait_for(|news| {
        let holding = &news.holdings[&user.name];
        holding.lent > lent.lent && holding.used == lent.lent
    })
    .await
    .unwrap();
    let usage = world.book.usage().unwrap();
    let now = world.book.now().unwrap();
    assert_eq!(usage.of(user, now), Bytes::new(lent.lent));
}
