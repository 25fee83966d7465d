//! A client as its control socket shows it.

use std::collections::BTreeMap;

use tabane_base::{Duration, Instant};
use tabane_control::{
    Link, LinkChange, LinkState, Packets, Path, RuleAnswer, RuleQuestion, RuleUse, Session,
    SessionState, State, Totals, Traffic,
};
use tabane_core::{Drops, PathSnapshot, PathStatus, SessionSnapshot, SessionStatus};
use tabane_policy::{FlowFacts, Protocol};
use tabane_tunnel::{LinkSnapshot, LinkWish, PacketsCarried, SessionTrace};

use tabane_client::{
    FarEnds, RuleBook, Seen,
    ledger::{Ledger, add, of_link, of_path},
};

/// Why a session is not recorded.
pub(super) const NO_TRACE: &str = "there is no such session, or it is being recorded already";

/// The sessions of a client with what its links carried.
pub(super) struct ClientView {
    far_ends: FarEnds,
    /// By name; links that are gone keep theirs.
    ledgers: BTreeMap<String, Ledger>,
    /// When the relay was heard last.
    heard_at: Option<std::time::Instant>,
}

impl ClientView {
    pub(super) fn new(far_ends: FarEnds) -> Self {
        Self {
            far_ends,
            ledgers: BTreeMap::new(),
            heard_at: None,
        }
    }

    /// Fills in what is known of it.
    pub(super) fn look(&mut self, state: &mut State, relays: &[(String, String)]) {
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
        }
        let bypass = self.far_ends.bypass();
        state.limit = bypass.limit();
        state.totals.bypassing_connections = bypass.connections();
        state.totals.bypassing_flows = bypass.flows();
        let rules = self.far_ends.rules().map(RuleBook::uses);
        state.rules = rules
            .unwrap_or_default()
            .into_iter()
            .map(rule_use)
            .collect();
        for ledger in self.ledgers.values() {
            add(&mut state.totals.traffic, &ledger.traffic());
        }
        for seen in sessions {
            let Seen {
                peer,
                is_present,
                snapshot,
            } = seen;
            let far = match &peer {
                Some(peer) => Some(peer),
                None => {
                    let relay = relays.get(snapshot.relay.unwrap_or(0));
                    if is_present {
                        state.instance.relay = relay.map(|(name, _)| name.clone());
                    }
                    relay
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
            let mut seen = self::session(snapshot.number, session);
            seen.peer = far.map(|(_, key)| key.clone());
            seen.packets = snapshot.packets.as_ref().map(packets);
            seen.straight_to = peer.as_ref().map(|(name, _)| name.clone());
            seen.paths
                .iter()
                .for_each(|path| add(&mut seen.traffic, &path.traffic));
            state.sessions.push(seen);
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
        let path = best.map(|(path, at)| self::path(path, *at));
        let carrying = of
            .iter()
            .find(|(_, link)| link.path.is_some())
            .or_else(|| of.first());
        let carried = carrying.map(|(_, link)| link.carrier.to_string());
        let carrier_reason = carrying.and_then(|(_, link)| link.carrier_why.clone());
        let paused = of.iter().any(|(_, link)| link.paused);
        let mut problems = of.iter().filter_map(|(_, link)| link.problem.clone());
        Link {
            name: name.to_owned(),
            state: match &path {
                _ if paused => LinkState::Paused,
                Some(path) => path.state,
                None => LinkState::Down,
            },
            problem: problems.next().filter(|_| path.is_none()),
            weight: of.first().map_or(1.0, |(_, link)| link.policy.weight),
            paused,
            share: 0.0,
            share_now: None,
            traffic: ledger.traffic(),
            failures: 0,
            is_lent: false,
            metered: false,
            budget: None,
            policy: None,
            carrier: carried.filter(|_| path.is_some()),
            carrier_reason,
            path,
        }
    }

    /// Which rule a connection would fall under.
    pub(super) fn explain(&self, question: RuleQuestion) -> Result<RuleAnswer, String> {
        let rules = self.far_ends.rules().ok_or("no rules are in force here")?;
        let (rule, names) = rules.explain(FlowFacts {
            domains: question.domain.into_iter().collect(),
            address: question.address,
            port: question.port,
            protocol: match question.udp {
                true => Protocol::Udp,
                false => Protocol::Tcp,
            },
            process: question.process,
            dscp: None,
        });
        Ok(RuleAnswer { rule, names })
    }

    /// Has a session recorded: the relay's, where none is named.
    pub(super) fn trace(&self, session: Option<u64>) -> Result<SessionTrace, String> {
        let traced = self.far_ends.trace(session);
        traced.ok_or_else(|| NO_TRACE.to_owned())
    }

    /// Carries out a change, of which the parts that are left out stay.
    pub(super) fn change_link(&self, name: &str, change: LinkChange) -> Result<(), String> {
        let wish = LinkWish {
            weight: change.weight,
            paused: change.paused,
        };
        let changed = self.far_ends.wish_link(name, wish);
        changed.map_err(|error| error.to_string())
    }
}

fn rule_use(of: tabane_client::RuleUse) -> RuleUse {
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

/// Packets that were not used, by reason.
pub(super) fn drops(drops: &Drops) -> BTreeMap<String, u64> {
    let named = drops
        .iter()
        .map(|(reason, n)| (reason.name().to_owned(), n));
    named.filter(|(_, count)| *count > 0).collect()
}

/// A session, but for who and how old it is, and what it carried.
pub(super) fn session(number: u64, session: &SessionSnapshot) -> Session {
    Session {
        number,
        peer: None,
        straight_to: None,
        state: match session.status {
            SessionStatus::Connecting => SessionState::Connecting,
            SessionStatus::Connected => SessionState::Connected,
            SessionStatus::Closed => SessionState::Closed,
        },
        age_s: None,
        streams: session.streams as u64,
        receive_memory_bytes: session.receive_memory.get(),
        datagrams_queued_bytes: session.datagrams_queued.get(),
        traffic: Traffic::default(),
        packets: None,
        paths: session
            .paths
            .iter()
            .map(|it| path(it, session.at))
            .collect(),
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

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// As it was `at` this time.
fn path(path: &PathSnapshot, at: Instant) -> Path {
    let of = |span: Duration| span.as_secs_f64() * 1e3;
    let millis = |span: Duration| path.rtt_measured.then_some(of(span));
    let round_trip = path.link_round_trip();
    Path {
        id: path.id.get(),
        state: match path.status {
            PathStatus::Opening => LinkState::Opening,
            PathStatus::Active => LinkState::Active,
            PathStatus::Silent => LinkState::Silent,
        },
        remote: path.tuple.remote.to_string(),
        rtt_ms: round_trip.map(|(latest, _)| of(latest)),
        rtt_min_ms: round_trip.map(|(_, least)| of(least)),
        queue_ms: millis(path.rtt_smoothed.saturating_sub(path.rtt_min)),
        in_flight_bytes: path.in_flight.get(),
        cwnd_bytes: path.cwnd.get(),
        bandwidth_bps: path.delivery_rate.as_bps(),
        silent_ms: Some(whole_millis(at.since(path.last_received_at))),
        mtu_bytes: path.mtu.into(),
        weight: path.weight,
        backup: path.backup,
        reinjected_bytes: path.reinjected.get(),
        traffic: of_path(path),
    }
}
