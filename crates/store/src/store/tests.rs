//! The client's directory as users and crashes leave it.

use super::*;
use crate::scratch::Scratch;
use tabane_base::Destination;
use tabane_core::PublicKey;

fn entry(key: u8) -> RelayEntry {
    RelayEntry {
        addresses: vec![Destination::parse("192.0.2.1:4510", None).unwrap()],
        key: PublicKey([key; 32]),
        fleet: None,
        token: "A".repeat(22).parse().unwrap(),
    }
}

fn store() -> (Scratch, Store) {
    let scratch = Scratch::make();
    let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
    (scratch, store)
}

fn name(text: &str) -> RelayName {
    text.parse().unwrap()
}

fn line(error: anyhow::Error) -> String {
    let text = format!("{error:#}");
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_relay_is_remembered_updated_and_forgotten() {
    let (_scratch, store) = store();
    assert_eq!(
        store.put_relay(&name("a"), &entry(1), false).unwrap(),
        Joined::Added
    );
    assert_eq!(
        store.put_relay(&name("a"), &entry(1), false).unwrap(),
        Joined::Updated
    );
    assert_eq!(store.relays().unwrap(), [(name("a"), entry(1))]);
    let error = line(store.put_relay(&name("a"), &entry(2), false).unwrap_err());
    assert!(error.contains("--name"), "{error}");
    assert!(store.remove_relay(&name("a")).unwrap());
    assert!(!store.remove_relay(&name("a")).unwrap());
}

#[test]
fn the_relay_is_chosen_or_the_user_is_told_how_to() {
    let (_scratch, store) = store();
    let chosen = |named: &[&str]| {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let chosen = store.choose_relays(&named);
        chosen.map(|relays| {
            let names = relays.iter().map(|(name, _)| name.to_string());
            names.collect::<Vec<_>>()
        })
    };
    assert!(line(chosen(&[]).unwrap_err()).contains("tabane join"));
    store.put_relay(&name("one"), &entry(1), false).unwrap();
    assert_eq!(chosen(&[]).unwrap(), ["one"]);
    store.put_relay(&name("two"), &entry(2), false).unwrap();
    store.put_relay(&name("zoo"), &entry(3), false).unwrap();
    assert_eq!(chosen(&[]).unwrap(), ["one", "two", "zoo"]);
    assert_eq!(chosen(&["two"]).unwrap(), ["two"]);
    assert_eq!(chosen(&["zoo", "one", "zoo"]).unwrap(), ["zoo", "one"]);
    assert!(line(chosen(&["six"]).unwrap_err()).contains("known: one, two"));
    assert_eq!(store.prefer_relay(&name("zoo")).unwrap(), Some(name("one")));
    assert_eq!(chosen(&[]).unwrap(), ["zoo", "one", "two"]);
    assert_eq!(store.prefer_relay(&name("one")).unwrap(), Some(name("zoo")));
    assert_eq!(chosen(&[]).unwrap(), ["one", "zoo", "two"]);
    assert!(store.prefer_relay(&name("six")).is_err());
    fs::write(store.root.join("config.toml"), "relay = 'two'\n").unwrap();
    assert_eq!(chosen(&[]).unwrap(), ["two", "one", "zoo"]);
    assert!(line(store.prefer_relay(&name("one")).unwrap_err()).contains("config.toml"));
}

#[test]
fn settings_are_read_and_faults_name_line_and_key() {
    let (_scratch, store) = store();
    assert_eq!(store.settings().unwrap(), Settings::default());
    fs::create_dir_all(&store.root).unwrap();
    let path = store.root.join("config.toml");
    fs::write(
        &path,
        "links = ['a', 'b']\nscheduler = 'min-rtt'\ncongestion = 'bbr'\n",
    )
    .unwrap();
    let settings = store.settings().unwrap();
    assert_eq!(settings.links, ["a", "b"]);
    assert_eq!(settings.scheduler.unwrap().to_string(), "min-rtt");
    for (text, at, key) in [
        ("\n\nlink = 'a'\n", ":3:", "link"),
        ("relay = 'x'\nscheduler = 'fastest'\n", ":2:", "fastest"),
        ("links = 3\n", ":1:", "integer"),
        ("relay = \n", ":1:", ""),
    ] {
        fs::write(&path, text).unwrap();
        let error = line(store.settings().unwrap_err());
        assert!(
            error.contains(&format!("config.toml{at}")) && error.contains(key),
            "{error}"
        );
    }
}

/// What the package puts to /etc/tabane.
#[test]
fn the_packaged_settings_set_nothing_and_name_every_setting() {
    let packaged = include_str!("../../../../packaging/deb/config.toml");
    let (_scratch, store) = store();
    fs::create_dir_all(&store.root).unwrap();
    let path = store.root.join("config.toml");
    fs::write(&path, packaged).unwrap();
    assert_eq!(store.settings().unwrap(), Settings::default());
    // A line is a setting when its # goes; those of text have a space behind it.
    let all = packaged.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => setting,
        _ => line,
    });
    fs::write(&path, all.collect::<Vec<_>>().join("\n")).unwrap();
    let read = format!("{:?}", store.settings().unwrap());
    assert!(!read.contains("None") && !read.contains("[]"), "{read}");
}

#[test]
fn a_damaged_relay_file_is_named() {
    let (_scratch, store) = store();
    store.put_relay(&name("a"), &entry(1), false).unwrap();
    let path = store.root.join("relays/a.toml");
    let text = fs::read_to_string(&path).unwrap().replace("4510", "0");
    fs::write(&path, text).unwrap();
    let error = line(store.choose_relays(&[]).unwrap_err());
    assert!(
        error.contains("a.toml:") && error.contains("port"),
        "{error}"
    );
}

#[test]
fn names_are_file_names_and_words() {
    for bad in [
        "",
        ".",
        "..",
        ".a",
        "-a",
        "a/b",
        "a b",
        "ä",
        &"x".repeat(65),
    ] {
        assert!(bad.parse::<RelayName>().is_err(), "{bad}");
    }
    for host in ["relay.example", "192.0.2.1", "2001:db8::1", "::1"] {
        let host = tabane_base::Host::parse(host).unwrap();
        let derived = RelayName::from_host(&host);
        assert_eq!(derived.as_str().parse::<RelayName>().as_ref(), Ok(&derived));
    }
}
