//! The links that have a data budget: which ones are spent, and what was counted that no file has
//! yet. Pure but for the day.

use std::collections::{BTreeMap, BTreeSet};

use tabane_base::Bytes;
use tabane_policy::{Budget, LinkFacts, Usage};

use super::files::Carried;
use crate::link_policy::LinkPolicy;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    of: BTreeMap<String, Budget>,
    /// The links whose budgets were used up when the table was made.
    spent: BTreeSet<String>,
    /// Counted here, and not in the accounts that were read last.
    unwritten: Carried,
}

impl Budgets {
    /// No link has one.
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn links(&self) -> BTreeSet<String> {
        self.of.keys().cloned().collect()
    }

    /// From here on those hold that the policy has for these links, be they in use or not.
    pub(super) fn renew<'a>(
        &mut self,
        policy: &LinkPolicy,
        links: impl IntoIterator<Item = LinkFacts<'a>>,
    ) {
        let budget = |link: LinkFacts<'_>| {
            let budget = policy.terms_of(&link).decision.budget?;
            Some((link.name.to_owned(), budget))
        };
        self.of = links.into_iter().filter_map(budget).collect();
        self.spent = self.spent_by(policy);
    }

    /// A link has carried so much more.
    pub(super) fn count(&mut self, policy: &mut LinkPolicy, link: &str, bytes: Bytes) {
        policy.count(link, bytes);
        *self.unwritten.entry(link.to_owned()).or_default() += bytes;
    }

    /// The accounts as the file has them now, `written` of ours among them.
    pub(super) fn on_usage(&mut self, policy: &mut LinkPolicy, usage: Usage, written: &Carried) {
        for (link, bytes) in written {
            if let Some(rest) = self.unwritten.get_mut(link) {
                *rest -= *bytes;
            }
        }
        self.unwritten.retain(|_, rest| *rest > Bytes::ZERO);
        policy.set_usage(usage);
        for (link, bytes) in &self.unwritten {
            policy.count(link, *bytes);
        }
    }

    /// Whether a budget is spent that was not when the table was made, or has begun anew.
    pub(super) fn has_turned(&self, policy: &LinkPolicy) -> bool {
        self.spent_by(policy) != self.spent
    }

    fn spent_by(&self, policy: &LinkPolicy) -> BTreeSet<String> {
        let of = self.of.iter();
        let spent = of.filter(|(link, budget)| policy.is_used_up(link, budget));
        spent.map(|(link, _)| link.clone()).collect()
    }
}
