//! What is near this machine, and lent to nobody: itself, and every network that it is in, whatever
//! addresses those have. A router keeps strangers out of a network of global addresses, and a
//! friend would come from within.

use std::cell::RefCell;
use std::net::IpAddr;

use tabane_base::Prefix;
use tabane_linux::interfaces::{self, InterfaceError, Watch};
use tabane_neighbour::is_public;

/// See the module.
#[derive(Debug)]
pub(crate) struct Surroundings {
    near: RefCell<Vec<Prefix>>,
    watch: RefCell<Option<Watch>>,
}

impl Surroundings {
    pub(crate) async fn look() -> Result<Self, InterfaceError> {
        let watch = Watch::start()?;
        Ok(Self {
            near: RefCell::new(interfaces::near().await?),
            watch: RefCell::new(Some(watch)),
        })
    }

    /// Whether a friend may be led to this address.
    pub(crate) fn is_lent(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) && !self.near.borrow().iter().any(|it| it.contains(address))
    }

    /// Looks again whenever something changes, for ever.
    pub(crate) async fn follow(&self) {
        let watch = self.watch.take();
        if let Some(mut watch) = watch {
            while watch.changed().await.is_some() {
                match interfaces::near().await {
                    Ok(near) => *self.near.borrow_mut() = near,
                    Err(error) => tracing::warn!(%error, "this machine's networks may be others"),
                }
            }
        }
        tracing::warn!("new networks of this machine will go unnoticed");
        std::future::pending().await
    }
}
