//! The addresses of the relay's own host.
//!
//! What listens there may trust connections from its own machine, which no firewall sees; so they
//! are no destination for clients. Owns the list and keeps it up to date with the interfaces.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::IpAddr;

use tabane_linux::interfaces::{self, Watch};

/// Addresses that lead to this host.
#[derive(Default)]
pub(super) struct OwnAddresses {
    /// Those that others forward to us, by word of the owner.
    announced: Vec<IpAddr>,
    of_interfaces: RefCell<HashSet<IpAddr>>,
}

impl OwnAddresses {
    pub(super) fn new(announced: Vec<IpAddr>) -> Self {
        Self {
            announced,
            of_interfaces: RefCell::default(),
        }
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.announced.contains(&ip) || self.of_interfaces.borrow().contains(&ip)
    }

    /// Looks at the interfaces, once now and then whenever they change.
    pub(super) async fn follow(&self) {
        let mut watch = Watch::start()
            .inspect_err(|error| tracing::warn!(%error, "new addresses will go unnoticed"))
            .ok();
        loop {
            self.look().await;
            let changed = match &mut watch {
                Some(watch) => watch.changed().await,
                None => None,
            };
            if changed.is_none() {
                return;
            }
        }
    }

    pub(super) async fn look(&self) {
        match interfaces::list().await {
            Ok(interfaces) => {
                let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
                let addresses = addresses.map(|address| address.address.to_canonical());
                *self.of_interfaces.borrow_mut() = addresses.collect();
            }
            Err(error) => tracing::warn!(%error, "cannot list this host's own addresses"),
        }
    }
}
