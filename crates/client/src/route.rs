//! Where one connection or flow goes, as its entrance and the rules have it.

use std::net::SocketAddr;

use tabane_policy::OnFailure;
use tabane_store::is_private;
use tabane_tunnel::{Client, Label, Silence, Target};

use crate::far_ends::FarEnds;
use crate::lan_hosts::Part;
use crate::rule_book::SplitTunnel;
use crate::sites::Whose;
use crate::via::Known;

/// Where a connection or a flow goes.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Through the session.
    pub target: Target,
    /// Without it, where the session cannot serve; `None` where that is not to be.
    pub plain: Option<SocketAddr>,
    /// The session is not even asked.
    pub(crate) stays_here: bool,
    /// Whether a relay that is silent is waited for.
    pub silence: Silence,
    /// Better nowhere than without a session, but for what stays here.
    pub(crate) fails_closed: bool,
    /// How the session treats it.
    pub label: Option<Label>,
    /// The host behind this machine that it is for.
    pub source: Option<SocketAddr>,
    /// Its part of what all such hosts have, where it is a connection.
    pub part: Option<Part>,
}

impl Route {
    /// The peer that serves it, and what to ask for there; nobody is asked for what stays here.
    pub(crate) async fn peer(&self, far_ends: &FarEnds) -> Option<(Client, Target)> {
        match self.stays_here {
            true => None,
            false => far_ends.straight(&self.target, self.label.as_ref()).await,
        }
    }

    /// As the rules have it; what they leave open, as `otherwise` has it, else as before.
    pub(crate) fn ruled(self, way: SplitTunnel, otherwise: Option<OnFailure>) -> Self {
        let SplitTunnel::Carried(label, on_failure) = way else {
            return Self {
                stays_here: true,
                ..self
            };
        };
        let (silence, fails_closed) = match on_failure.or(otherwise) {
            None => (self.silence, self.fails_closed),
            Some(OnFailure::Direct) => (Silence::GivesBack, false),
            Some(OnFailure::Wait) => (Silence::Waits, true),
            Some(OnFailure::Refuse) => (Silence::GivesBack, true),
        };
        Self {
            label: Some(label),
            silence,
            fails_closed,
            ..self
        }
    }

    /// Whether it is to port 0, for which a relay has no word: the plain way says what comes of it.
    fn is_to_no_port(&self) -> bool {
        self.plain.is_some_and(|to| to.port() == 0)
    }

    /// Whether it leads to the same host from everywhere.
    pub(crate) fn is_public(&self) -> bool {
        self.plain.is_some_and(|to| !is_private(to.ip()))
    }

    /// Whether it may go without a session at all.
    pub(crate) fn may_go_plainly(&self) -> bool {
        self.stays_here || !self.fails_closed
    }

    /// What is known at this moment of who could serve it.
    pub(crate) fn known(&self, far_ends: &FarEnds, has_peer: bool, has_plain: bool) -> Known {
        Known {
            stays_here: self.stays_here
                || self.is_to_no_port()
                || far_ends.sites().whose(&self.target) == Whose::Near,
            has_peer,
            relay: far_ends.relay_state(),
            waits: self.silence == Silence::Waits,
            has_plain: has_plain && self.may_go_plainly() && !self.is_to_site(far_ends),
        }
    }

    /// The same to this host of another site, whatever the rules leave to this machine's network.
    pub(crate) fn led_to(self, host: SocketAddr) -> Self {
        Self {
            target: host.into(),
            plain: None,
            stays_here: false,
            ..self
        }
    }

    /// The relay's client, as it is to be asked.
    pub(crate) fn by_relay(&self, relay: &Client, far_ends: &FarEnds) -> Client {
        let source = self.source.filter(|_| self.is_to_site(far_ends));
        relay.labelled(self.label.clone()).on_behalf_of(source)
    }

    /// Whether it goes to another site, which nobody leads to but the relay.
    pub(crate) fn is_to_site(&self, far_ends: &FarEnds) -> bool {
        !self.stays_here && far_ends.sites().whose(&self.target) == Whose::Site
    }
}

impl From<Target> for Route {
    fn from(target: Target) -> Self {
        Self {
            target,
            plain: None,
            stays_here: false,
            silence: Silence::Waits,
            fails_closed: false,
            label: None,
            source: None,
            part: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_not_asked_for_port_0() {
        for (to, is_to_none) in [("192.0.2.1:0", true), ("192.0.2.1:1", false)] {
            let to: SocketAddr = to.parse().unwrap();
            let route = Route {
                plain: Some(to),
                ..Target::from(to).into()
            };
            assert_eq!(route.is_to_no_port(), is_to_none, "{to}");
        }
    }
}
