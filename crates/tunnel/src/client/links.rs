//! The links of a client: which there are, how they may be used, and what goes by which.
//!
//! Every change holds at once, in sessions that are left as well, and for sessions to come.

use tabane_core::{ClassId, PathPolicy};

use super::carrier::CarrierMemory;
use super::link::{Link, LinkError, LinkWish};
use super::link_bind::LinkBind;
use super::{Client, left};
use crate::journal::Happening;
use crate::label::LinkClass;

impl Client {
    /// Uses one more link from here on.
    ///
    /// # Errors
    /// A link of this name is in use already. One that cannot be used yet is no error: it is
    /// tried again and again, and [`snapshot`](Self::snapshot) says what is wrong.
    pub fn add_link(&self, mut bind: LinkBind) -> Result<(), LinkError> {
        let shared = &self.shared;
        let mut links = shared.links.borrow_mut();
        if links.iter().any(|link| link.name() == bind.name) {
            return Err(LinkError::InUse { name: bind.name });
        }
        bind.policy.weight = shared
            .wishes
            .borrow_mut()
            .weigh(&bind.name, bind.policy.weight);
        shared
            .config
            .monitor
            .on_link(&bind.name, bind.policy.metered);
        shared.journal.record(Happening::LinkAdded {
            link: bind.name.clone(),
        });
        let paused = shared.wishes.borrow().is_paused(&bind.name);
        links.push(Link::new(bind).with_pause(paused));
        shared.links_changed.notify_one();
        Ok(())
    }

    /// Stops using a link, for a reason that people are told; what was under way on it moves to the
    /// others. `false` where there is no link of this name.
    pub fn remove_link(&self, name: &str, why: &str) -> bool {
        let mut links = self.shared.links.borrow_mut();
        let Some(index) = links.iter().position(|link| link.name() == name) else {
            return false;
        };
        let link = links.remove(index);
        self.shared.config.monitor.on_link_gone(name);
        link.release(&self.shared.engine, self.shared.session());
        self.shared.withdraw_from_left(name);
        self.shared.journal.record(Happening::LinkRemoved {
            link: name.to_owned(),
            why: why.to_owned(),
        });
        true
    }

    /// Changes how a link may be used, in both directions, at once and for sessions to come. A
    /// weight that was [wished](Self::wish_link) stays unless this is another than it was put over.
    ///
    /// # Errors
    /// There is no link of this name, or the policy is out of range.
    pub fn set_link_policy(&self, name: &str, policy: PathPolicy) -> Result<(), LinkError> {
        let weight = self.shared.wishes.borrow_mut().weigh(name, policy.weight);
        self.apply_policy(name, PathPolicy { weight, ..policy })
    }

    fn apply_policy(&self, name: &str, policy: PathPolicy) -> Result<(), LinkError> {
        let shared = &self.shared;
        let mut links = shared.links.borrow_mut();
        let Some(link) = links.iter_mut().find(|link| link.name() == name) else {
            return Err(LinkError::Unknown {
                name: name.to_owned(),
            });
        };
        let set = link.set_policy(&shared.engine, shared.session(), policy);
        set.map_err(|source| LinkError::Policy {
            name: name.to_owned(),
            source,
        })?;
        shared.set_policy_in_left(name, policy);
        shared.config.monitor.on_link(name, policy.metered);
        Ok(())
    }

    /// Follows a wish of the user's for a link, at once, and also when it goes and comes back. A
    /// paused one gives up its path; what was under way on it moves to the others.
    ///
    /// # Errors
    /// There is no link of this name, or the weight is no share.
    pub fn wish_link(&self, name: &str, wish: LinkWish) -> Result<(), LinkError> {
        let shared = &self.shared;
        let policy = |links: &[Link]| {
            let link = links.iter().find(|link| link.name() == name);
            link.map(Link::policy).unwrap_or_default()
        };
        let mut policy = policy(&shared.links.borrow());
        let before = policy.weight;
        policy.weight = wish.weight.unwrap_or(before);
        self.apply_policy(name, policy)?;
        let mut wishes = shared.wishes.borrow_mut();
        wishes.add(name, wish, before);
        let paused = wishes.is_paused(name);
        let mut links = shared.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.name() == name) {
            link.pause(paused, &shared.engine, shared.session());
        }
        if paused {
            shared.withdraw_from_left(name);
        }
        shared.journal.record(Happening::LinkPolicy {
            link: name.to_owned(),
            weight: policy.weight,
            paused,
        });
        shared.links_changed.notify_one();
        Ok(())
    }

    /// Waits until a link may be carried otherwise than before, or by nothing; one waits at a time.
    pub async fn carriers_changed(&self) {
        self.shared.carriers_changed.notified().await;
    }

    /// What the network of a link has taught of carriers before, where that is told only now. A
    /// link that knows by itself goes on.
    pub fn recall(&self, name: &str, memory: CarrierMemory) {
        let mut links = self.shared.links.borrow_mut();
        let link = links.iter_mut().find(|link| link.name() == name);
        if link.is_some_and(|link| link.recall(memory)) {
            self.shared.recalled.notify_one();
        }
    }

    /// Measures every link that has a path, both ways, by `trains` trains of packets, whatever
    /// the budget for probes; what comes of it shows in [`snapshot`](Self::snapshot). Links called
    /// metered are left out.
    pub fn measure(&self, trains: u32) {
        let shared = &self.shared;
        let Some(session) = shared.session() else {
            return;
        };
        shared.engine.visit(session, |visit| {
            for link in shared.links.borrow().iter() {
                if let Some(path) = link.path() {
                    // A path that core has given up needs no measuring.
                    let _ = visit.session.measure_path(visit.now, path, trains);
                }
            }
            visit.touch();
        });
    }

    /// Says which links carry what belongs to a class, in both directions, at once and for sessions
    /// to come. What a class may not use is not used from the first byte on.
    pub fn set_class(&self, class: ClassId, links: LinkClass) {
        let shared = &self.shared;
        shared.classes.borrow_mut().insert(class, links);
        if let Some(session) = shared.session() {
            shared.tell_classes(session, &left::paths(&shared.links.borrow()));
        }
        shared.tell_classes_to_left();
    }

    /// Has everything under way follow what its label says now.
    pub fn follow_labels(&self) {
        let shared = &self.shared;
        let mut labelled = shared.labelled.borrow_mut();
        labelled.streams.retain(|(session, stream, label)| {
            let Some(label) = label.upgrade() else {
                return false;
            };
            let class = label.treatment().class;
            let followed = shared.engine.visit(*session, |visit| {
                visit.session.set_stream_class(visit.now, *stream, class);
                visit.touch();
            });
            followed.is_some()
        });
    }
}
