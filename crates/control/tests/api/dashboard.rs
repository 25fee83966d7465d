//! The dashboard in a real browser: what it shows, and what clicks come to.
//!
//! Needs `chromedriver` and Chromium (`make test` installs them); without, it says so. Screenshots
//! go to the directory in `TABANE_SCREENSHOTS`, where it is set, as base64 of PNG.

use std::net::SocketAddr;
use std::time::Duration;

use crate::browser::Browser;
use crate::instance::{Instance, TOKEN, block_on};
use serde_json::json;
use tabane_control::{
    Bridge, Event, EventKind, Flow, Gateway, GatewayMode, GatewayTotals, LinkBudget, LinkState,
    Path, PolicyInForce, RuleUse, Session, Stance, State,
};

/// How much of the instance's time passes between two states.
const TICK_MS: u64 = 500;

/// A client with three links at work; the name of one tries to be markup.
fn busy(state: &mut State) {
    let first = state.links[0].clone();
    for name in ["usb0", "<b>5g"] {
        let mut link = first.clone();
        link.name = name.to_owned();
        state.links.push(link);
    }
    for link in &mut state.links {
        link.path = Some(path());
    }
    state.links[2].state = LinkState::Silent;
    state.links[2].problem = Some("nothing comes back over it".to_owned());
    state.rules = vec![RuleUse {
        rule: Some("backups".to_owned()),
        text: "never by usb0".to_owned(),
        connections: 3,
        connections_so_far: 17,
        sent_bytes: 1_000,
        received_bytes: 2_500_000,
    }];
    state.events = vec![Event {
        number: 1,
        at_unix_ms: 4000,
        kind: EventKind::LinkUp,
        link: Some("wlan0".to_owned()),
        session: None,
        text: "carries data".to_owned(),
    }];
}

fn path() -> Path {
    serde_json::from_value(json!({
        "id": 1, "state": "active", "remote": "192.0.2.1:4510", "rtt_ms": 21.5,
        "rtt_min_ms": 20.0, "queue_ms": 1.5, "in_flight_bytes": 1, "cwnd_bytes": 2,
        "bandwidth_bps": 3, "mtu_bytes": 1452, "weight": 1.0, "backup": false,
        "reinjected_bytes": 0,
        "traffic": {"sent_bytes": 0, "received_bytes": 0, "sent_packets": 0, "lost_packets": 0,
            "sent_bps": 0, "received_bps": 0, "loss": null}
    }))
    .unwrap()
}

/// Ten seconds of traffic, told in a fifth of that: rates need samples some time apart.
fn carry(instance: &Instance) {
    for tick in 1..=20 {
        std::thread::sleep(Duration::from_millis(110));
        instance.publish(|state| {
            state.at_unix_ms += TICK_MS;
            for (at, link) in (0..).zip(&mut state.links[..2]) {
                link.traffic.received_bytes += (2 - at) * (400_000 + 50_000 * (tick % 5));
                link.traffic.sent_bytes += 40_000;
            }
            state.totals.traffic.received_bytes += 1_000_000;
        });
    }
}

#[test]
fn a_browser_sees_and_steers_the_instance() {
    let Some(browser) = Browser::start() else {
        println!("skipped: there is no chromedriver here (Debian: chromium-driver)");
        return;
    };
    let instance = Instance::start(true);
    instance.publish(busy);
    logs_in(&browser, &instance);
    shows(&browser, &instance);
    steers_links(&browser, &instance);
    explains_rules(&browser);
    edits_policy(&browser, &instance);
    fills_in_the_policy(&browser, &instance);
    shows_a_gateway(&browser, &instance);
    tells_of_links(&browser, &instance);
    fits_a_phone(&browser, &instance);
    tells_that_it_is_gone(&browser, instance);
}

fn logs_in(browser: &Browser, instance: &Instance) {
    let url = format!("http://{}/", instance.http());
    browser.go_to(&url);
    browser.wait("!document.getElementById('login').hidden");
    assert_eq!(browser.text("#condition"), "locked");
    browser.run("document.getElementById('token').value = 'wrong'");
    browser.click("#login button");
    browser.wait("document.getElementById('login-error').textContent.includes('token')");
    browser.go_to("about:blank");
    browser.go_to(&format!("{url}#{TOKEN}"));
    browser.wait("document.querySelectorAll('.link').length === 3");
    let shown = browser.run("return location.href");
    assert_eq!(shown, json!(url), "the token stays out of sight");
}

fn shows(browser: &Browser, instance: &Instance) {
    carry(instance);
    browser
        .wait("document.querySelector('[data-link=wlan0] .down').textContent.includes('Mbit/s')");
    let state = instance.get("/v1/state").1;
    let state: State = serde_json::from_str(&state).unwrap();
    assert_eq!(browser.text("#condition"), state.condition.name());
    assert!(browser.text("#problems").contains("<b>5g"));
    assert!(browser.text("#events").contains("wlan0: carries data"));
    let drawn = browser.run(
        "const c = document.getElementById('chart'); \
         return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)",
    );
    assert_eq!(drawn, json!(true));
    keep(browser, "light");
    browser.click("#theme");
    browser.wait("document.documentElement.dataset.theme === 'dark'");
    keep(browser, "dark");
}

fn steers_links(browser: &Browser, instance: &Instance) {
    browser.click("[data-link=wlan0] .pause");
    browser.wait("document.querySelector('[data-link=wlan0] .pause').textContent === 'Resume'");
    assert!(instance.state.lock().unwrap().links[0].paused);
    let slide = |percent: u32| {
        browser.run(&format!(
            "const w = document.querySelector('[data-link=wlan0] .weight'); w.value = {percent}; \
             w.dispatchEvent(new Event('input')); w.dispatchEvent(new Event('change'));"
        ));
    };
    slide(50);
    browser.wait("document.querySelector('[data-link=wlan0] .weight-text').textContent === '50 %'");
    // What the instance refuses is told, and the slider goes back.
    slide(25);
    browser.wait("document.querySelector('[data-link=wlan0] .error').textContent === 'not today'");
    instance.publish(|state| state.at_unix_ms += TICK_MS);
    browser.wait("document.querySelector('[data-link=wlan0] .weight').value === '50'");
    assert!((instance.state.lock().unwrap().links[0].weight - 0.5).abs() < 1e-9);
}

fn explains_rules(browser: &Browser) {
    let rules = browser.text("#rules");
    for word in ["backups", "17", "2.5 MB", "never by usb0"] {
        assert!(rules.contains(word), "{word}: {rules}");
    }
    for (host, expected) in [
        (
            "192.0.2.7",
            "192.0.2.7 (known as nas.example): rule “backups”",
        ),
        ("example.net", "example.net: no rule fits"),
    ] {
        browser.run(&format!(
            "document.getElementById('explain-host').value = '{host}'"
        ));
        browser.click("#explain button");
        browser.wait(&format!(
            "document.getElementById('explained').textContent === '{expected}'"
        ));
    }
}

fn edits_policy(browser: &Browser, instance: &Instance) {
    let file = instance.directory.path().join("policy.toml");
    let write = |text: &str| {
        browser.run(&format!(
            "const p = document.getElementById('policy'); p.value = '{text}'; \
             p.dispatchEvent(new Event('input'));"
        ));
        browser.click("#policy-save");
    };
    browser.wait("!document.getElementById('policy-card').hidden");
    write("bad");
    browser.wait("document.getElementById('policy-error').textContent.includes('line 2')");
    assert!(!file.exists());
    write("good");
    browser.wait("document.getElementById('policy-note').textContent.startsWith('Saved')");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "good");
    write("good, and more");
    browser.wait("document.getElementById('policy-save').disabled");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "good, and more");
    browser.click("#policy-undo");
    browser.wait("document.getElementById('policy').value === 'good'");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "good");
    // Somebody else writes: what is on the screen does not overwrite it.
    std::fs::write(&file, "good, by another").unwrap();
    write("good, by us");
    browser.wait("document.getElementById('policy-error').textContent.includes('meantime')");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "good, by another");
    browser.click("#policy-undo");
    browser.wait("document.getElementById('policy').value === 'good, by another'");
    write("good, by both");
    browser.wait("document.getElementById('policy-save').disabled");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "good, by both");
}

/// The form beside the text: by what is in force, and by the words of who checks the file.
fn fills_in_the_policy(browser: &Browser, instance: &Instance) {
    let file = instance.directory.path().join("policy.toml");
    let read = || std::fs::read_to_string(&file).unwrap();
    instance.publish(|state| {
        state.links[0].policy = Some(PolicyInForce {
            text: "always used, 50 % of it".to_owned(),
            line: None,
        });
    });
    let row = "document.querySelector('[data-policy=wlan0]')";
    browser.wait(&format!("{row}.textContent.includes('50 % of it')"));
    browser.click("[data-policy=wlan0] button");
    let put = |key: &str, value: &str| {
        browser.run(&format!(
            "const it = document.getElementById('entry').elements['{key}']; it.value = '{value}'; \
             it.dispatchEvent(new Event('input', {{ bubbles: true }}));"
        ));
    };
    assert_eq!(
        browser.run("return document.getElementById('entry').elements.name.value"),
        "wlan0"
    );
    for (key, value) in [
        ("weight", "1.5"),
        ("priority", "3"),
        ("metered", "false"),
        ("budget", "5GB/month"),
        ("budget-from", "7"),
        ("down", "20mbit"),
    ] {
        put(key, value);
    }
    browser.click("#entry-save");
    browser.wait("document.getElementById('entry-error').textContent.includes('from 0 to 1')");
    assert_eq!(read(), "good, by both");
    put("weight", "0.5");
    browser.click("#entry-save");
    browser.wait("document.getElementById('entry-note').textContent.startsWith('Saved')");
    assert_eq!(browser.text("#entry-error"), "");
    let entry = "{\"name\":\"wlan0\",\"weight\":0.5,\"priority\":3,\"metered\":false,\
                 \"budget\":\"5GB/month\",\"budget-from\":7,\"down\":\"20mbit\"}";
    assert_eq!(read(), format!("good, by both\n{entry}"));
    browser.wait("document.getElementById('policy').value.includes('20mbit')");
    // An entry for links that are not here has a row too; what it says goes back into the form.
    put("name", "usb*");
    put("use", "never");
    browser.click("#entry-save");
    browser.wait("document.querySelector('[data-policy=\"usb*\"]')");
    browser.click("[data-policy=wlan0] button");
    browser.click("[data-policy=\"usb*\"] button");
    assert_eq!(
        browser.run("return document.getElementById('entry').elements.use.value"),
        "never"
    );
    browser.click("#entry-forget");
    browser.wait("document.querySelector('[data-policy=\"usb*\"]') === null");
    assert_eq!(read(), format!("good, by both\n{entry}"));
    // Somebody else writes in between.
    std::fs::write(&file, "good, by another").unwrap();
    browser.click("#entry-save");
    browser.wait("document.getElementById('entry-error').textContent.includes('meantime')");
    assert_eq!(read(), "good, by another");
    browser.wait("document.getElementById('policy').value === 'good, by another'");
    // The form waits for the text that is being typed.
    browser.run(
        "const p = document.getElementById('policy'); p.value += '!'; \
         p.dispatchEvent(new Event('input'));",
    );
    let disabled = "return document.getElementById('entry-save').disabled";
    assert_eq!(browser.run(disabled), json!(true));
    browser.click("#policy-undo");
    browser.wait("!document.getElementById('entry-save').disabled");
    keep(browser, "policy");
}

fn shows_a_gateway(browser: &Browser, instance: &Instance) {
    let ends = ["10.0.0.2:40000", "192.0.2.1:443"].map(|end| end.parse().unwrap());
    instance.publish(|state| {
        state.at_unix_ms += TICK_MS;
        state.gateway = Some(Gateway {
            radio: "wwan0".to_owned(),
            mode: GatewayMode::Assist,
            draining: false,
            totals: GatewayTotals {
                opened: 17,
                held_bytes: 123_000,
                ..GatewayTotals::default()
            },
            bypassed: [("mid-flow".to_owned(), 3)].into(),
            flows: vec![Flow {
                radio_rtt_ms: Some(87.0),
                shut: true,
                ..Flow::between(ends[0], ends[1], Stance::Assisting)
            }],
            flows_omitted: 41,
            ended: Vec::new(),
        });
    });
    browser.wait("!document.getElementById('gateway-card').hidden");
    let shown = browser.text("#gateway-card");
    for word in [
        "wwan0",
        "assist",
        "17",
        "123 kB",
        "3 mid-flow",
        "10.0.0.2:40000",
        "shut",
        "87 ms",
        "and 41 more",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    keep(browser, "gateway");
}

fn fits_a_phone(browser: &Browser, instance: &Instance) {
    instance.publish(|state| {
        state.at_unix_ms += TICK_MS;
        state.gateway = None;
        state.sessions = vec![session()];
    });
    browser.resize(390, 844);
    browser.wait("window.innerWidth === 390 && document.querySelector('#sessions tr')");
    let wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.run(wide), json!(0), "nothing sticks out");
    let table = "const t = document.querySelector('#sessions-card .scroll'); \
                 return t.scrollWidth - t.clientWidth";
    assert_eq!(
        browser.run(table),
        json!(0),
        "sessions are read without scrolling"
    );
    let line = |css: &str| {
        browser.run(&format!(
            "return new Set([...document.querySelectorAll('{css}')].map((it) => it.offsetTop)).size"
        ))
    };
    assert_eq!(
        line("[data-series]"),
        json!(1),
        "the chart's buttons in a row"
    );
    let header = browser.run(
        "const middle = (css) => { \
         const it = document.querySelector(css).getBoundingClientRect(); \
         return (it.top + it.bottom) / 2; }; \
         return Math.max(...['#condition', '#theme'].map((css) => \
         Math.abs(middle(css) - middle('h1'))))",
    );
    assert!(
        header.as_f64().unwrap() < 2.0,
        "name, state and button in a row: {header}"
    );
    keep(browser, "phone");
}

fn session() -> Session {
    serde_json::from_value(json!({
        "number": 1, "peer": "AQEBAQEBAQEBAQEBAQEBAQEB", "state": "connected", "streams": 1,
        "age_s": 5, "receive_memory_bytes": 0, "datagrams_queued_bytes": 0,
        "paths": [path(), path()],
        "traffic": {"sent_bytes": 0, "received_bytes": 0, "sent_packets": 0, "lost_packets": 0,
            "sent_bps": 123_400_000, "received_bps": 123_400_000, "loss": null}
    }))
    .unwrap()
}

/// What links have left, and that a page whose instance is gone says so.
fn tells_of_links(browser: &Browser, instance: &Instance) {
    instance.publish(|state| {
        state.at_unix_ms += TICK_MS;
        state.silent_ms = Some(100);
        state.totals.streams = 1;
        let link = &mut state.links[1];
        link.state = LinkState::Unused;
        link.problem = Some("its budget is spent".to_owned());
        link.carrier = Some("tls".to_owned());
        link.carrier_reason = Some("UDP gets no answer here".to_owned());
        link.metered = true;
        link.budget = Some(LinkBudget {
            amount_bytes: 5_000_000,
            used_bytes: 3_500_000,
            renews: "2026-12-01".to_owned(),
        });
    });
    browser.wait("!document.querySelector('[data-link=usb0] .metered').hidden");
    for (css, expected) in [
        ("[data-link=usb0] .problem", "not used: its budget is spent"),
        (
            "[data-link=usb0] .carrier-text",
            "tls: UDP gets no answer here",
        ),
        (
            "[data-link=usb0] .left",
            "1.5 MB of 5.0 MB left until 2026-12-01",
        ),
        ("#relay", "answers"),
        ("#relay-label", "relay home"),
        ("#streams-label", "stream"),
    ] {
        assert_eq!(browser.text(css), expected, "{css}");
    }
    assert!(
        browser
            .text("[data-link=wlan0] .share")
            .ends_with(" since the start")
    );
    let is_plain = browser.run("return document.querySelector('[data-link=wlan0] .budget').hidden");
    assert_eq!(is_plain, json!(true), "no budget, no word of it");
}

fn tells_that_it_is_gone(browser: &Browser, instance: Instance) {
    drop(instance);
    browser.wait("document.body.classList.contains('gone')");
    assert_eq!(browser.text("#condition"), "gone");
    assert!(browser.text("#about").contains("does not answer"));
}

/// `tabane dashboard` for one `tabane run`; when that ends, and another begins, the page is its.
#[test]
fn a_page_goes_over_to_the_next_instance() {
    let Some(browser) = Browser::start() else {
        println!("skipped: there is no chromedriver here (Debian: chromium-driver)");
        return;
    };
    let first = Instance::start(false);
    let directory = first.directory.path().to_owned();
    first.publish(busy);
    let address = bridge(&first);
    browser.go_to(&format!("http://{address}/#{TOKEN}"));
    browser.wait("document.querySelectorAll('.link').length === 3");
    carry(&first);
    browser.wait("document.querySelectorAll('#legend li').length === 3");
    drop(first);
    browser.wait("document.body.classList.contains('gone')");
    // It asks again, and hears from the bridge that nobody is there: the pill still says so.
    browser.wait("performance.getEntriesByName(location.href + 'v1/events').length > 2");
    assert_eq!(browser.text("#condition"), "gone");
    // One of another kind is not the next one.
    let other = Instance::start_in(&directory, "proxy-2", false);
    let next = Instance::start_in(&directory, "run-2", false);
    next.publish(|state| {
        let name = &mut state.links[0].name;
        "eth7".clone_into(name);
    });
    browser.wait("document.getElementById('about').textContent.startsWith('run-2:')");
    browser.wait("document.querySelector('[data-link=eth7]')");
    assert_ne!(browser.text("#condition"), "gone");
    let shown =
        |css: &str| browser.run(&format!("return document.querySelectorAll('{css}').length"));
    assert_eq!(shown(".gone"), json!(0));
    assert_eq!(shown(".link"), json!(1), "no card of the first");
    assert_eq!(shown("#events li"), json!(0), "nor what happened there");
    assert_eq!(browser.text("#legend"), "eth7", "nor its chart");
    // What is clicked is carried out by who is on the screen.
    browser.click("[data-link=eth7] .pause");
    browser.wait("document.querySelector('[data-link=eth7] .pause').textContent === 'Resume'");
    assert!(next.state.lock().unwrap().links[0].paused);
    assert!(!other.state.lock().unwrap().links[0].paused);
}

/// What `tabane dashboard` opens; for as long as the test runs.
fn bridge(instance: &Instance) -> SocketAddr {
    let any = "127.0.0.1:0".parse().unwrap();
    let bridge = Bridge::open(any, TOKEN.to_owned(), &instance.socket()).unwrap();
    let address = bridge.address();
    std::thread::spawn(|| block_on(tokio::task::LocalSet::new().run_until(bridge.serve())));
    address
}

fn keep(browser: &Browser, name: &str) {
    if let Some(directory) = std::env::var_os("TABANE_SCREENSHOTS") {
        let path = std::path::Path::new(&directory).join(format!("{name}.png.base64"));
        std::fs::write(path, browser.screenshot()).unwrap();
    }
}
