//! What is near this machine, and lent to nobody: itself, and every network that it is in, whatever
//! addresses those have. A router keeps strangers out of a network of global addresses, and a
//! friend would come from within. What a translator of the network leads to is judged as well.

use std::cell::RefCell;
use std::net::IpAddr;

use tabane_base::{Prefix, Translator};
use tabane_linux::follow_translators;
use tabane_linux::interfaces::{self, InterfaceError, Watch};
use tabane_neighbour::is_public;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug)]
pub(crate) struct Surroundings {
    near: RefCell<Vec<Prefix>>,
    translators: RefCell<Vec<Translator>>,
    watch: RefCell<Option<Watch>>,
}

impl Surroundings {
    pub(crate) async fn look() -> Result<Self, InterfaceError> {
        let watch = Watch::start()?;
        Ok(Self {
            near: RefCell::new(interfaces::near().await?),
            translators: RefCell::default(),
            watch: RefCell::new(Some(watch)),
        })
    }

    /// Whether a friend may be led to this address.
    pub(crate) fn is_lent(&self, address: IpAddr) -> bool {
        let is_far = |address| {
            is_public(address) && !self.near.borrow().iter().any(|it| it.contains(address))
        };
        let address = address.to_canonical();
        let IpAddr::V6(ip) = address else {
            return is_far(address);
        };
        let translators = self.translators.borrow();
        // A forged answer may show one beside the true one: each says what it makes of it.
        let mut beyond = translators.iter().filter_map(|it| it.within(ip));
        is_far(address) && beyond.all(|ip| is_far(ip.into()))
    }

    /// Looks again whenever something changes, for ever.
    pub(crate) async fn follow(&self) {
        let changed = Notify::new();
        let shown = follow_translators(&changed, |translators| {
            *self.translators.borrow_mut() = translators;
        });
        tokio::join!(self.follow_interfaces(&changed), shown);
    }

    async fn follow_interfaces(&self, told: &Notify) {
        let watch = self.watch.take();
        if let Some(mut watch) = watch {
            while watch.changed().await.is_some() {
                told.notify_one();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translator_of_the_network_leads_no_friend_to_what_is_near() {
        let surroundings = Surroundings {
            near: RefCell::new(vec![Prefix::parse("8.8.4.0/24").unwrap()]),
            translators: RefCell::default(),
            watch: RefCell::default(),
        };
        let is_lent = |text: &str| surroundings.is_lent(text.parse().unwrap());
        assert!(is_lent("2a00:64::10.0.0.1"), "nobody can know");
        let shown = "2a00:64::192.0.0.170".parse().unwrap();
        *surroundings.translators.borrow_mut() = vec![Translator::shown_by(shown).unwrap()];
        for near in ["10.0.0.1", "8.8.4.4", "127.0.0.1"] {
            assert!(!is_lent(&format!("2a00:64::{near}")), "{near}");
        }
        for far in ["2a00:64::8.8.8.8", "2a00:65::10.0.0.1", "8.8.8.8"] {
            assert!(is_lent(far), "{far}");
        }
    }

    #[test]
    fn a_forged_translator_hides_no_true_one() {
        // It reads the true one's prefix as 8.8.8.8, whatever is behind it.
        let [forged, shown] = ["2a00:64:c000:aa::", "2a00:64:808:808::192.0.0.170"]
            .map(|text| Translator::shown_by(text.parse().unwrap()).unwrap());
        for translators in [vec![forged, shown], vec![shown, forged]] {
            let surroundings = Surroundings {
                near: RefCell::default(),
                translators: RefCell::new(translators),
                watch: RefCell::default(),
            };
            let is_lent = |text: &str| surroundings.is_lent(text.parse().unwrap());
            assert!(!is_lent("2a00:64:808:808::10.0.0.1"));
            assert!(is_lent("2a00:64:808:808::1.1.1.1") && is_lent("8.8.8.8"));
        }
    }
}
