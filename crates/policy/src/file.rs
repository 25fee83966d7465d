//! The policy file: entries for links, of which the first that fits decides.

use serde::{Deserialize, Deserializer};
use tabane_base::{Quantity, Rate};
use toml::Spanned;

use crate::budget::{Budget, Period};
use crate::glob;
use crate::link::{Decision, LinkFacts, LinkUse, MAX_PRIORITY};

/// A policy file that cannot be used; nothing of it is.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not TOML, an unknown key, or a value that does not fit it. The text names line, key and
    /// what was expected.
    #[error("{0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// Keys that are right one by one but not together, or out of range.
    #[error("line {line}: {what}")]
    Invalid {
        /// Where the entry begins, counted from 1.
        line: usize,
        /// What is wrong, by key.
        what: String,
    },
}

/// What the user wants of the links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    line: usize,
    table: LinkTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    link: Vec<Spanned<LinkTable>>,
}

/// As it stands in the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LinkTable {
    name: Option<String>,
    kind: Option<String>,
    #[serde(default, rename = "use")]
    usage: UseWord,
    weight: Option<f64>,
    priority: Option<u8>,
    metered: Option<bool>,
    #[serde(default, deserialize_with = "budget")]
    budget: Option<Budget>,
    budget_from: Option<u8>,
    #[serde(default, deserialize_with = "rate")]
    down: Option<Rate>,
    #[serde(default, deserialize_with = "rate")]
    up: Option<Rate>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UseWord {
    #[default]
    Normal,
    Backup,
    Never,
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let rate = Rate::parse(&text).ok_or_else(|| unexpected(&text, Rate::EXPECTED))?;
    Ok(Some(rate))
}

fn budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Budget>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let budget = Budget::parse(&text).ok_or_else(|| unexpected(&text, Budget::EXPECTED))?;
    Ok(Some(budget))
}

fn unexpected<E: serde::de::Error>(text: &str, expected: &'static str) -> E {
    E::invalid_value(serde::de::Unexpected::Str(text), &expected)
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// [`PolicyError`], naming line, key and what was expected.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let file: File = toml::from_str(text).map_err(Box::new)?;
        let entry = |table: Spanned<LinkTable>| {
            let before = &text.as_bytes()[..table.span().start.min(text.len())];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            let table = table.into_inner();
            match table.fault() {
                Some(what) => Err(PolicyError::Invalid { line, what }),
                None => Ok(Entry { line, table }),
            }
        };
        let entries = file.link.into_iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// How a link is to be used: what the first entry that fits it says.
    #[must_use]
    pub fn decide(&self, link: &LinkFacts<'_>) -> Decision {
        let default = Decision::unmentioned(link);
        let Some(Entry { line, table }) = self.entries.iter().find(|entry| entry.table.fits(link))
        else {
            return default;
        };
        let metered = table.metered.unwrap_or(default.metered);
        Decision {
            usage: match table.usage {
                UseWord::Normal => LinkUse::Normal,
                UseWord::Backup => LinkUse::Backup,
                UseWord::Never => LinkUse::Never,
            },
            weight: table.weight.unwrap_or(1.0),
            priority: table.priority.unwrap_or_else(|| u8::from(metered)),
            metered,
            budget: table.budget(),
            down: table.down,
            up: table.up,
            line: Some(*line),
        }
    }
}

impl LinkTable {
    fn fits(&self, link: &LinkFacts<'_>) -> bool {
        let is_named = self
            .name
            .as_ref()
            .is_none_or(|name| glob::fits(name, link.name));
        is_named
            && self
                .kind
                .as_ref()
                .is_none_or(|kind| glob::fits(kind, link.kind))
    }

    fn budget(&self) -> Option<Budget> {
        let mut budget = self.budget?;
        if let (Period::Month { from }, Some(day)) = (&mut budget.period, self.budget_from) {
            *from = day;
        }
        Some(budget)
    }

    /// What does not fit together, or no range.
    fn fault(&self) -> Option<String> {
        if let Some(weight) = self.weight
            && !(0.0..=1.0).contains(&weight)
        {
            return Some(format!("weight = {weight}: expected a share from 0 to 1"));
        }
        if let Some(priority) = self.priority
            && priority > MAX_PRIORITY
        {
            return Some(format!(
                "priority = {priority}: expected 0 to {MAX_PRIORITY}"
            ));
        }
        if self.priority.is_some() && self.usage != UseWord::Normal {
            return Some("priority: only links with use = \"normal\" have one".into());
        }
        let zero = [("down", self.down), ("up", self.up)];
        if let Some((key, _)) = zero.iter().find(|(_, rate)| *rate == Some(Rate::ZERO)) {
            return Some(format!("{key}: nothing would pass; say use = \"never\""));
        }
        match (self.budget_from, self.budget.map(|budget| budget.period)) {
            (None, _) => None,
            (Some(1..=31), Some(Period::Month { .. })) => None,
            (Some(1..=31), _) => Some("budget-from: goes with a budget per month".into()),
            (Some(day), _) => Some(format!("budget-from = {day}: expected a day from 1 to 31")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::*;

    const WIFI: LinkFacts<'_> = LinkFacts {
        name: "wlan0",
        kind: "wifi",
        metered: None,
    };
    const PHONE: LinkFacts<'_> = LinkFacts {
        name: "usb0",
        kind: "ethernet",
        metered: Some(true),
    };

    #[test]
    fn without_entries_everything_is_used_and_metered_links_when_needed() {
        let policy = Policy::parse("").expect("empty");
        let wifi = policy.decide(&WIFI);
        assert_eq!(
            (wifi.usage, wifi.weight, wifi.priority),
            (LinkUse::Normal, 1.0, 0)
        );
        let phone = policy.decide(&PHONE);
        assert_eq!((phone.priority, phone.metered, phone.line), (1, true, None));
    }

    #[test]
    fn the_first_entry_that_fits_decides() {
        let text = r#"
            [[link]]
            name = "usb*"
            metered = true
            budget = "5GB/month"
            budget-from = 15
            down = "20mbit"
            up = "512kbit"
            [[link]]
            kind = "wifi"
            weight = 0.5
            priority = 3
            [[link]]
            use = "never"
        "#;
        let policy = Policy::parse(text).expect("valid");
        let phone = policy.decide(&PHONE);
        let budget = Budget {
            amount: Bytes::mega(5_000),
            period: Period::Month { from: 15 },
        };
        assert_eq!(phone.budget, Some(budget));
        assert_eq!(
            (phone.line, phone.down),
            (Some(2), Some(Rate::from_mbps(20)))
        );
        let wifi = policy.decide(&WIFI);
        assert_eq!((wifi.weight, wifi.priority, wifi.line), (0.5, 3, Some(9)));
        let other = LinkFacts {
            name: "eth0",
            kind: "ethernet",
            metered: None,
        };
        assert_eq!(policy.decide(&other).usage, LinkUse::Never);
    }

    #[test]
    fn faults_name_line_and_key_and_what_was_expected() {
        for (text, expected) in [
            ("[[link]]\nweigth = 1", "line 2"),
            ("[[link]]\nweigth = 1", "weigth"),
            ("\n[[link]]\nweight = 1.5", "line 2: weight = 1.5: expected"),
            ("[[link]]\nweight = -0.1", "from 0 to 1"),
            ("[[link]]\ndown = \"-5mbit\"", "a rate such as"),
            ("[[link]]\ndown = \"0mbit\"", "never"),
            ("[[link]]\nbudget = \"5GB\"", "per day or month"),
            (
                "[[link]]\nbudget = \"5GB/day\"\nbudget-from = 3",
                "per month",
            ),
            (
                "[[link]]\nbudget = \"5GB/month\"\nbudget-from = 32",
                "1 to 31",
            ),
            ("[[link]]\npriority = 16", "0 to 15"),
            ("[[link]]\npriority = 1\nuse = \"backup\"", "normal"),
            ("[[link]]\nuse = \"sometimes\"", "normal"),
            ("[link]\nname = \"x\"", "line 1"),
        ] {
            let error = Policy::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?} gives {error:?}");
        }
    }

    #[test]
    fn a_decision_reads_as_a_sentence() {
        let policy = Policy::parse("[[link]]\nweight = 0.25\nbudget = \"1GB/day\"").expect("valid");
        assert_eq!(
            policy.decide(&PHONE).to_string(),
            "used when priorities below 1 cannot carry the demand, 25 % of it, \
             1.00 GB per day, metered"
        );
    }
}
