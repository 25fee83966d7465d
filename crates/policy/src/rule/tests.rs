//! What rules fit, what they come to, and what is wrong with them.

use crate::{LinkFacts, Order, Policy, Sender};

use super::*;

fn link(name: &'static str, kind: &'static str) -> LinkFacts<'static> {
    LinkFacts {
        name,
        interface: name,
        kind,
        metered: None,
    }
}

fn to(name: &str, port: u16) -> FlowFacts {
    FlowFacts {
        domains: vec![name.to_owned()],
        port,
        ..FlowFacts::default()
    }
}

fn rule_of(policy: &Policy, flow: &FlowFacts) -> Option<String> {
    policy.rule_for(flow).map(|(_, rule)| rule.name.clone())
}

const POLICY: &str = r#"
[[rule]]
name = "video calls"
domain = ["*.zoom.us", "Meet.Example.org."]
protocol = "udp"
redundant = true
order = "20ms"

[[rule]]
name = "backups"
process = ["restic", "borg*"]
never = ["usb*", "kind:cellular"]

[[rule]]
name = "ssh"
port = [22, "2200-2299"]
links = ["wlan*", "eth0"]
scheduler = "redundant"

[[rule]]
name = "office"
address = ["192.0.2.0/24", "2001:db8::/32"]
direct = true

[[rule]]
name = "voice"
dscp = ["ef", 40, "af41"]
redundant = true
"#;

#[test]
fn the_first_rule_that_fits_decides() {
    let policy = Policy::parse(POLICY).expect("valid");
    let udp = |name| FlowFacts {
        protocol: Protocol::Udp,
        ..to(name, 8801)
    };
    for (flow, name) in [
        (udp("eu.ZOOM.us"), Some("video calls")),
        (udp("meet.example.org"), Some("video calls")),
        (udp("zoom.us"), None),
        (to("eu.zoom.us", 443), None),
        (to("a.example", 22), Some("ssh")),
        (to("a.example", 2299), Some("ssh")),
        (to("a.example", 2300), None),
    ] {
        assert_eq!(rule_of(&policy, &flow).as_deref(), name, "{flow:?}");
    }
    let address = |text: &str| FlowFacts {
        address: Some(text.parse().expect("an address")),
        port: 443,
        ..FlowFacts::default()
    };
    assert_eq!(
        rule_of(&policy, &address("192.0.2.77")).as_deref(),
        Some("office")
    );
    assert_eq!(
        rule_of(&policy, &address("2001:db8:9::1")).as_deref(),
        Some("office")
    );
    assert_eq!(rule_of(&policy, &address("192.0.3.1")), None);
    let borg = FlowFacts {
        process: Some("borgmatic".into()),
        ..to("eu.zoom.us", 22)
    };
    assert_eq!(
        rule_of(&policy, &borg).as_deref(),
        Some("backups"),
        "before ssh"
    );
    for (mark, fits) in [(46, true), (40, true), (34, true), (0, false), (32, false)] {
        let marked = FlowFacts {
            dscp: Some(mark),
            ..to("a.example", 443)
        };
        assert_eq!(rule_of(&policy, &marked).is_some(), fits, "{mark}");
    }
}

#[test]
fn treatments_say_which_links_may_carry_it() {
    let policy = Policy::parse(POLICY).expect("valid");
    let treatment = |name: &str| {
        let mut rules = policy.rules().iter();
        let rule = rules.find(|rule| rule.name == name).expect("it is there");
        rule.treatment.clone()
    };
    let backups = treatment("backups");
    assert!(backups.allows(&link("wlan0", "wifi")));
    assert!(!backups.allows(&link("usb0", "ethernet")));
    assert!(!backups.allows(&link("wwan0", "cellular")));
    let ssh = treatment("ssh");
    assert!(ssh.redundant && ssh.allows(&link("eth0", "ethernet")));
    assert!(!ssh.allows(&link("eth1", "ethernet")));
    let calls = treatment("video calls");
    assert_eq!(calls.order, Some(Order::Within(Duration::from_millis(20))));
    // Calls and voice are the same to the choice of links.
    assert_eq!(policy.classes().len(), 3);
    assert_eq!(
        policy.class_of(&calls),
        policy.class_of(&treatment("voice"))
    );
    assert_eq!(policy.class_of(&treatment("office")), 0);
    assert_eq!(backups.to_string(), "never by usb*, kind:cellular",);
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_line() {
    let text = r#"
[[rule]]
name = "a"
ports = 5
links = []

[[rule]]
domain = "x.example"
direct = true
redundant = true
[[link]]
weight = 7
[[rule]]
name = "b"
port = [80, 70000]
dscp = "af44"
order = "20m"
[[rule]]
name = "c"
port = 80
"#;
    let error = Policy::parse(text).expect_err("full of faults");
    let lines: Vec<usize> = error.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [2, 4, 7, 7, 12, 15, 16, 17, 18], "{error}");
    for expected in [
        "line 4: ports: unknown key; expected one of name, source, domain",
        "line 2: links and never leave no link",
        "line 7: name: every rule has one",
        "line 7: redundant and direct contradict",
        "line 12: weight = 7: expected a share",
        "line 15: port = 70000: expected a port",
        "line 18: it says nothing of what to do",
    ] {
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn rules_that_nothing_reaches_are_told() {
    let rules = |first: &str, second: &str| {
        let rule = |name: &str, fits: &str| {
            format!("[[rule]]\nname = {name:?}\n{fits}\nredundant = true\n")
        };
        let text = rule("a", first) + &rule("b", second);
        Policy::parse(&text).err().map(|error| error.to_string())
    };
    for (first, second) in [
        ("", "port = 22"),
        (
            "domain = '*.example.org'",
            "domain = ['a.example.org', '*.b.example.org']",
        ),
        (
            "port = ['1-100', 443]",
            "port = ['20-30', 443]\nprotocol = 'tcp'",
        ),
        ("address = '10.0.0.0/8'", "address = '10.1.0.0/16'"),
        ("process = '*'", "process = 'curl'"),
    ] {
        let told = rules(first, second).expect(second);
        assert!(
            told.contains("line 5: rule \"b\" is never reached"),
            "{told}"
        );
    }
    for (first, second) in [
        ("port = 22", ""),
        ("domain = '*.example.org'", "domain = 'example.org'"),
        ("domain = 'a?.example.org'", "domain = 'a*.example.org'"),
        ("port = ['1-100']", "port = ['20-101']"),
        ("address = '10.1.0.0/16'", "address = '10.0.0.0/8'"),
        ("protocol = 'udp'", "port = 5"),
    ] {
        assert_eq!(rules(first, second), None, "{first} {second}");
    }
    let twice = "[[rule]]\nname = 'a'\nport = 1\ndirect = true\n";
    let text = format!("{twice}{}", twice.replace("= 1", "= 2"));
    let told = Policy::parse(&text)
        .expect_err("one name twice")
        .to_string();
    assert!(
        told.contains("line 5: name = \"a\": line 1 has it"),
        "{told}"
    );
}

#[test]
fn what_excludes_every_link_is_a_fault() {
    for fault in [
        "never = '*'",
        "links = ['usb0']\nnever = ['usb*']",
        "links = []",
    ] {
        let text = format!("[[rule]]\nname = 'a'\nport = 1\n{fault}\n");
        let error = Policy::parse(&text).expect_err(fault).to_string();
        assert!(error.contains("no link at all"), "{error}");
    }
}

#[test]
fn what_becomes_of_it_without_the_relay_is_told() {
    let of = |what: &str| {
        let text = format!("[[rule]]\nname = 'a'\nport = 25\n{what}\n");
        let policy = Policy::parse(&text).map_err(|error| error.to_string())?;
        let treatment = &policy.rules()[0].treatment;
        Ok::<_, String>((treatment.on_failure, treatment.to_string()))
    };
    for (what, on_failure, words) in [
        ("wait", OnFailure::Wait, "waits for the relay"),
        ("refuse", OnFailure::Refuse, "refused without the relay"),
        ("direct", OnFailure::Direct, "directly without the relay"),
    ] {
        let told = of(&format!("on-failure = '{what}'"));
        assert_eq!(told, Ok((Some(on_failure), words.to_owned())));
        assert_eq!(on_failure.is_closed(), what != "direct");
    }
    let wrong = of("on-failure = 'close'").unwrap_err();
    assert!(
        wrong.contains("line 4: on-failure") && wrong.contains("\"refuse\""),
        "{wrong}"
    );
    let both = of("direct = true\non-failure = 'wait'").unwrap_err();
    assert!(both.contains("on-failure and direct contradict"), "{both}");
}

#[test]
fn rules_for_visitors_are_for_nothing_else_and_others_not_for_them() {
    let policy = Policy::parse(
        "[[rule]]\nname = \"all\"\nnever = [\"usb0\"]\n\
         [[rule]]\nname = \"office\"\ninbound = true\naddress = \"192.0.2.0/24\"\nport = 443\n\
         links = [\"eth0\"]\n\
         [[rule]]\nname = \"visitors\"\ninbound = true\nredundant = true\n",
    )
    .expect("valid");
    let visitor = |address: &str, port| FlowFacts {
        address: Some(address.parse().expect("an address")),
        inbound: true,
        ..to("www.example.org", port)
    };
    assert_eq!(
        rule_of(&policy, &visitor("192.0.2.7", 443)).as_deref(),
        Some("office")
    );
    assert_eq!(
        rule_of(&policy, &visitor("192.0.2.7", 80)).as_deref(),
        Some("visitors")
    );
    assert_eq!(
        rule_of(&policy, &visitor("198.51.100.1", 443)).as_deref(),
        Some("visitors")
    );
    assert_eq!(
        rule_of(&policy, &to("a.example", 443)).as_deref(),
        Some("all")
    );
    for text in ["direct = true", "on-failure = \"wait\"\nredundant = true"] {
        let text = format!("[[rule]]\nname = \"a\"\ninbound = true\n{text}\n");
        let faults = format!("{:?}", Policy::parse(&text).expect_err("a contradiction"));
        assert!(faults.contains("inbound contradict"), "{faults}");
    }
}

fn from(address: Option<&str>, card: Option<&str>) -> FlowFacts {
    let hardware = card.map(|card| crate::HardwareAddress::parse(card).expect("a card"));
    FlowFacts {
        sender: Some(Sender {
            address: address.map(|address| address.parse().expect("an address")),
            hardware,
        }),
        ..to("a.example", 443)
    }
}

#[test]
fn hosts_behind_are_known_by_address_range_and_card() {
    let text = "[[rule]]\nname = 'tablets'\nredundant = true\n\
                source = ['192.168.1.20', '192.168.1.64/28', 'AA-bb-cc-dd-ee-ff', '2001:db8::/64']";
    let policy = Policy::parse(text).expect("valid");
    let card = "aa:bb:cc:dd:ee:ff";
    for (address, card, fits) in [
        (Some("192.168.1.20"), None, true),
        (Some("192.168.1.79"), None, true),
        (Some("::ffff:192.168.1.79"), None, true),
        (Some("2001:db8::7"), None, true),
        (Some("192.168.1.80"), None, false),
        (Some("192.168.1.80"), Some(card), true),
        (None, Some(card), true),
        (None, Some("aa:bb:cc:dd:ee:fe"), false),
    ] {
        let flow = from(address, card);
        assert_eq!(policy.rule_for(&flow).is_some(), fits, "{flow:?}");
    }
    assert!(policy.rule_for(&to("a.example", 443)).is_none(), "our own");

    for (earlier, later, is_covered) in [
        ("192.168.1.0/24", "192.168.1.7", true),
        ("192.168.1.0/28", "192.168.1.0/24", false),
        (card, "AA-BB-CC-DD-EE-FF", true),
        ("0.0.0.0/0", card, false),
    ] {
        let rule = |name, source| {
            format!("[[rule]]\nname = '{name}'\nsource = '{source}'\nredundant = true\n")
        };
        let both = rule("a", earlier) + &rule("b", later);
        assert_eq!(Policy::parse(&both).is_err(), is_covered, "{both}");
    }
}

const LISTS: &str = "[[rule]]\nname = 'listed'\nredundant = true\ndomain = 'b.example'\n\
                     domain-file = ['names.txt', 'more.txt']\n\
                     [[rule]]\nname = 'ranges'\nredundant = true\naddress-file = 'ranges.txt'\n";

#[test]
fn lists_stand_in_files_of_their_own() {
    let mut asked = Vec::new();
    let policy = Policy::parse_with(LISTS, &mut |name| {
        asked.push(name.to_owned());
        Ok(match name {
            "names.txt" => "*.a.example\n",
            "more.txt" => "c.example\n",
            _ => "192.0.2.0/24\n",
        }
        .to_owned())
    });
    let policy = policy.expect("valid");
    assert_eq!(asked, ["names.txt", "more.txt", "ranges.txt"]);
    assert!(
        policy
            .files()
            .iter()
            .eq(["more.txt", "names.txt", "ranges.txt"])
    );
    for (name, rule) in [
        ("x.A.example", Some("listed")),
        ("b.example", Some("listed")),
        ("c.example", Some("listed")),
        ("a.example", None),
    ] {
        assert_eq!(rule_of(&policy, &to(name, 443)).as_deref(), rule, "{name}");
    }
    let address = FlowFacts {
        address: Some([192, 0, 2, 9].into()),
        ..FlowFacts::default()
    };
    assert_eq!(rule_of(&policy, &address).as_deref(), Some("ranges"));
    // Two lists that nobody has read are not the same.
    let others = LISTS
        .replace("ranges.txt", "others.txt")
        .replace("'ranges'", "'others'");
    assert!(
        Policy::parse(&(others + "[[rule]]\nname = 'x'\nredundant = true\naddress-file = 'y'"))
            .is_ok()
    );
}

#[test]
fn a_faulty_list_or_source_is_told_with_its_line() {
    let mut read = |name: &str| match name {
        "bad.txt" => Ok("a.example\n\nb c\n".to_owned()),
        name => Err(format!("there is no {name}")),
    };
    let rule = "[[rule]]\nname = 'x'\nredundant = true\n";
    for (line, expected) in [
        (
            "domain-file = 'bad.txt'",
            "line 4: domain-file = \"bad.txt\": line 3: \"b c\"",
        ),
        (
            "address-file = 'none.txt'",
            "line 4: address-file = \"none.txt\": there is no none.txt",
        ),
        ("domain-file = '../etc/x'", "without a directory"),
        ("domain-file = ''", "without a directory"),
        ("source = 'aa:bb:cc:dd:ee'", "a card's address"),
        ("source = 'ten'", "a card's address"),
        (
            "source = '10.0.0.1'\ninbound = true",
            "source and inbound contradict",
        ),
        (
            "source = '10.0.0.1'\nprocess = 'a'",
            "source and process contradict",
        ),
    ] {
        let text = format!("{rule}{line}");
        let error = Policy::parse_with(&text, &mut read).expect_err(line);
        assert!(error.to_string().contains(expected), "{line} gives {error}");
    }
    let many: String = (0..33).map(|n| format!("'{n}.txt', ")).collect();
    let error = Policy::parse(&format!("{rule}domain-file = [{many}]")).expect_err("too many");
    assert!(error.to_string().contains("more than 32 files"), "{error}");
}
