//! What the table says after each kind of news, and what a disk that hangs holds up.

use super::*;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

use crate::links::tests::interface;
use crate::links_view::LinksView;
use tabane_control::{Instance, InstanceView, Kind, Link, LinkChange, LinkState, Traffic};
use tabane_linux::interfaces::DefaultRoute;
use tabane_store::{NETWORKS_FILE, Network, POLICY_FILE, Scratch, USAGE_FILE};

/// A host with Wi-Fi and a phone, and the settings' files in a directory of its own.
pub(super) struct Host {
    pub(super) uplinks: Uplinks,
    pub(super) store: Store,
    pub(super) news: UnboundedReceiver<News>,
    _scratch: Scratch,
}

pub(super) const WITH_BUDGET: &str = "[[link]]\nname = 'usb0'\nbudget = '1MB/month'\n";
const NEVER: &str = "[[link]]\nname = 'usb0'\nuse = 'never'\n";

impl Host {
    pub(super) fn new(policy: &str) -> Self {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
        std::fs::write(store.root().join(POLICY_FILE), policy).unwrap();
        let (files, news) = Files::start(&store).unwrap();
        let policy = LinkPolicy::load(&store).unwrap();
        let interfaces = vec![
            interface("usb0", &["192.0.2.1"]),
            interface("wlan0", &["198.51.100.1"]),
        ];
        let roll = LinkRoll::default();
        Self {
            uplinks: Uplinks::with(interfaces, policy, Vec::new(), roll, files, Vec::new()),
            store,
            news,
            _scratch: scratch,
        }
    }

    /// What is read where this host's settings are, by the next process.
    fn next(&self) -> Uplinks {
        let policy = LinkPolicy::load(&self.store).unwrap();
        let (files, _) = Files::start(&self.store).unwrap();
        let interfaces = self.uplinks.table().interfaces.clone();
        let roll = LinkRoll::default();
        let next = Uplinks::with(interfaces, policy, Vec::new(), roll, files, Vec::new());
        next.0.on_networks(networks(&self.store));
        next
    }

    fn set_policy(&self, text: &str) {
        self.uplinks.0.on_policy(Ok(Policy::parse(text).unwrap()));
    }

    fn why(&self) -> String {
        self.uplinks.roll().why_unused("usb0").unwrap_or_default()
    }

    /// What other programs read of the phone's account.
    fn written(&self) -> Option<Bytes> {
        let policy = LinkPolicy::load(&self.store).unwrap();
        policy.terms(&interface("usb0", &[])).used
    }

    /// Waits until the thread has written so much.
    fn await_written(&self, expected: Bytes) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.written() != Some(expected) {
            assert!(Instant::now() < deadline, "{:?}", self.written());
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_reason_not_to_use_a_link_is_in_the_next_table_with_its_words() {
    let host = Host::new(WITH_BUDGET);
    let mut tables = host.uplinks.subscribe();
    tables.borrow_and_update();
    let mut next = || {
        assert!(tables.has_changed().unwrap());
        tables.borrow_and_update().links()
    };
    host.uplinks
        .0
        .on_metered([("usb0".to_owned(), true)].into());
    assert!(next()["usb0"].policy.metered);

    host.uplinks.count("usb0", Bytes::kilo(999));
    assert!(host.uplinks.table().links().contains_key("usb0"));
    host.uplinks.count("usb0", Bytes::kilo(1));
    assert!(next().keys().eq(["wlan0"]));
    assert!(host.why().contains("used up"), "{}", host.why());

    host.set_policy(NEVER);
    assert!(next().keys().eq(["wlan0"]));
    assert!(host.why().contains("says never"), "{}", host.why());
    host.set_policy("");
    assert!(next()["usb0"].policy.metered);
    assert_eq!(host.why(), "");

    let wifi = vec![interface("wlan0", &["198.51.100.1"])];
    host.uplinks.0.on_interfaces(wifi);
    assert!(next().keys().eq(["wlan0"]));
    assert_eq!(host.why(), "not there any more");

    let faulty = Policy::parse("[[link]]\nuse = 'sometimes'\n").map_err(Into::into);
    host.uplinks.0.on_policy(faulty);
    assert!(host.uplinks.roll().policy_fault().is_some());
}

#[test]
fn a_link_that_was_named_is_known_before_it_comes() {
    let host = Host::new("");
    let (files, _) = Files::start(&host.store).unwrap();
    let policy = LinkPolicy::load(&host.store).unwrap();
    let wanted = vec!["usb0".to_owned(), "wlan0".to_owned()];
    let interfaces = host.uplinks.table().interfaces.clone();
    let roll = LinkRoll::default();
    let wifi = interfaces[1..].to_vec();
    let uplinks = Uplinks::with(wifi.clone(), policy, wanted, roll, files, Vec::new());
    let why = || uplinks.roll().why_unused("usb0");
    uplinks.0.on_interfaces(wifi.clone());
    assert!(why().unwrap().contains("used when it comes"));
    assert_eq!(uplinks.roll().usable(), ["wlan0"]);
    uplinks.0.on_interfaces(interfaces);
    assert_eq!(why(), None);
    uplinks.0.on_interfaces(wifi);
    assert_eq!(why().unwrap(), "not there any more");
}

#[test]
fn a_pause_holds_whatever_becomes_of_the_link_until_it_is_taken_back() {
    let host = Host::new("");
    let mut tables = host.uplinks.subscribe();
    tables.borrow_and_update();
    let mut next = || {
        assert!(tables.has_changed().unwrap());
        tables.borrow_and_update().links()
    };
    let shown = || {
        let mut links = Vec::new();
        let roll = host.uplinks.roll();
        roll.complete(&mut links, |_| Traffic::default());
        let link = links.into_iter().find(|link| link.name == "usb0");
        link.map(|link| (link.state, link.paused))
    };
    host.uplinks.pause("usb0", true);
    assert!(next().keys().eq(["wlan0"]));
    assert_eq!(host.why(), "paused");
    assert_eq!(shown(), Some((LinkState::Paused, true)));
    assert_eq!(host.uplinks.roll().usable(), ["wlan0"]);
    // Once more is no news.
    host.uplinks.pause("usb0", true);
    assert!(!tables.has_changed().unwrap());
    let mut next = || tables.borrow_and_update().links();

    host.set_policy(NEVER);
    assert!(host.why().contains("says never"), "{}", host.why());
    assert_eq!(shown(), Some((LinkState::Unused, true)));
    host.set_policy("");
    let both = host.uplinks.table().interfaces.clone();
    host.uplinks.0.on_interfaces(both[1..].to_vec());
    assert_eq!(host.why(), "not there any more");
    host.uplinks.0.on_interfaces(both);
    assert!(next().keys().eq(["wlan0"]));
    assert_eq!(host.why(), "paused");

    host.uplinks.pause("usb0", false);
    assert!(next().keys().eq(["usb0", "wlan0"]));
    assert_eq!((host.why(), shown()), (String::new(), None));
    assert_eq!(host.uplinks.roll().usable(), ["usb0", "wlan0"]);
}

#[test]
fn a_pause_beats_whoever_insists_on_the_link() {
    let host = Host::new(NEVER);
    let (files, _) = Files::start(&host.store).unwrap();
    let interfaces = host.uplinks.table().interfaces.clone();
    let policy = LinkPolicy::load(&host.store).unwrap();
    let wanted = vec!["usb0".to_owned()];
    let roll = LinkRoll::default();
    let insisting = Uplinks::with(interfaces, policy, wanted, roll, files, Vec::new());
    assert!(insisting.table().links().keys().eq(["usb0"]));
    insisting.pause("usb0", true);
    assert!(insisting.table().links().is_empty());
    assert_eq!(insisting.roll().why_unused("usb0").unwrap(), "paused");
}

#[tokio::test]
async fn a_view_pauses_links_and_keeps_what_they_carried() {
    let host = Host::new("");
    let instance = Instance::new(Kind::Sctp, "sctp-1".to_owned(), String::new(), None);
    let in_use = Rc::new(RefCell::new(vec![("usb0", 1, 700), ("wlan0", 2, 30)]));
    let seen = {
        let in_use = in_use.clone();
        move || {
            let link = |(name, number, sent_bytes): &(&str, u32, u64)| {
                let traffic = Traffic {
                    sent_bytes: *sent_bytes,
                    ..Traffic::default()
                };
                let link = Link::new(name, LinkState::Active);
                (*number, Link { traffic, ..link })
            };
            in_use.borrow().iter().map(link).collect()
        }
    };
    let (_tell, changes) = watch::channel(());
    let mut view = LinksView::new(host.uplinks.clone(), seen, changes, || 1);
    let mut look = async |change: Option<LinkChange>| {
        let changed = change.map(|change| view.change_link("usb0", change));
        let mut state = tabane_control::State::of(&instance);
        view.look(&mut state).await;
        let link = state.links.iter().find(|link| link.name == "usb0").unwrap();
        assert_eq!(state.links.len(), 2);
        let sums = (link.traffic.sent_bytes, state.totals.traffic.sent_bytes);
        (changed, link.state, link.paused, sums)
    };
    let pause = |paused| LinkChange {
        weight: None,
        paused: Some(paused),
    };
    let active = (None, LinkState::Active, false, (700, 730));
    assert_eq!(look(None).await, active);
    // Who uses it has not heard of it yet, and then has.
    let paused = (Some(Ok(())), LinkState::Paused, true, (700, 730));
    assert_eq!(look(Some(pause(true))).await, paused);
    in_use.borrow_mut().remove(0);
    assert_eq!(look(Some(pause(true))).await, paused);
    let weight = LinkChange {
        weight: Some(0.5),
        ..pause(false)
    };
    let (refused, _, is_paused, _) = look(Some(weight)).await;
    assert!(refused.unwrap().is_err() && is_paused);
    let coming = (Some(Ok(())), LinkState::Opening, false, (700, 730));
    assert_eq!(look(Some(pause(false))).await, coming);
    in_use.borrow_mut().push(("usb0", 3, 50));
    let again = (None, LinkState::Active, false, (750, 780));
    assert_eq!(look(None).await, again);
}

#[test]
fn every_byte_counts_once_from_when_there_is_a_budget() {
    let host = Host::new(WITH_BUDGET);
    let mut tally = Tally::default();
    let mut count = |kilo: u64, table: &Table| {
        tally.count(
            &host.uplinks,
            table,
            [("usb0".to_owned(), Bytes::kilo(kilo))],
        );
    };
    count(100, &host.uplinks.table());
    count(100, &host.uplinks.table());
    host.await_written(Bytes::kilo(100));

    // Carried without a budget: nobody's.
    host.set_policy("");
    count(700, &host.uplinks.table());
    host.set_policy(WITH_BUDGET);
    count(701, &host.uplinks.table());
    assert!(host.uplinks.table().links().contains_key("usb0"));
    // A link that counts anew.
    tally.restart("usb0");
    let mut count = |kilo: u64| {
        let table = host.uplinks.table();
        tally.count(
            &host.uplinks,
            &table,
            [("usb0".to_owned(), Bytes::kilo(kilo))],
        );
    };
    count(898);
    assert!(host.uplinks.table().links().contains_key("usb0"));
    count(899);
    assert!(!host.uplinks.table().links().contains_key("usb0"));
    host.await_written(Bytes::kilo(1_000));
}

#[test]
fn what_another_process_has_counted_ends_a_budget_here_too() {
    let mut host = Host::new(WITH_BUDGET);
    host.uplinks.count("usb0", Bytes::kilo(400));
    host.await_written(Bytes::kilo(400));
    // Not written for two seconds.
    host.uplinks.count("usb0", Bytes::kilo(100));
    let other = Uplinks::with(
        vec![interface("usb0", &["192.0.2.1"])],
        LinkPolicy::load(&host.store).unwrap(),
        Vec::new(),
        LinkRoll::default(),
        Files::start(&host.store).unwrap().0,
        Vec::new(),
    );
    other.count("usb0", Bytes::kilo(500));
    drop(other);
    host.uplinks.0.files.read_usage();
    while host.uplinks.table().links().contains_key("usb0") {
        host.uplinks.0.on_news(host.news.blocking_recv().unwrap());
    }
    assert!(host.why().contains("used up"), "{}", host.why());
}

/// A file that nobody writes to yet: whoever reads it waits.
#[test]
fn a_disk_that_hangs_holds_up_nothing_but_what_is_written() {
    const COUNTS: usize = 1_000;
    let host = Host::new(WITH_BUDGET);
    let usage = host.store.root().join(USAGE_FILE);
    nix::unistd::mkfifo(&usage, nix::sys::stat::Mode::S_IRWXU).unwrap();
    host.uplinks.count("usb0", Bytes::kilo(1));
    let mut open = OpenOptions::new();
    open.write(true).custom_flags(nix::libc::O_NONBLOCK);
    // Succeeds as soon as the thread stands there.
    let disk = loop {
        match open.open(&usage) {
            Ok(disk) => break disk,
            Err(_) => std::thread::yield_now(),
        }
    };
    let count = |_| {
        let began_at = Instant::now();
        host.uplinks.count("usb0", Bytes::kilo(1));
        began_at.elapsed()
    };
    let mut times: Vec<Duration> = (0..COUNTS).map(count).collect();
    // The links are others at once.
    assert!(!host.uplinks.table().links().contains_key("usb0"));
    assert!(host.why().contains("used up"), "{}", host.why());
    // On a busy machine this thread has to wait for a processor now and then.
    times.sort_unstable();
    let most = times[COUNTS * 99 / 100];
    assert!(most < Duration::from_millis(5), "{most:?}");
    drop(disk);
    // A file takes its place; until then whoever reads it here would wait as well.
    while std::fs::metadata(&usage).unwrap().file_type().is_fifo() {
        std::thread::yield_now();
    }
    host.await_written(Bytes::kilo(1 + COUNTS as u64));
}

#[test]
fn what_a_network_taught_is_known_to_the_next_process_until_it_is_usual_again() {
    let host = Host::new("");
    let [usb, mut wlan] = ["usb0", "wlan0"].map(|name| interface(name, &["192.0.2.1"]));
    wlan.default_routes = vec![DefaultRoute {
        metric: 0,
        is_v6: false,
        gateway: Some("192.0.2.254".parse().unwrap()),
    }];
    // The kernel does not have the gateway's card yet.
    let remember = |carrier| {
        host.uplinks
            .remember(&host.uplinks.table().interfaces[1], carrier)
    };
    host.uplinks
        .0
        .on_interfaces(vec![usb.clone(), wlan.clone()]);
    assert!(host.uplinks.0.has_unresolved());
    remember(CarrierMemory::Silent);
    wlan.gateways = vec![("192.0.2.254".parse().unwrap(), [2; 6])];
    host.uplinks.0.on_second_look(vec![usb, wlan]);
    assert!(!host.uplinks.0.has_unresolved());
    let recalled = |uplinks: &Uplinks| uplinks.table().links()["wlan0"].memory;
    assert_eq!(recalled(&host.next()), None);
    for carrier in [
        CarrierMemory::Silent,
        CarrierMemory::Port(443),
        CarrierMemory::Usual,
    ] {
        remember(carrier);
        let expected = Some(carrier).filter(|it| *it != CarrierMemory::Usual);
        let deadline = Instant::now() + Duration::from_secs(60);
        while recalled(&host.next()) != expected {
            assert!(Instant::now() < deadline, "{carrier}");
            std::thread::yield_now();
        }
        assert_eq!(host.next().table().links()["usb0"].memory, None);
    }
}

#[test]
fn a_damaged_file_of_networks_is_as_good_as_none() {
    let host = Host::new("");
    let path = host.store.root().join(NETWORKS_FILE);
    std::fs::write(&path, "[[network]]\ngateway = 1\n").unwrap();
    assert_eq!(networks(&host.store), NetworkMemory::default());
    let network = Network {
        gateway: "192.0.2.254".parse().unwrap(),
        hardware: [2; 6],
    };
    host.uplinks.0.files.note(network, Some("tls".to_owned()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while networks(&host.store).recall(network, today()) != Some("tls") {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it tells where its owner has been");
}

/// As a router of wlan0 says it of 64:ff9b::/96, for 18 h: the kernel's header, the option's own,
/// the option (RFC 8781), and who says it.
fn translator_said_by(router: &str) -> Advertisement {
    let mut message = vec![0; 4];
    message.extend(68_u16.to_ne_bytes());
    message.extend([0; 10]);
    message.extend([10, 0]);
    message.extend(16_u16.to_ne_bytes());
    message.extend(3_u32.to_ne_bytes());
    message.extend([134, 0, 0, 0, 0, 0, 0, 0]);
    message.extend([38, 2, 0xff, 0xf8, 0, 0x64, 0xff, 0x9b]);
    message.extend([0; 8]);
    message.extend([20, 0, 1, 0]);
    message.extend(router.parse::<std::net::Ipv6Addr>().unwrap().octets());
    Advertisement::parse(&message).unwrap()
}

#[test]
fn what_routers_of_a_network_said_is_forgotten_with_it() {
    let host = Host::new("");
    let there = Interface {
        index: 3,
        ..interface("wlan0", &["2001:db8::1"])
    };
    let between = Interface {
        carrier: false,
        ..there.clone()
    };
    let translators = || {
        let table = host.uplinks.table();
        table.interfaces[0].advertised.translators.len()
    };
    host.uplinks.0.on_interfaces(vec![there.clone()]);
    host.uplinks
        .0
        .on_advertisement(translator_said_by("fe80::1"));
    assert_eq!(translators(), 1);
    // Something else changes.
    host.uplinks.0.on_interfaces(vec![there.clone()]);
    assert_eq!(translators(), 1);
    host.uplinks.0.on_interfaces(vec![between]);
    host.uplinks.0.on_interfaces(vec![there]);
    assert_eq!(translators(), 0);
}
