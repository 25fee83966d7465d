//! Why a link is carried as it is, in words.

use tokio::time::Instant;

use super::{Carrier, CarrierKind, Choice, UDP_PATIENCE};

impl Choice {
    /// Why the link is carried as it is, by this port where it is by another than the relay's own,
    /// and where that is not as usual.
    pub(in crate::client) fn why(&self, now: Instant, port: Option<u16>) -> Option<String> {
        let why = self.reason(now).or_else(|| {
            let is_other = self.carrier == Carrier::Udp && port.is_some();
            is_other.then(|| "the relay's own port got no answer here".to_owned())
        })?;
        Some(match self.is_remembered() {
            true => format!("{why} (remembered of this network)"),
            false => why,
        })
    }

    fn reason(&self, now: Instant) -> Option<String> {
        match (self.carrier, self.kind) {
            (Carrier::Tls, CarrierKind::Tls) => Some("the policy says so".to_owned()),
            (Carrier::Tls, _) => Some(self.policed.map_or_else(
                || "UDP gets no answer here".to_owned(),
                |policed| policed.to_string(),
            )),
            (Carrier::Udp, _) => {
                let silent = self.silent_since?;
                let is_late = now > silent + UDP_PATIENCE;
                let problem = self.problem.as_ref().filter(|_| is_late)?;
                Some(match self.kind {
                    CarrierKind::Tls => format!("no TLS: {problem}"),
                    CarrierKind::Auto | CarrierKind::Udp => {
                        format!("no UDP, and no TLS either: {problem}")
                    }
                })
            }
        }
    }
}
