//! `tabane sim` as a user meets it: what it prints and draws, and what it says of bad input.
//! Nothing here needs privilege or a network.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tabane-sim-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tabane"))
        .arg("sim")
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line that a failure prints, and its status.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = sim(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "one line: {text:?}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), text)
}

#[test]
fn a_run_is_told_drawn_and_repeated() {
    let directory = Directory::new();
    let svg = directory.path("run.svg");
    let arguments = ["run", "unequal", "--seconds", "3", "--json", "--svg", &svg];
    let text = stdout(&arguments);
    assert_eq!(text, stdout(&arguments), "the same seed gives the same run");
    let run: Value = serde_json::from_str(&text).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let share = number(&run["goodput_bps"]) / number(&run["links_bps"]);
    assert!((0.8..0.97).contains(&share), "{share}");
    let series = &run["series"];
    let moments = series["seconds"].as_array().unwrap().len();
    assert_eq!(moments, 30);
    for curve in ["goodput_bps", "held_bytes"] {
        assert_eq!(series[curve].as_array().unwrap().len(), moments, "{curve}");
    }
    let links = series["links"].as_array().unwrap();
    assert_eq!(links.len(), run["links"].as_array().unwrap().len());
    for curve in ["carried_bps", "rtt_ms", "queued_bytes"] {
        assert_eq!(
            links[0][curve].as_array().unwrap().len(),
            moments,
            "{curve}"
        );
    }
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("waiting in each link") && picture.contains("Mbit/s"));

    let other = [
        "run",
        "unequal",
        "--seconds",
        "3",
        "--scheduler",
        "round-robin",
        "--upload",
    ];
    let table = stdout(&other);
    assert!(
        table.contains("unequal upload for 3 s: round-robin, "),
        "{table}"
    );
    assert!(table.contains("goodput "), "{table}");
}

#[test]
fn papers_are_listed_printed_and_drawn() {
    let list = stdout(&["paper", "list"]);
    assert_eq!(list.lines().count(), 1 + 13, "{list}");
    let directory = Directory::new();
    let svg = directory.path("table.svg");
    let text = stdout(&["paper", "sbam-table4", "--svg", &svg]);
    assert!(
        text.contains("in turn (APP1)") && text.contains("9.6"),
        "{text}"
    );
    assert!(
        fs::read_to_string(&svg)
            .unwrap()
            .contains("11 + 5.5: tabane")
    );
    let report: Value = serde_json::from_str(&stdout(&["paper", "sbam-fig9", "--json"])).unwrap();
    assert_eq!(report["panels"].as_array().unwrap().len(), 4);
    let (status, text) = failure(&["paper", "sbam-fig6"]);
    assert_eq!(status, 2);
    assert!(text.contains("`tabane sim paper list`"), "{text}");
}

#[test]
fn radio_links_are_summed_up_by_kind_and_drawn() {
    let directory = Directory::new();
    let svg = directory.path("radio.svg");
    let of_two = ["radio", "jitter", "--seeds", "3..5", "--seconds", "2"];
    let text = stdout(&[&of_two[..], &["--svg", &svg]].concat());
    let row = |name: &str| text.lines().find(|line| line.trim().starts_with(name));
    assert!(
        row("jitter").is_some_and(|row| row.contains(" 2 ")),
        "{text}"
    );
    assert!(row("walk").is_none(), "{text}");
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("fixed windows"), "{picture}");
    let report: Value =
        serde_json::from_str(&stdout(&[&of_two[..], &["--json"]].concat())).unwrap();
    assert_eq!(
        report["panels"][0]["curves"][3]["points"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let (status, text) = failure(&["radio", "--seeds", "5..3"]);
    assert!(status == 2 && text.contains("1000..1005"), "{text}");
    let (status, text) = failure(&["radio", "fog"]);
    assert!(status == 2 && text.contains("handovers"), "{text}");
}

#[test]
fn bad_scenarios_are_told_by_line_key_and_what_was_expected() {
    let head = "name = \"x\"\nwhy = \"y\"\n[[link]]\nname = \"a\"\nqueue = \"9kB\"\n";
    let cases = [
        ("speed = \"9mbit\"\n", "line 6", "speed"),
        (
            "rate = \"-9mbit\"\n",
            "line 6",
            "expected a rate such as \"50mbit\"",
        ),
        ("rate = \"9mbit\"\ndelay = 5\n", "line 7", "expected a"),
        (
            "trace = \"nowhere.down\"\n",
            "line 6",
            "`nowhere.down`: not found in",
        ),
        (
            "rate = \"9mbit\"\ntrace = \"x\"\n",
            "line 7",
            "has `trace` here and `rate` on line 6",
        ),
        (
            "rate = \"9mbit\"\n[[link.outage]]\nat = \"1s\"\nfor = \"1s\"\nevery = \"0s\"\n",
            "line 10",
            "expected a time above zero",
        ),
    ];
    let directory = Directory::new();
    for (body, line, what) in cases {
        let file = directory.file("bad.toml", &format!("{head}{body}"));
        let (status, text) = failure(&["run", &file]);
        assert_eq!(status, 1, "{text}");
        assert!(
            text.contains("bad.toml") && text.contains(line) && text.contains(what),
            "{text}"
        );
    }
    let missing = directory.path("missing.toml");
    assert!(failure(&["run", &missing]).1.contains("missing.toml"));
    assert!(failure(&["run", "twain"]).1.contains("twin"));
    assert_eq!(failure(&["run", "twin", "--receive-memory", "64"]).0, 2);
    assert_eq!(failure(&["run", "twin", "--scheduler", "fastest"]).0, 2);
    assert!(!Path::new("bad.toml").exists());
}
