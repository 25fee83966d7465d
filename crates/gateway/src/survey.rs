//! Which flows have carried most, found a few at a time: whoever wants to know must not hold up
//! packets while ten thousand flows are gone through.

use std::cmp::Reverse;

use crate::flow::Flow;
use crate::key::Key;
use crate::snapshot::FlowSnapshot;

/// A walk through all flows; [`Gateway::survey`](crate::Gateway::survey) takes its steps.
///
/// Each flow is as it was when the walk came by. Flows may come and go meanwhile; no other is
/// missed because of it.
#[derive(Clone, Debug)]
pub struct Survey {
    most: usize,
    /// What has been looked at.
    pub(crate) after: Option<Key>,
    /// Up to twice as many as are wanted, in no order.
    busiest: Vec<FlowSnapshot>,
    /// Flows that have carried less are not among the wanted.
    least: u64,
}

impl Survey {
    /// One that finds `most` flows at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            after: None,
            busiest: Vec::new(),
            least: 0,
        }
    }

    pub(crate) fn handle(&mut self, flow: &Flow) {
        if flow.meter().figures.forwarded < self.least {
            return;
        }
        self.busiest.push(FlowSnapshot::of(flow));
        if self.busiest.len() > 2 * self.most {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        if self.busiest.len() <= self.most {
            return;
        }
        let carried = |flow: &FlowSnapshot| flow.figures.forwarded;
        self.busiest
            .select_nth_unstable_by_key(self.most, |flow| Reverse(carried(flow)));
        self.busiest.truncate(self.most);
        self.least = self.busiest.iter().map(carried).min().unwrap_or(u64::MAX);
    }

    /// The flows, the one that has carried most first.
    #[must_use]
    pub fn busiest(mut self) -> Vec<FlowSnapshot> {
        self.shorten();
        self.busiest
            .sort_by_key(|flow| (Reverse(flow.figures.forwarded), flow.key));
        self.busiest
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tabane_base::Instant;

    use super::*;
    use crate::{Blocks, Checksum, Config, Flags, Gateway, Manner, Segment, Seq, Side};

    fn segment(
        from: Side,
        mobile: SocketAddr,
        flags: Flags,
        [seq, ack]: [u32; 2],
        payload: &[u8],
    ) -> Vec<u8> {
        let server = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 80));
        let (source, destination) = match from {
            Side::Wired => (server, mobile),
            Side::Radio => (mobile, server),
        };
        Segment {
            source,
            destination,
            manner: Manner::PLAIN,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 60_000,
            timestamps: None,
            sack: Blocks::default(),
            payload,
        }
        .emit()
    }

    /// Flows that have carried different amounts, in no order.
    fn gateway(flows: u16) -> Gateway {
        let mut gateway = Gateway::new(Config::default());
        for n in 0..flows {
            let mobile = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 1_024 + n));
            let payload = vec![0; 1 + usize::from(n) * 7_919 % 1_009];
            for (from, flags, numbers, payload) in [
                (Side::Radio, Flags::SYN, [1, 0], &[][..]),
                (Side::Wired, Flags::SYN.with(Flags::ACK), [9, 2], &[]),
                (Side::Radio, Flags::ACK, [2, 10], &[]),
                (Side::Wired, Flags::ACK, [10, 2], &payload),
            ] {
                let packet = segment(from, mobile, flags, numbers, payload);
                gateway.handle_packet(Instant::from_millis(1), from, &packet, Checksum::Known);
            }
        }
        gateway
    }

    #[test]
    fn small_steps_find_the_flows_that_have_carried_most() {
        let gateway = gateway(1_000);
        let mut all: Vec<FlowSnapshot> = gateway.flows().collect();
        assert_eq!((all.len(), gateway.snapshot().flows), (1_000, 1_000));
        all.sort_by_key(|flow| (Reverse(flow.figures.forwarded), flow.key));
        for most in [0, 1, 10, 999, 5_000] {
            let mut survey = Survey::new(most);
            let mut steps = 1;
            while !gateway.survey(&mut survey, 7) {
                steps += 1;
            }
            assert_eq!(steps, 143);
            let found: Vec<_> = survey.busiest().iter().map(|flow| flow.figures).collect();
            let wanted: Vec<_> = all.iter().take(most).map(|flow| flow.figures).collect();
            assert_eq!(found, wanted);
        }
    }
}
