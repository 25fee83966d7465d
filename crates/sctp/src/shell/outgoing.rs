//! An association that we began, with its paths.
//!
//! Owns which ways it has: those planned at first, the peer's other addresses once it has listed
//! them, links that come and go, other addresses where one does not answer, and which links wait
//! because the policy puts others before them, and by which of them each message goes.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::{
    AssociationId, EndpointId, Event, Message, PathId, PathState, PathStatus, PathTuple, SctpError,
    Sent, Stack,
};
use anyhow::{Result, anyhow};
use tabane_base::Duration;

use super::conversation::{BYTES, INDICATION, MESSAGE_BYTES, STREAM, message_bytes};
use super::driver::Driver;
use super::links::{Address, Link, LinkSet};
use super::scheduler::{Distribution, Scheduler};
use super::ways::{self, Reach, is_destination};

/// How long an address may stay silent over a link before another one is tried there; twice as long
/// each time, for links of long round trips.
const SILENCE: Duration = Duration::from_millis(700);
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long nothing may work before links that wait are taken.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connecting,
    Up,
    /// Ended, everything delivered.
    Closed,
    Lost,
}

/// See the module.
pub(crate) struct Outgoing {
    pub endpoint: EndpointId,
    pub association: AssociationId,
    pub stage: Stage,
    /// The peer is one of our programs.
    pub is_ours: bool,
    /// The most bytes of a message that fit into one packet.
    pub message_bytes: usize,
    remotes: Vec<SocketAddr>,
    distribution: Distribution,
    /// What was chosen for a message for which there was no room yet.
    chosen: Option<Option<PathId>>,
    /// Links up to this tier are used.
    tier: u16,
    worked_at: Instant,
    /// When the ways of silent paths were last changed, and how long they may stay so.
    rotated_at: Instant,
    silence: Duration,
}

impl Outgoing {
    /// Begins it; `port` is the peer's SCTP port.
    pub(crate) fn begin(
        driver: &mut Driver,
        links: &LinkSet,
        remotes: &[SocketAddr],
        port: u16,
        scheduler: Scheduler,
    ) -> Result<Self> {
        let (families, locals) = (links.families(), links.locals());
        let endpoint = driver.stack.open(families, &locals, 0, INDICATION)?;
        let tier = links.links().iter().map(Link::tier).min().unwrap_or(0);
        let ways = ways::plan(&reaches(links, tier), remotes);
        let association = match driver.stack.connect(endpoint, &ways, port) {
            Ok(association) => association,
            Err(error) => {
                driver.stack.close(endpoint);
                return Err(error.into());
            }
        };
        Ok(Self {
            endpoint,
            association,
            stage: Stage::Connecting,
            is_ours: false,
            message_bytes: MESSAGE_BYTES,
            remotes: remotes.to_vec(),
            distribution: Distribution::new(scheduler),
            chosen: None,
            tier,
            worked_at: Instant::now(),
            rotated_at: Instant::now(),
            silence: SILENCE,
        })
    }

    /// News of it.
    pub(crate) fn on_event(&mut self, stack: &mut Stack, links: &LinkSet, event: &Event) {
        match event {
            Event::Up { .. } => {
                self.stage = Stage::Up;
                self.rotated_at = Instant::now();
                self.message_bytes = message_bytes(stack, self.endpoint, self.association);
                self.add_listed(stack, links);
            }
            Event::Adaptation { indication, .. } => self.is_ours = *indication == INDICATION,
            Event::Closed { .. } => self.stage = Stage::Closed,
            Event::Lost { .. } => self.stage = Stage::Lost,
            Event::PeerDone { .. } => {}
        }
    }

    /// The peer's other addresses, if they reach as far as what was named of their family. With one
    /// link the narrow place may be at the peer's end, so each gets a path; with several links they
    /// are what is tried where an address does not answer.
    fn add_listed(&mut self, stack: &mut Stack, links: &LinkSet) {
        let named = self.remotes.clone();
        let usable = reaches(links, self.tier);
        for host in stack.listed(self.endpoint).to_vec() {
            let mut like = named.iter();
            let Some(like) = like.find(|named| named.is_ipv6() == host.is_ipv6()) else {
                continue;
            };
            let is_new = self.remotes.iter().all(|known| known.ip() != host);
            if !is_new || !reaches_as_far(host, like.ip()) {
                continue;
            }
            let remote = SocketAddr::new(host, like.port());
            self.remotes.push(remote);
            if let [only] = usable[..]
                && only.leads_to(host)
            {
                let link = only.link;
                stack.add_way(self.endpoint, PathTuple { link, remote });
            }
        }
    }

    /// Links have come or gone.
    pub(crate) fn on_links(
        &mut self,
        stack: &mut Stack,
        links: &LinkSet,
        come: &[Address],
        gone: &[Address],
    ) {
        for Address { name, link, local } in come {
            if let Err(error) = stack.add_local(self.endpoint, *link, *local) {
                tracing::warn!(link = name, %error, "the peer is not told of a new address");
            }
        }
        for Address { link, local, .. } in gone {
            for PathStatus { path, way, .. } in stack.paths(self.endpoint) {
                if way.link == *link && way.remote.is_ipv6() == local.is_ipv6() {
                    stack.set_way(self.endpoint, path, None);
                }
            }
        }
        let best = links.links().iter().map(Link::tier).min();
        self.tier = best.unwrap_or(self.tier);
        self.fill(stack, links);
    }

    /// Every link of the tiers in use has a way, and no other has.
    fn fill(&mut self, stack: &mut Stack, links: &LinkSet) {
        let usable = reaches(links, self.tier);
        for status in stack.paths(self.endpoint) {
            if !usable.iter().any(|reach| reach.link == status.way.link) {
                stack.set_way(self.endpoint, status.path, None);
            }
        }
        for reach in &usable {
            let used = self.ways(stack);
            if used.iter().any(|way| way.link == reach.link) {
                continue;
            }
            if let Some(remote) = ways::best_remote(&usable, &used, &self.remotes, reach) {
                let link = reach.link;
                stack.add_way(self.endpoint, PathTuple { link, remote });
            }
        }
    }

    /// To be called now and then: tries other addresses and other links where nothing answers.
    pub(crate) fn tend(&mut self, driver: &mut Driver, links: &LinkSet) {
        let stack = &mut driver.stack;
        let paths = stack.paths(self.endpoint);
        links.note(&paths);
        let works = |status: &&PathStatus| status.state == PathState::Active;
        let tier_of = |status: &PathStatus| links.get(status.way.link).map(Link::tier);
        let working = paths.iter().filter(works).filter_map(tier_of).min();
        if let Some(best) = working {
            self.worked_at = Instant::now();
            if best < self.tier {
                self.tier = best;
                self.fill(stack, links);
            }
        } else if self.worked_at.elapsed() > PATIENCE {
            let later = links.links().iter().map(Link::tier);
            if let Some(next) = later.filter(|tier| *tier > self.tier).min() {
                self.tier = next;
                self.worked_at = Instant::now();
                self.fill(stack, links);
            }
        }
        if self.stage == Stage::Up && self.rotated_at.elapsed() > self.silence {
            self.rotated_at = Instant::now();
            self.silence = (self.silence * 2).min(SILENCE_MAX);
            self.rotate(stack, links, &paths);
        }
    }

    /// Leads paths that have never answered to another address, where their link has no other path
    /// that works.
    fn rotate(&self, stack: &mut Stack, links: &LinkSet, paths: &[PathStatus]) {
        let works = |status: &PathStatus| status.state == PathState::Active;
        for silent in paths.iter().filter(|status| !works(status)) {
            let same_link = |other: &&PathStatus| other.way.link == silent.way.link;
            if paths.iter().filter(same_link).any(works) {
                continue;
            }
            let Some(link) = links.get(silent.way.link) else {
                continue;
            };
            if let Some(remote) = ways::next_remote(&link.reach, &self.remotes, silent.way.remote) {
                let way = PathTuple {
                    link: silent.way.link,
                    remote,
                };
                if paths.iter().all(|other| other.way != way) {
                    stack.set_way(self.endpoint, silent.path, Some(way));
                }
            }
        }
    }

    fn ways(&self, stack: &Stack) -> Vec<PathTuple> {
        let paths = stack.paths(self.endpoint);
        paths.iter().map(|status| status.way).collect()
    }

    /// Why nothing could be set up within `patience`.
    pub(crate) fn silence(
        &self,
        driver: &Driver,
        links: &LinkSet,
        patience: Duration,
    ) -> anyhow::Error {
        let strangers = match driver.strangers() {
            0 => String::new(),
            n => format!(" ({n} datagrams came that are no SCTP)"),
        };
        let remotes: Vec<String> = self.remotes.iter().map(ToString::to_string).collect();
        anyhow!(
            "no SCTP answer from {} over {} in {} s{strangers}: is an SCTP receiver running there \
             that takes UDP encapsulation at this port (such as `tabane sctp recv`), and does \
             every firewall let it through?",
            remotes.join(", "),
            links.names(),
            patience.as_secs(),
        )
    }

    /// Sends bytes by the path whose turn it is.
    ///
    /// # Errors
    /// The association has ended.
    pub(crate) fn send(
        &mut self,
        stack: &mut Stack,
        links: &LinkSet,
        data: &[u8],
    ) -> Result<Sent, SctpError> {
        let chosen = self.chosen.take();
        let path = chosen.unwrap_or_else(|| self.choose(stack, links, data.len()));
        let mut message = Message {
            data,
            stream: STREAM,
            protocol: BYTES,
            // The stack takes a message only for a path that works.
            path: path.filter(|path| self.works(stack, *path)),
        };
        let mut sent = stack.send(self.endpoint, self.association, message);
        // It has ceased to work just now.
        if let (Err(_), Some(path)) = (&sent, message.path.take()) {
            self.distribution.on_refused(path);
            sent = stack.send(self.endpoint, self.association, message);
        }
        if matches!(sent, Ok(Sent::Full)) {
            self.chosen = Some(path);
        }
        sent
    }

    fn choose(&mut self, stack: &Stack, links: &LinkSet, len: usize) -> Option<PathId> {
        let is_weighted = links.links().iter().any(|link| link.weight() < 1.0);
        let weight = |status: &PathStatus| links.get(status.way.link).map_or(1.0, Link::weight);
        let endpoint = self.endpoint;
        self.distribution.choose(len as u64, is_weighted, || {
            let paths = stack.paths(endpoint).into_iter();
            paths.map(|status| (status, weight(&status))).collect()
        })
    }

    fn works(&self, stack: &Stack, path: PathId) -> bool {
        let works = |status: &PathStatus| status.path == path && status.state == PathState::Active;
        stack.paths(self.endpoint).iter().any(works)
    }
}

/// Whether one address reaches as far as another one of its family; ways that lead into a network
/// are none to those outside of it.
fn reaches_as_far(host: IpAddr, named: IpAddr) -> bool {
    let is_private = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    is_destination(host)
        && host.is_loopback() == named.is_loopback()
        && (!is_private(host) || is_private(named))
}

fn reaches(links: &LinkSet, tier: u16) -> Vec<Reach> {
    let used = links.links().iter().filter(|link| link.tier() <= tier);
    used.map(|link| link.reach).collect()
}
