//! `tabane join STRING`: remember a relay.

use std::io::{self, BufRead, Read};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::event_loop;
use crate::failure::Failure;
use crate::output;
use tabane_client::{SessionOrder, SessionPlan, reach::look};
use tabane_store::{JoinString, Joined, RelayEntry, RelayName, Store};

/// Far more than the longest line has.
const MAX_LINE: u64 = 64 * 1024;

/// Remember a relay, by the line that `tabane relay` printed
///
/// Nothing is sent unless --check is given. With sudo, the relay is remembered for root: join and
/// run as the same user.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The whole line, in quotes: tabane://HOST:PORT?key=…&sum=…&token=…; - reads it from standard
    /// input, since a command's arguments are shown to all users of this machine
    #[arg(value_name = "STRING")]
    join: String,
    /// What to call the relay [default: its first address]
    #[arg(long, value_name = "NAME")]
    name: Option<RelayName>,
    /// Take the place of the relay that was joined under this name or address, whatever its key
    #[arg(long)]
    replace: bool,
    /// Connect once, and show the round-trip time over each link
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: JoinArgs, store: &Store) -> Result<ExitCode> {
    let join = read(&args.join)?;
    let known = match args.replace && args.name.is_none() {
        true => store.relay_at(&join.addresses)?,
        false => None,
    };
    let name = args.name.or(known);
    let name = name.unwrap_or_else(|| RelayName::from_host(&join.addresses[0].host));
    let relay = RelayEntry::from(join);
    store.identity()?;
    let what = match store.put_relay(&name, &relay, args.replace)? {
        Joined::Added => "joined",
        Joined::Updated => "updated",
    };
    output::line(&format!(
        "{what} relay {name}; try `tabane run -- curl https://example.org/`"
    ))?;
    if args.check {
        let plan = SessionPlan::new(SessionOrder::to_relay(&name), store)?;
        event_loop::carry(check(&plan, store))
            .with_context(|| format!("relay {name} is remembered, but cannot be used yet"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The line that is the argument, or comes by standard input where that is `-`.
pub(super) fn read(argument: &str) -> Result<JoinString> {
    let mut line = String::new();
    let text = match argument {
        "-" => {
            let mut input = io::stdin().lock().take(MAX_LINE);
            let read = input.read_line(&mut line);
            read.context("cannot read the line from standard input")?;
            line.trim()
        }
        text => text,
    };
    let parsed = text.parse();
    Ok(parsed.map_err(|error| Failure::usage(format!("{error}")))?)
}

async fn check(plan: &SessionPlan, store: &Store) -> Result<()> {
    let (client, lent) = plan.connect_by_all(store).await?;
    let snapshot = look(&client, &lent).await;
    client.close().await;
    let rows = snapshot.links.iter().map(|link| {
        let reached = match (link.round_trip(), &link.problem) {
            (Some(latest), _) => format!("{:.1} ms", latest.as_secs_f64() * 1e3),
            (_, Some(problem)) => problem.clone(),
            (_, None) => "no answer".to_owned(),
        };
        vec![link.name.clone(), reached]
    });
    output::line(&output::table(
        &["link", "round trip"],
        &rows.collect::<Vec<_>>(),
    ))
}
