//! `tabane relay user`: the people a relay serves, and what each may have.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use tabane_base::Prefix;
use tabane_linux::interfaces;
use tabane_tunnel::{
    DestinationRule, DomainGrant, ExitAddress, GroupName, HostGrant, PortGrant, RouteGrant,
};

use crate::event_loop;
use crate::output;
use tabane_relay::{AccessList, RelayState, UserEntry, UserName, UserReport};
use tabane_store::{
    quantity::{RateText, Setting, Volume, bytes_text},
    wall_clock::unix_seconds,
};

/// Manage users and their limits; a running relay notices at once
///
/// A user has any number of devices: those that a token of theirs has admitted (`tabane relay token
/// new --user NAME`). They share the user's limits fairly.
#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a user; without limits there are none
    Add {
        #[arg(value_name = "NAME")]
        name: UserName,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// List the users
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a user's limits, devices, tokens and what it has used
    Show {
        #[arg(value_name = "NAME")]
        name: UserName,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the limits that are given; running sessions have them at once
    Set {
        #[arg(value_name = "NAME")]
        name: UserName,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Remove a user: its sessions end, its devices are revoked, its tokens are worthless
    Remove {
        #[arg(value_name = "NAME")]
        name: UserName,
    },
}

/// What a user may have; `none` lifts a limit.
#[derive(Debug, Args)]
struct LimitArgs {
    /// Rate in each direction, all devices together: 50Mbit/s
    #[arg(long, value_name = "RATE", conflicts_with_all = ["rate_down", "rate_up"])]
    rate: Option<Setting<RateText>>,
    /// Rate towards the user
    #[arg(long, value_name = "RATE")]
    rate_down: Option<Setting<RateText>>,
    /// Rate from the user
    #[arg(long, value_name = "RATE")]
    rate_up: Option<Setting<RateText>>,
    /// Bytes of both directions in a day or a month (UTC): 100GB/month
    #[arg(long, value_name = "VOLUME")]
    volume: Option<Setting<Volume>>,
    /// Sessions at once
    #[arg(long, value_name = "N")]
    sessions: Option<Setting<u32>>,
    /// TCP connections and UDP flows at once
    #[arg(long, value_name = "N")]
    streams: Option<Setting<u32>>,
    /// The only destinations allowed: 192.0.2.0/24, [2001:db8::]/32:443, *:80,443; repeatable.
    /// Port 25 (mail between servers) is refused unless one of these names it
    #[arg(long, value_name = "RULE")]
    allow: Vec<Setting<DestinationRule>>,
    /// Destinations refused, even among the allowed; repeatable
    #[arg(long, value_name = "RULE")]
    deny: Vec<Setting<DestinationRule>>,
    /// Ports of this machine that may lead to the user's devices (`tabane expose`): 443, 8000-8100,
    /// udp:27015, with commas between or repeated; none unless they are named
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    port: Vec<Setting<PortGrant>>,
    /// Names that may lead there at ports 80 and 443, which several users may share, and at --port:
    /// www.example.org, *.example.org; repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    host: Vec<Setting<HostGrant>>,
    /// Networks behind the user's devices (`tabane up --route`) that others of the group may be led
    /// to: 192.168.20.0/24, with commas between or repeated; none unless they are named
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    routes: Vec<Setting<RouteGrant>>,
    /// Domains whose names others of the group may ask for at resolvers in such networks (`tabane
    /// up --route-domain`): lan-b.example and all below, with commas between or repeated; none
    /// unless they are named
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    domains: Vec<Setting<DomainGrant>>,
    /// The users among whom such networks are shared; without one, the user's own devices
    #[arg(long, value_name = "GROUP")]
    group: Option<Setting<GroupName>>,
    /// By which of this machine's addresses the user's connections leave: 203.0.113.7,2001:db8::7,
    /// or a routed range of IPv6 (2001:db8:5::/64), of which each device has an address of its own;
    /// of a family the first that the machine has. The usual ones unless they are named
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    exit_address: Vec<Setting<ExitAddress>>,
    /// Whether private addresses, and the relay's own, are open to the user
    #[arg(long, value_name = "YES|NO")]
    private: Option<YesNo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

impl LimitArgs {
    fn is_empty(&self) -> bool {
        let Self {
            rate,
            rate_down,
            rate_up,
            volume,
            sessions,
            streams,
            allow,
            deny,
            port,
            host,
            routes,
            domains,
            group,
            exit_address,
            private,
        } = self;
        let rates = [rate, rate_down, rate_up];
        let counts = [sessions, streams];
        rates.into_iter().all(Option::is_none)
            && counts.into_iter().all(Option::is_none)
            && volume.is_none()
            && private.is_none()
            && allow.is_empty()
            && deny.is_empty()
            && port.is_empty()
            && host.is_empty()
            && routes.is_empty()
            && domains.is_empty()
            && group.is_none()
            && exit_address.is_empty()
    }

    /// What can be seen to be wrong from here.
    fn check(&self, state: &RelayState) -> Result<()> {
        let exits = self.exit_address.iter();
        let exits: Vec<_> = exits.filter_map(|it| it.0).collect();
        // Of the relays of a fleet each has its own.
        if exits.is_empty() || state.is_of_fleet() {
            return Ok(());
        }
        check_exits(&exits, &event_loop::ask(interfaces::local())??)
    }

    fn apply(&self, user: &mut UserEntry) {
        if let Some(Setting(down)) = self.rate.or(self.rate_down) {
            user.rate_down = down;
        }
        if let Some(Setting(up)) = self.rate.or(self.rate_up) {
            user.rate_up = up;
        }
        if let Some(Setting(volume)) = self.volume {
            user.volume = volume;
        }
        if let Some(Setting(sessions)) = self.sessions {
            user.sessions = sessions;
        }
        if let Some(Setting(streams)) = self.streams {
            user.streams = streams;
        }
        replace(&mut user.allow, &self.allow);
        replace(&mut user.deny, &self.deny);
        replace(&mut user.ports, &self.port);
        replace(&mut user.hosts, &self.host);
        replace(&mut user.routes, &self.routes);
        replace(&mut user.exit_addresses, &self.exit_address);
        replace(&mut user.domains, &self.domains);
        if let Some(Setting(group)) = &self.group {
            user.group = group.clone();
        }
        if let Some(private) = self.private {
            user.private = private == YesNo::Yes;
        }
    }
}

/// Refuses addresses of a family of which this machine has none.
fn check_exits(exits: &[ExitAddress], local: &[Prefix]) -> Result<()> {
    for is_v4 in [true, false] {
        let of_family: Vec<_> = exits.iter().filter(|it| it.is_ipv4() == is_v4).collect();
        let Some(first) = of_family.first() else {
            continue;
        };
        if !of_family.iter().any(|it| it.is_of(local)) {
            let remedy = match first.is_range() {
                true => format!("`ip -6 route add local {first} dev lo` has it take in that range"),
                false => format!("`ip address add {first} dev IF` gives it that"),
            };
            bail!("this machine does not have {first}; {remedy}, where it is routed here");
        }
    }
    Ok(())
}

/// Puts what was given in the place of what there was, if anything was.
fn replace<T: Clone>(values: &mut Vec<T>, given: &[Setting<T>]) {
    if !given.is_empty() {
        *values = given.iter().filter_map(|value| value.0.clone()).collect();
    }
}

pub(super) fn run(args: UserArgs, state: &RelayState) -> Result<ExitCode> {
    match args.command {
        UserCommand::Add { name, limits } => {
            let mut user = UserEntry::new(name.clone(), unix_seconds());
            limits.check(state)?;
            limits.apply(&mut user);
            state.update_access(|list| list.add_user(user.clone()))??;
            let next = format!("`tabane relay token new --user {name}` makes a join string");
            output::line(&format!("added; {next}"))?;
        }
        UserCommand::List { json } => list(state, json)?,
        UserCommand::Show { name, json } => show(state, &name, json)?,
        UserCommand::Set { name, limits } => {
            if limits.is_empty() {
                bail!("nothing to set: name a limit, as `tabane relay user set --help` lists them");
            }
            limits.check(state)?;
            let change = |list: &mut AccessList| {
                list.user_mut(&name)
                    .map(|user| limits.apply(user))
                    .is_some()
            };
            if !state.update_access(change)? {
                return unknown(&name);
            }
            output::line("set")?;
        }
        UserCommand::Remove { name } => {
            let Some(devices) = state.update_access(|list| list.remove_user(&name))? else {
                return unknown(&name);
            };
            output::line(&format!("removed; devices revoked: {devices}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown<T>(name: &UserName) -> Result<T> {
    bail!("there is no user '{name}'; `tabane relay user list` lists them")
}

/// `12.3 GB`, for reading; `show --json` has the number.
fn used_text(row: &UserReport) -> String {
    row.volume_used_bytes.map(amount).unwrap_or_default()
}

/// Of bytes, in three digits or so.
pub(in crate::commands) fn amount(used: u64) -> String {
    if used == 0 {
        return "0B".to_owned();
    }
    let step = [1_000_000_000, 1_000_000, 1_000]
        .into_iter()
        .find(|step| used >= *step);
    let rounded = step.map_or(used, |step| used / (step / 10) * (step / 10));
    bytes_text(tabane_base::Bytes::new(rounded))
}

pub(in crate::commands) fn list(state: &RelayState, json: bool) -> Result<()> {
    let rows = state.user_reports()?;
    if json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::line("no user; `tabane relay user add NAME` makes one");
    }
    output::line(&output::items(
        &rows,
        &[
            ("name", &|it| it.name.clone()),
            ("devices", &|it| it.devices.len().to_string()),
            ("down", &|it| it.rate_down.clone().unwrap_or_default()),
            ("up", &|it| it.rate_up.clone().unwrap_or_default()),
            ("volume", &|it| it.volume.clone().unwrap_or_default()),
            ("used", &used_text),
        ],
    ))
}

fn show(state: &RelayState, name: &UserName, json: bool) -> Result<()> {
    let Some(row) = state.user_report(name)? else {
        return unknown(name);
    };
    if json {
        return output::json(&row);
    }
    let limit = |value: Option<String>| value.unwrap_or_else(|| "no limit".to_owned());
    let number = |value: Option<u32>| limit(value.map(|value| value.to_string()));
    let all = |values: &[String], none: &str| match values {
        [] => none.to_owned(),
        values => values.join(" "),
    };
    let used = used_text(&row);
    let cells = [
        ("name", row.name),
        ("rate down", limit(row.rate_down)),
        ("rate up", limit(row.rate_up)),
        ("volume", limit(row.volume)),
        ("used", used),
        ("sessions", number(row.sessions)),
        ("streams", number(row.streams)),
        ("allow", all(&row.allow, "everything")),
        ("deny", all(&row.deny, "nothing")),
        ("ports", all(&row.ports, "none")),
        ("hosts", all(&row.hosts, "none")),
        ("routes", all(&row.routes, "none")),
        ("domains", all(&row.domains, "none")),
        ("group", row.group.unwrap_or_default()),
        ("leaves by", row.exit_addresses.join(" ")),
        ("private", if row.private { "yes" } else { "no" }.to_owned()),
        ("devices", all(&row.devices, "none")),
        ("tokens", all(&row.tokens, "none")),
    ];
    for (key, value) in cells.iter().filter(|(_, value)| !value.is_empty()) {
        output::line(&format!("{key:<10} {value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_the_machine_has_not_is_refused_with_what_gives_it() {
        let local = ["127.0.0.0/8", "203.0.113.7", "2001:db8:5::/64"];
        let local = local.map(|text| Prefix::parse(text).unwrap());
        let check = |texts: &[&str]| {
            let exits: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
            check_exits(&exits, &local).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["203.0.113.7", "2001:db8:5::/64"]), Ok(()));
        // Another relay's, or one that comes later.
        assert_eq!(check(&["203.0.113.9", "203.0.113.7"]), Ok(()));
        let said = check(&["203.0.113.7", "2001:db8:6::/64"]).unwrap_err();
        assert!(said.contains("ip -6 route add local 2001:db8:6::/64 dev lo"));
        let said = check(&["203.0.113.9"]).unwrap_err();
        assert!(said.contains("ip address add 203.0.113.9 dev"), "{said}");
    }
}
