//! An exposure in the words of the control API.

use tabane_base::{Destination, Host};
use tabane_control::{Exposure, ExposureState, Visitor};

use super::{ExposureReport, ExposureState as State, VisitorReport};

/// Visitors that are told one by one; of more, the first.
const MAX_TOLD: usize = 256;

impl ExposureReport {
    /// What instances tell of it; the relay is found by `host`.
    #[must_use]
    pub fn shown(&self, host: Option<&Host>) -> Exposure {
        let entry = &self.entry;
        let (state, refusal) = match &self.state {
            State::Asked => (ExposureState::Asked, None),
            State::Open => (ExposureState::Open, None),
            State::Refused(why) => (ExposureState::Refused, Some(why.clone())),
        };
        let also = "another client of the relay has asked for it, too";
        let visitor = |visitor: &VisitorReport| Visitor {
            from: visitor.from.to_string(),
            port: visitor.port,
            since: visitor.since,
        };
        Exposure {
            place: entry.place(),
            host: entry.host.clone(),
            target: Some(entry.target.to_string()),
            address: self.address(host).filter(|_| state == ExposureState::Open),
            client: None,
            state,
            problem: refusal
                .or_else(|| self.is_also_wanted.then(|| also.to_owned()))
                .or_else(|| self.problem.clone()),
            visitors: self.visitors.iter().take(MAX_TOLD).map(visitor).collect(),
            visitors_now: self.visitors.len() as u64,
            visitors_so_far: self.so_far,
            in_vain: self.in_vain,
        }
    }

    /// Where visitors find it: by its name, if it has one, else by the relay's host.
    #[must_use]
    pub fn address(&self, relay: Option<&Host>) -> Option<String> {
        let ports = self.entry.ports;
        let own = self.entry.host.clone().map(Host::Name);
        let first = Destination {
            host: own.or_else(|| relay.cloned())?,
            port: ports.first(),
        };
        Some(match ports.count() {
            1 => first.to_string(),
            _ => format!("{first}-{}", ports.last()),
        })
    }
}
