//! A download leaves a link that is not to be used any more, by the proxy and by `tabane get`.

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::asking::{ask, await_told, told};
use crate::leaving::{ENTRIES, Leaving, METERED};
use crate::street::{SERVER, Street};
use crate::{PROXY, serve};

/// One link alone needs less than 5 s for it, so that a metered one is not needed.
const SHORT: u64 = 12_000_000;
const ENDLESS: u64 = 10_000_000_000;

/// A download that does not outlive the test.
struct Download(Child);

impl Download {
    fn begin(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn leaving<'a>(street: &'a Street, pid: u32, list: &'a dyn Fn() -> Command) -> Leaving<'a> {
    let [one, other] = [("c1", "24mbit"), ("c2", "12mbit")]
        .map(|(link, rate)| format!("[[link]]\nname = '{link}'\ndown = '{rate}'\n"));
    Leaving {
        pid,
        links: ["c2", "c1"],
        settings: street.directory.join("client/.config/tabane"),
        policy: one + &other,
        list,
    }
}

/// By policy, a budget's end, a pause, an address and an interface that go.
fn leaves_in_every_way(street: &Street, leaving: &Leaving<'_>, socket: &Path) {
    let await_told = |word: &str| await_told(socket, "c2", word);
    let told = |word: &str| {
        await_told(word);
    };
    leaving.try_entries(&ENTRIES[1..], told, || {});
    leaving.try_pause(socket);

    let route = || street.ip("c", "route add default via 10.72.2.2 dev c2 metric 2");
    let lose = || street.ip("c", "addr flush dev c2");
    let left = || {
        // Nor has it a route then.
        let word = "leads to containers";
        let at = leaving.await_left("no address", word);
        await_told(word);
        at
    };
    let restore = || {
        street.ip("c", "addr add 10.72.2.1/24 dev c2");
        route();
    };
    leaving.try_to("no address", lose, left, restore);
    let cut = || street.ip("c", "link set c2 down");
    // Nothing can be carried any more: what is waited for is the word.
    let left = || {
        let at = await_told("is down");
        leaving.await_left("down", "is down");
        at
    };
    let mend = || {
        street.ip("c", "link set c2 up");
        route();
    };
    leaving.try_to("down", cut, left, mend);
}

/// Once it is metered, while the other link is enough for what is left: `begin` fetches a file.
fn leaves_what_is_metered(street: &Street, pid: u32, begin: impl Fn(&str) -> Command) {
    let list = || street.tabane(&["links"]);
    street.publish("short", SHORT);
    let url = format!("http://{SERVER}/short");
    let download = RefCell::new(Download::begin(begin(&url)));
    let again = || drop(download.replace(Download::begin(begin(&url))));
    leaving(street, pid, &list).try_entries(&[METERED], |_| {}, again);
}

#[test]
fn a_download_by_the_proxy_leaves_a_link_within_200_ms() {
    let Some(street) = Street::new() else {
        return;
    };
    let proxy = serve(&street, &[]);
    let curl = |url: &str| {
        let mut curl = street.client("curl");
        curl.args(["-sS", "-o", "/dev/null", "-x", PROXY, url]);
        curl
    };
    leaves_what_is_metered(&street, proxy.id(), curl);
    street.publish("endless", ENDLESS);
    let _download = Download::begin(curl(&format!("http://{SERVER}/endless")));
    let socket = format!("runtime/web-{}.sock", proxy.id());
    let list = || street.tabane(&["links"]);
    let leaving = leaving(&street, proxy.id(), &list);
    leaves_in_every_way(&street, &leaving, &street.directory.join(socket));
}

#[test]
fn a_neighbour_s_link_is_left_while_it_is_paused() {
    let Some(street) = Street::new() else {
        return;
    };
    let _lending = street.lend();
    let proxy = serve(&street, &[]);
    street.publish("endless", ENDLESS);
    let mut curl = street.client("curl");
    let url = format!("http://{SERVER}/endless");
    curl.args(["-sS", "-o", "/dev/null", "-x", PROXY, &url]);
    let _download = Download::begin(curl);
    let socket = street
        .directory
        .join(format!("runtime/web-{}.sock", proxy.id()));
    let carried = |link: &str| {
        let received = &told(&socket, link)["traffic"]["received_bytes"];
        received.as_u64().unwrap_or_default()
    };
    let await_more = |link: &str, bytes: u64| {
        let (before, deadline) = (carried(link), Instant::now() + Duration::from_secs(30));
        while carried(link) < before + bytes {
            assert!(
                Instant::now() < deadline,
                "{link}: {:#}",
                told(&socket, link)
            );
        }
    };
    let pause = |paused: bool| {
        let body = format!("{{\"paused\": {paused}}}");
        ask(&socket, "PUT", "/v1/links/nextdoor", &body);
    };
    await_more("nextdoor", 300_000);
    pause(true);
    await_told(&socket, "nextdoor", "paused");
    // What the answer to the pause did not show yet.
    await_more("c1", 500_000);
    let before = carried("nextdoor");
    assert!(before >= 300_000, "what it has carried is told meanwhile");
    await_more("c1", 2_000_000);
    assert_eq!(carried("nextdoor"), before);
    pause(false);
    await_more("nextdoor", 300_000);
}

#[test]
fn a_fetch_leaves_a_link_within_200_ms() {
    let Some(street) = Street::new() else {
        return;
    };
    let get = |url: &str| street.tabane(&["get", "--quiet", url, "-o", "/dev/null"]);
    street.publish("endless", ENDLESS);
    let download = Download::begin(get(&format!("http://{SERVER}/endless")));
    let pid = download.0.id();
    let socket = street.directory.join(format!("runtime/get-{pid}.sock"));
    // It is seen once it is known to take its time.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "no {}", socket.display());
        std::thread::yield_now();
    }
    let list = || street.tabane(&["links"]);
    leaves_in_every_way(&street, &leaving(&street, pid, &list), &socket);
    drop(download);
    let mut sleeping = street.client("sleep");
    sleeping.arg("600");
    let sleeping = Download::begin(sleeping);
    leaves_what_is_metered(&street, sleeping.0.id(), get);
}
