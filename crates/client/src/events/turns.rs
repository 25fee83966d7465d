//! Which entries of the policy act on what happened, and how often they may.
//!
//! Pure: the time is an argument. A link that comes and goes all day must not start a thousand
//! commands: each entry has a number of turns in a minute, and what comes beyond it is counted and
//! told with the next.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_policy::{Post, Reaction, Trigger};

use super::observer::Alert;

const MINUTE: Duration = Duration::from_secs(60);

/// The entries in force, with what each has left.
#[derive(Debug, Default)]
pub(super) struct Turns {
    reactions: Option<Rc<[Reaction]>>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    reaction: Reaction,
    /// When it acted in the last minute, oldest first; no more than it may.
    acted_at: Vec<Instant>,
    omitted: u64,
}

/// One thing to be told, by one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The entry's line in the policy file.
    pub(super) line: usize,
    pub(super) channel: Channel,
    /// What environment variables say of it.
    pub(super) facts: Vec<(&'static str, String)>,
    /// All of it, as JSON.
    pub(super) json: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Channel {
    /// A program and its arguments.
    Run(Vec<String>),
    Post(PostTo),
}

/// Where, and what: [`Post`], in an order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PostTo {
    pub(super) address: std::net::SocketAddr,
    pub(super) path: String,
}

impl Turns {
    /// These entries are in force; what is the same as before keeps its count.
    pub(super) fn renew(&mut self, now: Instant, reactions: &Rc<[Reaction]>) {
        if self
            .reactions
            .as_ref()
            .is_some_and(|old| Rc::ptr_eq(old, reactions))
        {
            return;
        }
        self.reactions = Some(reactions.clone());
        let mut old = std::mem::take(&mut self.entries);
        old.iter_mut().for_each(|entry| entry.forget(now));
        let entry = |reaction: &Reaction| {
            let place = old.iter().position(|it| it.reaction == *reaction);
            place.map_or_else(|| Entry::new(reaction), |place| old.swap_remove(place))
        };
        self.entries = reactions.iter().map(entry).collect();
    }

    /// What is to be done about it.
    pub(super) fn messages(&mut self, now: Instant, of: &Alert) -> Vec<Message> {
        let fits = |entry: &&mut Entry| entry.reaction.fits(of.event, of.link.as_deref());
        let entries = self.entries.iter_mut().filter(fits);
        entries.flat_map(|entry| entry.act(now, of)).collect()
    }
}

impl Entry {
    fn new(reaction: &Reaction) -> Self {
        Self {
            reaction: reaction.clone(),
            acted_at: Vec::new(),
            omitted: 0,
        }
    }

    fn forget(&mut self, now: Instant) {
        self.acted_at
            .retain(|at| now.saturating_duration_since(*at) < MINUTE);
    }

    fn act(&mut self, now: Instant, of: &Alert) -> Vec<Message> {
        self.forget(now);
        let line = self.reaction.line;
        if self.acted_at.len() >= usize::from(self.reaction.per_minute) {
            if self.omitted == 0 {
                let most = self.reaction.per_minute;
                tracing::warn!(
                    "policy.toml:{line}: on-event: more than {most} a minute; the rest is not told"
                );
            }
            self.omitted += 1;
            return Vec::new();
        }
        self.acted_at.push(now);
        let omitted = std::mem::take(&mut self.omitted);
        let (facts, json) = told(of, omitted);
        let run = Some(&self.reaction.run).filter(|run| !run.is_empty());
        let post = self.reaction.post.as_ref();
        let run = run.map(|run| Channel::Run(run.clone()));
        let post = post.map(|post| Channel::Post(post.into()));
        let message = |channel| Message {
            line,
            channel,
            facts: facts.clone(),
            json: json.clone(),
        };
        run.into_iter().chain(post).map(message).collect()
    }
}

impl From<&Post> for PostTo {
    fn from(post: &Post) -> Self {
        Self {
            address: post.address,
            path: post.path.clone(),
        }
    }
}

/// The same facts for the environment and as JSON.
fn told(of: &Alert, omitted: u64) -> (Vec<(&'static str, String)>, String) {
    let event: Trigger = of.event;
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let facts = [
        ("TABANE_EVENT", Some(event.name().to_owned())),
        ("TABANE_TEXT", Some(of.text.clone())),
        ("TABANE_AT_UNIX_MS", Some(of.at_unix_ms.to_string())),
        ("TABANE_INSTANCE", Some(of.instance.clone())),
        ("TABANE_LINK", of.link.clone()),
        ("TABANE_REASON", of.reason.clone()),
        ("TABANE_RELAY", of.relay.clone()),
        ("TABANE_CARRIER", of.carrier.clone()),
        ("TABANE_CARRIER_BEFORE", of.carrier_before.clone()),
        ("TABANE_BUDGET_BYTES", number(of.budget_bytes)),
        ("TABANE_USED_BYTES", number(of.used_bytes)),
        ("TABANE_RENEWS", of.renews.clone()),
        ("TABANE_OMITTED", Some(omitted.to_string())),
    ];
    // Links' names and reasons come from elsewhere; no variable holds a zero byte.
    let clean = |text: String| text.replace('\0', "");
    let facts = facts.into_iter();
    let facts = facts.filter_map(|(name, value)| Some((name, clean(value?))));
    let json = serde_json::to_value(of).and_then(|mut json| {
        json["omitted"] = omitted.into();
        serde_json::to_string(&json)
    });
    (facts.collect(), json.expect("plain values"))
}

#[cfg(test)]
mod tests {
    use tabane_policy::Policy;

    use super::super::observer::{Observer, tests::example};
    use super::*;

    fn reactions(text: &str) -> Rc<[Reaction]> {
        Policy::parse(text).expect("valid").reactions().into()
    }

    fn link_up() -> Alert {
        let found = Observer::default().observe(Instant::now(), &example());
        found.into_iter().next().expect("its links are up")
    }

    #[test]
    fn who_asked_is_told_in_every_way_that_was_asked_for() {
        let text = "[[on-event]]\nevent = \"link-down\"\nrun = \"/bin/no\"\n\
                    [[on-event]]\nrun = [\"/bin/yes\", \"x\"]\npost = \"http://127.0.0.1:1/\"";
        let mut turns = Turns::default();
        let now = Instant::now();
        turns.renew(now, &reactions(text));
        let messages = turns.messages(now, &link_up());
        assert_eq!(messages.len(), 2);
        assert_eq!(
            messages[0].channel,
            Channel::Run(vec!["/bin/yes".to_owned(), "x".to_owned()])
        );
        assert!(matches!(&messages[1].channel, Channel::Post(to) if to.path == "/"));
        assert!(messages.iter().all(|message| message.line == 4));
        let fact = |name| messages[0].facts.iter().find(|(fact, _)| *fact == name);
        assert_eq!(fact("TABANE_EVENT").expect("there").1, "link-up");
        assert_eq!(fact("TABANE_LINK").expect("there").1, "wlan0");
        assert!(fact("TABANE_BUDGET_BYTES").is_none());
    }

    #[test]
    fn what_comes_too_often_is_counted_and_told_with_the_next() {
        let file = "[[on-event]]\nrun = \"/bin/yes\"\nper-minute = 3";
        let mut turns = Turns::default();
        let start = Instant::now();
        let mut after = |seconds: u64, file: &Rc<[Reaction]>| {
            let now = start + Duration::from_secs(seconds);
            turns.renew(now, file);
            let messages = turns.messages(now, &link_up());
            let omitted = messages.first().map(|message| {
                let json: serde_json::Value = serde_json::from_str(&message.json).expect("JSON");
                json["omitted"].as_u64().expect("a number")
            });
            (messages.len(), omitted)
        };
        let first = reactions(file);
        for second in 0..3 {
            assert_eq!(after(second, &first), (1, Some(0)));
        }
        assert_eq!(after(3, &first), (0, None));
        // A file that was written anew gives nothing away.
        let again = reactions(file);
        assert_eq!(after(59, &again), (0, None));
        assert_eq!(after(60, &again), (1, Some(2)));
        assert_eq!(after(60, &again), (0, None));
    }
}
