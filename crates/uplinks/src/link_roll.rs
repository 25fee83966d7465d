//! Every link that is known, used or not: why it is not, and what its budget has left.
//!
//! Written by whoever follows links and policy, read for display. A link that was here once stays
//! on the roll until the process ends, so that nobody has to guess what became of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tabane_base::Bytes;
use tabane_control::{Link, LinkBudget, LinkState, PolicyInForce, Traffic};
use tabane_linux::Egress;
use tabane_policy::{Budget, LinkFacts, Reaction};

use crate::lent_links::Lender;
use crate::link_policy::{LinkPolicy, LinkTerms};
use crate::links;
use crate::table::Table;

use tabane_store::wall_clock::today;

/// Why a link is not used whose interface, or neighbour, is not there any more.
const GONE: &str = "not there any more";
/// Why one that the user has named is not, which nobody has seen yet.
const NOT_YET: &str = "there is no such interface; it is used when it comes";
/// Why one is not used that might be.
const PAUSED: &str = "paused";

/// The roll, and whether the policy file is followed. Copies are the same.
#[derive(Debug, Clone, Default)]
pub struct LinkRoll(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    links: BTreeMap<String, Known>,
    /// Of those, and of any that come.
    paused: BTreeSet<String>,
    policy_fault: Option<String>,
    /// What is done when something happens to them.
    reactions: Rc<[Reaction]>,
}

/// A link on the roll.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Known {
    /// Why it is not used, but for a pause.
    pub unused: Option<String>,
    pub metered: bool,
    pub budget: Option<(Budget, Bytes)>,
    policy: PolicyInForce,
    pub is_lent: bool,
    /// By where what goes plainly leaves; a neighbour's link has none.
    egress: Option<Egress>,
    /// Where its network's routers say that there is a portal.
    portal: Option<String>,
}

impl Known {
    fn new(terms: &LinkTerms, unused: Option<String>) -> Self {
        Self {
            unused,
            metered: terms.decision.metered,
            budget: terms.decision.budget.zip(terms.used),
            policy: PolicyInForce {
                text: terms.decision.to_string(),
                line: terms.decision.line,
            },
            is_lent: false,
            egress: None,
            portal: None,
        }
    }
}

/// An interface of which its name is all that is known.
fn named(name: &str) -> LinkFacts<'_> {
    LinkFacts {
        name,
        interface: name,
        kind: "",
        metered: None,
    }
}

impl LinkRoll {
    /// What is known of the own links now.
    pub fn renew(&self, table: &Table) {
        let (wanted, policy) = (&table.wanted, &table.policy);
        let inner = &mut *self.0.borrow_mut();
        // The same ones stay the same allocation, by which they are known as such.
        if *inner.reactions != *policy.policy().reactions() {
            inner.reactions = policy.policy().reactions().into();
        }
        inner.paused.clone_from(&table.paused);
        let known = &mut inner.links;
        let was_seen = |link: &&mut Known| link.unused.as_deref() != Some(NOT_YET);
        for link in known
            .values_mut()
            .filter(|link| !link.is_lent)
            .filter(was_seen)
        {
            link.unused = Some(GONE.to_owned());
        }
        for interface in &table.interfaces {
            let unused = links::why_unused(interface, wanted, policy);
            let was_link = known.contains_key(&interface.name);
            let is_link = interface.usable().is_ok() || interface.behind.is_some();
            if is_link || unused.is_none() || was_link {
                let terms = policy.terms(interface);
                let egress = Some(interface.egress());
                let link = Known {
                    egress,
                    portal: interface.advertised.portal.clone(),
                    ..Known::new(&terms, unused)
                };
                known.insert(interface.name.clone(), link);
            }
        }
        let is_missing = |name: &&String| links::is_missing(&table.interfaces, name);
        for name in wanted.iter().filter(is_missing) {
            let not_yet = || Known::new(&policy.terms_of(&named(name)), Some(NOT_YET.to_owned()));
            known.entry(name.clone()).or_insert_with(not_yet);
        }
    }

    /// The neighbours' links, each with why it is not used.
    pub fn renew_lent(&self, table: &Table, lent: Vec<(&Lender, Option<String>)>) {
        let known = &mut self.0.borrow_mut().links;
        for link in known.values_mut().filter(|link| link.is_lent) {
            link.unused = Some(GONE.to_owned());
        }
        for (lender, unused) in lent {
            let name = lender.name.to_string();
            // An interface of this name has precedence.
            if !lender.is_shadowed(&table.interfaces) {
                let link = Known::new(&table.policy.terms_of(&lender.facts()), unused);
                let is_lent = true;
                known.insert(name, Known { is_lent, ..link });
            }
        }
    }

    /// What budgets' links have carried by now.
    pub fn count(&self, policy: &LinkPolicy) {
        for (name, link) in &mut self.0.borrow_mut().links {
            if let Some((budget, used)) = &mut link.budget {
                *used = policy.used(name, budget);
            }
        }
    }

    /// Why a link is not used, where it is known and is not.
    pub fn why_unused(&self, name: &str) -> Option<String> {
        let inner = self.0.borrow();
        let paused = inner.paused.contains(name).then(|| PAUSED.to_owned());
        inner.links.get(name)?.unused.clone().or(paused)
    }

    /// Those that may be used, own ones and lent ones, be they used yet or not.
    pub fn usable(&self) -> Vec<String> {
        let inner = self.0.borrow();
        let usable = inner
            .links
            .iter()
            .filter(|(name, known)| known.unused.is_none() && !inner.paused.contains(*name));
        usable.map(|(name, _)| name.clone()).collect()
    }

    /// By where packets of an own link leave, and what its routers say of a portal.
    pub fn way_out(&self, name: &str) -> Option<(Egress, Option<String>)> {
        let inner = self.0.borrow();
        let known = inner.links.get(name)?;
        Some((known.egress.clone()?, known.portal.clone()))
    }

    /// The policy file was read again: what was wrong with it, if anything.
    pub(crate) fn set_policy_fault(&self, fault: Option<String>) {
        self.0.borrow_mut().policy_fault = fault;
    }

    /// What the policy in force wants done when something happens.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        self.0.borrow().reactions.clone()
    }

    /// What is wrong with the policy file, if anything.
    pub fn policy_fault(&self) -> Option<String> {
        self.0.borrow().policy_fault.clone()
    }

    /// Completes `links`, those in use, by what is known of them and by those that are not;
    /// `carried` says what these have carried so far.
    pub fn complete(&self, links: &mut Vec<Link>, carried: impl Fn(&str) -> Traffic) {
        let inner = self.0.borrow();
        for (name, known) in &inner.links {
            let found = links.iter_mut().find(|link| link.name == *name);
            let is_paused = inner.paused.contains(name);
            let link = match (found, &known.unused) {
                (Some(link), _) => link,
                // It comes to be used at this moment.
                (None, None) if !is_paused => continue,
                (None, why) => {
                    links.push(Link {
                        problem: why.clone(),
                        traffic: carried(name),
                        ..Link::new(name, LinkState::Unused)
                    });
                    let Some(link) = links.last_mut() else {
                        continue;
                    };
                    link
                }
            };
            if is_paused {
                link.paused = true;
                if known.unused.is_none() {
                    link.state = LinkState::Paused;
                }
            }
            link.metered = known.metered;
            link.is_lent = known.is_lent;
            link.policy = Some(known.policy.clone());
            link.budget = known.budget.as_ref().map(|(budget, used)| LinkBudget {
                amount_bytes: budget.amount.get(),
                used_bytes: used.get(),
                renews: budget.period.next(today()).to_string(),
            });
        }
    }
}
