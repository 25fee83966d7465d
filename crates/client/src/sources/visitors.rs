//! What hosts do when visitors are led to them in their own names, as far as somebody has to do
//! something about it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::MAX_HOSTS;

/// Which hosts have answered visitors, and what is wrong.
#[derive(Default)]
pub(super) struct Visitors {
    /// Hosts that have: what they leave without an answer, they mean to.
    answering: BTreeSet<IpAddr>,
    /// The last host that has not answered, and never had.
    silent: Option<IpAddr>,
    /// The last visitor's that could not be led in its name: to whom, and why.
    fault: Option<(IpAddr, String)>,
}

impl Visitors {
    /// A host has not answered a visitor in time.
    pub(super) fn note_silent(&mut self, host: IpAddr) {
        if !self.answering.contains(&host) {
            self.silent = Some(host);
        }
    }

    /// It has answered one, if only to refuse.
    pub(super) fn note_answer(&mut self, host: IpAddr) {
        if self.answering.len() < MAX_HOSTS {
            self.answering.insert(host);
        }
        self.silent.take_if(|silent| *silent == host);
    }

    /// A visitor could not be led there in its name.
    pub(super) fn note_fault(&mut self, host: IpAddr, why: &str) {
        self.fault = Some((host, why.to_owned()));
    }

    /// What is wrong, and what to do.
    pub(super) fn problem(&self) -> Option<String> {
        let silent = self.silent.map(|host| {
            format!(
                "{host} has answered no visitor yet: where another machine is its router, make \
                 this one the router, or leave out --transparent"
            )
        });
        let fault = || {
            let (host, why) = self.fault.as_ref()?;
            Some(format!("a visitor was not led to {host}: {why}"))
        };
        silent.or_else(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_has_answered_anybody_has_no_other_router() {
        let [host, other] = ["192.168.20.5", "192.168.20.6"].map(|it| it.parse().unwrap());
        let mut visitors = Visitors::default();
        assert_eq!(visitors.problem(), None);
        visitors.note_silent(host);
        let said = visitors.problem().unwrap();
        assert!(said.starts_with("192.168.20.5 has answered no"), "{said}");
        visitors.note_answer(other);
        assert_eq!(visitors.problem(), Some(said));
        visitors.note_answer(host);
        assert_eq!(visitors.problem(), None);
        // Somebody whom it keeps out.
        visitors.note_silent(host);
        assert_eq!(visitors.problem(), None);
        visitors.note_fault(host, "why");
        assert!(visitors.problem().unwrap().ends_with("192.168.20.5: why"));
    }
}
