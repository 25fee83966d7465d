//! `tabane policy explain`: which rule a connection would fall under, and which links would carry
//! it.
//!
//! Owns the question and the reasons; what rules and entries mean is the policy crate's, how links
//! are doing is asked of the running instance, where there is one.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use tabane_control::{Client, Directory, Kind, RuleAnswer, RuleQuestion, State, running_clients};
use tabane_policy::{FlowFacts, HardwareAddress, Protocol, Sender};
use tabane_store::{POLICY_FILE, Store};
use tabane_uplinks::{
    Explanation,
    lent_links::{self, Lender},
};

use super::look;
use crate::commands::status::InstanceArgs;
use crate::event_loop;
use crate::failure::Failure;
use crate::output;

const DEFAULT_PORT: u16 = 443;

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
    /// As if this host behind the machine (`tabane up --lan`) asked, by its address or its network
    /// card's: 192.168.1.20, aa:bb:cc:dd:ee:ff
    #[arg(long, value_name = "HOST", conflicts_with = "process")]
    source: Option<Source>,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A host behind this machine.
#[derive(Debug, Clone, Copy)]
struct Source(Sender);

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hardware = HardwareAddress::parse(text);
        let address = text.parse().ok();
        match (hardware, address) {
            (None, None) => Err("expected 192.168.1.20, or a card's aa:bb:cc:dd:ee:ff".to_owned()),
            _ => Ok(Self(Sender { address, hardware })),
        }
    }
}

pub(super) fn run(args: &ExplainArgs, store: &Store) -> Result<ExitCode> {
    let flow = flow(args)?;
    let (policy, interfaces) = look(store)?;
    let state = event_loop::ask(state(&args.instance))??;
    let mut flow = flow;
    let mut asked = None;
    if let Some(state) = &state {
        let answer = event_loop::ask(ask(args, &flow, state))?;
        // One of an older version cannot say.
        if let Ok(answer) = answer {
            flow.domains = answer.names;
            if let (Some(sender), Some(card)) = (&mut flow.sender, answer.hardware) {
                sender.hardware = HardwareAddress::parse(&card);
            }
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
    let mut explanation = Explanation::new(&args.dest, &flow, &policy, &links, state.as_ref());
    if let Some(rule) = asked
        && rule != explanation.rule.as_ref().map(|rule| rule.name.clone())
    {
        let rule = rule.map_or_else(|| "no rule".to_owned(), |rule| format!("rule {rule:?}"));
        explanation.notes.push(format!(
            "the running instance goes by another policy than {POLICY_FILE} has: there it is {rule}"
        ));
    }
    explanation.add_peer(&flow, &store.peers()?, state.as_ref());
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
    let mut clients = running_clients().await;
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
        source: flow.sender.and_then(|sender| sender.address),
        hardware: flow
            .sender
            .and_then(|sender| sender.hardware)
            .map(|it| it.to_string()),
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
        sender: args.source.map(|source| source.0),
        ..FlowFacts::default()
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
        let by_table = "the routing table chooses the link";
        lines.push(match &explanation.multipath[..] {
            [] => by_table.to_owned(),
            links => format!(
                "by MPTCP over {}, where the server speaks it; else {by_table}",
                links.join(", ")
            ),
        });
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
}
