//! A client as its control socket shows it.

use std::collections::BTreeMap;
use std::rc::Rc;

use tabane_base::Instant;
use tabane_control::{
    InstanceView, Link, LinkChange, LinkState, Multipath, Pace, Packets, RuleAnswer, RuleQuestion,
    RuleUse, State, Totals, TraceBatch, Traffic,
};
use tabane_core::{PathSnapshot, PathStatus};
use tabane_policy::{FlowFacts, HardwareAddress, Protocol, Reaction, Sender};
use tabane_tunnel::{
    ClientSnapshot, LinkSnapshot, LinkWish, PacketsCarried,
    shown::{
        self, Ledger, NO_TRACE, Source, add, drops, follow_record, happened, of_path, of_volume,
        whole_millis,
    },
};
use tokio::sync::mpsc;

use tabane_uplinks::LinkRoll;

use crate::far_ends::{FarEnds, Seen};
use crate::portals::Portals;
use crate::rule_book::{self, RuleBook};

/// The sessions of a client with what its links carried.
pub struct ClientView {
    far_ends: FarEnds,
    portals: Portals,
    /// Those that it may use, by name and key, the preferred first.
    relays: Vec<(String, String)>,
    /// By name; links that are gone keep theirs.
    ledgers: BTreeMap<String, Ledger>,
    /// When the relay was heard last.
    heard_at: Option<std::time::Instant>,
}

impl ClientView {
    /// Of these far ends; `relays` may be used, by name and key, the preferred first.
    pub fn new(far_ends: FarEnds, relays: Vec<(String, String)>) -> Self {
        Self {
            portals: Portals::new(far_ends.portal_probe()),
            far_ends,
            relays,
            ledgers: BTreeMap::new(),
            heard_at: None,
        }
    }

    /// What the policy wants done when something happens; nothing where no policy is followed.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        let roll = self.far_ends.roll();
        roll.map_or_else(|| [].into(), LinkRoll::reactions)
    }

    fn plain_bond(&self) -> Multipath {
        let bond = self.far_ends.plain_bond().unwrap_or_default();
        Multipath {
            links: bond.links,
            connections: bond.connections,
            connections_so_far: bond.connections_so_far,
            problem: bond.problem,
        }
    }

    /// For how long nothing has come from the relay.
    fn silence(&mut self, sessions: &[Seen]) -> Option<u64> {
        let relay = sessions
            .iter()
            .find(|seen| seen.peer.is_none() && seen.is_present);
        if let Some(session) = relay.and_then(|seen| seen.snapshot.session.as_ref()) {
            let heard_at = std::time::Instant::now().checked_sub(session.silent_for);
            self.heard_at = self.heard_at.max(heard_at);
        }
        Some(whole_millis(self.heard_at?.elapsed()))
    }

    /// Each link once, with what all sessions have over it.
    fn links(&mut self, sessions: &[Seen]) -> Vec<Link> {
        let mut names: Vec<&str> = Vec::new();
        for link in sessions.iter().flat_map(|seen| &seen.snapshot.links) {
            if !names.contains(&link.name.as_str()) {
                names.push(&link.name);
            }
        }
        let with = |name: &str| {
            let of = |seen| {
                let Seen { snapshot, .. }: &Seen = seen;
                let link = snapshot.links.iter().find(|link| link.name == name)?;
                Some((seen, link))
            };
            sessions.iter().filter_map(of).collect()
        };
        let links: Vec<(_, Vec<_>)> = names.iter().map(|name| (*name, with(name))).collect();
        let links = links.into_iter();
        links.map(|(name, of)| self.link(name, &of)).collect()
    }

    /// A link as these sessions have it, the relay's first.
    fn link(&mut self, name: &str, of: &[(&Seen, &LinkSnapshot)]) -> Link {
        let ledger = self.ledgers.entry(name.to_owned()).or_default();
        ledger.count(of.iter().flat_map(|(seen, link)| of_link(seen, link)));
        // One that carries says most.
        let with_time = |(seen, link): &(&Seen, &LinkSnapshot)| {
            let path = link.path.clone()?;
            Some((path, seen.snapshot.session.as_ref()?.at))
        };
        let paths: Vec<_> = of.iter().filter_map(with_time).collect();
        let is_active = |(path, _): &&(PathSnapshot, Instant)| path.status == PathStatus::Active;
        let best = paths.iter().find(is_active).or_else(|| paths.first());
        let path = best.map(|(path, at)| shown::path(path, *at));
        let carrying = of
            .iter()
            .find(|(_, link)| link.path.is_some())
            .or_else(|| of.first());
        let carried = carrying.map(|(_, link)| link.carried_by());
        let carrier_reason = carrying.and_then(|(_, link)| link.carrier_why.clone());
        let paused = of.iter().any(|(_, link)| link.paused);
        let problem = of.iter().find_map(|(_, link)| link.problem.clone());
        let state = match &path {
            _ if paused => LinkState::Paused,
            Some(path) => path.state,
            None => without_path(problem.as_deref()),
        };
        Link {
            problem: problem.filter(|_| path.is_none()),
            weight: of.first().map_or(1.0, |(_, link)| link.policy.weight),
            paused,
            traffic: ledger.traffic(),
            carrier: carried.filter(|_| path.is_some()),
            carrier_reason,
            path,
            ..Link::new(name, state)
        }
    }
}

impl InstanceView for ClientView {
    const PACE: Pace = Pace::ByItself;

    async fn look(&mut self, state: &mut State) {
        state.events = happened(&self.far_ends.journal());
        let sessions = self.far_ends.seen();
        state.links = self.links(&sessions);
        state.silent_ms = self.silence(&sessions);
        if let Some(roll) = self.far_ends.roll() {
            state.policy_fault = roll.policy_fault();
            let carried = |name: &str| {
                let ledger = self.ledgers.get(name);
                ledger.map(Ledger::traffic).unwrap_or_default()
            };
            roll.complete(&mut state.links, carried);
            let now = std::time::Instant::now();
            let way_out = |link: &str| roll.way_out(link);
            self.portals.look(now, &mut state.links, way_out);
        }
        let bypass = self.far_ends.bypass();
        state.limit = bypass.limit();
        state.totals.bypassing_connections = bypass.connections();
        state.totals.bypassing_flows = bypass.flows();
        state.multipath = self.plain_bond();
        let host = self.far_ends.relay_host();
        let exposures = self.far_ends.exposures().report().into_iter();
        state.exposures = exposures.map(|it| it.shown(host.as_ref())).collect();
        state.routes = self.far_ends.routes_shown();
        state.lan_hosts = self.far_ends.lan_hosts().shown();
        let rules = self.far_ends.rules().map(RuleBook::uses);
        state.rules = rules.into_iter().flatten().map(rule_use).collect();
        for ledger in self.ledgers.values() {
            add(&mut state.totals.traffic, &ledger.traffic());
        }
        for seen in sessions {
            let Seen {
                peer,
                is_present,
                snapshot,
            } = seen;
            let relay;
            let far = match &peer {
                Some(peer) => Some(peer),
                None => {
                    relay = relay_of(&snapshot, &self.relays);
                    if is_present {
                        state.instance.relay = relay.as_ref().map(|(name, _)| name.clone());
                    }
                    relay.as_ref()
                }
            };
            let totals = &mut state.totals;
            totals.sessions_so_far += snapshot.sessions;
            count_drops(totals, drops(&snapshot.counters.drops));
            let Some(session) = &snapshot.session else {
                continue;
            };
            totals.sessions += 1;
            totals.streams += session.streams as u64;
            count_drops(totals, drops(&session.drops));
            let mut seen = shown::session(snapshot.number, session);
            seen.peer = far.map(|(_, key)| key.clone());
            seen.packets = snapshot.packets.as_ref().map(packets);
            seen.straight_to = peer.as_ref().map(|(name, _)| name.clone());
            seen.paths
                .iter()
                .for_each(|path| add(&mut seen.traffic, &path.traffic));
            state.sessions.push(seen);
        }
    }

    async fn changed(&self) {
        self.far_ends.journal().changed().await;
    }

    fn change_link(&mut self, name: &str, change: LinkChange) -> Result<(), String> {
        let wish = LinkWish {
            weight: change.weight,
            paused: change.paused,
        };
        let changed = self.far_ends.wish_link(name, wish);
        changed.map_err(|error| error.to_string())
    }

    fn explain(&self, question: RuleQuestion) -> Result<RuleAnswer, String> {
        let rules = self.far_ends.rules().ok_or("no rules are in force here")?;
        let known = |ip| self.far_ends.lan_hosts().hardware_of(ip);
        let hardware = question.hardware.as_deref();
        let hardware = hardware.and_then(HardwareAddress::parse);
        let sender = Sender {
            address: question.source,
            hardware: hardware.or_else(|| question.source.and_then(known)),
        };
        let (rule, names) = rules.explain(FlowFacts {
            sender: (sender != Sender::default()).then_some(sender),
            domains: question.domain.into_iter().collect(),
            address: question.address,
            port: question.port,
            protocol: match question.udp {
                true => Protocol::Udp,
                false => Protocol::Tcp,
            },
            process: question.process,
            ..FlowFacts::default()
        });
        let hardware = sender.hardware.map(|it| it.to_string());
        Ok(RuleAnswer {
            rule,
            names,
            hardware,
        })
    }

    async fn record(&self, session: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        let traced = self.far_ends.trace(session);
        traced.map(follow_record).ok_or_else(|| NO_TRACE.to_owned())
    }
}

/// Where a link stands that has no path: what nothing stands in the way of is being tried, with a
/// handshake as a rule.
fn without_path(problem: Option<&str>) -> LinkState {
    match problem {
        Some(_) => LinkState::Down,
        None => LinkState::Opening,
    }
}

/// The relay of a session, by name and key; before there is one, the first that is known.
fn relay_of(snapshot: &ClientSnapshot, relays: &[(String, String)]) -> Option<(String, String)> {
    let named = snapshot.relay_named.as_ref();
    let named = named.map(|(name, key)| (name.clone(), key.to_string()));
    named.or_else(|| relays.first().cloned())
}

fn rule_use(of: rule_book::RuleUse) -> RuleUse {
    RuleUse {
        rule: of.rule,
        text: of.text,
        connections: of.connections,
        connections_so_far: of.connections_so_far,
        sent_bytes: of.sent.get(),
        received_bytes: of.received.get(),
    }
}

fn count_drops(totals: &mut Totals, drops: BTreeMap<String, u64>) {
    for (reason, count) in drops {
        *totals.drops.entry(reason).or_default() += count;
    }
}

fn packets(carried: &PacketsCarried) -> Packets {
    Packets {
        addresses: carried.addresses.clone(),
        sent: carried.sent,
        received: carried.received,
        ..Packets::default()
    }
}

/// What a session has over a link. Bytes are told by the client's sockets, which miss nothing;
/// losses by the path, as long as there is one.
pub(crate) fn of_link(
    session: &Seen,
    link: &LinkSnapshot,
) -> impl Iterator<Item = (Source, Traffic)> {
    // Those that are left have no sockets beside the client's.
    let client = session.is_present.then(|| {
        let peer = session.peer.as_ref().map(|(name, _)| name.clone());
        (Source::Client(peer), of_volume(&link.volume))
    });
    let path = link.path.as_ref().map(|path| {
        let losses = Traffic {
            lost_packets: of_path(path).lost_packets,
            ..Traffic::default()
        };
        (Source::Path(session.snapshot.number, path.id.get()), losses)
    });
    client.into_iter().chain(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_down_where_something_is_wrong_with_it() {
        assert_eq!(without_path(None), LinkState::Opening);
        assert_eq!(without_path(Some("never answered")), LinkState::Down);
    }
}
