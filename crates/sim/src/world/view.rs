//! What can be seen of a world.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Instant};
use tabane_core::{PathId, Session, SessionHandle};
use tabane_netem::Direction;

use super::{DatagramCounts, World};
use crate::beside::Beside;
use crate::flow::Flow;
use crate::host::Host;
use crate::job::{Job, JobId, JobState};
use crate::network::{LinkId, Network};
use crate::outcome::{Outcome, PathOutcome};
use crate::side::Side;

impl World {
    /// The present.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The links.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The links, for changing them.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// What an end's clock shows, by which its session is driven.
    #[must_use]
    pub fn clock(&self, side: Side) -> Instant {
        self.host(side).clock(self.now)
    }

    /// One end.
    #[must_use]
    pub const fn host(&self, side: Side) -> &Host {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(super) fn host_mut(&mut self, side: Side) -> &mut Host {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// The session at one end: the client's latest, and the server's that was asked for with the
    /// same token, or its newest.
    #[must_use]
    pub fn handle(&self, side: Side) -> Option<SessionHandle> {
        match side {
            Side::Client => self.session,
            Side::Server => self.server_handle(),
        }
    }

    /// The session at one end.
    #[must_use]
    pub fn session(&self, side: Side) -> Option<&Session> {
        self.host(side).endpoint().session(self.handle(side)?)
    }

    pub(super) fn client_session(&mut self) -> Option<&mut Session> {
        let handle = self.session?;
        self.client.touch(handle);
        self.client.endpoint_mut().session_mut(handle)
    }

    /// When the client was let in.
    #[must_use]
    pub const fn connected_at(&self) -> Option<Instant> {
        self.connected_at
    }

    /// UDP flows, in the order in which they were added.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: JobId) -> &Job {
        &self.jobs[id.0]
    }

    /// Every job.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Whether every job is over at both ends, and everything that sessions beside have said.
    #[must_use]
    pub fn all_over(&self) -> bool {
        self.jobs.iter().all(Job::is_over) && self.beside.iter().all(Beside::is_over)
    }

    /// Sessions that the client has begun beside its own.
    #[must_use]
    pub fn besides(&self) -> usize {
        self.beside.len()
    }

    /// Jobs that ended whole at `side`.
    #[must_use]
    pub fn finished(&self, side: Side) -> usize {
        self.jobs
            .iter()
            .filter(|job| job.state(side) == JobState::Finished)
            .count()
    }

    /// Which of the client's paths are said to carry data.
    #[must_use]
    pub const fn paths_up(&self) -> &BTreeMap<PathId, bool> {
        &self.paths_up
    }

    /// Whether the client was asked to open nothing new.
    #[must_use]
    pub const fn is_sent_away(&self) -> bool {
        self.is_sent_away
    }

    /// What the application's datagrams came to.
    #[must_use]
    pub const fn datagrams(&self) -> &DatagramCounts {
        &self.datagrams
    }

    /// Stream data delivered to the reader at `side`.
    #[must_use]
    pub const fn outcome(&self, side: Side) -> &Outcome {
        match side {
            Side::Client => &self.down,
            Side::Server => &self.up,
        }
    }

    /// The paths as the end that sends sees them, with the queues it sends into.
    #[must_use]
    pub fn paths(&self, sender: Side) -> Vec<PathOutcome> {
        let Some(client) = self.session(Side::Client) else {
            return Vec::new();
        };
        let Some(session) = self.session(sender) else {
            return Vec::new();
        };
        let own = client.snapshot(self.now).paths;
        let link_of = |id: PathId| {
            own.iter()
                .find(|path| path.id == id)
                .map(|path| LinkId(path.tuple.socket.0 as usize))
        };
        let direction = match sender {
            Side::Client => Direction::Up,
            Side::Server => Direction::Down,
        };
        let mut paths: Vec<_> = session
            .snapshot(self.now)
            .paths
            .into_iter()
            .filter_map(|path| {
                let link = link_of(path.id)?;
                let counters = self.network.counters(link, direction);
                let outcome = PathOutcome {
                    queue_max: counters.queued_max,
                    queue_drops: counters.queue_full.packets,
                    path,
                };
                Some((link, outcome))
            })
            .collect();
        paths.sort_by_key(|(link, _)| *link);
        paths.into_iter().map(|(_, path)| path).collect()
    }

    /// The most that received data ever occupied at `side`.
    #[must_use]
    pub fn receive_memory_max(&self, side: Side) -> Bytes {
        self.host(side).receive_memory_max()
    }
}
