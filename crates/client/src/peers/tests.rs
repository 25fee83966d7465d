//! What waits for a peer, and how often its names are looked up.

use super::*;
use crate::client_session::SessionPlan;
use crate::peer_memory::PeerMemory;
use crate::reach::tests::client_of_nobody;
use tabane_core::Identity;
use tabane_store::{Scratch, Store};
use tabane_tunnel::Journal;
use tokio::task::LocalSet;

fn peer() -> Rc<Peer> {
    let ip = [192, 0, 2, 1].into();
    let key = Identity::from_seed([1; 32]).public_key();
    let entry = PeerEntry::met(SocketAddr::new(ip, 1), key, 0);
    let name = RelayName::from_host(&tabane_base::Host::Ip(ip));
    Rc::new(Peer::new(name, entry))
}

#[test]
fn only_who_is_known_and_was_there_is_waited_for() {
    let second = Duration::from_secs(1);
    for (absence, is_proved, expected) in [
        (Absence::None, true, Some(second)),
        (Absence::None, false, Some(Duration::ZERO)),
        (Absence::Over, true, Some(Duration::ZERO)),
        (Absence::Lasting, true, None),
    ] {
        assert_eq!(head_start(absence, is_proved), expected, "{absence:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_wait_for_the_head_start_of_a_session_all_together() {
    let scratch = Scratch::make();
    let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
    let plan = SessionPlan::default();
    let mut surroundings = Surroundings::new(&plan, &store, None, Journal::default());
    surroundings.memory = PeerMemory::default();
    let surroundings = Rc::new(surroundings);
    let body = async {
        let peer = peer();
        // As if it had begun: nobody keeps this one.
        let keeper = tokio::task::spawn_local(std::future::pending::<()>());
        peer.keeper.replace(Some(keeper.abort_handle()));
        peer.session.send_replace(Some(client_of_nobody()));
        let begin = Instant::now();
        peer.wait_until.set(begin + HEAD_START);
        let late = async {
            sleep(HEAD_START / 4).await;
            peer.session(&surroundings).await
        };
        let (first, second) = tokio::join!(peer.session(&surroundings), late);
        assert!(first.is_none() && second.is_none());
        assert_eq!(begin.elapsed(), HEAD_START);
        assert!(peer.session(&surroundings).await.is_none());
        assert_eq!(
            begin.elapsed(),
            HEAD_START,
            "what comes later does not wait"
        );
    };
    LocalSet::new().run_until(body).await;
}

#[tokio::test(start_paused = true)]
async fn names_are_looked_up_ever_more_rarely_in_vain_and_every_ten_minutes() {
    let (peer, begin) = (peer(), Instant::now());
    let (asked, changes) = (RefCell::new(Vec::new()), Cell::new(0));
    let found = vec![SocketAddr::from(([192, 0, 2, 1], 1))];
    let resolve = async || {
        let mut asked = asked.borrow_mut();
        asked.push(begin.elapsed().as_millis());
        match asked.len() {
            10 | 11 => Ok(found.clone()),
            _ => anyhow::bail!("no network"),
        }
    };
    let changed = || changes.set(changes.get() + 1);
    let knowing = async {
        peer.resolved(begin + Duration::from_secs(1)).await;
        assert_eq!(
            begin.elapsed().as_millis(),
            1_000,
            "nobody waits for longer"
        );
        peer.resolved(begin + Duration::from_secs(3_600)).await;
        assert_eq!(begin.elapsed().as_millis(), 183_500);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = peer.follow_by(resolve, changed) => {}
        () = knowing => {}
        () = sleep(Duration::from_millis(1_384_500)) => {}
    }
    let in_vain = [0, 500, 1_500, 3_500, 7_500, 15_500, 31_500, 63_500, 123_500];
    assert_eq!(asked.borrow()[..9], in_vain);
    assert_eq!(
        asked.borrow()[9..],
        [183_500, 783_500, 1_383_500, 1_384_000]
    );
    assert_eq!((changes.get(), peer.addrs()), (1, found));
}
