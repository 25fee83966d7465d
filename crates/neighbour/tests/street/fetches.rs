//! A fetch over an own link and a neighbour's: the neighbour comes, goes, stalls and cuts short,
//! and the file is whole.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::http::response::Parts;
use tabane_base::Rate;
use tabane_fetch::{
    Client, DeviceWay, Job, Links, Outcome, Patience, Proxies, Sink, Url, Way, fetch,
};
use tabane_ranges::{LinkLimits, Order, Rule, Version};
use tokio::task::spawn_local;

use crate::{Street, Terms, on_this_thread, origin, terms};

const SIZE: usize = 1_500_000;

#[derive(Default)]
struct Memory(Vec<u8>);

impl Sink for Memory {
    fn begin(&mut self, _: &Version, _: &Parts) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: Bytes) -> io::Result<()> {
        let end = position as usize + bytes.len();
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[position as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.0.clear();
        Ok(())
    }
}

/// 12 Mbit/s each: the file takes a second over one.
fn facts() -> LinkLimits {
    LinkLimits {
        cap: Some(Rate::from_mbps(12)),
        ..LinkLimits::default()
    }
}

fn own_link() -> Links {
    let links = Links::default();
    links.add("own", Rc::new(DeviceWay::unbound()), facts());
    links
}

/// Fetches the whole file; `watch` hears what each link has carried.
async fn whole(port: u16, links: &Links, mut watch: impl FnMut(&dyn Fn(&str) -> u64)) -> Outcome {
    let job = Job {
        urls: vec![Url::parse(&format!("http://127.0.0.1:{port}/file")).unwrap()],
        headers: HeaderMap::new(),
        rule: Rule::Tabane,
        order: Order::Any,
        by_digest: false,
        begun: None,
    };
    let patience = Patience {
        silence: Duration::from_secs(20),
        ..Patience::default()
    };
    let mut sink = Memory::default();
    let client = Client::new(Proxies::default(), patience);
    let outcome = fetch(&client, links, job, &mut sink, |progress| {
        watch(&|name| {
            let link = progress.links.iter().find(|link| link.name == name);
            link.map_or(0, |link| link.carried)
        });
    });
    let outcome = outcome.await.unwrap();
    assert!(sink.0 == origin::file(SIZE), "other bytes");
    outcome
}

fn carried(outcome: &Outcome, name: &str) -> u64 {
    let mut links = outcome.progress.links.iter();
    links.find(|link| link.name == name).unwrap().carried
}

#[test]
fn own_and_lent_links_carry_a_file_together() {
    on_this_thread(async {
        let web = origin::web(SIZE).await;
        let street = Street::with_friend(&[web.port()], terms()).await;
        let links = own_link();
        links.add("desk", Rc::new(street.way()), facts());
        let outcome = whole(web.port(), &links, |_| {}).await;
        let lent = carried(&outcome, "desk");
        assert!(lent > SIZE as u64 / 10, "{lent}");
        assert!(street.carried() >= lent);
    });
}

#[test]
fn neighbours_that_leave_or_cut_short_cost_no_byte() {
    on_this_thread(async {
        let web = origin::web(SIZE).await;
        // Gone in the middle, as if switched off.
        let street = Street::with_friend(&[web.port()], terms()).await;
        let links = own_link();
        links.add("desk", Rc::new(street.way()), facts());
        let serving = &street.serving;
        whole(web.port(), &links, |carried| {
            if carried("desk") > 50_000 {
                serving.abort();
            }
        })
        .await;
        assert!(serving.is_finished());
        // Its budget ends within a range.
        let budget = Terms {
            allowance: Some(tabane_base::Bytes::kilo(100)),
            ..terms()
        };
        let street = Street::with_friend(&[web.port()], budget).await;
        let links = own_link();
        links.add("desk", Rc::new(street.way()), facts());
        whole(web.port(), &links, |_| {}).await;
        assert!((1..=100_000).contains(&street.carried()));
    });
}

#[test]
fn a_neighbour_that_says_nothing_holds_nothing_up() {
    on_this_thread(async {
        let web = origin::web(SIZE).await;
        let silent = origin::serve(|_stream| std::future::pending()).await;
        let mut street = Street::with_friend(&[web.port()], terms()).await;
        street.address = silent;
        let links = own_link();
        links.add("desk", Rc::new(street.way()), facts());
        let outcome = whole(web.port(), &links, |_| {}).await;
        assert_eq!(carried(&outcome, "desk"), 0);
    });
}

#[test]
fn a_neighbour_that_comes_in_the_middle_takes_its_part() {
    on_this_thread(async {
        let web = origin::web(SIZE).await;
        let street = Street::with_friend(&[web.port()], terms()).await;
        let (joins, mut joining) = tokio::sync::watch::channel(false);
        let links = own_link();
        let way: Rc<dyn Way> = Rc::new(street.way());
        let joined = links.clone();
        spawn_local(async move {
            if joining.wait_for(|is_due| *is_due).await.is_ok() {
                joined.add("desk", way, facts());
            }
        });
        let outcome = whole(web.port(), &links, |carried| {
            joins.send_replace(carried("own") > 100_000);
        })
        .await;
        assert!(carried(&outcome, "desk") > 0);
    });
}
