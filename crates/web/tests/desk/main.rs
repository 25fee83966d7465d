//! A proxy on loopback between programs and servers: what passes, by which links, and what does
//! not.
//!
//! Two links with caps of their own stand for two networks.

#![allow(clippy::unwrap_used)]

mod intercepting;
mod origin;
mod passing;
mod program;
mod silence;
mod splitting;
mod tunnels;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use program::Program;
use tabane_base::Rate;
use tabane_fetch::{Client, Connecting, DeviceWay, Links, Patience, Proxies, Way, WayError};
use tabane_ranges::LinkLimits;
use tabane_web::{Interception, Map, Record, Web};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy with two links, `fast` and `slow`.
struct Desk {
    port: u16,
    links: Links,
    records: Rc<RefCell<Vec<Record>>>,
    serving: JoinHandle<()>,
}

impl Desk {
    async fn start(maps: &[&str]) -> Self {
        let links = Links::default();
        for (name, mbps) in [("fast", 40), ("slow", 20)] {
            let facts = LinkLimits {
                cap: Some(Rate::from_mbps(mbps)),
                ..LinkLimits::default()
            };
            links.add(name, Rc::new(DeviceWay::unbound()), facts);
        }
        Self::over(links, maps).await
    }

    async fn over(links: Links, maps: &[&str]) -> Self {
        let client = Client::new(Proxies::default(), Patience::default());
        Self::with(client, links, maps, None).await
    }

    async fn with(
        client: Rc<Client>,
        links: Links,
        maps: &[&str],
        interception: Option<Interception>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let maps: Vec<Map> = maps.iter().map(|text| text.parse().unwrap()).collect();
        let records = Rc::<RefCell<Vec<Record>>>::default();
        let noted = records.clone();
        let web = Web::new(
            client,
            links.clone(),
            maps,
            interception,
            Rc::new(move |record: &Record| noted.borrow_mut().push(record.clone())),
            address,
        );
        Self {
            port: address.port(),
            links,
            records,
            serving: tokio::task::spawn_local(web.serve(listener)),
        }
    }

    async fn program(&self) -> Program {
        Program::connect(self.port).await
    }

    /// The record with this number, when it is there.
    async fn record(&self, number: usize) -> Record {
        while self.records.borrow().len() <= number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.records.borrow()[number].clone()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A link that leads nowhere.
enum DeadWay {
    Fails,
    Hangs,
}

impl Way for DeadWay {
    fn connect<'a>(&'a self, host: &'a str, _: u16) -> Connecting<'a> {
        Box::pin(async move {
            match self {
                Self::Fails => Err(WayError::Connect {
                    to: host.to_owned(),
                    source: io::ErrorKind::NetworkUnreachable.into(),
                }),
                Self::Hangs => std::future::pending().await,
            }
        })
    }
}

fn on_this_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limited = async { tokio::time::timeout(PATIENCE, test).await.unwrap() };
    tokio::task::LocalSet::new().block_on(&runtime, limited);
}

/// A port of loopback where nobody listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
