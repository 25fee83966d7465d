//! What becomes of a client whose key and token have been judged: a session, or its end.
//!
//! Owns how many sessions a client or a user may have, at all workers together, and that those
//! whose client has gone make room for others.

use std::sync::atomic::Ordering;

use tabane_base::Duration;
use tabane_core::{CloseReason, PublicKey};

use super::Relay;
use super::applicant::Admission;
use super::crew::Job;
use super::guest::{Guest, Membership};
use super::user::{User, What};
use crate::engine::SessionId;
use crate::journal::Happening;

/// A session that was silent for so long has lost its client: live ones probe every 15 s [P-9.3].
const DESERTED_AFTER: Duration = Duration::from_secs(40);

impl Relay {
    /// Whom another list let in before is in before this one sends it away.
    pub(super) fn carry_out(&mut self, job: Job) {
        while let Ok((session, key, verdict)) = self.answers.1.try_recv() {
            self.decide(session, key, verdict);
        }
        job(self);
    }

    pub(super) fn decide(&mut self, session: SessionId, key: PublicKey, verdict: Admission) {
        let verdict = match verdict {
            Admission::Admit(_) if self.shared.is_draining.load(Ordering::Relaxed) => {
                Err(CloseReason::ShuttingDown)
            }
            Admission::Admit(user) => {
                let membership = self.membership(key, user.as_ref());
                membership.ok_or_else(|| {
                    // It comes again, and finds room then.
                    self.end_deserted_everywhere(key, user);
                    CloseReason::TooManySessions
                })
            }
            Admission::Refuse(reason) => Err(reason),
        };
        // It may have gone while it waited.
        self.engine.visit(session, |visit| {
            visit.touch();
            match verdict {
                Ok(membership) => {
                    visit.session.admit(visit.now);
                    self.shared.served.fetch_add(1, Ordering::Relaxed);
                    let (engine, shared) = (self.engine.clone(), self.shared.clone());
                    let from = visit.session.remote();
                    let shared = (shared, self.leavings.clone());
                    let guest = Guest::new(engine, shared, session, key, from, membership);
                    self.guests.insert(session.serial(), guest);
                    self.shared.journal.record(Happening::SessionUp {
                        session: session.serial(),
                        client: Some(key),
                    });
                }
                Err(reason) => {
                    if self.shared.refusals.is_due() {
                        tracing::info!(client = %key, %reason, "refused");
                    }
                    self.shared
                        .journal
                        .record(Happening::Refused { client: key });
                    visit.session.close(visit.now, reason);
                }
            }
        });
    }

    /// A place for one more session of this client's, as many as its user says, or the relay.
    fn membership(&mut self, key: PublicKey, user: Option<&User>) -> Option<Membership> {
        let Some(user) = user else {
            let most = self.shared.limits.sessions;
            let _counted = self.shared.headcount.count(key, most)?;
            return Some(Membership::OfNobody { _counted });
        };
        Some(Membership::OfUser {
            _counted: user.count(What::Session)?,
            rates: self.rates.of(user),
            user: user.clone(),
        })
    }

    /// Ends those sessions whose client has gone without a good-bye, at all workers: they stand in
    /// the way of a new one.
    fn end_deserted_everywhere(&self, key: PublicKey, user: Option<User>) {
        self.end_deserted(key, user.as_ref());
        let end = move |relay: &mut Self| relay.end_deserted(key, user.as_ref());
        self.shared.crew.tell_others(self.number, end);
    }

    fn end_deserted(&self, key: PublicKey, user: Option<&User>) {
        let stands_in_the_way = |guest: &&Guest| match user {
            Some(user) => guest.is_of(user),
            None => guest.key() == key,
        };
        for guest in self.guests.values().filter(stands_in_the_way) {
            let session = guest.session();
            let silent_for = self.engine.snapshot(session).map(|found| found.silent_for);
            if silent_for.is_some_and(|span| span > DESERTED_AFTER) {
                self.engine.visit(session, |visit| {
                    visit.session.close(visit.now, CloseReason::IdleTimeout);
                    visit.touch();
                });
            }
        }
    }
}
