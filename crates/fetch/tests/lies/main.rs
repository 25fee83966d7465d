//! Fetches from a server that lies, on loopback: right bytes, or a clear error.
//!
//! Two links with caps of their own stand for two networks; what carries them is the same.

#![allow(clippy::unwrap_used)]

mod server;

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use server::{Lie, Server};
use tabane_base::Rate;
use tabane_fetch::{
    Client, DeviceWay, FetchError, Job, Links, Outcome, Patience, Proxies, Sink, Url, fetch, stream,
};
use tabane_ranges::{Failure, LinkLimits, Order, Rule, Spans, Version};

const SIZE: usize = 1_200_000;

#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    restarts: u32,
    is_full: bool,
}

impl Sink for Memory {
    fn begin(&mut self, _: &Version, _: &Parts) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: Bytes) -> io::Result<()> {
        if self.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let end = position as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[position as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.bytes.clear();
        self.restarts += 1;
        Ok(())
    }
}

fn on_this_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

fn client() -> Rc<Client> {
    let patience = Patience {
        silence: Duration::from_secs(20),
        ..Patience::default()
    };
    Client::new(Proxies::default(), patience)
}

fn links() -> Links {
    let links = Links::default();
    for (name, mbps) in [("fast", 24), ("slow", 12)] {
        let facts = LinkLimits {
            cap: Some(Rate::from_mbps(mbps)),
            ..LinkLimits::default()
        };
        links.add(name, Rc::new(DeviceWay::unbound()), facts);
    }
    links
}

fn job(url: &str) -> Job {
    Job {
        urls: vec![Url::parse(url).unwrap()],
        headers: HeaderMap::new(),
        rule: Rule::Tabane,
        order: Order::Any,
        by_digest: false,
        begun: None,
    }
}

async fn get(server: &Server, sink: &mut Memory) -> Result<Outcome, FetchError> {
    fetch(&client(), &links(), job(&server.url()), sink, |_| {}).await
}

async fn right_bytes(lie: Lie) -> (Outcome, Memory, Server) {
    let server = Server::start(SIZE, lie).await;
    let mut sink = Memory::default();
    let outcome = get(&server, &mut sink).await;
    let outcome = outcome.unwrap_or_else(|error| panic!("{lie:?}: {error}"));
    let expected = server.file();
    assert_eq!(sink.bytes.len(), expected.len(), "{lie:?}");
    assert!(sink.bytes == expected, "{lie:?}: other bytes");
    (outcome, sink, server)
}

#[test]
fn both_links_carry_an_honest_servers_file() {
    on_this_thread(async {
        let (outcome, _, _) = right_bytes(Lie::None).await;
        let carried: Vec<u64> = outcome.progress.links.iter().map(|l| l.carried).collect();
        assert!(
            carried.iter().all(|carried| *carried > SIZE as u64 / 10),
            "{carried:?}"
        );
        assert_eq!(outcome.progress.restarts, 0);
    });
}

#[test]
fn lies_cost_time_and_no_bytes() {
    on_this_thread(async {
        for lie in [
            Lie::NoRanges,
            Lie::NoRangesNoLength,
            Lie::ShiftedRange,
            Lie::OtherTotal,
            Lie::NoContentRange,
            Lie::Outside,
            Lie::WeakTag,
            Lie::NoTag,
            Lie::TagPerConnection,
            Lie::Encoded,
            Lie::EncodedParts,
            Lie::EarlyClose,
            Lie::ShortParts,
            Lie::Busy(429),
            Lie::Busy(503),
            Lie::Error500,
            Lie::SilentBodies,
            Lie::DrippingBodies,
            Lie::SilentHeads,
        ] {
            right_bytes(lie).await;
        }
    });
}

#[test]
fn a_file_that_changes_is_of_one_version() {
    on_this_thread(async {
        // The first connection may bring the old version to its end; else all begins anew.
        let server = Server::start(SIZE, Lie::Changes).await;
        let old = server.file();
        let mut sink = Memory::default();
        let outcome = get(&server, &mut sink).await.unwrap();
        assert!(server.has_changed());
        assert_eq!(outcome.progress.restarts, sink.restarts);
        let version = if sink.restarts == 0 {
            old
        } else {
            server.file()
        };
        assert!(sink.bytes == version);
        // It breaks, so it cannot.
        let (outcome, sink, server) = right_bytes(Lie::ChangesAndBreaks).await;
        assert!(server.has_changed());
        assert!(outcome.progress.restarts > 0);
        assert_eq!(outcome.progress.restarts, sink.restarts);
    });
}

#[test]
fn an_empty_file_is_a_file() {
    on_this_thread(async {
        for lie in [Lie::None, Lie::NoRanges, Lie::NoRangesNoLength] {
            let server = Server::start(0, lie).await;
            let mut sink = Memory::default();
            let outcome = get(&server, &mut sink).await.unwrap();
            assert_eq!(outcome.version.length, Some(0), "{lie:?}");
        }
    });
}

#[test]
fn what_cannot_be_had_is_said() {
    on_this_thread(async {
        let mut sink = Memory::default();
        let server = Server::start(SIZE, Lie::Gone).await;
        let error = get(&server, &mut sink).await.unwrap_err();
        assert!(matches!(
            error,
            FetchError::Transfer {
                failure: Failure::Refused(404),
                ..
            }
        ));
        for (lie, word) in [
            (Lie::EndlessRedirect, "redirects in a row"),
            (Lie::RedirectElsewhere, "ftp://"),
            (Lie::HugeHead, "too large"),
            (Lie::NoHttp, "no link reaches the server"),
            (Lie::ComeBackTomorrow, "busy"),
        ] {
            let server = Server::start(SIZE, lie).await;
            let error = get(&server, &mut sink).await.unwrap_err().to_string();
            assert!(error.contains(word), "{lie:?}: {error}");
        }
        let nobody = job("http://127.0.0.1:1/file");
        let began = Instant::now();
        let error = fetch(&client(), &links(), nobody, &mut sink, |_| {}).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(8));
    });
}

#[test]
fn a_full_disk_ends_it() {
    on_this_thread(async {
        let server = Server::start(SIZE, Lie::None).await;
        let mut sink = Memory {
            is_full: true,
            ..Memory::default()
        };
        let error = get(&server, &mut sink).await.unwrap_err();
        assert!(matches!(error, FetchError::Sink(_)), "{error}");
    });
}

#[test]
fn secrets_go_to_their_origin_only() {
    on_this_thread(async {
        let elsewhere = Server::start(SIZE, Lie::None).await;
        let server = Server::start(SIZE, Lie::None).await;
        server.redirect_to(&elsewhere.url());
        let url = server.url().replace("http://", "http://me:pw@");
        let mut job = job(&url);
        job.headers
            .insert("x-token", HeaderValue::from_static("secret"));
        let mut sink = Memory::default();
        fetch(&client(), &links(), job, &mut sink, |_| {})
            .await
            .unwrap();
        assert!(sink.bytes == elsewhere.file());
        let told = |server: &Server, name: &str| server.heard().iter().any(|h| h.contains(name));
        for name in [AUTHORIZATION.as_str(), "x-token"] {
            assert!(told(&server, name), "{name} is for the origin");
            assert!(!told(&elsewhere, name), "{name} went elsewhere");
        }
    });
}

#[test]
fn what_is_here_is_not_asked_for_again() {
    on_this_thread(async {
        let server = Server::start(SIZE, Lie::None).await;
        let mut sink = Memory::default();
        let outcome = get(&server, &mut sink).await.unwrap();
        let begun: Spans = [tabane_ranges::ByteRange {
            start: 100_000,
            end: SIZE as u64,
        }]
        .into_iter()
        .collect();
        let mut job = job(&server.url());
        job.begun = Some((outcome.version, begun));
        let again = fetch(&client(), &links(), job.clone(), &mut sink, |_| {}).await;
        let carried: u64 = again
            .unwrap()
            .progress
            .links
            .iter()
            .map(|l| l.carried)
            .sum();
        assert!((100_000..400_000).contains(&carried), "{carried}");
        // Another version by now: everything is void.
        server.change();
        let again = fetch(&client(), &links(), job, &mut sink, |_| {})
            .await
            .unwrap();
        assert_eq!(again.progress.restarts, 1);
        assert!(sink.bytes == server.file());
    });
}

#[test]
fn a_stream_is_in_order_and_waits_for_its_reader() {
    on_this_thread(async {
        let server = Server::start(SIZE, Lie::None).await;
        let window = tabane_base::Bytes::kilo(200);
        let mut job = job(&server.url());
        job.order = Order::Stream { window };
        let (mut sink, mut reader) = stream();
        let fetching = tokio::task::spawn_local(async move {
            fetch(&client(), &links(), job, &mut sink, |_| {})
                .await
                .unwrap();
        });
        let (head, length) = reader.head().await.unwrap();
        assert_eq!((head.status.as_u16(), length), (206, Some(SIZE as u64)));
        let mut read = Vec::new();
        while let Some(bytes) = reader.next().await {
            if read.is_empty() {
                // Nobody reads: what is sent meanwhile is bounded by the window and the sockets.
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            read.extend_from_slice(&bytes);
        }
        fetching.await.unwrap();
        assert!(read == server.file());
    });
}

#[test]
fn links_come_and_go() {
    on_this_thread(async {
        let server = Server::start(SIZE, Lie::None).await;
        let links = links();
        let changing = links.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            changing.remove("fast");
            tokio::time::sleep(Duration::from_millis(100)).await;
            changing.remove("slow");
            let facts = LinkLimits::default();
            changing.add("new", Rc::new(DeviceWay::unbound()), facts);
        });
        let mut sink = Memory::default();
        let outcome = fetch(&client(), &links, job(&server.url()), &mut sink, |_| {}).await;
        let outcome = outcome.unwrap();
        assert!(sink.bytes == server.file());
        let new = outcome
            .progress
            .links
            .iter()
            .find(|link| link.name == "new");
        assert!(new.is_some_and(|link| link.carried > 0));
    });
}
