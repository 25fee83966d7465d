//! Which rule a connection would fall under, which links would carry it, and why.
//!
//! Pure. What rules and entries mean is the policy crate's; how links are doing, a running
//! instance's.

use std::net::SocketAddr;

use serde::Serialize;
use tabane_control::{LinkState, SessionState, State};
use tabane_core::PathPolicy;
use tabane_policy::{FlowFacts, LinkFacts, LinkUse, Protocol, Rule};
use tabane_store::{PeerEntry, RelayName, is_private};

use crate::link_policy::LinkPolicy;

/// Below this share of what is carried now a link is hardly used.
const WORTH_TELLING: f64 = 0.01;

/// What would become of a connection.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// As it was asked for.
    pub dest: String,
    /// The names that it is known by, where the running instance saw them looked up.
    pub names: Vec<String>,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// `None`: no rule concerns it.
    pub rule: Option<RuleRow>,
    /// Not through the relay: the routing table chooses the link.
    pub direct: bool,
    /// The links that it has side by side then, where its server speaks multipath TCP.
    pub multipath: Vec<String>,
    /// The peer that it would go to straight.
    pub peer: Option<String>,
    /// Whose links these are; null: none runs.
    pub instance: Option<String>,
    /// The ones that would be used first.
    pub links: Vec<LinkRow>,
    /// What has to be said beside that.
    pub notes: Vec<String>,
}

/// The rule that it falls under.
#[derive(Debug, Serialize)]
pub struct RuleRow {
    /// What the user calls it.
    pub name: String,
    /// Where it stands in the policy file.
    pub line: usize,
    /// What it wants.
    pub text: String,
}

/// A link, and whether it would carry the connection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkRow {
    /// Its name.
    pub link: String,
    /// It would be used at once.
    pub used: bool,
    /// It is used as soon as those that are cannot carry the demand, or are down.
    pub if_needed: bool,
    /// Why, or why not.
    pub why: String,
}

/// In which order links are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Priority(u8),
    Backup,
    LastResort,
    Never,
}

impl Explanation {
    /// By the policy, and what the running instance says of the links where there is one.
    #[must_use]
    pub fn new(
        dest: &str,
        flow: &FlowFacts,
        policy: &LinkPolicy,
        links: &[LinkFacts<'_>],
        state: Option<&State>,
    ) -> Self {
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
        // One stream of bytes over several links needs TCP, and a server on the internet.
        let may_have_several =
            is_direct && flow.protocol == Protocol::Tcp && !flow.address.is_some_and(is_private);
        let multipath = state.map(|state| &state.multipath);
        let multipath = multipath.filter(|_| may_have_several);
        if let Some(problem) = multipath.and_then(|it| it.problem.as_ref()) {
            notes.push(format!("it takes one link: {problem}"));
        }
        let untried = policy.policy().rules().iter();
        let untried = untried.take_while(|other| rule.is_none_or(|rule| other.line < rule.line));
        if flow.address.is_none() && untried.clone().any(Rule::asks_for_address) {
            notes.push("rules by address were not tried: give the address".to_owned());
        }
        if untried.clone().any(Rule::asks_for_dscp) {
            notes.push("rules by dscp were not tried: programs choose it per socket".to_owned());
        }
        Self {
            dest: dest.to_owned(),
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
            multipath: multipath.map_or_else(Vec::new, |it| it.links.clone()),
            peer: None,
            instance: state.map(|state| state.instance.name.clone()),
            links,
            notes,
        }
    }

    /// Which peer it would go to straight, and whether that answers.
    pub fn add_peer(
        &mut self,
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
                        || remotes
                            .any(|remote| remote.ip().to_canonical() == address.to_canonical())
                })
        };
        let Some((name, _)) = peers.iter().find(leads_to).filter(|_| !self.direct) else {
            return;
        };
        self.peer = Some(name.to_string());
        let is_up = session(name).is_some_and(|it| it.state == SessionState::Connected);
        if state.is_some() && !is_up {
            let other = "there is no session with it now: the next connection begins one, and goes \
                         by the relay, or plainly, if it does not answer within a second";
            self.notes.push(other.to_owned());
        }
    }
}

/// When a link would have its turn, and why not earlier.
fn look(
    facts: &LinkFacts<'_>,
    rule: Option<&Rule>,
    policy: &LinkPolicy,
    state: Option<&State>,
) -> (Turn, LinkRow) {
    let terms = policy.terms_of(facts);
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
    let Some(path) = terms.path else {
        let why = terms.text();
        return match terms.decision.usage {
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
        (None, None) => row(turn(&path), terms.text()),
        (None, Some(share)) => {
            let share = format!("{:.0} %", share * 100.0);
            let why = format!("{}; carries {share} of all at present", terms.text());
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

#[cfg(test)]
mod tests {
    use super::*;

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
