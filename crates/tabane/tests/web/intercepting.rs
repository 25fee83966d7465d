//! HTTPS that is opened here: by nginx's, curl's and openssl's judgement.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::street::{NAMES, Running, SIZE, Street, WRONG, content};
use crate::{PROXY, carried, serve};

/// The next record of something that was not asked to see whether the proxy listens.
fn record(proxy: &mut Running) -> Value {
    std::iter::repeat_with(|| proxy.record())
        .find(|record| record["status"] != 404)
        .unwrap()
}

#[test]
fn https_of_named_hosts_is_split_and_that_of_others_passes_as_it_is() {
    let Some(street) = Street::new() else {
        return;
    };
    let [named, other] = NAMES;
    let create = ["web", "ca", "create", "example.org", "--yes"];
    let made = street.tabane(&create).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let shown = street.tabane(&["web", "ca", "show", "--json"]).output();
    let shown: Value = serde_json::from_slice(&shown.unwrap().stdout).unwrap();
    let own = shown["certificate"].as_str().unwrap().to_owned();
    let text = street
        .client("openssl")
        .args(["x509", "-noout", "-text", "-in", &own])
        .output();
    let text = String::from_utf8(text.unwrap().stdout).unwrap();
    for word in [
        "CA:TRUE, pathlen:0",
        "Name Constraints: critical",
        "DNS:example.org",
        "Excluded:",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let mut proxy = serve(&street, &["--intercept", &format!("{named},{WRONG}")]);
    let theirs = street.directory.join("cert.pem");
    let theirs = theirs.to_str().unwrap();
    let curl =
        |trusted: &str, words: &str| street.curl(&format!("-x {PROXY} --cacert {trusted} {words}"));
    // By both links, for a program that trusts the authority and it alone.
    let got = curl(&own, &format!("https://{named}/big.bin"));
    let errors = String::from_utf8_lossy(&got.stderr);
    assert!(got.stdout == content(), "{errors}");
    let split = record(&mut proxy);
    assert_eq!(split["carried"], "split", "{split}");
    assert_eq!(split["intercepted"], true, "{split}");
    assert_eq!(split["target"], format!("https://{named}/big.bin"));
    for link in ["c1", "c2"] {
        assert!(carried(&split, link) > SIZE as u64 / 10, "{split}");
    }
    // Others have their own certificates, which our authority is not needed for.
    let got = curl(theirs, &format!("https://{other}/small"));
    assert_eq!(got.stdout, b"small\n", "{got:?}");
    let tunnel = record(&mut proxy);
    assert_eq!(tunnel["carried"], "tunnel", "{tunnel}");
    let got = curl(&own, &format!("https://{other}/small"));
    assert_eq!(got.status.code(), Some(60), "{got:?}");
    record(&mut proxy);
    // A server that cannot prove who it is.
    let got = curl(&own, &format!("-w %{{http_code}} https://{WRONG}/small"));
    let text = String::from_utf8(got.stdout).unwrap();
    assert!(
        text.contains("certificate") && text.ends_with("502"),
        "{text}"
    );
    assert_eq!(record(&mut proxy)["status"], 502);
    // A program that trusts only the server's.
    let got = curl(theirs, &format!("https://{named}/small"));
    assert_eq!(got.status.code(), Some(60), "{got:?}");
    let refused = record(&mut proxy);
    let trouble = refused["trouble"].as_str().unwrap();
    assert!(trouble.contains("does not trust"), "{refused}");
    let status = street.tabane(&["status"]).output().unwrap().stdout;
    let status = String::from_utf8(status).unwrap();
    assert!(status.contains(&format!("intercepts {named}")), "{status}");
    // A command is told whom to trust, and trusts the system's authorities as well.
    // So it does beside those of a file that it was told of before.
    for before in [None, Some(theirs)] {
        let mut command = street.tabane(&["web", "--stats", "--intercept", named, "--"]);
        if let Some(before) = before {
            command.env("CURL_CA_BUNDLE", before);
        }
        let urls = [named, other].map(|host| format!("https://{host}/small"));
        let got = command.args(["curl", "-sS"]).args(urls).output().unwrap();
        let stats = String::from_utf8_lossy(&got.stderr);
        assert_eq!(got.stdout, b"small\nsmall\n", "{before:?}: {stats}");
        assert!(stats.contains("(1 of them intercepted)"), "{stats}");
    }
    wget_is_told_by_its_settings(&street, theirs);
    let removed = street.tabane(&["web", "ca", "remove"]).output().unwrap();
    assert!(removed.status.success() && fs::metadata(&own).is_err());
}

/// wget heeds no variable with authorities. Settings of the user's own hold beside ours: those
/// named by the variable, those at home, and none.
fn wget_is_told_by_its_settings(street: &Street, theirs: &str) {
    if Command::new("wget").arg("--version").output().is_err() {
        println!("no wget here");
        return;
    }
    let home = street.directory.join("client");
    let own = format!("user_agent = own\nCA-certificate={theirs}");
    let elsewhere = street.directory.join("elsewhere");
    for place in [None, Some(home.join(".wgetrc")), Some(elsewhere.clone())] {
        if let Some(path) = &place {
            fs::write(path, &own).unwrap();
        }
        let [named, other] = NAMES;
        let mut command = street.tabane(&["web", "--stats", "--intercept", named, "--"]);
        command.env_remove("WGETRC");
        if place.as_ref() == Some(&elsewhere) {
            fs::remove_file(home.join(".wgetrc")).unwrap();
            command.env("WGETRC", &elsewhere);
        }
        command.args(["wget", "-d", "-O", "-", &format!("https://{named}/small")]);
        // Whose certificate the user's own settings have trusted.
        if place.is_some() {
            command.arg(format!("https://{other}/small"));
        }
        let got = command.output().unwrap();
        let said = String::from_utf8_lossy(&got.stderr);
        let expected = if place.is_some() { 2 } else { 1 };
        let bodies = "small\n".repeat(expected);
        let contents = String::from_utf8_lossy(&got.stdout);
        assert!(contents.ends_with(&bodies), "{place:?}: {said}");
        assert!(said.contains("(1 of them intercepted)"), "{said}");
        assert_eq!(said.contains("User-Agent: own"), place.is_some(), "{said}");
    }
}
