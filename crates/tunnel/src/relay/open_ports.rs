//! The ports that lead to clients: each is attended by a task, which has its socket.
//!
//! Owns when they are opened and closed, whichever worker's thread attends them: one that is given
//! up is closed before somebody else is told that it is theirs, and none is opened once the relay
//! drains. Whom visitors are for is the front doors' business.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tabane_base::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::exposures::Place;
use super::seldom::Seldom;
use crate::request::Status;

/// How long a task may take to end: a turn of its worker's loop.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct OpenPorts {
    tasks: Mutex<Tasks>,
    /// One opens after the other: who waits until a port is closed need not see others open it.
    turn: tokio::sync::Mutex<()>,
    /// That a port cannot be had.
    refused: Seldom,
}

#[derive(Default)]
struct Tasks {
    attending: BTreeMap<Place, JoinHandle<()>>,
    /// Told to end; each has its port until it has.
    closing: BTreeMap<Place, JoinHandle<()>>,
    is_over: bool,
}

impl OpenPorts {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens these, where they are not open; `attend` binds one and starts its task.
    ///
    /// # Errors
    /// The host does not let us, or the relay drains. Some may be open by then.
    pub(super) async fn open(
        &self,
        places: impl Iterator<Item = Place>,
        attend: impl Fn(Place) -> io::Result<JoinHandle<()>>,
    ) -> Result<(), Status> {
        let _turn = self.turn.lock().await;
        for place in places {
            self.closed(place).await;
            let mut tasks = self.tasks();
            if tasks.is_over {
                // The relay that comes next may say otherwise.
                return Err(Status::TimedOut);
            }
            if tasks.attending.contains_key(&place) {
                continue;
            }
            let task = attend(place).map_err(|error| {
                if self.refused.is_due() {
                    let (protocol, port) = place;
                    tracing::warn!(port, %protocol, %error, "cannot listen there");
                }
                Status::PortUnavailable
            })?;
            tasks.attending.insert(place, task);
        }
        Ok(())
    }

    /// Waits until a port is closed that was given up.
    pub(super) async fn closed(&self, place: Place) {
        let closing = self.tasks().closing.remove(&place);
        if let Some(closing) = closing {
            let _ = timeout(CLOSE_WAIT, closing).await;
        }
    }

    /// Has these closed, soon.
    pub(super) fn close(&self, places: Vec<Place>) {
        let mut tasks = self.tasks();
        tasks.closing.retain(|_, task| !task.is_finished());
        for place in places {
            if let Some(task) = tasks.attending.remove(&place) {
                task.abort();
                tasks.closing.insert(place, task);
            }
        }
    }

    /// Has all closed, for good.
    pub(super) fn close_all(&self) {
        let mut tasks = self.tasks();
        tasks.is_over = true;
        let attending = std::mem::take(&mut tasks.attending);
        attending.values().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use super::super::seldom::tests::warnings;
    use super::*;
    use tabane_base::Protocol;

    #[test]
    fn a_client_that_asks_for_a_port_of_others_again_and_again_fills_no_log() {
        let warnings = warnings(|| {
            let asked = crate::block_on(async {
                let ports = OpenPorts::default();
                for _ in 0..100 {
                    let place = (Protocol::Tcp, 22);
                    let taken = |_| Err(io::ErrorKind::AddrInUse.into());
                    let opened = ports.open([place].into_iter(), taken).await;
                    assert_eq!(opened, Err(Status::PortUnavailable));
                }
            });
            asked.unwrap();
        });
        assert_eq!(warnings, 1);
    }
}
