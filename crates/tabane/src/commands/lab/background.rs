//! Labs that stay until they are taken down: `tabane lab up`, `down`, `list` and `set`.

use std::io::stdout;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use tabane_lab::{BackgroundLab, LabError, LabOptions, LabState, LinkChange, emulate};

use super::ScenarioArgs;
use crate::failure::Failure;
use crate::output;

/// Build a lab and leave it running in the background
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// What to call the lab [default: the scenario's name]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
}

/// Take a lab down, with everything that still runs in it
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Which one [default: the only one]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// All of them
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// List the labs in the background
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Change a link of a lab that is up, as often as you like
///
/// `down` and `up` pull and plug the cable; `outage=on` lets packets vanish while the interface
/// stays up, `outage=off` ends that; `rate=5mbit`, `delay=30ms` and `loss=1%` hold for both
/// directions.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The link, by the scenario's name for it or by its interface
    #[arg(value_name = "LINK")]
    link: String,
    /// What to do to it
    #[arg(required = true, value_name = "CHANGE", value_parser = parse_change)]
    changes: Vec<LinkChange>,
    /// In which lab [default: the only one]
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
}

fn parse_change(text: &str) -> Result<LinkChange, String> {
    text.parse::<LinkChange>()
        .map_err(|error| error.to_string())
}

/// A file name, and a word in a shell.
fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/');
    if text.is_empty() || text.len() > 64 || !text.chars().all(fits) {
        return Err("a name has 1 to 64 letters, digits, '-' or '_'".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn up(args: &UpArgs) -> Result<ExitCode> {
    // Faults of the scenario are told by this process.
    let name = name_of(args)?;
    if BackgroundLab::find(&name).is_ok() {
        return Err(LabError::NameTaken { name }.into());
    }
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(program);
    // Nobody reads what it says once it is up.
    command.args(["--log", "off", "lab", "hold", "--name", &name]);
    if let Some(variant) = &args.scenario.variant {
        command.args(["--variant", variant]);
    }
    command.args(["--", &args.scenario.scenario]);
    let lab = BackgroundLab::start(&mut command).map_err(told_by_holder)?;
    output::line(&describe(lab.state()))?;
    Ok(ExitCode::SUCCESS)
}

/// What the holder printed, without the name that every message of ours begins with.
fn told_by_holder(error: LabError) -> anyhow::Error {
    match error {
        LabError::NotUp { said } => {
            anyhow!(
                "{}",
                said.strip_prefix("tabane: ").unwrap_or(&said).to_owned()
            )
        }
        other => other.into(),
    }
}

/// Runs on the main thread, before there are others, as [`emulate`] wants it.
pub(super) fn hold(args: &UpArgs) -> Result<ExitCode> {
    let name = name_of(args)?;
    let scenario = args.scenario.load()?;
    emulate(&scenario, &name, &LabOptions::default(), &mut stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn name_of(args: &UpArgs) -> Result<String> {
    let scenario = args.scenario.load()?;
    Ok(args.name.clone().unwrap_or(scenario.name))
}

pub(super) fn down(args: &DownArgs) -> Result<ExitCode> {
    let labs = match &args.name {
        Some(name) => vec![BackgroundLab::find(name)?],
        None => chosen(args.all)?,
    };
    for lab in labs {
        let name = lab.state().name.clone();
        lab.down().with_context(|| format!("lab {name}"))?;
        output::line(&format!("lab {name} is down"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(all: bool) -> Result<Vec<BackgroundLab>> {
    let labs = BackgroundLab::all();
    match labs.len() {
        0 if !all => bail!("no lab is up; `tabane lab up SCENARIO` makes one"),
        0 | 1 => {}
        _ if all => {}
        _ => {
            let names: Vec<_> = labs.iter().map(|lab| lab.state().name.as_str()).collect();
            let names = names.join(", ");
            let text = format!("several labs are up ({names}): name one");
            return Err(Failure::usage(text).into());
        }
    }
    Ok(labs)
}

pub(super) fn set(args: &SetArgs) -> Result<ExitCode> {
    let labs = match &args.lab {
        Some(name) => vec![BackgroundLab::find(name)?],
        None => chosen(false)?,
    };
    for (lab, change) in labs
        .iter()
        .flat_map(|lab| args.changes.iter().map(move |it| (lab, it)))
    {
        lab.change(&args.link, change)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn list(args: &ListArgs) -> Result<ExitCode> {
    let labs = BackgroundLab::all();
    let states: Vec<&LabState> = labs.iter().map(BackgroundLab::state).collect();
    if args.json {
        output::json(&states)?;
    } else if states.is_empty() {
        output::line("no lab is up; `tabane lab up SCENARIO` makes one")?;
    } else {
        let text: Vec<String> = states.into_iter().map(describe).collect();
        output::line(&text.join("\n\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where everything is, and how to get there.
fn describe(state: &LabState) -> String {
    let rows = state.links.iter().map(|link| {
        vec![
            link.name.clone(),
            link.interface.clone(),
            link.client.to_string(),
            link.server.to_string(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let headings = ["link", "interface", "client", "server"];
    let first = state
        .links
        .first()
        .map_or("link1", |link| link.name.as_str());
    let LabState {
        name,
        scenario,
        client,
        server,
        service,
        service6,
        ..
    } = state;
    format!(
        "lab {name} (scenario {scenario})\n\n{}\n\n\
         server, over any link: {service} and {service6}\n\
         in the client: ip netns exec {client} sh\n\
         in the server: ip netns exec {server} sh\n\
         change a link: tabane lab set {first} rate=1mbit (or down, up, delay=99ms, loss=1%)\n\
         take it down:  tabane lab down {name}",
        output::table(&headings, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_files_and_words() {
        for good in ["home", "a-1_b", "arms/30"] {
            assert_eq!(parse_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "a b", "..", "ä", &"x".repeat(65)] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
