//! UDP flows through the tunnel, by whatever names them on this side.
//!
//! UDP has no connections, so somebody must say when a flow begins and ends: it begins with the
//! first datagram of a key and ends when nothing has passed for a while, when the relay ends it, or
//! when too many are open (the longest silent goes). Owns that table; where datagrams come from and
//! where answers go is the user's affair.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use tabane_base::Duration;
use tabane_tunnel::{Client, OpenError, Target, UdpFlow};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// Flows at once. Each is a stream of the session, which has 4,096 in all, most of them for TCP.
const MAX_FLOWS: usize = 1_024;
/// Datagrams that wait while a flow opens; more than a program sends before it expects an answer.
const MAX_WAITING: usize = 16;
/// Silence that ends a flow (RFC 4787 REQ-5 asks NATs for 2 min; the relay ends flows at 60 s).
const IDLE: Duration = Duration::from_secs(60);
/// The same for DNS, where a flow is one question.
const IDLE_RESOLVER: Duration = Duration::from_secs(10);

/// Takes the answers of one flow to the program.
pub(crate) type Deliver = Box<dyn Fn(&[u8])>;

/// The flows of one entrance; they end with it.
pub(crate) struct Associations<K> {
    client: Client,
    table: Rc<RefCell<Table<K>>>,
}

type Table<K> = BTreeMap<K, Rc<Association>>;

struct Association {
    state: RefCell<State>,
    last_used_at: Cell<Instant>,
    /// Carries the flow; aborting it ends the flow. Set right after it is started.
    task: OnceCell<AbortHandle>,
}

enum State {
    /// Waits for the relay; holds what the program has sent meanwhile.
    Opening(VecDeque<Vec<u8>>),
    Open(Rc<UdpFlow>),
}

impl<K: Ord + Clone + 'static> Associations<K> {
    /// No flows yet, through `client`.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            table: Rc::default(),
        }
    }

    /// Sends `payload` on the flow called `key`. If that is new, `begin` says where it goes and
    /// what gets the answers. Must be called within the `LocalSet` of the client.
    pub(crate) fn send(&self, key: &K, payload: &[u8], begin: impl FnOnce() -> (Target, Deliver)) {
        if let Some(association) = self.table.borrow().get(key) {
            association.send(payload);
            return;
        }
        let (target, deliver) = begin();
        let idle = if target == Target::Resolver {
            IDLE_RESOLVER
        } else {
            IDLE
        };
        let association = Rc::new(Association::new(payload));
        self.make_room();
        self.table
            .borrow_mut()
            .insert(key.clone(), association.clone());
        let table = Rc::downgrade(&self.table);
        let (client, key, own) = (self.client.clone(), key.clone(), association.clone());
        let task = tokio::task::spawn_local(async move {
            if let Err(error) = carry(&client, &own, target, idle, deliver).await {
                tracing::debug!(%error, "a UDP flow could not be opened");
            }
            forget(&table, &key, &own);
        });
        // Not set before: the association is new.
        let _ = association.task.set(task.abort_handle());
    }

    /// Ends the longest silent flow where there are too many.
    fn make_room(&self) {
        let mut table = self.table.borrow_mut();
        if table.len() < MAX_FLOWS {
            return;
        }
        let oldest = table
            .iter()
            .min_by_key(|(_, association)| association.last_used_at.get());
        if let Some(key) = oldest.map(|(key, _)| key.clone())
            && let Some(association) = table.remove(&key)
        {
            association.end();
        }
    }
}

impl<K> Drop for Associations<K> {
    fn drop(&mut self) {
        self.table
            .borrow()
            .values()
            .for_each(|association| association.end());
    }
}

impl Association {
    fn new(first: &[u8]) -> Self {
        Self {
            state: RefCell::new(State::Opening(VecDeque::from([first.to_vec()]))),
            last_used_at: Cell::new(Instant::now()),
            task: OnceCell::new(),
        }
    }

    fn end(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    fn send(&self, payload: &[u8]) {
        self.last_used_at.set(Instant::now());
        match &mut *self.state.borrow_mut() {
            State::Opening(waiting) if waiting.len() < MAX_WAITING => {
                waiting.push_back(payload.to_vec());
            }
            State::Opening(_) => {}
            State::Open(flow) => {
                // Lost like any datagram; what ended the flow shows when receiving.
                let _ = flow.send(payload);
            }
        }
    }
}

/// Opens the flow, sends what waits, and delivers answers until the flow is over.
async fn carry(
    client: &Client,
    association: &Association,
    target: Target,
    idle: Duration,
    deliver: Deliver,
) -> Result<(), OpenError> {
    let flow = Rc::new(client.open_udp(target).await?);
    let opening = association.state.replace(State::Open(flow.clone()));
    if let State::Opening(waiting) = opening {
        for payload in waiting {
            let _ = flow.send(&payload);
        }
    }
    loop {
        let expires_at = association.last_used_at.get() + idle;
        tokio::select! {
            received = flow.recv() => match received {
                Ok(payload) => {
                    association.last_used_at.set(Instant::now());
                    deliver(&payload);
                }
                Err(error) => {
                    tracing::debug!(%error, "a UDP flow ended");
                    return Ok(());
                }
            },
            () = sleep_until(expires_at) => {
                // It may have been used since.
                if association.last_used_at.get() + idle <= Instant::now() {
                    return Ok(());
                }
            }
        }
    }
}

/// The key may stand for a newer flow by now.
fn forget<K: Ord>(table: &Weak<RefCell<Table<K>>>, key: &K, association: &Rc<Association>) {
    if let Some(table) = table.upgrade() {
        let mut table = table.borrow_mut();
        if table
            .get(key)
            .is_some_and(|current| Rc::ptr_eq(current, association))
        {
            table.remove(key);
        }
    }
}
