//! Etcd that is slow, full, or of another opinion of what time it is.
//!
//! What is in the way of a relay and its etcd here changes the `Date` of answers, as if this
//! machine's clock were wrong, and holds answers up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::*;
use crate::access::TokenUses;
use tabane_store::quantity::Lifetime;
use tabane_store::wall_clock::unix_seconds;

/// The way to an etcd, as long as the test runs.
pub(super) struct Way {
    port: u16,
    /// Seconds by which this machine's clock is behind.
    behind_s: Arc<AtomicI64>,
    /// How long each part of an answer is held up.
    late_ms: Arc<AtomicU64>,
    /// Parts of answers so far.
    pub(super) parts: Arc<AtomicU64>,
}

impl Way {
    pub(super) fn to(port: u16, behind_s: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            behind_s: Arc::new(behind_s.into()),
            late_ms: Arc::default(),
            parts: Arc::default(),
        };
        let (behind_s, late_ms) = (way.behind_s.clone(), way.late_ms.clone());
        let parts = way.parts.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (behind_s, late_ms) = (behind_s.clone(), late_ms.clone());
                let parts = parts.clone();
                std::thread::spawn(move || copy(near, far, |_| {}));
                std::thread::spawn(move || {
                    copy(far_too, near_too, |answer| {
                        parts.fetch_add(1, Ordering::Relaxed);
                        let late_ms = late_ms.load(Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(late_ms));
                        shift(answer, behind_s.load(Ordering::Relaxed));
                    });
                });
            }
        });
        way
    }

    pub(super) fn address(&self) -> FleetAddress {
        let text = format!("etcd://127.0.0.1:{}/fleet", self.port);
        text.parse().unwrap()
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        change(&mut buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Writes another time of day into the head of an answer.
fn shift(answer: &mut [u8], by_s: i64) {
    const NAME: &[u8] = b"Date: ";
    let found = answer.windows(NAME.len()).position(|it| it == NAME);
    let (Some(at), true) = (found, by_s != 0) else {
        return;
    };
    let mut date = Command::new("date");
    date.args(["-u", "+%a, %d %b %Y %H:%M:%S GMT", "-d"]);
    let then = unix_seconds().saturating_add_signed(by_s);
    let output = date.arg(format!("@{then}")).env("LC_ALL", "C").output();
    let output = output.unwrap().stdout;
    let text = output.trim_ascii_end();
    answer[at + NAME.len()..][..text.len()].copy_from_slice(text);
}

/// The state of a machine of the fleet, for commands.
fn commands(member: &Member) -> RelayState {
    RelayState::locate(Some(member.state.clone())).unwrap()
}

#[test]
fn a_machine_whose_clock_is_wrong_goes_by_etcds() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        // Behind by an hour, and then ahead by one.
        let way = Way::to(world.server.port(), 3_600);
        world.at = way.address();
        let mut rome = world.relay("rome").await;
        let is_ahead = |rome: &Member, seconds: i64| {
            let ahead = rome.keeper().now() as i64 - unix_seconds() as i64;
            (ahead - seconds).abs() <= 2
        };
        assert!(is_ahead(&rome, 3_600));
        for (behind_s, lasts) in [(3_600, 1_800), (-3_600, 1_800), (60, 30), (-60, 30)] {
            way.behind_s.store(behind_s, Ordering::Relaxed);
            until("it is seen", || is_ahead(&rome, behind_s)).await;
            let state = commands(&rome);
            let lifetime = Lifetime(Some(tabane_base::Duration::from_secs(lasts)));
            let made = state.new_token(TokenUses::Many, lifetime, None).unwrap();
            let answer = rome.enrol(key(), &made).await;
            assert_eq!(answer, Ok(AccessAnswer::Enrolled(None)), "{behind_s} s");
            let list = state.access().unwrap();
            let kept = list.tokens().iter().find(|it| it.token == made).unwrap();
            let left = kept.expires_at.unwrap() as i64 - state.now().unwrap() as i64;
            assert!((0..=lasts as i64).contains(&left), "{left} s left");
            assert!(!kept.is_expired(state.now().unwrap()));
            // By etcd's clock it is over when that says so.
            assert!(kept.is_expired(state.now().unwrap() + lasts));
        }
        // Somebody sets the clock.
        way.behind_s.store(0, Ordering::Relaxed);
        until("it is seen", || is_ahead(&rome, 0)).await;
        rome.keeper.take().unwrap().close();

        // It says so where the owner looks, and how long it has run is right.
        way.behind_s.store(60, Ordering::Relaxed);
        rome.start(&world.at).await.unwrap();
        let owner = FleetOwner::found(
            &RelayState::locate(Some(world.scratch.path().join("owner"))).unwrap(),
            world.server.address("fleet"),
        );
        let (owner, _) = owner.unwrap();
        until("it is told", || {
            let report = owner.report().unwrap();
            let seen = &report.relays[0];
            (58..=62).contains(&seen.clock_behind_s)
        })
        .await;
    });
}

#[test]
fn a_slow_etcd_makes_newcomers_wait_and_nobody_else() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let way = Way::to(world.server.port(), 0);
        world.at = way.address();
        let oslo = world.relay("oslo").await;
        let admits = world.token(None);
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let is_known = || oslo.knows(client) == Some(AccessAnswer::Known(None));
        // Slow: newcomers come in, later.
        way.late_ms.store(400, Ordering::Relaxed);
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(None)));
        assert!(is_known());
        world.set_revoked(client, true);
        until("revoked", || !is_known()).await;
        // Slower than anybody waits: they are told to come again, and it is over with the cause.
        way.late_ms.store(6_000, Ordering::Relaxed);
        let begin = Instant::now();
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "in a handshake's time"
        );
        // One may wait in vain for whether another member answers; whoever comes after it need not.
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        let begin = Instant::now();
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        assert!(begin.elapsed() < Duration::from_millis(500), "at once");
        way.late_ms.store(0, Ordering::Relaxed);
        let news = oslo.keeper().news();
        let newcomer = key();
        let begin = Instant::now();
        while oslo.enrol(newcomer, &admits.token).await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(30), "never again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(news.borrow().away, None);
    });
}

/// As the gatekeeper asks about them, with an etcd that takes its time for each answer.
#[test]
fn many_strangers_are_looked_up_together_and_volumes_are_lent_meanwhile() {
    const STRANGERS: usize = 200;
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let way = Way::to(world.server.port(), 0);
        world.at = way.address();
        let oslo = world.relay("oslo").await;
        let (user, admits) = world.ann("1GB/month");
        oslo.enrol(key(), &admits.token).await.unwrap();
        let lent = holding(oslo.keeper(), &user).lent;

        way.late_ms.store(10, Ordering::Relaxed);
        let stranger = |_| {
            let shown = Token::from_random(secret::random());
            (key(), Some(shown.as_str().as_bytes().to_vec()))
        };
        let mut shown: Vec<_> = (0..STRANGERS).map(stranger).collect();
        shown.push((key(), Some(admits.token.as_str().as_bytes().to_vec())));
        let before = way.parts.load(Ordering::Relaxed);
        let enrolling = async {
            let mut answers = Vec::new();
            for next in shown.chunks(40) {
                let decided = oslo.keeper().enrol(next.to_vec()).await;
                answers.extend(decided.map_err(|it| it.0).unwrap().0);
            }
            answers
        };
        // Its turn comes after the first of them.
        let lending = async {
            tell_used(oslo.keeper(), &user, lent);
            until("more is lent", || holding(oslo.keeper(), &user).lent > lent).await;
            way.parts.load(Ordering::Relaxed) - before
        };
        let (answers, lent_after) = tokio::join!(enrolling, lending);
        let all = way.parts.load(Ordering::Relaxed) - before;
        eprintln!("{STRANGERS} strangers by {all} parts of answers, lent after {lent_after}");
        let (last, strangers) = answers.split_last().unwrap();
        assert_eq!(last, &AccessAnswer::Enrolled(Some(user.name.clone())));
        let is_refused = |it: &AccessAnswer| *it == AccessAnswer::RefusedUnknown;
        assert!(strangers.len() == STRANGERS && strangers.iter().all(is_refused));
        // Two answers about each, one after the other, would be 400.
        assert!(all < 60 && lent_after < 30, "{all}, {lent_after}");
    });
}

/// Answers every question with `answer`.
fn pretend(answer: String) -> FleetAddress {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut question = [0; 4_096];
            let _ = stream.read(&mut question);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("etcd://127.0.0.1:{port}/fleet").parse().unwrap()
}

/// Where it makes no sense to wait for better answers, the relay says why and does not start; who
/// is known to a running one is served on.
#[test]
fn an_etcd_of_another_version_is_named_and_not_waited_for() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let body = "{\"etcdserver\":\"3.3.27\"}";
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let old = pretend(head + body);
        let mut oslo = world.relay("oslo").await;
        let admits = world.token(None);
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let copy = oslo.state.join("fleet.copy");
        let text = client.to_string();
        let has_client = || std::fs::read_to_string(&copy).is_ok_and(|it| it.contains(&text));
        until("the copy", has_client).await;
        oslo.kill();
        // It has its copy, and is known there.
        oslo.start(&old).await.unwrap();
        assert_eq!(oslo.knows(client), Some(AccessAnswer::Known(None)));
        let away = || oslo.keeper().news().borrow().away.clone();
        until("it says why", || away().is_some()).await;
        let why = away().unwrap();
        assert!(
            why.contains("3.3.27") && why.contains("3.4 or newer"),
            "{why}"
        );
        // One that never was of the fleet has nothing to go by.
        let mut rome = Member {
            state: world.scratch.path().join("rome"),
            name: "rome".to_owned(),
            keeper: None,
        };
        let error = format!("{:#}", rome.start(&old).await.unwrap_err());
        assert!(
            error.contains("3.4 or newer") && !error.contains('\n'),
            "{error}"
        );
    });
}

/// An etcd that takes 2 MB.
fn small() -> Option<Server> {
    Server::start_with(1, "http", &["--quota-backend-bytes=2000000".to_owned()])
}

async fn fill(world: &World) {
    let etcd = Etcd::new(world.server.address("filling"));
    let fill = Change::put("filling/a".to_owned(), vec![b'x'; 100_000]);
    let begin = Instant::now();
    while etcd.change(&[], std::slice::from_ref(&fill)).await.is_ok() {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "it is never full"
        );
    }
}

#[test]
fn a_full_etcd_keeps_newcomers_out_until_somebody_makes_room() {
    block_on(async {
        let Some(server) = small() else {
            return;
        };
        let Some(world) = World::of(server).await else {
            return;
        };
        let mut oslo = world.relay("oslo").await;
        let admits = world.token(None);
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        fill(&world).await;
        let is_known = |member: &Member| member.knows(client) == Some(AccessAnswer::Known(None));
        let refused = oslo.enrol(key(), &admits.token).await;
        assert_eq!(refused, Err(CloseReason::Unavailable));
        assert!(is_known(&oslo));
        let news = oslo.keeper().news();
        until("it says why", || {
            let away = news.borrow().away.clone();
            away.is_some_and(|why| why.contains("NOSPACE"))
        })
        .await;
        // Not even its lease can be had; who is known is served all the same.
        oslo.kill();
        oslo.start(&world.at).await.unwrap();
        assert!(is_known(&oslo));
        world.server.make_room();
        let begin = Instant::now();
        while oslo.enrol(key(), &admits.token).await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(30), "never again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_relay_ends_at_once_though_nothing_can_be_given_back() {
    block_on(async {
        let Some(server) = small() else {
            return;
        };
        let Some(world) = World::of(server).await else {
            return;
        };
        let (user, admits) = world.ann("100MB/month");
        let mut oslo = world.relay("oslo").await;
        oslo.enrol(key(), &admits.token).await.unwrap();
        let lent = holding(oslo.keeper(), &user).lent;
        fill(&world).await;
        tell_used(oslo.keeper(), &user, lent / 4);
        let begin = Instant::now();
        oslo.keeper.take().unwrap().close();
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        let etcd = Etcd::new(world.at.clone());
        let place = etcd.get("fleet/alive/oslo").await.unwrap();
        assert!(place.is_none(), "others see at once that it is gone");
    });
}
