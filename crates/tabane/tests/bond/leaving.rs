//! A link that is not to be used any more is left within 200 ms, in every mode: what its interface
//! carries is looked at until nothing more comes, while another link goes on.
//!
//! Shared by the tests of all modes (`#[path]`), with `asking`; knows none of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::asking::{ask, await_told};

/// Until a link has carried its last, from the moment when something is done to it.
const LEFT: Duration = Duration::from_millis(200);
/// One of so many tries has to be in time: on a busy machine any may come late, and no fault of
/// ours comes late but now and then.
const TRIES: usize = 4;
/// What is said on a link that is not used: whether it is still there.
const HARDLY_ANYTHING: u64 = 15_000;
/// So much by the other link, and the link was left.
const GOES_ON: u64 = 1_500_000;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const METERED: (&str, &str) = ("metered = true", "metered");
/// What the policy may say of a link, and what is said of the link then. In the last, traffic ends
/// the budget.
pub(crate) const ENTRIES: [(&str, &str); 3] = [
    METERED,
    ("use = 'never'", "says never"),
    ("budget = '100kB/month'", "used up"),
];

/// Two links of a namespace's, and the file that says what they are for.
pub(crate) struct Leaving<'a> {
    /// A process within, whose table of interfaces is read.
    pub(crate) pid: u32,
    /// The one to be left, and the one that goes on.
    pub(crate) links: [&'a str; 2],
    /// The directory of policy and accounts.
    pub(crate) settings: PathBuf,
    /// Entries of the policy that stand there anyway.
    pub(crate) policy: String,
    /// `tabane links` within.
    pub(crate) list: &'a dyn Fn() -> Command,
}

impl Leaving<'_> {
    /// What both links have carried so far, both ways.
    fn carried(&self) -> [u64; 2] {
        let table = fs::read_to_string(format!("/proc/{}/net/dev", self.pid)).unwrap();
        self.links.map(|link| {
            let of_link = |line: &str| line.trim().strip_prefix(link)?.strip_prefix(':').map(sum);
            table.lines().find_map(of_link).unwrap_or_default()
        })
    }

    fn await_both(&self, what: &str) {
        let (before, deadline) = (self.carried(), Instant::now() + PATIENCE);
        let carries = |(now, before): (u64, u64)| now - before > 10 * HARDLY_ANYTHING;
        while !self.carried().into_iter().zip(before).all(carries) {
            assert!(Instant::now() < deadline, "{what}: not both carry");
            std::thread::yield_now();
        }
    }

    /// When the link had carried its last; `tabane links` says this of it then.
    pub(crate) fn await_left(&self, what: &str, word: &str) -> Instant {
        let (at, deadline) = (self.await_silence(what), Instant::now() + PATIENCE);
        loop {
            let told = (self.list)().output().unwrap().stdout;
            let told = String::from_utf8(told).unwrap();
            let is_it = |line: &str| line.starts_with(self.links[0]) && line.contains(word);
            if told.lines().any(is_it) {
                return at;
            }
            assert!(Instant::now() < deadline, "{what}: {told}");
        }
    }

    fn await_silence(&self, what: &str) -> Instant {
        let deadline = Instant::now() + PATIENCE;
        let (mut last, mut last_at) = (self.carried(), Instant::now());
        loop {
            let now = self.carried();
            if now[0] > last[0] + HARDLY_ANYTHING {
                (last, last_at) = (now, Instant::now());
            } else if now[1] > last[1] + GOES_ON {
                return last_at;
            }
            assert!(Instant::now() < deadline, "{what}: {last:?}, {now:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Has the link left by `leave`, and taken again by `back`, until it was in time once. `left`
    /// waits until it is left, and says since when it was.
    pub(crate) fn try_to(
        &self,
        what: &str,
        leave: impl Fn(),
        left: impl Fn() -> Instant,
        back: impl Fn(),
    ) {
        let mut took = Vec::new();
        while took.iter().all(|it| *it > LEFT) {
            assert!(took.len() < TRIES, "{what}: {took:?}");
            self.await_both(what);
            let since = Instant::now();
            leave();
            took.push(left() - since);
            back();
        }
        println!("{what}: {took:?}");
    }

    /// The same by each of these entries; `await_told` waits until this is said elsewhere, too, and
    /// `again` lets there be something to carry.
    pub(crate) fn try_entries(
        &self,
        entries: &[(&str, &str)],
        await_told: impl Fn(&str),
        again: impl Fn(),
    ) {
        for (entry, word) in entries {
            let leave = || self.set_policy(&format!("{entry}\n"));
            let left = || {
                let at = self.await_left(entry, word);
                await_told(word);
                at
            };
            let back = || {
                self.set_policy("");
                // Accounts begin anew, so that traffic ends the budget in each try.
                self.write("usage.toml", "");
                again();
            };
            self.try_to(entry, leave, left, back);
        }
    }

    /// The same by a pause that the instance with this socket is asked for.
    pub(crate) fn try_pause(&self, socket: &Path) {
        let [link, _] = self.links;
        let pause = |paused: bool| {
            let body = format!("{{\"paused\": {paused}}}");
            ask(socket, "PUT", &format!("/v1/links/{link}"), &body);
        };
        let left = || {
            let at = self.await_left("pause", "paused");
            await_told(socket, link, "paused");
            at
        };
        self.try_to("pause", || pause(true), left, || pause(false));
    }

    /// Puts the policy in force, with this in the link's entry.
    pub(crate) fn set_policy(&self, entry: &str) {
        let of_link = format!("name = '{}'\n", self.links[0]);
        let policy = &self.policy;
        let text = match policy.contains(&of_link) {
            true => policy.replace(&of_link, &(of_link.clone() + entry)),
            false if entry.is_empty() => policy.clone(),
            false => format!("{policy}[[link]]\n{of_link}{entry}"),
        };
        self.write("policy.toml", &text);
    }

    /// As editors do: nobody reads half a file.
    fn write(&self, name: &str, text: &str) {
        let path = self.settings.join(name);
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, &path).unwrap();
    }
}

/// Bytes received and sent, of what stands behind an interface's name.
fn sum(counts: &str) -> u64 {
    let counts: Vec<&str> = counts.split_whitespace().collect();
    [counts[0], counts[8]]
        .map(|count| count.parse::<u64>().unwrap())
        .iter()
        .sum()
}
