//! `tabane policy explain`: which rule a connection would fall under, and which links would carry
//! it.
//!
//! Owns the question and the reasons; what rules and entries mean is the policy crate's, how links
//! are doing is asked of the running instance, where there is one.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tabane_control::{
    Client, Directory, Kind, LinkState, RuleAnswer, RuleQuestion, SessionState, State,
};
use tabane_core::PathPolicy;
use tabane_linux::interfaces;
use tabane_policy::{FlowFacts, LinkFacts, LinkUse, Protocol, Rule};

use crate::commands::status::{InstanceArgs, percent};
use crate::failure::Failure;
use crate::output;
use tabane_store::{POLICY_FILE, PeerEntry, RelayName, Store};
use tabane_uplinks::{
    LinkPolicy,
    lent_links::{self, Lender},
};

const DEFAULT_PORT: u16 = 443;
/// Below this share of what is carried now a link is hardly used.
const WORTH_TELLING: f64 = 0.01;

/// Say which rule a new connection would fall under, which links would carry it, and why
///
/// Asks the instance that runs how its links are doing; where none runs, answers from the policy
/// file and the interfaces alone. Nothing is sent to the destination, and names are not looked up.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A name or an address, with a port if it is not 443
    #[arg(value_name = "DEST[:PORT]")]
    dest: String,
    /// A UDP flow instead of a TCP connection
    #[arg(long)]
    udp: bool,
    /// As if this program asked
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Explanation {
    dest: String,
    /// The names that it is known by, where the running instance saw them looked up.
    names: Vec<String>,
    protocol: &'static str,
    rule: Option<RuleRow>,
    /// Not through the relay: the routing table chooses the link.
    direct: bool,
    /// The peer that it would go to straight.
    peer: Option<String>,
    /// Whose links these are; null: none runs.
    instance: Option<String>,
    /// The ones that would be used first.
    links: Vec<LinkRow>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RuleRow {
    name: String,
    line: usize,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct LinkRow {
    link: String,
    used: bool,
    /// It is used as soon as those that are cannot carry the demand, or are down.
    if_needed: bool,
    why: String,
}

/// In which order links are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Priority(u8),
    Backup,
    LastResort,
    Never,
}

pub(super) fn run(args: &ExplainArgs, store: &Store) -> Result<ExitCode> {
    let flow = flow(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let policy = runtime.block_on(LinkPolicy::load_here(store))?;
    let interfaces = runtime.block_on(interfaces::list());
    let interfaces = interfaces.context("cannot list the interfaces")?;
    let state = runtime.block_on(state(&args.instance))?;
    let mut flow = flow;
    let mut asked = None;
    if let Some(state) = &state {
        let answer = runtime.block_on(ask(args, &flow, state));
        // One of an older version cannot say.
        if let Ok(answer) = answer {
            flow.domains = answer.names;
            asked = Some(answer.rule);
        }
    }
    let lenders = lent_links::find(&[], store)?;
    let own = interfaces.iter().filter(|it| it.usable().is_ok());
    let lent = lenders.iter().filter(|it| !it.is_shadowed(&interfaces));
    let links = own
        .map(|it| policy.facts(it))
        .chain(lent.map(Lender::facts));
    let links: Vec<_> = links.collect();
    let mut explanation = explain(args, &flow, &policy, &links, state.as_ref());
    if let Some(rule) = asked
        && rule != explanation.rule.as_ref().map(|rule| rule.name.clone())
    {
        let rule = rule.map_or_else(|| "no rule".to_owned(), |rule| format!("rule {rule:?}"));
        explanation.notes.push(format!(
            "the running instance goes by another policy than {POLICY_FILE} has: there it is {rule}"
        ));
    }
    add_peer(&mut explanation, &flow, &store.peers()?, state.as_ref());
    match args.json {
        true => output::json(&explanation)?,
        false => output::line(&text(&explanation))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What the running instance says; `None` where there is none, or it is no client.
async fn state(instance: &InstanceArgs) -> Result<Option<State>> {
    if instance.is_named() {
        let state = Client::new(&instance.find()?.socket).state().await?;
        return Ok(Some(state).filter(|state| !state.links.is_empty()));
    }
    let mut clients = Vec::new();
    for running in Directory::of_user().running() {
        // One that ends just now, or is of another version, is not the one that is meant.
        if let Ok(state) = Client::new(&running.socket).state().await
            && state.instance.kind != Kind::Relay
            && !state.instance.kind.is_web()
        {
            clients.push(state);
        }
    }
    if let Some(up) = clients.iter().position(|it| it.instance.kind == Kind::Up) {
        return Ok(Some(clients.swap_remove(up)));
    }
    match clients.pop() {
        Some(other) if !clients.is_empty() => {
            clients.push(other);
            let names: Vec<&str> = clients.iter().map(|it| &it.instance.name[..]).collect();
            let names = names.join(", ");
            let advice =
                format!("several instances are running: choose one with --instance ({names})");
            Err(Failure::usage(advice).into())
        }
        only => Ok(only),
    }
}

/// What the running instance says: it knows by which names addresses were looked up.
async fn ask(args: &ExplainArgs, flow: &FlowFacts, state: &State) -> Result<RuleAnswer> {
    let found = Directory::of_user().find(Some(&state.instance.name));
    let running = match args.instance.is_named() {
        true => args.instance.find()?,
        false => found?,
    };
    let question = RuleQuestion {
        domain: flow.domains.first().cloned(),
        address: flow.address,
        port: flow.port,
        udp: args.udp,
        process: flow.process.clone(),
    };
    Ok(Client::new(&running.socket).explain(&question).await?)
}

fn flow(args: &ExplainArgs) -> Result<FlowFacts> {
    let (host, port) = split(&args.dest)
        .ok_or_else(|| Failure::usage(format!("'{}' is no name or address", args.dest)))?;
    let address: Option<IpAddr> = host.parse().ok();
    let domain = host.trim_end_matches('.').to_owned();
    Ok(FlowFacts {
        domains: address.is_none().then_some(domain).into_iter().collect(),
        address,
        port,
        protocol: match args.udp {
            true => Protocol::Udp,
            false => Protocol::Tcp,
        },
        process: args.process.clone(),
        dscp: None,
    })
}

/// Host and port of what the user gave.
fn split(dest: &str) -> Option<(String, u16)> {
    if let Ok(address) = dest.parse::<SocketAddr>() {
        return Some((address.ip().to_string(), address.port()));
    }
    if dest.parse::<IpAddr>().is_ok() {
        return Some((dest.to_owned(), DEFAULT_PORT));
    }
    let (host, port) = match dest.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (dest, DEFAULT_PORT),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!host.is_empty() && host.chars().all(is_name)).then(|| (host.to_owned(), port))
}

fn explain(
    args: &ExplainArgs,
    flow: &FlowFacts,
    policy: &LinkPolicy,
    links: &[LinkFacts<'_>],
    state: Option<&State>,
) -> Explanation {
    let rule = policy.policy().rule_for(flow).map(|(_, rule)| rule);
    let rows = links.iter().map(|link| look(link, rule, policy, state));
    let mut rows: Vec<(Turn, LinkRow)> = rows.collect();
    rows.sort_by(|a, b| (a.0, &a.1.link).cmp(&(b.0, &b.1.link)));
    let is_redundant = rule.is_some_and(|rule| rule.treatment.redundant);
    let is_direct = rule.is_some_and(|rule| rule.treatment.direct);
    let links = match is_direct {
        true => Vec::new(),
        false => choose(rows, is_redundant),
    };
    let mut notes = Vec::new();
    let untried = policy.policy().rules().iter();
    let untried = untried.take_while(|other| rule.is_none_or(|rule| other.line < rule.line));
    if flow.address.is_none() && untried.clone().any(Rule::asks_for_address) {
        notes.push("rules by address were not tried: give the address".to_owned());
    }
    if untried.clone().any(Rule::asks_for_dscp) {
        notes.push("rules by dscp were not tried: programs choose it per socket".to_owned());
    }
    Explanation {
        dest: args.dest.clone(),
        names: match flow.address {
            Some(_) => flow.domains.clone(),
            None => Vec::new(),
        },
        protocol: match flow.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        },
        rule: rule.map(|rule| RuleRow {
            name: rule.name.clone(),
            line: rule.line,
            text: rule.treatment.to_string(),
        }),
        direct: is_direct,
        peer: None,
        instance: state.map(|state| state.instance.name.clone()),
        links,
        notes,
    }
}

/// Which peer it would go to straight, and whether that answers.
fn add_peer(
    explanation: &mut Explanation,
    flow: &FlowFacts,
    peers: &[(RelayName, PeerEntry)],
    state: Option<&State>,
) {
    let sessions = state.map_or(&[][..], |state| &state.sessions);
    let session = |name: &RelayName| {
        let mut sessions = sessions.iter();
        sessions.find(|session| session.straight_to.as_deref() == Some(name.as_str()))
    };
    let leads_to = |(name, peer): &&(RelayName, PeerEntry)| {
        // Where a name of the peer leads is known of the session that there is.
        let remotes = session(name).into_iter().flat_map(|session| &session.paths);
        let mut remotes = remotes.filter_map(|path| path.remote.parse::<SocketAddr>().ok());
        flow.domains.iter().any(|domain| peer.is_called(domain))
            || flow.address.is_some_and(|address| {
                peer.has_address(address)
                    || remotes.any(|remote| remote.ip().to_canonical() == address.to_canonical())
            })
    };
    let Some((name, _)) = peers.iter().find(leads_to).filter(|_| !explanation.direct) else {
        return;
    };
    explanation.peer = Some(name.to_string());
    let is_up = session(name).is_some_and(|it| it.state == SessionState::Connected);
    if state.is_some() && !is_up {
        let other = "there is no session with it now: the next connection begins one, and goes by \
                     the relay, or plainly, if it does not answer within a second";
        explanation.notes.push(other.to_owned());
    }
}

/// When a link would have its turn, and why not earlier.
fn look(
    facts: &LinkFacts<'_>,
    rule: Option<&Rule>,
    policy: &LinkPolicy,
    state: Option<&State>,
) -> (Turn, LinkRow) {
    let verdict = policy.judge(facts);
    let row = |turn, why: String| {
        let link = facts.name.to_owned();
        let row = LinkRow {
            link,
            used: false,
            if_needed: false,
            why,
        };
        (turn, row)
    };
    if let Some(rule) = rule.filter(|rule| !rule.treatment.allows(facts)) {
        return row(Turn::Never, format!("rule {:?} excludes it", rule.name));
    }
    let Some(path) = verdict.path else {
        let why = verdict.text();
        return match verdict.decision.usage {
            LinkUse::Never => row(Turn::Never, why),
            LinkUse::Normal | LinkUse::Backup => row(Turn::Never, format!("budget: {why}")),
        };
    };
    let seen = state.and_then(|state| {
        let mut links = state.links.iter();
        links.find(|link| link.name == facts.name)
    });
    let trouble = match (state, seen) {
        (Some(_), None) => Some("the running instance does not use it".to_owned()),
        (_, Some(link)) => match link.state {
            LinkState::Active => None,
            LinkState::Paused => Some("paused".to_owned()),
            LinkState::Opening => Some("the relay has not answered over it yet".to_owned()),
            LinkState::Silent => Some("nothing comes back over it at present".to_owned()),
            LinkState::Down | LinkState::Unused => {
                Some(link.problem.clone().unwrap_or_else(|| "down".to_owned()))
            }
        },
        (None, None) => None,
    };
    let share = seen.and_then(|link| link.share_now);
    let share = share.filter(|share| *share >= WORTH_TELLING);
    match (trouble, share) {
        (Some(why), _) => row(Turn::Never, why),
        (None, None) => row(turn(&path), verdict.text()),
        (None, Some(share)) => {
            let share = percent(share, 0);
            let why = format!("{}; carries {share} of all at present", verdict.text());
            let (turn, found) = row(turn(&path), why);
            (
                turn,
                LinkRow {
                    used: true,
                    ..found
                },
            )
        }
    }
}

fn turn(path: &PathPolicy) -> Turn {
    if path.weight <= 0.0 {
        Turn::LastResort
    } else if path.backup {
        Turn::Backup
    } else {
        Turn::Priority(path.priority)
    }
}

/// Marks what would be used: the first turn, or for what is redundant all priorities.
fn choose(rows: Vec<(Turn, LinkRow)>, is_redundant: bool) -> Vec<LinkRow> {
    let first = rows.first().map_or(Turn::Never, |(turn, _)| *turn);
    let is_used = |turn: Turn| match (turn, first) {
        (Turn::Never, _) => false,
        (Turn::Priority(_), Turn::Priority(_)) if is_redundant => true,
        _ => turn == first,
    };
    let rows = rows.into_iter().map(|(turn, row)| LinkRow {
        used: row.used || is_used(turn),
        if_needed: !row.used && !is_used(turn) && turn != Turn::Never,
        ..row
    });
    rows.collect()
}

fn text(explanation: &Explanation) -> String {
    let mut lines = vec![match &explanation.rule {
        Some(rule) => format!(
            "rule {:?} ({POLICY_FILE}:{}): {}",
            rule.name, rule.line, rule.text
        ),
        None => "no rule: any link, as the scheduler chooses".to_owned(),
    }];
    if !explanation.names.is_empty() {
        lines.push(format!("looked up as {}", explanation.names.join(", ")));
    }
    if let Some(peer) = &explanation.peer {
        lines.push(format!("straight to peer {peer}, not by the relay"));
    }
    lines.push(match &explanation.instance {
        Some(name) => format!("links as {name} has them now"),
        None => "no instance runs: links as they would be".to_owned(),
    });
    if explanation.direct {
        lines.pop();
        lines.push("the routing table chooses the link".to_owned());
    } else {
        let rows = explanation.links.iter().map(|row| {
            let used = match (row.used, row.if_needed) {
                (true, _) => "yes",
                (false, true) => "if needed",
                (false, false) => "no",
            };
            vec![row.link.clone(), used.to_owned(), row.why.clone()]
        });
        let rows: Vec<_> = rows.collect();
        lines.push(output::table(&["link", "used", "why"], &rows));
        if !explanation.links.iter().any(|row| row.used) {
            lines.push("no link may carry it now: it waits".to_owned());
        }
    }
    lines.extend(explanation.notes.iter().cloned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_as_users_write_them() {
        for (dest, host, port) in [
            ("a.example", "a.example", 443),
            ("a.example:22", "a.example", 22),
            ("192.0.2.1", "192.0.2.1", 443),
            ("192.0.2.1:53", "192.0.2.1", 53),
            ("2001:db8::1", "2001:db8::1", 443),
            ("[2001:db8::1]:22", "2001:db8::1", 22),
        ] {
            assert_eq!(split(dest), Some((host.to_owned(), port)), "{dest}");
        }
        for nonsense in ["", ":80", "a b", "a:b", "a.example:70000", "http://a"] {
            assert_eq!(split(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_first_turn_is_used_and_every_priority_by_what_is_redundant() {
        let row = |link: &str| LinkRow {
            link: link.to_owned(),
            used: false,
            if_needed: false,
            why: String::new(),
        };
        let rows = vec![
            (Turn::Priority(0), row("wlan0")),
            (Turn::Priority(1), row("usb0")),
            (Turn::Backup, row("eth1")),
            (Turn::Never, row("eth2")),
        ];
        let used = |rows: Vec<LinkRow>| -> Vec<bool> { rows.iter().map(|row| row.used).collect() };
        assert_eq!(
            used(choose(rows.clone(), false)),
            [true, false, false, false]
        );
        assert_eq!(used(choose(rows, true)), [true, true, false, false]);
        let none = vec![(Turn::Never, row("eth2"))];
        assert_eq!(used(choose(none, true)), [false]);
    }
}
