//! News that interfaces, addresses or routes have changed.

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::InterfaceError;

/// What a look at the interfaces depends on.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Tells that something has changed since it was last asked. Start it before the first
/// [`list`](super::list), so that nothing falls in between.
#[derive(Debug)]
pub struct Watch {
    /// Holds one: a hundred changes at once are one piece of news.
    changes: mpsc::Receiver<()>,
    /// Ends with the watch.
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Watches the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`InterfaceError::Open`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn start() -> Result<Self, InterfaceError> {
        let (connection, _handle, mut messages) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(InterfaceError::Open)?;
        let (news, changes) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        tasks.spawn(async move {
            // Whatever it says, even that the kernel lost count: look again.
            while messages.next().await.is_some() {
                // Full: the news is out already.
                let _ = news.try_send(());
            }
        });
        Ok(Self {
            changes,
            _tasks: tasks,
        })
    }

    /// Waits for a change. `None` where the kernel has closed the socket: no more will come.
    pub async fn changed(&mut self) -> Option<()> {
        self.changes.recv().await
    }
}
