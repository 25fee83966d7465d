//! What the user wants done when something happens to a link or to the relay: an `[[on-event]]`.
//!
//! Owns which triggers there are, and what an entry says. When one has come, and how a command is
//! run, is the affair of whoever watches.

use std::fmt;
use std::net::SocketAddr;

use crate::glob;
use crate::reader::{Fields, Reader, number};

/// The most entries of the kind in one file.
const MAX_REACTIONS: usize = 32;
/// How often in a minute an entry acts that says nothing of it.
const USUAL_PER_MINUTE: u16 = 20;
/// More often than this is no news.
const MOST_PER_MINUTE: u16 = 600;

const KEYS: [&str; 5] = ["event", "link", "run", "post", "per-minute"];

/// What may happen that somebody wants to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// A link carries data, at the start or again.
    LinkUp,
    /// A link that carried data carries none any more.
    LinkDown,
    /// Four fifths of a link's budget are used.
    BudgetLow,
    /// A link's budget is spent.
    BudgetSpent,
    /// The relay is not reached over any link.
    RelayLost,
    /// The relay is reached again.
    RelayBack,
    /// Something else carries a link's packets.
    CarrierChanged,
}

/// One `[[on-event]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// Where it stands in the file.
    pub line: usize,
    /// For what; empty: for all.
    triggers: Vec<Trigger>,
    /// For which links; `None`: for all, and for what concerns none.
    link: Option<String>,
    /// The program by its whole path, and its arguments; empty where nothing is run.
    pub run: Vec<String>,
    /// Where it is told to by HTTP.
    pub post: Option<Post>,
    /// How often in a minute it acts at most.
    pub per_minute: u16,
}

/// A web hook on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// A loopback address.
    pub address: SocketAddr,
    /// Path and query, from the slash on.
    pub path: String,
}

impl Trigger {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::LinkUp,
        Self::LinkDown,
        Self::BudgetLow,
        Self::BudgetSpent,
        Self::RelayLost,
        Self::RelayBack,
        Self::CarrierChanged,
    ];

    /// As policy files and commands know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinkUp => "link-up",
            Self::LinkDown => "link-down",
            Self::BudgetLow => "budget-low",
            Self::BudgetSpent => "budget-spent",
            Self::RelayLost => "relay-lost",
            Self::RelayBack => "relay-back",
            Self::CarrierChanged => "carrier-changed",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == text)
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Post {
    const EXPECTED: &'static str = "an address of this machine: http://127.0.0.1:PORT/PATH";

    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let address: SocketAddr = authority.parse().ok()?;
        // What a request line may hold; a fragment stays with whoever shows the page.
        let is_sound = path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
        (address.ip().is_loopback() && address.port() != 0 && is_sound).then(|| Self {
            address,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

impl Reaction {
    /// Whether it is for this, of this link or of none.
    #[must_use]
    pub fn fits(&self, trigger: Trigger, link: Option<&str>) -> bool {
        let is_of_link = match (&self.link, link) {
            (None, _) => true,
            (Some(pattern), Some(link)) => glob::fits(pattern, link),
            (Some(_), None) => false,
        };
        is_of_link && (self.triggers.is_empty() || self.triggers.contains(&trigger))
    }

    pub(crate) fn read(reader: &mut Reader<'_>, mut fields: Fields<'_>) -> Option<Self> {
        let before = reader.faults.len();
        let fields = &mut fields;
        let names = Trigger::ALL.map(|it| format!("{:?}", it.name())).join(", ");
        let triggers = reader.list(fields, "event", &format!("one of {names}"), |value| {
            Trigger::parse(value.as_str()?)
        });
        let run = reader.list(fields, "run", "a text in quotes", |value| {
            let text = value.as_str()?;
            (!text.contains('\0')).then(|| text.to_owned())
        });
        let rate = format!("1 to {MOST_PER_MINUTE}");
        let reaction = Self {
            line: fields.line,
            triggers: triggers.unwrap_or_default(),
            link: reader.text(fields, "link"),
            run: run.unwrap_or_default(),
            post: reader.value(fields, "post", Post::EXPECTED, |value| {
                Post::parse(value.as_str()?)
            }),
            per_minute: reader
                .value(fields, "per-minute", &rate, |value| {
                    number(value).filter(|n| (1..=MOST_PER_MINUTE).contains(n))
                })
                .unwrap_or(USUAL_PER_MINUTE),
        };
        reader.finish_fields(fields, &KEYS);
        if reader.faults.len() == before {
            reaction.check_together(reader);
        }
        (reader.faults.len() == before).then_some(reaction)
    }

    fn check_together(&self, reader: &mut Reader<'_>) {
        let program = self.run.first();
        if program.is_none() && self.post.is_none() {
            let what = "on-event: nothing is done; write run = [\"/PATH/TO/PROGRAM\"] or \
                        post = \"http://127.0.0.1:PORT/PATH\"";
            reader.fault(self.line, what);
        }
        // Which program a name means would be up to an environment that nobody sees.
        if let Some(program) = program.filter(|program| !program.starts_with('/')) {
            let what = format!(
                "run: {program:?} is looked for nowhere; write its whole path, and each argument \
                 by itself: run = [\"/usr/bin/PROGRAM\", \"ARGUMENT\"]"
            );
            reader.fault(self.line, what);
        }
    }
}

/// What is wrong with entries that are right one by one.
pub(crate) fn check_together(reader: &mut Reader<'_>, reactions: &[Reaction]) {
    if let Some(one) = reactions.get(MAX_REACTIONS) {
        let what = format!("on-event: more than {MAX_REACTIONS}; one entry may name many events");
        reader.fault(one.line, what);
    }
}

#[cfg(test)]
mod tests {
    use crate::file::Policy;

    use super::*;

    #[test]
    fn an_entry_says_what_for_and_what_is_done() {
        let policy = Policy::parse(
            r#"
            [[on-event]]
            event = ["link-down", "relay-lost"]
            run = ["/usr/bin/logger", "-t", "links"]

            [[on-event]]
            event = "budget-low"
            link = "usb*"
            post = "http://[::1]:8123/hook?of=tabane"
            per-minute = 2
            "#,
        )
        .expect("valid");
        let [tell, hook] = policy.reactions() else {
            panic!("two entries: {policy:?}");
        };
        assert_eq!((tell.line, tell.run.len(), tell.per_minute), (2, 3, 20));
        assert!(tell.fits(Trigger::RelayLost, None));
        assert!(tell.fits(Trigger::LinkDown, Some("wlan0")));
        assert!(!tell.fits(Trigger::LinkUp, Some("wlan0")));
        assert!(hook.fits(Trigger::BudgetLow, Some("usb1")));
        assert!(!hook.fits(Trigger::BudgetLow, Some("wlan0")));
        let post = hook.post.as_ref().expect("a hook");
        assert_eq!(post.to_string(), "http://[::1]:8123/hook?of=tabane");
        assert_eq!(hook.per_minute, 2);
        let all = Policy::parse("[[on-event]]\nrun = \"/bin/true\"").expect("valid");
        let fits = |it| all.reactions()[0].fits(it, Some("wlan0"));
        assert!(Trigger::ALL.into_iter().all(fits));
    }

    #[test]
    fn faults_name_the_line_and_what_to_write() {
        for (text, expected) in [
            (
                "\nevent = \"link-dead\"",
                "line 2: event = \"link-dead\": expected one of",
            ),
            (
                "\nrun = \"notify\"",
                "line 1: run: \"notify\" is looked for nowhere; write its",
            ),
            (
                "\nrun = [\"/bin/true\", 1]",
                "line 2: run = 1: expected a text",
            ),
            ("\nrun = []", "write run ="),
            ("\nevent = \"link-up\"", "write run ="),
            (
                "\npost = \"http://192.0.2.1:80/\"",
                "http://127.0.0.1:PORT/PATH",
            ),
            (
                "\npost = \"https://127.0.0.1:80/\"",
                "http://127.0.0.1:PORT/PATH",
            ),
            (
                "\npost = \"http://127.0.0.1/\"",
                "http://127.0.0.1:PORT/PATH",
            ),
            (
                "\npost = \"http://127.0.0.1:80/a b\"",
                "http://127.0.0.1:PORT/PATH",
            ),
            ("\nrun = \"/bin/true\"\nper-minute = 0", "1 to 600"),
            ("\nrun = \"/bin/true\"\nonce = true", "once: unknown key"),
        ] {
            let text = format!("[[on-event]]{text}");
            let error = Policy::parse(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text:?} gives {error:?}");
        }
        let many = "[[on-event]]\nrun = \"/bin/true\"\n".repeat(MAX_REACTIONS + 1);
        let error = Policy::parse(&many).expect_err("too many").to_string();
        assert!(error.contains("line 65: on-event: more than 32"), "{error}");
    }
}
