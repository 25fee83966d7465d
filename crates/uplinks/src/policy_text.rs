//! The policy file, as control clients read and replace it.

use std::io;
use std::path::{Path, PathBuf};

use tabane_control::{LinkEntry, LinkEntryChange, PolicyFile, PolicyRefusal};
use tabane_policy::Policy;

use crate::policy_edit::{self, LinkSelector};
use tabane_store::{POLICY_FILE, Store, write_policy};

/// The policy file beside the other settings.
#[derive(Debug, Clone)]
pub struct PolicyTextFile {
    path: PathBuf,
}

impl PolicyTextFile {
    /// The one that is followed with this store.
    pub fn of(store: &Store) -> Self {
        Self {
            path: store.root().join(POLICY_FILE),
        }
    }
}

impl PolicyFile for PolicyTextFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> io::Result<String> {
        match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read,
        }
    }

    fn replace(&self, text: &str) -> Result<(), PolicyRefusal> {
        check(text)?;
        write_policy(&self.path, text)
            .map_err(|error| PolicyRefusal::NotWritten(format!("{error:#}")))
    }

    fn runs_nothing_new(&self, old: &str, new: &str) -> bool {
        // Of a faulty file nothing is in force, and a faulty one is not taken.
        let [old, new] = [old, new].map(|text| Policy::parse(text).unwrap_or_default());
        let mut new = new.reactions().iter().map(|it| &it.run);
        new.all(|run| run.is_empty() || old.reactions().iter().any(|it| it.run == *run))
    }

    fn links(&self, text: &str) -> Vec<LinkEntry> {
        policy_edit::entries(text)
    }

    fn with_link(&self, text: &str, change: &LinkEntryChange) -> Result<String, PolicyRefusal> {
        check(text)?;
        let entry = &change.entry;
        let selector = LinkSelector {
            name: entry.name.as_deref(),
            kind: entry.kind.as_deref(),
        };
        let edited = match change.forget {
            true => policy_edit::unset(text, selector),
            false => policy_edit::set(text, selector, policy_edit::values(entry)),
        };
        edited.map_err(|error| PolicyRefusal::Unsound(format!("{error:#}")))
    }
}

fn check(text: &str) -> Result<Policy, PolicyRefusal> {
    Policy::parse(text).map_err(|error| PolicyRefusal::Unsound(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: &str = r#"# my links

[[link]]
name = "wlan0" # the good one
weight = 0.50 # half
budget = "5GB/month"

[[rule]]
name = "backups" # at night
never = "usb*"

[[link]] # phones
name = "usb*"
kind = "cellular"
"#;

    fn file() -> PolicyTextFile {
        PolicyTextFile {
            path: PathBuf::from("/nonexistent/policy.toml"),
        }
    }

    fn change(entry: LinkEntry) -> LinkEntryChange {
        LinkEntryChange {
            entry,
            forget: false,
            was: None,
        }
    }

    fn named(name: &str) -> LinkEntry {
        LinkEntry {
            name: Some(name.to_owned()),
            ..LinkEntry::default()
        }
    }

    #[test]
    fn a_command_that_was_not_there_is_new_wherever_it_stands() {
        let run = |program: &str| format!("[[on-event]]\nrun = [{program:?}, \"x\"]\n");
        let (one, two) = (run("/bin/one"), run("/bin/two"));
        let file = file();
        assert!(file.runs_nothing_new(&one, &format!("# moved\n{one}")));
        assert!(file.runs_nothing_new(&one, MINE));
        assert!(!file.runs_nothing_new(&one, &two));
        assert!(!file.runs_nothing_new("no toml", &two));
        let longer = one.replace("\"x\"", "\"y\"");
        assert!(!file.runs_nothing_new(&one, &longer));
    }

    #[test]
    fn one_entry_changes_and_all_else_stays_to_the_letter() {
        let file = file();
        let links = file.links(MINE);
        assert_eq!((links[0].line, links[1].line), (Some(3), Some(12)));
        assert_eq!(
            file.with_link(MINE, &change(links[0].clone())).unwrap(),
            MINE
        );
        let entry = LinkEntry {
            weight: Some(0.75),
            down: Some("20mbit".to_owned()),
            ..named("wlan0")
        };
        let changed = file.with_link(MINE, &change(entry)).unwrap();
        let expected = MINE
            .replace("0.50", "0.75")
            .replace("budget = \"5GB/month\"", "down = \"20mbit\"");
        assert_eq!(changed, expected);
        // One for links of a kind is another one.
        let added = file.with_link(MINE, &change(named("usb*"))).unwrap();
        let names: Vec<_> = file.links(&added).into_iter().map(|it| it.name).collect();
        assert_eq!(
            names,
            ["usb*", "wlan0", "usb*"].map(|it| Some(it.to_owned()))
        );
        for kept in ["# my links", "# half", "# at night", "# phones"] {
            assert!(added.contains(kept), "{added}");
        }
        let forget = LinkEntryChange {
            forget: true,
            ..change(named("usb*"))
        };
        let forgotten = file.with_link(&added, &forget).unwrap();
        assert_eq!(file.links(&forgotten).len(), 2, "{forgotten}");
        assert!(
            file.with_link(MINE, &forget).is_err(),
            "it says nothing of them"
        );
    }

    #[test]
    fn what_the_check_refuses_is_refused_in_its_words() {
        let file = file();
        for (entry, text) in [
            (
                LinkEntry {
                    weight: Some(1.5),
                    ..named("wlan0")
                },
                MINE.replace("0.50", "1.5"),
            ),
            (
                LinkEntry {
                    weight: Some(-1.0),
                    ..named("usb0")
                },
                "[[link]]\nname = \"usb0\"\nweight = -1.0\n".to_owned(),
            ),
            (
                LinkEntry {
                    priority: Some(16),
                    ..named("usb0")
                },
                "[[link]]\nname = \"usb0\"\npriority = 16\n".to_owned(),
            ),
            (
                LinkEntry {
                    usage: Some("now".to_owned()),
                    ..named("usb0")
                },
                "[[link]]\nname = \"usb0\"\nuse = \"now\"\n".to_owned(),
            ),
            (
                LinkEntry {
                    budget: Some("5GB".to_owned()),
                    ..named("usb0")
                },
                "[[link]]\nname = \"usb0\"\nbudget = \"5GB\"\n".to_owned(),
            ),
            (
                LinkEntry {
                    up: Some("fast".to_owned()),
                    ..named("usb0")
                },
                "[[link]]\nname = \"usb0\"\nup = \"fast\"\n".to_owned(),
            ),
        ] {
            let Err(PolicyRefusal::Unsound(told)) = file.with_link(MINE, &change(entry)) else {
                panic!("taken: {text}");
            };
            assert_eq!(told, Policy::parse(&text).unwrap_err().to_string());
        }
        for (faulty, entry) in [
            ("[[link]]\nweigth = 1", named("usb0")),
            ("link = [{ name = \"usb0\" }]", named("usb0")),
            ("", LinkEntry::default()),
        ] {
            assert!(file.with_link(faulty, &change(entry)).is_err(), "{faulty}");
        }
    }
}
