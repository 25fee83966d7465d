//! Neighbours who move, and who are the only way there is.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::street::{Running, SERVER, Street, content};

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn a_neighbour_with_another_address_is_found_by_its_key() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut lending = street.lend();
    // A QR code says all that is needed; to pair again changes nothing else.
    let mut offering = Running::start(street.friend(&["share", "pair", "--qr"]));
    let said = std::iter::repeat_with(|| offering.line()).find(|line| line.contains('@'));
    let invitation = said.unwrap();
    let invitation = invitation.rsplit(' ').next().unwrap();
    assert!(invitation.contains("10.72.9.2:4511"), "{invitation}");
    let paired = street.tabane(&["share", "pair", invitation]).output();
    assert!(paired.as_ref().unwrap().status.success(), "{paired:?}");
    lending.kill();
    street.move_friend(2, 77);
    let share = ["share", "--link", "n3", "--listen", "[::]:4599"];
    let mut lending = Running::start(street.friend(&share));
    assert!(lending.line().contains("on port 4599"));
    // Looked for now and then, and announced as soon as its network is noticed.
    let found = |place: &str| {
        until(place, || {
            let row = &rows(&street, &["links"], "interface");
            row["usable"] == true && row["addresses"][0] == place
        });
    };
    found("10.72.9.77:4599");
    let listed = rows(&street, &["share", "list"], "name");
    assert_eq!(listed["address"], "10.72.9.77:4599", "it is remembered");
}

#[test]
fn a_hidden_neighbour_with_another_address_answers_to_its_key() {
    let Some(street) = Street::new() else {
        return;
    };
    let hidden = ["share", "--link", "n3", "--name", "nextdoor", "--hidden"];
    let mut lending = Running::start(street.friend(&hidden));
    assert!(lending.line().starts_with("lending n3 on port 4511"));
    let mut offering = Running::start(street.friend(&["share", "pair"]));
    let line = offering.line();
    let code = line.strip_prefix("code: ").unwrap();
    let paired = street
        .tabane(&["share", "pair", code, "10.72.9.2"])
        .output();
    assert!(paired.as_ref().unwrap().status.success(), "{paired:?}");
    street.move_friend(2, 77);
    until("10.72.9.77:4511", || {
        let row = &rows(&street, &["links"], "interface");
        row["usable"] == true && row["addresses"][0] == "10.72.9.77:4511"
    });
}

/// Near by there is IPv6 alone: first the addresses that every interface gives itself, then others.
#[test]
fn a_hidden_neighbour_answers_without_ipv4() {
    let Some(street) = Street::new() else {
        return;
    };
    let _relay = street.join_relay();
    let hidden = ["share", "--link", "n3", "--name", "nextdoor", "--hidden"];
    let mut lending = Running::start(street.friend(&hidden));
    assert!(lending.line().starts_with("lending n3 on port 4511"));
    let mut offering = Running::start(street.friend(&["share", "pair"]));
    let line = offering.line();
    let code = line.strip_prefix("code: ").unwrap();
    let paired = street
        .tabane(&["share", "pair", code, "10.72.9.2"])
        .output();
    assert!(paired.as_ref().unwrap().status.success(), "{paired:?}");
    street.ip("n", "-4 addr flush dev n9");
    street.ip("c", "-4 addr flush dev c9");
    for link in ["c1", "c2"] {
        street.ip("c", &format!("link set {link} down"));
    }
    let place = || {
        let row = rows(&street, &["links"], "interface");
        let address = row["addresses"][0].as_str().unwrap().to_owned();
        (row["usable"] == true).then_some(address)
    };
    until("found by what its interface gave itself", || {
        place().is_some_and(|it| it.starts_with("[fe80::") && it.ends_with("%c9]:4511"))
    });
    let listed = rows(&street, &["share", "list"], "name");
    assert_eq!(
        listed["address"], "10.72.9.2:4511",
        "the other would be of this link alone"
    );
    // By its link both ways: connections of the web, and a session's datagrams.
    let url = format!("http://{SERVER}/small");
    let got = street.tabane(&["get", &url, "-o", "-"]).output().unwrap();
    assert_eq!(got.stdout, b"small\n", "{got:?}");
    until("a session by the neighbour", || {
        let mut run = street.tabane(&["run", "--", "curl", "-sS", "--max-time", "60"]);
        run.arg(&url).output().unwrap().stdout == b"small\n"
    });
    street.ip("n", "-6 addr add fd72::2/64 dev n9 nodad");
    street.ip("c", "-6 addr add fd72::1/64 dev c9 nodad");
    until("found by an address to keep", || {
        place().is_some_and(|it| it == "[fd72::2]:4511")
    });
    let listed = rows(&street, &["share", "list"], "name");
    assert_eq!(listed["address"], "[fd72::2]:4511");
}

#[test]
fn a_neighbour_that_changes_bytes_is_found_out_by_tls() {
    let Some(street) = Street::new() else {
        return;
    };
    let mut corrupting = street.corrupt();
    // Not by an interface: the way to this machine's own address.
    let _lending = street.lend_by(&[]);
    let output = street.directory.join("big.bin");
    let url = format!("https://{SERVER}/big.bin");
    let mut get = street.tabane(&["get", "--json", &url, "-o"]);
    let got = get.arg(&output).output().unwrap();
    assert!(got.status.success(), "{got:?}");
    assert_eq!(corrupting.line(), "changed");
    assert!(std::fs::read(output).unwrap() == content(), "other bytes");
}

#[test]
fn a_machine_without_a_link_has_its_neighbours() {
    let Some(street) = Street::new() else {
        return;
    };
    let _relay = street.join_relay();
    let lending = street.lend();
    for link in ["c1", "c2"] {
        street.ip("c", &format!("link set {link} down"));
    }
    // Who was paired a moment ago is a friend already.
    let mut measure = street.tabane(&["links", "--measure", "--json"]);
    let measured = measure.output().unwrap();
    let rows_of: Value = serde_json::from_slice(&measured.stdout).unwrap();
    let mut rows_of = rows_of.as_array().unwrap().iter();
    let lent = rows_of.find(|row| row["interface"] == "nextdoor").unwrap();
    assert!(lent["rtt_ms"].is_number(), "{measured:?}");
    // It moves: a session that begins looks for it.
    street.move_friend(2, 77);
    let url = format!("http://{SERVER}/small");
    until("a session by the neighbour", || {
        let mut run = street.tabane(&["run", "--", "curl", "-sS", "--max-time", "60"]);
        run.arg(&url).output().unwrap().stdout == b"small\n"
    });
    assert_eq!(
        rows(&street, &["links"], "interface")["addresses"][0],
        "10.72.9.77:4511"
    );
    // Without any, the error says both.
    drop(lending);
    let run = street.tabane(&["run", "--", "true"]).output().unwrap();
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success());
    assert!(error.contains("no interface can be used"), "{error}");
    assert!(error.contains("neighbour nextdoor: "), "{error}");
}

#[test]
fn a_neighbour_s_own_networks_are_lent_to_nobody() {
    let Some(street) = Street::new() else {
        return;
    };
    let _lending = street.lend();
    for link in ["c1", "c2"] {
        street.ip("c", &format!("link set {link} down"));
    }
    let output = street.directory.join("small");
    let is_lent = || {
        let url = format!("http://{SERVER}/small");
        let mut get = street.tabane(&["get", &url, "-o"]);
        let got = get.arg(&output).output().unwrap();
        let _ = std::fs::remove_file(&output);
        got.status.success()
    };
    assert!(is_lent());
    // From here on the server is on the wire of the link that is lent.
    street.ip("s", "route add 11.0.0.99/32 dev s3");
    street.ip("n", "addr add 11.0.0.99/24 dev n3");
    until("refused", || !is_lent());
    street.ip("n", "addr del 11.0.0.99/24 dev n3");
    until("lent", is_lent);
}

/// The neighbour's row of a list.
fn rows(street: &Street, words: &[&str], key: &str) -> Value {
    let output = street.tabane(words).arg("--json").output().unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row[key] == "nextdoor").unwrap().clone()
}

/// Tries again and again.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
