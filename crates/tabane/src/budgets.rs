//! The links that have a data budget, as one program uses them.
//!
//! Owns what each link had carried when that was last counted, and when what was counted is written
//! down. What budgets there are and what other programs have used is the policy's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use tabane_base::{Bytes, Duration};
use tabane_policy::{Budget, LinkFacts};

use crate::link_policy::LinkPolicy;

/// How often what links carry is counted: a fast link goes beyond its budget by no more than it
/// carries in this time.
pub(crate) const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// How often what was counted is written down; what a crash loses is less.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Budgets {
    /// By link; none before the first [`renew`](Self::renew), and nothing is counted until then.
    of: Option<BTreeMap<String, Budget>>,
    /// The links whose budgets were used up at that time.
    spent: BTreeSet<String>,
    counted: BTreeMap<String, Bytes>,
    saved_at: Instant,
}

impl Budgets {
    pub(crate) fn new() -> Self {
        Self {
            of: None,
            spent: BTreeSet::new(),
            counted: BTreeMap::new(),
            saved_at: Instant::now(),
        }
    }

    /// No link has one.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.as_ref().is_none_or(BTreeMap::is_empty)
    }

    /// From here on those hold that the policy has for these links, be they in use or not. What was
    /// carried before is to be counted before.
    pub(crate) fn renew<'a>(
        &mut self,
        policy: &LinkPolicy,
        links: impl IntoIterator<Item = LinkFacts<'a>>,
    ) {
        let budget = |link: LinkFacts<'_>| {
            let budget = policy.judge(&link).decision.budget?;
            Some((link.name.to_owned(), budget))
        };
        let of: BTreeMap<_, _> = links.into_iter().filter_map(budget).collect();
        self.spent = spent(policy, &of);
        self.of = Some(of);
    }

    /// The link's own count begins at nothing again.
    pub(crate) fn restart(&mut self, link: &str) {
        self.counted.remove(link);
    }

    /// Counts what links have carried: `carried` is each one's total since it began. `true` where a
    /// link is used up now, or its period has begun anew.
    pub(crate) fn count(
        &mut self,
        policy: &mut LinkPolicy,
        carried: impl IntoIterator<Item = (String, Bytes)>,
    ) -> bool {
        let Some(of) = &self.of else {
            return false;
        };
        for (link, total) in carried {
            let before = self.counted.get(&link).copied();
            let fresh = total - before.unwrap_or(Bytes::ZERO);
            if of.contains_key(&link) && fresh > Bytes::ZERO {
                policy.count(&link, fresh);
            }
            self.counted.insert(link, total);
        }
        let is_due = spent(policy, of) != self.spent;
        // Other programs are to know of a budget that is spent before they begin.
        if is_due || self.saved_at.elapsed() >= SAVE_INTERVAL {
            self.save(policy);
        }
        is_due
    }

    /// Writes down what was counted.
    pub(crate) fn save(&mut self, policy: &mut LinkPolicy) {
        self.saved_at = Instant::now();
        if let Err(error) = policy.save() {
            tracing::warn!("what links have carried is not kept: {error:#}");
        }
    }
}

fn spent(policy: &LinkPolicy, of: &BTreeMap<String, Budget>) -> BTreeSet<String> {
    let of = of.iter();
    let spent = of.filter(|(link, budget)| policy.is_used_up(link, budget));
    spent.map(|(link, _)| link.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link_policy::POLICY_FILE;
    use crate::scratch::Scratch;
    use crate::store::Store;

    const USB0: LinkFacts<'_> = LinkFacts {
        name: "usb0",
        kind: "ethernet",
        metered: None,
    };

    fn used(store: &Store) -> Option<Bytes> {
        LinkPolicy::load(store).unwrap().judge(&USB0).used
    }

    #[test]
    fn every_byte_counts_once_from_when_there_is_a_budget() {
        let scratch = Scratch::new();
        let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
        let write = |text: &str| {
            std::fs::create_dir_all(store.root()).unwrap();
            std::fs::write(store.root().join(POLICY_FILE), text).unwrap();
        };
        let with_budget = "[[link]]\nname = 'usb0'\nbudget = '1MB/month'\n";
        write(with_budget);
        let mut policy = LinkPolicy::load(&store).unwrap();
        let mut budgets = Budgets::new();
        let carried = |kilo| [("usb0".to_owned(), Bytes::kilo(kilo))];
        // Before the first look nothing is lost.
        assert!(!budgets.count(&mut policy, carried(10)) && budgets.is_empty());
        budgets.renew(&policy, [USB0]);
        assert!(!budgets.count(&mut policy, carried(100)));
        assert!(!budgets.count(&mut policy, carried(100)));
        budgets.save(&mut policy);
        assert_eq!(used(&store), Some(Bytes::kilo(100)));

        // Carried without a budget: nobody's.
        write("");
        policy.reload().unwrap();
        budgets.renew(&policy, [USB0]);
        assert!(!budgets.count(&mut policy, carried(700)) && budgets.is_empty());
        write(with_budget);
        policy.reload().unwrap();
        budgets.renew(&policy, [USB0]);

        // A link that counts anew; used up is told until it is looked at.
        budgets.restart("usb0");
        assert!(!budgets.count(&mut policy, carried(800)));
        for _ in 0..2 {
            assert!(budgets.count(&mut policy, carried(900)));
        }
        budgets.renew(&policy, [USB0]);
        assert!(!budgets.count(&mut policy, carried(901)));
        budgets.save(&mut policy);
        assert_eq!(used(&store), Some(Bytes::kilo(1_001)));
    }
}
