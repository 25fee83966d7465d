//! Changing one entry of the policy file; everything else in it, comments too, stays as it is.

use std::path::Path;

use anyhow::{Context, Result};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use tabane_policy::Policy;
use toml_edit::Value;

use crate::failure::Failure;
use crate::output;
use tabane_store::{atomic_file, write_policy};
use tabane_uplinks::policy_edit::{self, LinkSelector, Values};

/// Set how a link may be used; what is not named stays as it was
///
/// A link with --priority 1 helps only while those with 0 cannot carry the demand, or are down.
#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// The link's interface, the neighbour who lends it, or a pattern such as 'usb*'
    #[arg(value_name = "LINK", value_parser = NonEmptyStringValueParser::new())]
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
    fn values(&self) -> Values {
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
        let given = values.into_iter().filter(|(_, value)| value.is_some());
        given.collect()
    }
}

/// Changes the entry of the link, or puts a new one in front of all others, so that it decides.
pub(super) fn set(path: &Path, args: &SetArgs) -> Result<()> {
    let values = args.values();
    if values.is_empty() {
        return Err(Failure::usage("nothing to set; see `tabane policy set --help`").into());
    }
    let text = read(path)?;
    write(path, policy_edit::set(&text, named(&args.link), values))
}

/// Takes the entry of the link out.
pub(super) fn unset(path: &Path, link: &str) -> Result<()> {
    let text = read(path)?;
    write(path, policy_edit::unset(&text, named(link)))
}

const fn named(link: &str) -> LinkSelector<'_> {
    LinkSelector {
        name: Some(link),
        kind: None,
    }
}

/// A file that is not understood is not touched.
fn read(path: &Path) -> Result<String> {
    let text = atomic_file::read(path)?.unwrap_or_default();
    Policy::parse(&text).with_context(|| path.display().to_string())?;
    Ok(text)
}

fn write(path: &Path, edited: Result<String>) -> Result<()> {
    let unchanged = |error| Failure::usage(format!("nothing was changed: {error:#}"));
    let text = edited.map_err(unchanged)?;
    write_policy(path, &text)?;
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
        let mine = "# mine\n[[link]]\nname = \"wlan0\" # the good one\nweight = 0.5 # half\n";
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
            text.contains("# the good one") && text.contains("weight = 0.75 # half"),
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
