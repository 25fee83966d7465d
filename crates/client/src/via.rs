//! By way of whom a connection or a flow goes: straight to the peer whose address it is, else by
//! the relay, else plainly.
//!
//! Pure, and the one place that knows this order: what is known at the moment goes in, who is tried
//! next comes out. Connections and datagrams, from the hooks, the LAN and the proxy, all ask here;
//! how each of them is tried is `opening`'s and `associations`'.

/// By way of whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The peer whose address it is.
    Peer,
    Relay,
    /// As it would go without tabane, by a link that the policy allows.
    Plain,
}

/// What is known of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayState {
    /// There is none.
    Absent,
    /// No path leads to it at present.
    Silent,
    Reachable,
}

/// What the choice is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// A rule, or the kind of question, keeps it from all sessions.
    pub(crate) stays_here: bool,
    /// Its destination is a peer that can be reached.
    pub(crate) has_peer: bool,
    pub relay: RelayState,
    /// A silent relay is waited for: who asks has asked for the session.
    pub waits: bool,
    /// It can do without a session.
    pub(crate) has_plain: bool,
}

impl Known {
    /// Who is tried after `last`, by way of whom it was not served; at first, after nobody.
    pub(crate) fn next(self, last: Option<Via>) -> Option<Via> {
        let order = [Via::Peer, Via::Relay, Via::Plain];
        let done = order.iter().position(|via| Some(*via) == last);
        let rest = &order[done.map_or(0, |place| place + 1)..];
        rest.iter().copied().find(|via| self.may_serve(*via))
    }

    fn may_serve(self, via: Via) -> bool {
        match via {
            Via::Peer => !self.stays_here && self.has_peer,
            Via::Relay => {
                !self.stays_here
                    && match self.relay {
                        RelayState::Absent => false,
                        RelayState::Silent => self.waits,
                        RelayState::Reachable => true,
                    }
            }
            Via::Plain => self.has_plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody who is tried, where nobody serves it.
    fn order(known: Known) -> Vec<Via> {
        let next = |last: &Via| known.next(Some(*last));
        std::iter::successors(known.next(None), next).collect()
    }

    #[test]
    fn peer_then_relay_then_plainly_as_far_as_each_may() {
        use RelayState::{Absent, Reachable, Silent};
        use Via::{Peer, Plain, Relay};
        let all = Known {
            stays_here: false,
            has_peer: true,
            relay: Reachable,
            waits: false,
            has_plain: true,
        };
        let no_peer = Known {
            has_peer: false,
            ..all
        };
        let relay = |relay, waits| Known {
            relay,
            waits,
            ..no_peer
        };
        let table: [(&str, Known, &[Via]); 9] = [
            ("everything", all, &[Peer, Relay, Plain]),
            ("no peer", no_peer, &[Relay, Plain]),
            ("no relay", relay(Absent, true), &[Plain]),
            ("the machine, silent relay", relay(Silent, false), &[Plain]),
            (
                "a command, silent relay",
                relay(Silent, true),
                &[Relay, Plain],
            ),
            (
                "a name of a SOCKS5 datagram, silent relay",
                Known {
                    has_plain: false,
                    ..relay(Silent, false)
                },
                &[],
            ),
            (
                "the peer is left, the relay is not there",
                Known {
                    relay: Absent,
                    ..all
                },
                &[Peer, Plain],
            ),
            (
                "direct by rule",
                Known {
                    stays_here: true,
                    ..all
                },
                &[Plain],
            ),
            (
                "direct by rule, without an address",
                Known {
                    stays_here: true,
                    has_plain: false,
                    ..all
                },
                &[],
            ),
        ];
        for (name, known, expected) in table {
            assert_eq!(order(known), expected, "{name}");
        }
    }

    #[test]
    fn a_relay_that_falls_silent_under_way_is_passed_over() {
        let known = Known {
            stays_here: false,
            has_peer: true,
            relay: RelayState::Reachable,
            waits: false,
            has_plain: true,
        };
        assert_eq!(known.next(None), Some(Via::Peer));
        let relay = RelayState::Silent;
        let later = Known { relay, ..known };
        assert_eq!(later.next(Some(Via::Peer)), Some(Via::Plain));
    }
}
