//! What a file means, and what is said of a file that is wrong.

use super::*;
use crate::loss::{LossModel, Probability};

#[test]
fn a_file_with_everything_reads() {
    let text = r#"
        name = "all"
        why = "test"
        duration = "5s"
        [[link]]
        name = "sat"
        rate = { down = "100mbit", up = "5.5mbit" }
        delay = "25ms"
        jitter = { down = "1ms", up = "0ms" }
        queue = "500kB"
        loss = { both = { good_to_bad = "1%", bad_to_good = "20%", loss_bad = "50%" } }
        change = [{ at = "15s", every = "30s", rate = "60mbit" }]
        [[link.outage]]
        at = "15s"
        for = "100ms"
        every = "15s"
        [[link]]
        name = "lte"
        trace = { down = "x.down", up = { file = "x.down", reversed = true } }
        queue = "300kB"
    "#;
    let mut asked = Vec::new();
    let scenario = Scenario::parse(text, None, &mut |name| {
        asked.push(name.to_owned());
        Ok("1\n2\n4".to_owned())
    })
    .unwrap();
    let p = |value| Probability::new(value).unwrap();
    let sat = &scenario.links[0];
    assert_eq!(sat.up.mean_rate(), Rate::from_bps(5_500_000));
    assert_eq!(sat.down.jitter, Duration::from_millis(1));
    let bursts = LossModel::GilbertElliott {
        good_to_bad: p(0.01),
        bad_to_good: p(0.2),
        loss_good: p(0.0),
        loss_bad: p(0.5),
    };
    assert_eq!((sat.up.loss, sat.down.loss), (bursts, bursts));
    assert_eq!(sat.down.changes[0].every, Some(Duration::from_secs(30)));
    assert_eq!(sat.down.outages[0].lasts, Duration::from_millis(100));
    let RateModel::Trace(up) = &scenario.links[1].up.rate else {
        panic!("a trace was asked for")
    };
    assert_eq!(**up, Trace::parse("1\n3\n4").unwrap());
    assert_eq!(asked.len(), 2);
}

#[test]
fn variants_pick_links_by_name() {
    let text = r#"
        name = "v"
        why = "test"
        link = [
          { name = "a", rate = "1mbit", queue = "30kB" },
          { name = "b", rate = "2mbit", queue = "30kB" },
        ]
        variant = [{ name = "aa", links = ["a", "a"] }, { name = "ab", links = ["a", "b"] }]
    "#;
    let all = Scenario::parse_all(text, &mut no_trace).unwrap();
    let names: Vec<_> = all.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["v/aa", "v/ab"]);
    assert_eq!(all[0].rate_down(), Rate::from_mbps(2));
    let one = Scenario::parse(text, Some("ab"), &mut no_trace).unwrap();
    assert_eq!(one.links[1].name, "b");
    let error = Scenario::parse(text, None, &mut no_trace).unwrap_err();
    assert!(error.to_string().contains("v/aa, v/ab"), "{error}");
}

#[test]
fn errors_name_line_key_and_what_was_expected() {
    let link = "name = \"n\"\nwhy = \"w\"\n[[link]]\nname = \"a\"\n";
    let cases = [
        ("rate = \"50mb\"", ["line 5", "rate", "such as \"50mbit\""]),
        (
            "rate = 50",
            ["line 5", "rate", "expected a string, or a table"],
        ),
        ("speed = \"50mbit\"", ["line 5", "speed", "expected one of"]),
        (
            "rate = { down = \"1mbit\" }",
            ["line 5", "rate", "expected `down` and `up`"],
        ),
        ("rate = \"1mbit\"", ["line 5", "queue", "expected a size"]),
        ("loss = \"200%\"", ["line 5", "loss", "from 0% to 100%"]),
        (
            "loss = { both = { good = \"1%\" } }",
            ["line 5", "good", "good_to_bad"],
        ),
        (
            "trace = \"t\"\nqueue = \"1kB\"",
            ["line 5", "`trace` of link `a`: `t`", "not here"],
        ),
        (
            "[[link.outage]]\nat = \"1s\"",
            ["line 5", "missing field", "for"],
        ),
        ("[[link]]\nname = \"a\"", ["line 6", "two links", "`a`"]),
        (
            "rate = \"1mbit\"\nqueue = \"1kB\"\ntrace = \"t\"",
            [
                "line 7",
                "`trace` here and `rate` on line 5",
                "expected one",
            ],
        ),
        (
            "trace = \"t\"\nrate = \"1mbit\"",
            [
                "line 6",
                "`rate` here and `trace` on line 5",
                "expected one",
            ],
        ),
        (
            "[[variant]]\nname = \"v\"\nlinks = [\n\"a\",\n\"b\"]",
            ["line 9", "`links` names `b`", "expected a"],
        ),
    ];
    for (rest, words) in cases {
        let error = Scenario::parse(&format!("{link}{rest}\n"), None, &mut no_trace)
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(error.contains(word), "{rest}: no {word:?} in:\n{error}");
        }
    }
}

#[test]
fn schedules_that_contradict_themselves_name_both_lines() {
    let link = "name = \"n\"\nwhy = \"w\"\n[[link]]\nname = \"a\"\nqueue = \"9kB\"\n";
    let change = |rest: &str| format!("[[link.change]]\nat = \"6s\"\n{rest}\n");
    let outage = |at: &str, lasts: &str, every: &str| {
        format!("[[link.outage]]\nat = \"{at}\"\nfor = \"{lasts}\"\n{every}\n")
    };
    let periodic = "every = \"3s\"";
    let cases = [
        (
            change(""),
            ["line 7", "alters nothing", "expected `rate`, `delay`"],
        ),
        (
            change("every = \"0s\""),
            ["line 8", "`every` is 0", "above zero"],
        ),
        (
            change("rate = \"1mbit\"") + &change("rate = \"2mbit\""),
            [
                "line 10",
                "`rate` is set here",
                "line 7 at the same time, 6s",
            ],
        ),
        (
            // The second meets the first when that has happened three times more.
            outage("1s", "1s", periodic) + &outage("10500ms", "1s", ""),
            ["line 11", "line 7 overlap", "expected `at`, `for`"],
        ),
        (
            outage("1s", "0s", ""),
            ["line 8", "`for` is 0", "above zero"],
        ),
        (
            outage("1s", "3s", periodic),
            ["line 9", "would never end", "longer than `for`"],
        ),
    ];
    for (rest, words) in cases {
        let error = Scenario::parse(&format!("{link}{rest}"), None, &mut no_trace)
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(error.contains(word), "{rest}: no {word:?} in:\n{error}");
        }
    }
    let fine = change("rate = \"1mbit\"")
        + &change("delay = \"1ms\"")
        + &outage("1s", "1s", periodic)
        + &outage("2s", "1s", periodic);
    Scenario::parse(&format!("{link}{fine}"), None, &mut no_trace).unwrap();
}

/// The project's own files.
#[test]
#[expect(clippy::disallowed_methods, reason = "the files are what is tested")]
fn every_scenario_of_the_project_reads() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let trace = &mut |_: &str| Ok("1\n2\n".to_owned());
        let all = Scenario::parse_all(&text, trace)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for scenario in all {
            assert_eq!(scenario.name.split('/').next(), Some(stem.as_str()));
        }
        seen.push(stem);
    }
    assert!(seen.len() >= 20, "{seen:?}");
}

fn no_trace(_: &str) -> Result<String, String> {
    Err("not here".to_owned())
}

#[test]
fn a_radio_link_is_made_by_seed_and_decides_everything() {
    let text = |rest: &str| {
        let head = "name = \"x\"\nwhy = \"x\"\n[[link]]\nname = \"a\"\nradio = ";
        format!("{head}{rest}\n")
    };
    let read = |rest: &str| Scenario::parse(&text(rest), None, &mut no_trace);
    let scenario = read("\"walk/7\"\nloss = \"1%\"").unwrap();
    let radio: crate::Radio = "walk/7".parse().unwrap();
    assert_eq!(scenario.links[0].down.rate, radio.link().down.rate);
    assert_ne!(scenario.links[0].down.loss, LossModel::None);
    for (rest, words) in [
        ("\"run/7\"", ["line 5", "walk"]),
        ("\"walk/7\"\ndelay = \"1ms\"", ["line 5", "decides `delay`"]),
        ("\"walk/7\"\nqueue = \"9kB\"", ["line 5", "decides `queue`"]),
    ] {
        let error = read(rest).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{rest}: no {word:?} in:\n{error}");
        }
    }
    let shaped = "name = \"x\"\nwhy = \"x\"\n[[link]]\nname = \"a\"\njitter = \"5ms\"\n\
                  jitter_shape = \"spikes\"";
    let scenario = Scenario::parse(shaped, None, &mut no_trace).unwrap();
    assert_eq!(
        scenario.links[0].up.jitter_shape,
        crate::JitterShape::Spikes
    );
}
