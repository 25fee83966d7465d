//! Changing one entry of the policy file; everything else in it, comments too, stays as it is.

use std::path::Path;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tabane_policy::Policy;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::atomic_file;
use crate::failure::Failure;
use crate::output;

/// Set how a link may be used; what is not named stays as it was
///
/// A link with --priority 1 helps only while those with 0 cannot carry the demand, or are down.
#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// The link's interface, the neighbour who lends it, or a pattern such as 'usb*'
    #[arg(value_name = "LINK")]
    link: String,
    /// Whether it is used: by its priority, only while no other works, or never
    #[arg(long = "use", value_name = "HOW")]
    usage: Option<UseArg>,
    /// Which share of it may be used, 0 to 1
    #[arg(long, value_name = "SHARE")]
    weight: Option<f64>,
    /// 0 to 15: higher numbers wait until lower ones are not enough
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Whether its traffic costs by volume
    #[arg(long, value_name = "BOOL")]
    metered: Option<bool>,
    /// What it may carry in both directions, such as 5GB/month or 500MB/day
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<String>,
    /// The day on which the budget's month begins
    #[arg(long, value_name = "DAY")]
    budget_from: Option<u8>,
    /// The most towards this machine, such as 20mbit
    #[arg(long, value_name = "RATE")]
    down: Option<String>,
    /// The most from this machine
    #[arg(long, value_name = "RATE")]
    up: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UseArg {
    Normal,
    Backup,
    Never,
}

impl SetArgs {
    fn values(&self) -> Vec<(&'static str, Value)> {
        let text = |text: &String| Value::from(text.as_str());
        let number = |n: u8| Value::from(i64::from(n));
        let usage = self.usage.map(|usage| match usage {
            UseArg::Normal => "normal",
            UseArg::Backup => "backup",
            UseArg::Never => "never",
        });
        let values = [
            ("use", usage.map(Value::from)),
            ("weight", self.weight.map(Value::from)),
            ("priority", self.priority.map(number)),
            ("metered", self.metered.map(Value::from)),
            ("budget", self.budget.as_ref().map(text)),
            ("budget-from", self.budget_from.map(number)),
            ("down", self.down.as_ref().map(text)),
            ("up", self.up.as_ref().map(text)),
        ];
        let given = values.into_iter();
        given
            .filter_map(|(key, value)| Some((key, value?)))
            .collect()
    }
}

/// Changes the entry of the link, or puts a new one in front of all others, so that it decides.
pub(super) fn set(path: &Path, args: &SetArgs) -> Result<()> {
    let values = args.values();
    if values.is_empty() {
        return Err(Failure::usage("nothing to set; see `tabane policy set --help`").into());
    }
    let mut document = read(path)?;
    let entries = entries(&mut document, path)?;
    match position(entries, &args.link) {
        Some(place) => {
            if let Some(entry) = entries.get_mut(place) {
                fill(entry, values);
            }
        }
        None => {
            let mut entry = Table::new();
            entry.insert("name", Value::from(args.link.as_str()).into());
            fill(&mut entry, values);
            let mut all = ArrayOfTables::new();
            all.push(entry);
            entries.iter().for_each(|entry| all.push(unplaced(entry)));
            *entries = all;
        }
    }
    write(path, &document)
}

/// Takes the entry of the link out.
pub(super) fn unset(path: &Path, link: &str) -> Result<()> {
    let mut document = read(path)?;
    let entries = entries(&mut document, path)?;
    let Some(place) = position(entries, link) else {
        return Err(Failure::usage(format!(
            "nothing is set for '{link}' in {}; `tabane policy` shows what is",
            path.display()
        ))
        .into());
    };
    entries.remove(place);
    write(path, &document)
}

fn read(path: &Path) -> Result<DocumentMut> {
    let text = atomic_file::read(path)?.unwrap_or_default();
    // A file that is not understood is not touched.
    Policy::parse(&text).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

fn entries<'a>(document: &'a mut DocumentMut, path: &Path) -> Result<&'a mut ArrayOfTables> {
    let none = Item::ArrayOfTables(ArrayOfTables::new());
    let links = document.entry("link").or_insert(none);
    let links = links.as_array_of_tables_mut();
    links.with_context(|| format!("{}: write each link as [[link]] first", path.display()))
}

fn position(entries: &ArrayOfTables, link: &str) -> Option<usize> {
    let is_named = |entry: &Table| entry.get("name").and_then(Item::as_str) == Some(link);
    // An entry for links of one kind among them is another one.
    entries
        .iter()
        .position(|entry| is_named(entry) && !entry.contains_key("kind"))
}

fn fill(entry: &mut Table, values: Vec<(&'static str, Value)>) {
    for (key, value) in values {
        entry.insert(key, value.into());
    }
}

/// A copy that is written where it stands in the list, not where it stood in the file.
fn unplaced(entry: &Table) -> Table {
    let mut copy = entry.clone();
    copy.set_position(None);
    copy
}

fn write(path: &Path, document: &DocumentMut) -> Result<()> {
    let text = document.to_string();
    if let Err(error) = Policy::parse(&text) {
        return Err(Failure::usage(format!("nothing was changed: {error}")).into());
    }
    atomic_file::replace(path, text.as_bytes(), atomic_file::PUBLIC)?;
    output::line(&format!("{} changed", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(link: &str) -> SetArgs {
        SetArgs {
            link: link.to_owned(),
            usage: None,
            weight: None,
            priority: None,
            metered: None,
            budget: None,
            budget_from: None,
            down: None,
            up: None,
        }
    }

    #[test]
    fn one_entry_changes_and_the_rest_stays() {
        let directory = std::env::temp_dir().join(format!("tabane-edit-{}", std::process::id()));
        let path = directory.join("policy.toml");
        let mine = "# mine\n[[link]]\nname = \"wlan0\" # the good one\nweight = 0.5\n";
        atomic_file::replace(&path, mine.as_bytes(), atomic_file::PUBLIC).unwrap();
        let phone = SetArgs {
            priority: Some(1),
            budget: Some("5GB/month".into()),
            ..args("usb*")
        };
        set(&path, &phone).unwrap();
        let wifi = SetArgs {
            weight: Some(0.75),
            ..args("wlan0")
        };
        set(&path, &wifi).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("# the good one") && text.contains("weight = 0.75"),
            "{text}"
        );
        assert!(
            text.find("usb*") < text.find("wlan0"),
            "the newest decides: {text}"
        );
        let wrong = SetArgs {
            down: Some("fast".into()),
            ..args("wlan0")
        };
        assert!(set(&path, &wrong).is_err());
        assert!(set(&path, &args("wlan0")).is_err(), "nothing to set");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "untouched");
        unset(&path, "usb*").unwrap();
        assert!(unset(&path, "usb*").is_err());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
