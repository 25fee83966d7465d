//! An instance that tells nothing until it is asked, as a gateway does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tabane_control::{Client, Command, Directory, Naming, Pace, Server, ServerConfig, State};

use crate::instance::{STATE, block_on};

/// Of its state: how often it was asked, and what it has carried by then.
struct Asked {
    server: Option<Server>,
    directory: Directory,
    looks: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Asked {
    fn start(name: &str) -> Self {
        let path = format!("tabane-asked-{}-{name}", std::process::id());
        let directory = Directory::at(std::env::temp_dir().join(path));
        let (server, publisher, mut commands) = Server::start(ServerConfig {
            directory: directory.clone(),
            name: "gateway-eth0.100".to_owned(),
            naming: Naming::Exclusive,
            http: None,
            policy: None,
            pace: Pace::WhenAsked,
        })
        .unwrap();
        let looks = Arc::new(AtomicU64::new(0));
        let counts = looks.clone();
        let thread = std::thread::spawn(move || {
            let mut state: State = serde_json::from_str(STATE).unwrap();
            while let Some(command) = commands.blocking_recv() {
                let Command::Look { reply } = command else {
                    panic!("nothing else is wanted here: {command:?}");
                };
                state.totals.streams = counts.fetch_add(1, Ordering::SeqCst) + 1;
                state.totals.traffic.received_bytes += 1_000_000;
                publisher.publish(state.clone());
                // Who asked may have gone.
                let _ = reply.send(Ok(()));
            }
        });
        Self {
            server: Some(server),
            directory,
            looks,
            thread: Some(thread),
        }
    }

    fn client(&self) -> Client {
        Client::new(
            &self
                .directory
                .find(Some("gateway-eth0.100"))
                .unwrap()
                .socket,
        )
    }

    fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        let _ = std::fs::remove_dir_all(self.directory.path());
    }
}

#[test]
fn every_answer_is_newer_than_its_question_and_many_are_one_look() {
    let asked = Asked::start("many");
    let client = asked.client();
    block_on(async {
        let first = client.state().await.unwrap();
        assert!(
            first.totals.traffic.received_bps > 0,
            "two looks are a rate"
        );
        let begun = Instant::now();
        let mut last = first.totals.streams;
        for _ in 0..3 {
            let next = client.state().await.unwrap().totals.streams;
            assert!(next > last, "{next}");
            last = next;
        }
        let together = (0..20).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.metrics().await.unwrap() })
        });
        for answer in together.collect::<Vec<_>>() {
            assert!(answer.await.unwrap().contains("tabane_streams "));
        }
        // Twenty clients at once are one or two looks, however slow this machine is; what stands
        // between two looks is the server's clock.
        let most = begun.elapsed().as_millis() as u64 / 150 + 1;
        assert!(asked.looks() - first.totals.streams <= most.max(5));
    });
}

#[test]
fn it_is_asked_while_somebody_reads_events_and_left_alone_when_nobody_does() {
    let asked = Asked::start("events");
    let client = asked.client();
    block_on(async {
        let mut updates = client.updates().await.unwrap();
        let mut last = 0;
        for _ in 0..4 {
            let state = updates.next().await.unwrap().unwrap();
            assert!(state.totals.streams > last);
            last = state.totals.streams;
        }
        drop(updates);
        // The server finds out, and from then on there is not a single look.
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut before = 0;
        while asked.looks() != before {
            assert!(Instant::now() < deadline, "it is asked for nobody");
            before = asked.looks();
            tokio::time::sleep(Duration::from_millis(1_200)).await;
        }
    });
}
