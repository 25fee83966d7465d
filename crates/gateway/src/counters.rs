//! What happened, counted: the words of metrics and of whoever asks why nothing was done.

use crate::packet::Malformed;

/// Why a flow is not assisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// It began before the gateway saw it.
    MidFlow,
    /// Only one direction of it, or not all of its packets, come by here.
    OneWay,
    /// Multipath TCP: what one connection acknowledges, another one may have to know.
    Multipath,
    /// Authenticated segments (MD5, TCP-AO): nobody may speak in another's name.
    Authenticated,
    /// Data in the SYN.
    FastOpen,
    /// Accurate ECN, whose counters a fabricated acknowledgement would have to know.
    AccurateEcn,
    /// Urgent data.
    Urgent,
    /// The user's switches: another subnet, another port, or one never touched.
    Excluded,
    /// There was no room for one more flow.
    TableFull,
}

impl Bypass {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MidFlow,
        Self::OneWay,
        Self::Multipath,
        Self::Authenticated,
        Self::FastOpen,
        Self::AccurateEcn,
        Self::Urgent,
        Self::Excluded,
        Self::TableFull,
    ];

    /// A word for it, for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MidFlow => "mid-flow",
            Self::OneWay => "one-way",
            Self::Multipath => "multipath",
            Self::Authenticated => "authenticated",
            Self::FastOpen => "fast-open",
            Self::AccurateEcn => "accurate-ecn",
            Self::Urgent => "urgent",
            Self::Excluded => "excluded",
            Self::TableFull => "table-full",
        }
    }
}

/// Counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets seen.
    pub packets: u64,
    /// Packets that passed because they were not understood.
    pub malformed: u64,
    /// Why the last of them was not.
    pub malformed_last: Option<Malformed>,
    /// Handshakes seen to their end.
    pub opened: u64,
    /// Handshakes forgotten to make room for others.
    pub openings_forgotten: u64,
    /// Flows not assisted, by reason, in the order of [`Bypass::ALL`].
    pub bypassed: [u64; Bypass::ALL.len()],
    /// Acknowledgements written in the mobile host's name.
    pub fabricated: u64,
    /// The mobile host's acknowledgements that went no further.
    pub swallowed: u64,
    /// Those that went on changed.
    pub rewritten: u64,
    /// The server's probes answered from here.
    pub probes_answered: u64,
    /// The server's repetitions answered from here.
    pub repeats_answered: u64,
    /// Segments that went on without a copy, for want of room.
    pub uncopied: u64,
    /// Copies sent again.
    pub resent: u64,
    /// Flows reset at both ends because the mobile host was gone and was owed bytes.
    pub reset: u64,
    /// Connections reset because a gateway before this one, killed, owed them bytes.
    pub orphans_reset: u64,
}

impl Counters {
    pub(crate) fn bypass(&mut self, why: Bypass) {
        self.bypassed[why as usize] += 1;
    }

    /// Flows not assisted for this reason.
    #[must_use]
    pub fn bypassed_for(&self, why: Bypass) -> u64 {
        self.bypassed[why as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_each_in_its_place() {
        let mut counters = Counters::default();
        for (times, why) in Bypass::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| counters.bypass(why));
        }
        for (times, why) in Bypass::ALL.into_iter().enumerate() {
            assert_eq!(
                counters.bypassed_for(why),
                times as u64 + 1,
                "{}",
                why.name()
            );
        }
    }
}
