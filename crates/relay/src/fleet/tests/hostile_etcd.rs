//! Etcd in other hands, or with somebody else who may write there: what it costs a relay.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::super::records::{account_key, holding_key};
use super::*;

/// The way to an etcd that ends each watch once it has begun, when it is told to.
struct Cutter {
    port: u16,
    cuts: Arc<AtomicBool>,
    watches: Arc<AtomicUsize>,
}

impl Cutter {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter = Self {
            port: listener.local_addr().unwrap().port(),
            cuts: Arc::default(),
            watches: Arc::default(),
        };
        let (cuts, watches) = (cutter.cuts.clone(), cutter.watches.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let is_watch = Arc::new(AtomicBool::default());
                let (is_one, cuts, watches) = (is_watch.clone(), cuts.clone(), watches.clone());
                std::thread::spawn(move || {
                    pass(near, far, |question| {
                        if question.starts_with(b"POST /v3/watch") {
                            is_watch.store(true, Ordering::Relaxed);
                            watches.fetch_add(1, Ordering::Relaxed);
                        }
                        true
                    });
                });
                std::thread::spawn(move || {
                    pass(far_too, near_too, |_| {
                        !(is_one.load(Ordering::Relaxed) && cuts.load(Ordering::Relaxed))
                    });
                });
            }
        });
        cutter
    }
}

/// Until `goes_on` says that it is enough.
fn pass(mut from: TcpStream, mut to: TcpStream, goes_on: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let goes_on = goes_on(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() || !goes_on {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn watches_that_end_at_once_are_not_begun_anew_without_a_pause() {
    block_on(async {
        let Some(mut world) = World::make(1).await else {
            return;
        };
        let cutter = Cutter::to(world.server.port());
        world.at = format!("etcd://127.0.0.1:{}/fleet", cutter.port)
            .parse()
            .unwrap();
        let _oslo = world.relay("oslo").await;
        cutter.cuts.store(true, Ordering::Relaxed);
        // The watch that stands is cut by what comes next.
        world.token(None);
        let before = cutter.watches.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let watches = cutter.watches.load(Ordering::Relaxed) - before;
        println!("{watches} watches in 3 s");
        assert!((1..20).contains(&watches), "{watches}");
    });
}

/// What a relay of the fleet writes of itself, or asks for, is little; what all others make of it
/// takes a walk over all users.
#[test]
fn changes_without_end_hold_nobody_up_who_is_let_in_or_revoked() {
    const USERS: usize = 1_000;
    const CHANGES: usize = 1_000;
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let users: Vec<UserEntry> = (0..USERS)
            .map(|n| UserEntry {
                volume: Some("1GB/day".parse().unwrap()),
                ..UserEntry::new(format!("u{n}").parse().unwrap(), 0)
            })
            .collect();
        let add = |list: &mut AccessList| {
            let added = users.iter().map(|user| list.add_user(user.clone()));
            added.collect::<anyhow::Result<()>>()
        };
        world.book.update(add).unwrap().unwrap();
        let oslo = world.relay("oslo").await;
        let (client, admits) = (key(), world.token(None));
        oslo.enrol(client, &admits.token).await.unwrap();
        let etcd = Etcd::new(world.at.clone());
        let lent = r#"{"period":"2026-11-29","lent":1000000,"used":1}"#;
        let account = r#"{"period":"2026-11-29","lent":1000000}"#;
        let puts = users.iter().flat_map(|user| {
            let (held, volume) = (holding_key(&user.name, "oslo"), account_key(&user.name));
            let put = |key: String, value: &str| Change::put(format!("fleet/{key}"), value.into());
            [put(held, lent), put(volume, account)]
        });
        for some in puts.collect::<Vec<_>>().chunks(100) {
            etcd.change(&[], some).await.unwrap();
        }
        let begin = Instant::now();
        let write = async |writer: usize| {
            let etcd = Etcd::new(world.at.clone());
            let put = Change::put(format!("fleet/newer/{writer}"), b"x".to_vec());
            for _ in 0..CHANGES / 4 {
                let put = std::slice::from_ref(&put);
                etcd.change(&[], put).await.unwrap();
            }
        };
        tokio::join!(write(0), write(1), write(2), write(3));
        let writing = begin.elapsed();
        world.set_revoked(client, true);
        let is_known = || oslo.knows(client) == Some(AccessAnswer::Known(None));
        let behind = until("revoked", || !is_known()).await;
        println!("{CHANGES} changes written in {writing:?}, followed {behind:?} later");
        assert!(behind < Duration::from_secs(1), "{behind:?}");
    });
}
