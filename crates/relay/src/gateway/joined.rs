//! The connections that a splitter has joined: who, and how much they have carried.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use tabane_control::{Flow, Gateway, GatewayTotals, Stance};

use super::FLOWS_LISTED;

/// Connections that have ended and can still be shown.
const ENDED_KEPT: usize = 32;

/// All of them since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined(Rc<RefCell<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// By number, in the order in which they began.
    open: BTreeMap<u64, Flow>,
    /// The oldest first.
    ended: VecDeque<Flow>,
    begun: u64,
    carried: u64,
}

/// One of them, until dropped.
#[derive(Debug)]
pub(super) struct Connection {
    number: u64,
    table: Rc<RefCell<Table>>,
}

impl Joined {
    pub(super) fn begin(&self, mobile: SocketAddr, server: SocketAddr) -> Connection {
        let mut table = self.0.borrow_mut();
        table.begun += 1;
        let number = table.begun;
        let flow = Flow::between(mobile, server, Stance::Split);
        table.open.insert(number, flow);
        let table = self.0.clone();
        Connection { number, table }
    }

    /// Fills in what is known of them.
    pub(super) fn look(&self, gateway: &mut Gateway) {
        let table = self.0.borrow();
        let mut flows: Vec<&Flow> = table.open.values().collect();
        flows.sort_unstable_by_key(|flow| Reverse(flow.bytes));
        flows.truncate(FLOWS_LISTED);
        gateway.flows = flows.into_iter().copied().collect();
        gateway.flows_omitted = (table.open.len() - gateway.flows.len()) as u64;
        gateway.ended = table.ended.iter().copied().collect();
        gateway.totals = GatewayTotals {
            joined: table.begun,
            carried_bytes: table.carried,
            ..GatewayTotals::default()
        };
    }
}

impl Connection {
    /// Counts what was moved, whichever way.
    pub(super) fn count(&self, bytes: usize) {
        let mut table = self.table.borrow_mut();
        table.carried += bytes as u64;
        if let Some(flow) = table.open.get_mut(&self.number) {
            flow.bytes += bytes as u64;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.table.borrow_mut();
        if table.ended.len() == ENDED_KEPT {
            table.ended.pop_front();
        }
        let ended = table.open.remove(&self.number);
        table.ended.extend(ended);
    }
}

#[cfg(test)]
mod tests {
    use tabane_control::GatewayMode;

    use super::*;

    #[test]
    fn the_busiest_are_listed_and_the_last_ones_that_ended() {
        let joined = Joined::default();
        let server = SocketAddr::from(([192, 0, 2, 1], 443));
        let begin = |port: u16| {
            let connection = joined.begin(SocketAddr::from(([10, 0, 0, 2], port)), server);
            connection.count(usize::from(port));
            connection
        };
        let open: Vec<Connection> = (1..=500).map(begin).collect();
        let mut gateway = crate::gateway::report::empty("wwan0", GatewayMode::Split, false);
        joined.look(&mut gateway);
        assert_eq!(gateway.flows.len(), FLOWS_LISTED);
        assert_eq!((gateway.flows[0].bytes, gateway.flow_count()), (500, 500));
        drop(open);
        joined.look(&mut gateway);
        assert_eq!((gateway.flow_count(), gateway.ended.len()), (0, ENDED_KEPT));
        assert_eq!(gateway.ended[ENDED_KEPT - 1].mobile.port(), 500);
        assert_eq!(gateway.totals.carried_bytes, 500 * 501 / 2);
    }
}
