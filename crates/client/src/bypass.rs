//! What goes without the relay though no rule says so: how much, and the one line about it.
//!
//! Owns the counts and who is told. A relay or a session at its limit refuses every connection from
//! then on; of all of them one line says so, and the next one not before a minute without any.
//! Whether a connection goes plainly is `opening`'s and `associations`' affair.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use std::time::Instant;
use tabane_base::Duration;
use tabane_tunnel::{OpenError, Seldom, Status, Target};

/// No refusal for so long, and the limit is no longer in the way.
const SPELL: Duration = Duration::from_secs(60);

/// The counts of an instance. Copies count the same.
#[derive(Debug, Clone, Default)]
pub struct Bypass(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    connections: Cell<u64>,
    flows: Cell<u64>,
    limit: RefCell<Option<Limit>>,
    refusals: Refusals,
}

/// What is said of single connections. A host of the LAN, or a page, begins as many as it likes.
#[derive(Debug)]
struct Refusals(Seldom);

impl Default for Refusals {
    fn default() -> Self {
        Self(Seldom::of(60, "connections go without the relay, or fail"))
    }
}

/// A limit that is in the way, in its own words.
#[derive(Debug)]
struct Limit {
    why: String,
    met_at: Instant,
}

impl Bypass {
    /// Programs notice nothing; where the user can do something it is worth a line.
    pub fn report(&self, target: &Target, why: &OpenError) {
        if !is_limit(why) {
            if self.is_worth_a_line() {
                tracing::info!("{target}: {why}; it goes without the relay");
            }
            return;
        }
        if self.meet(why.to_string(), Instant::now()) {
            tracing::warn!(
                "{why}; {target} goes without the relay, and so does what follows while this \
                 lasts (`tabane status` counts it)"
            );
        }
    }

    /// Whether the log is to have one more line about a single connection.
    pub(crate) fn is_worth_a_line(&self) -> bool {
        self.0.refusals.0.is_due()
    }

    /// The same of a connection of the host at `source`, which has its part of the session.
    pub(crate) fn report_host(&self, source: Option<SocketAddr>) {
        const WHY: &str = "a host of the LAN has as many connections as are left to all others";
        if self.meet(WHY.to_owned(), Instant::now()) {
            let source = source.map(|it| it.ip().to_canonical());
            tracing::warn!(
                ?source,
                "{WHY}; its next ones go without the relay while this lasts (`tabane status` \
                 counts them)"
            );
        }
    }

    /// A limit is in the way; `true` where it was not before.
    fn meet(&self, why: String, now: Instant) -> bool {
        let is_new = self.limit_at(now).is_none_or(|before| before != why);
        self.0.limit.replace(Some(Limit { why, met_at: now }));
        is_new
    }

    /// A connection has gone without the relay.
    pub(crate) fn on_connection(&self) {
        self.0.connections.set(self.0.connections.get() + 1);
    }

    /// A flow of datagrams has.
    pub(crate) fn on_flow(&self) {
        self.0.flows.set(self.0.flows.get() + 1);
    }

    /// Connections that went so.
    pub fn connections(&self) -> u64 {
        self.0.connections.get()
    }

    /// Flows of datagrams that did.
    pub fn flows(&self) -> u64 {
        self.0.flows.get()
    }

    /// The limit that is in the way at present.
    pub fn limit(&self) -> Option<String> {
        self.limit_at(Instant::now())
    }

    fn limit_at(&self, now: Instant) -> Option<String> {
        let limit = self.0.limit.borrow();
        let is_present = |limit: &&Limit| now.duration_since(limit.met_at) < SPELL;
        Some(limit.as_ref().filter(is_present)?.why.clone())
    }
}

/// Whether the relay or the session has had enough, so that every other connection fares the same.
const fn is_limit(why: &OpenError) -> bool {
    match why {
        OpenError::Refused(Status::Limit | Status::VolumeUsedUp | Status::Malformed)
        | OpenError::Limit(_) => true,
        OpenError::Refused(_)
        | OpenError::NoSession(_)
        | OpenError::SessionLost
        | OpenError::TimedOut => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_new_again_after_a_minute_without_it() {
        let bypass = Bypass::default();
        let start = Instant::now();
        let meet = |why: &str, at| bypass.meet(why.to_owned(), start + at);
        assert!(meet("too many", Duration::ZERO));
        assert!(!meet("too many", SPELL / 2), "not for every connection");
        assert!(meet("used up", SPELL / 2));
        assert!(!meet("used up", SPELL));
        assert_eq!(bypass.limit_at(start + SPELL).as_deref(), Some("used up"));
        assert_eq!(bypass.limit_at(start + SPELL * 2), None);
        assert!(meet("used up", SPELL * 2));
    }

    #[test]
    fn hosts_that_connect_in_vain_without_end_fill_no_log() {
        let bypass = Bypass::default();
        let told = (0..1_000).filter(|_| bypass.clone().is_worth_a_line());
        assert_eq!(told.count(), 60);
    }

    #[test]
    fn what_a_destination_says_is_no_limit() {
        let bypass = Bypass::default();
        bypass.report(&Target::Resolver, &OpenError::Refused(Status::Refused));
        assert_eq!(bypass.limit(), None);
        bypass.report(&Target::Resolver, &OpenError::Refused(Status::Limit));
        assert_eq!(bypass.limit(), Some(Status::Limit.to_string()));
    }
}
