//! Keeps a client on the links there are, used as the policy says, and counts what they carry.
//!
//! Wakes when interfaces or the policy file change; while some link has a budget, every few
//! seconds as well. What a policy means is `link_policy`'s, which interfaces are links is `links`'.

use tabane_base::{Bytes, Duration};
use tabane_linux::interfaces::{self, Interface, Watch};
use tabane_policy::LinkFacts;
use tabane_tunnel::{Client, Volume};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::budgets::{Budgets, COUNT_INTERVAL};
use crate::lent_links::Lender;
use crate::lent_paths::LentPaths;
use crate::link_policy::LinkPolicy;
use crate::link_roll::LinkRoll;
use crate::links::{self, Links};
use crate::network_manager::metered_links;
use crate::rule_book::RuleBook;

/// How often NetworkManager is asked which links are metered, beside whenever interfaces change.
const ASK_INTERVAL: Duration = Duration::from_secs(60);
const ASK_DELAY: Duration = Duration::from_millis(300);
/// What a packet costs on the network beside its payload: the headers of IPv4 and UDP.
const PACKET_OVERHEAD: u64 = 28;

/// Follows links and policy for one client.
pub(crate) struct LinkFollower {
    client: Client,
    /// The interfaces named by the user; none: all usable ones.
    wanted: Vec<String>,
    known: Links,
    /// The neighbours' links beside the own ones.
    lent: LentPaths,
    policy: LinkPolicy,
    rules: RuleBook,
    roll: LinkRoll,
    budgets: Budgets,
}

impl LinkFollower {
    /// For a client that uses `links`; all that are known are put on `roll`.
    pub(crate) fn new(
        client: Client,
        wanted: Vec<String>,
        links: Links,
        policy: LinkPolicy,
        (rules, roll): (RuleBook, LinkRoll),
        lent: LentPaths,
    ) -> Self {
        Self {
            client,
            wanted,
            known: links,
            lent,
            policy,
            rules,
            roll,
            budgets: Budgets::new(),
        }
    }

    /// Follows until the kernel has no more news.
    pub(crate) async fn run(mut self, mut watch: Watch) {
        let files = self.policy.watch();
        let (metered, mut answers) = mpsc::channel(1);
        let mut ask_at = tokio::time::Instant::now() + ASK_INTERVAL;
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look().await;
        loop {
            tokio::select! {
                change = watch.changed() => {
                    if change.is_none() {
                        return;
                    }
                    // It hears of them a moment later itself.
                    ask_at = ask_at.min(tokio::time::Instant::now() + ASK_DELAY);
                }
                () = tokio::time::sleep_until(ask_at) => {
                    ask_at = tokio::time::Instant::now() + ASK_INTERVAL;
                    let metered = metered.clone();
                    // An answer that nobody waits for any more is as well lost.
                    tokio::task::spawn_local(async move {
                        let _ = metered.try_send(metered_links().await);
                    });
                    continue;
                }
                Some(answer) = answers.recv() => {
                    if !self.policy.set_metered(answer) {
                        continue;
                    }
                    tracing::info!("NetworkManager calls other links metered");
                }
                () = self.lent.changed() => {}
                () = files.changed() => match self.policy.reload() {
                    Ok(()) => {
                        tracing::info!("new policy");
                        self.roll.set_policy_fault(None);
                        self.rules.renew(self.policy.policy());
                    }
                    Err(error) => {
                        tracing::warn!("the policy stays as it was: {error:#}");
                        self.roll.set_policy_fault(Some(format!("{error:#}")));
                        continue;
                    }
                },
                _ = counting.tick(), if !self.budgets.is_empty() => {
                    if !self.count() {
                        continue;
                    }
                }
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        match interfaces::list().await {
            Ok(interfaces) => self.apply(&interfaces),
            Err(error) => {
                tracing::warn!(%error, "cannot list the interfaces; the links stay as they are");
            }
        }
    }

    /// Adds links that appear, removes those that vanish or may not be used, renews those whose
    /// addresses change, and tells the others how they are used.
    fn apply(&mut self, interfaces: &[Interface]) {
        // By the budgets in force until now.
        self.count();
        let facts = interfaces.iter().map(|it| self.policy.facts(it));
        let facts = facts.chain(self.lent.lenders().iter().map(Lender::facts));
        let facts: Vec<_> = facts.collect();
        self.budgets.renew(&self.policy, facts.iter().copied());
        self.apply_rules(&facts);
        let lent = self.lent.all(&self.policy);
        self.roll
            .renew(interfaces, &self.wanted, lent, &self.policy);
        let mut current = links::allowed(interfaces, &self.wanted, &self.policy);
        let lent = self.lent.links(interfaces, &self.policy);
        current.extend(lent.into_iter().map(|link| (link.name.clone(), link)));
        let snapshot = self.client.snapshot();
        let (client, roll) = (&self.client, &self.roll);
        self.known.retain(|name, bind| {
            let interface = interfaces.iter().find(|interface| interface.name == *name);
            let link = snapshot.links.iter().find(|link| link.name == *name);
            let carries = link.is_some_and(|link| link.path.is_some());
            let keep = match (current.get(name), interface) {
                (Some(fresh), _) if fresh.relay_addrs != bind.relay_addrs => false,
                (Some(fresh), None) => fresh.relay_addrs.is_some(),
                (Some(fresh), Some(interface)) => {
                    !links::is_outdated(bind, fresh, interface, carries)
                }
                _ => false,
            };
            if !keep {
                let why = roll.why_unused(name);
                let why = why.unwrap_or_else(|| "its addresses have changed".to_owned());
                client.remove_link(name, &why);
                tracing::info!(link = name, why, "link not used");
            }
            keep
        });
        for (name, bind) in current {
            match self.known.get_mut(&name) {
                Some(known) if known.policy == bind.policy => {}
                Some(known) => {
                    known.policy = bind.policy;
                    match client.set_link_policy(&name, bind.policy) {
                        Ok(()) => tracing::info!(link = name, "used in another way from here on"),
                        Err(error) => tracing::warn!("{error}"),
                    }
                }
                None => {
                    match client.add_link(bind.clone()) {
                        Ok(()) => tracing::info!(link = name, "link added"),
                        Err(error) => tracing::warn!(%error, "cannot add a link"),
                    }
                    self.known.insert(name, bind);
                }
            }
        }
    }

    /// Says which links carry what belongs to which class, before any link comes that may not.
    fn apply_rules(&self, links: &[LinkFacts<'_>]) {
        for (class, links) in self.rules.classes(links) {
            self.client.set_class(class, links);
        }
        self.client.follow_labels();
    }

    /// Counts what links with a budget have carried. `true` where one is used up now, or its period
    /// has begun anew.
    fn count(&mut self) -> bool {
        let total = |link: &String| (link.clone(), on_the_wire(&self.client.volume(link)));
        let carried = self.known.keys().map(total);
        let is_due = self.budgets.count(&mut self.policy, carried);
        self.roll.count(&self.policy);
        is_due
    }
}

impl Drop for LinkFollower {
    fn drop(&mut self) {
        self.count();
        self.budgets.save(&mut self.policy);
    }
}

/// With headers, as the network counts it.
fn on_the_wire(volume: &Volume) -> Bytes {
    let packets = volume.sent_packets + volume.received_packets;
    volume.sent + volume.received + Bytes::new(packets * PACKET_OVERHEAD)
}
