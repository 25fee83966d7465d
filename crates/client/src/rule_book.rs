//! The rules in force for what a client carries: which fits a connection, and the classes that come
//! of them.
//!
//! Owns the names that addresses were looked up by, which class stands for which choice of links,
//! and the labels of everything under way, so that a new policy file is followed at once. What
//! rules mean is the policy crate's; which links there are, the link follower's.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

use tabane_base::Bytes;
use tabane_core::{ClassId, DatagramOrder, MAX_CLASSES};
use tabane_policy::{FlowFacts, LinkFacts, OnFailure, Order, Policy};
use tabane_tunnel::{Label, LinkClass, Tally, Treatment, WeakLabel};
use tokio::sync::{Notify, watch};

use crate::dns_answer;

/// Addresses of which names are remembered: more than a machine uses at a time.
const MAX_ADDRESSES: usize = 8_192;
/// Names of one address; behind one of a large host there are more, of which the last count.
const MAX_NAMES: usize = 4;
/// Labels are looked through for those that are over when there are so many more than last time.
const SWEEP_STEP: usize = 256;

/// What becomes of a connection.
#[derive(Debug, Clone)]
pub enum SplitTunnel {
    /// Through the session, as the label says; without the relay, as the rule has it.
    Carried(Label, Option<OnFailure>),
    /// Without it.
    Direct,
}

/// The rules. Copies are the same book.
#[derive(Debug, Clone, Default)]
pub struct RuleBook(Rc<RefCell<Book>>);

#[derive(Debug, Default)]
struct Book {
    policy: Policy,
    /// What stands for each class, from 1 on: a class keeps its meaning as long as any rule has
    /// it, so that no stream is ever in a class of another meaning.
    classes: Vec<tabane_policy::Treatment>,
    /// What is under way.
    labels: Vec<Kept>,
    /// By rule; without a name what no rule fits.
    uses: BTreeMap<Option<String>, Use>,
    sweep_at: usize,
    names: Names,
    renewed: Rc<Notify>,
    /// Counts the policies that were followed.
    revision: watch::Sender<u64>,
}

/// A label, and what it was given for.
#[derive(Debug)]
struct Kept {
    flow: FlowFacts,
    label: WeakLabel,
    rule: Option<String>,
}

/// What a rule has been used for so far.
#[derive(Debug, Default)]
struct Use {
    connections: u64,
    tally: Tally,
}

/// What a rule is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleUse {
    /// `None`: what no rule fits.
    pub rule: Option<String>,
    /// What becomes of it, in words.
    pub text: String,
    /// Connections and flows under way.
    pub connections: u64,
    /// So far.
    pub connections_so_far: u64,
    /// Payload towards the destinations.
    pub sent: Bytes,
    /// Payload from them.
    pub received: Bytes,
}

/// The names that addresses were the answer for.
#[derive(Debug, Default)]
struct Names {
    by_address: BTreeMap<IpAddr, VecDeque<String>>,
    /// In the order in which they came.
    addresses: VecDeque<IpAddr>,
}

impl RuleBook {
    /// What becomes of a connection or flow that begins now.
    pub fn admit(&self, mut flow: FlowFacts) -> SplitTunnel {
        let mut book = self.0.borrow_mut();
        book.names.complete(&mut flow);
        let rule = book.rule_for(&flow);
        let used = book.uses.entry(rule.clone()).or_default();
        used.connections += 1;
        let tally = used.tally.clone();
        let Some(treatment) = book.treat(&flow) else {
            return SplitTunnel::Direct;
        };
        let on_failure = book.on_failure(&flow);
        let label = Label::new(treatment);
        label.count_in(&tally);
        book.keep(flow, &label, rule);
        SplitTunnel::Carried(label, on_failure)
    }

    /// Whether any rule keeps what it fits from going without the relay.
    pub(crate) fn is_closed(&self) -> bool {
        let book = self.0.borrow();
        let mut rules = book.policy.rules().iter();
        rules.any(|rule| rule.treatment.on_failure.is_some_and(OnFailure::is_closed))
    }

    /// The rule that a connection would fall under now, with the names that its address is known
    /// by.
    pub fn explain(&self, mut flow: FlowFacts) -> (Option<String>, Vec<String>) {
        let book = self.0.borrow();
        book.names.complete(&mut flow);
        (book.rule_for(&flow), flow.domains)
    }

    /// What each rule is used for, in their order, and after them what none fits; nothing where
    /// there are no rules.
    pub fn uses(&self) -> Vec<RuleUse> {
        let book = self.0.borrow();
        let mut under_way: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        for kept in &book.labels {
            if kept.label.upgrade().is_some() {
                *under_way.entry(kept.rule.as_deref()).or_default() += 1;
            }
        }
        let of = |name: Option<&str>, text: String| {
            let used = book.uses.get(&name.map(str::to_owned));
            RuleUse {
                rule: name.map(str::to_owned),
                text,
                connections: under_way.get(&name).copied().unwrap_or(0),
                connections_so_far: used.map_or(0, |used| used.connections),
                sent: used.map_or(Bytes::ZERO, |used| used.tally.sent()),
                received: used.map_or(Bytes::ZERO, |used| used.tally.received()),
            }
        };
        let rules = book.policy.rules();
        let named = rules
            .iter()
            .map(|rule| of(Some(&rule.name), rule.treatment.to_string()));
        let rest = (!rules.is_empty()).then(|| of(None, "any link".to_owned()));
        named.chain(rest).collect()
    }

    /// The names are told apart only where some rule asks for the program.
    pub fn asks_for_process(&self) -> bool {
        let book = self.0.borrow();
        book.policy
            .rules()
            .iter()
            .any(|rule| rule.asks_for_process())
    }

    /// Follows another policy, for what is under way as well.
    pub fn renew(&self, policy: &Policy) {
        let mut book = self.0.borrow_mut();
        book.policy = policy.clone();
        book.renew_classes();
        book.sweep();
        let names: Vec<_> = policy.rules().iter().map(|rule| &rule.name).collect();
        book.uses
            .retain(|rule, _| rule.as_ref().is_none_or(|rule| names.contains(&rule)));
        let mut labels = std::mem::take(&mut book.labels);
        for kept in &mut labels {
            // What is carried already stays so.
            if let (Some(label), Some(treatment)) = (kept.label.upgrade(), book.treat(&kept.flow)) {
                label.set(treatment);
                kept.rule = book.rule_for(&kept.flow);
                label.count_in(&book.uses.entry(kept.rule.clone()).or_default().tally);
            }
        }
        book.labels = labels;
        book.renewed.notify_one();
        book.revision.send_modify(|revision| *revision += 1);
    }

    /// Tells whenever there are other rules.
    pub(crate) fn revisions(&self) -> watch::Receiver<u64> {
        self.0.borrow().revision.subscribe()
    }

    /// Waits until there are other rules, for one who waits.
    pub async fn renewed(&self) {
        let renewed = self.0.borrow().renewed.clone();
        renewed.notified().await;
    }

    /// Which of these links carry what belongs to each class.
    pub fn classes(&self, links: &[LinkFacts<'_>]) -> Vec<(ClassId, LinkClass)> {
        let book = self.0.borrow();
        let classes = book.classes.iter().enumerate();
        let classes = classes.filter_map(|(place, treatment)| {
            let class = ClassId::new(u8::try_from(place + 1).ok()?)?;
            let allowed = links.iter().filter(|link| treatment.allows(link));
            let names = allowed.map(|link| link.name.to_owned()).collect();
            let redundant = treatment.redundant;
            let links = Some(names);
            Some((class, LinkClass { links, redundant }))
        });
        classes.collect()
    }

    /// The names of those links that carry what belongs to `class`; `None`: any.
    pub fn links_of(&self, class: ClassId, links: &[LinkFacts<'_>]) -> Option<Vec<String>> {
        let classes = self.classes(links).into_iter();
        let found = classes.into_iter().find(|(id, _)| *id == class)?;
        found.1.links
    }

    /// An answer of a resolver passes: which names its addresses have.
    pub(crate) fn see_answer(&self, message: &[u8]) {
        if let Some((name, addresses)) = dns_answer::addresses(message) {
            let mut book = self.0.borrow_mut();
            for address in addresses {
                book.names.insert(address, &name);
            }
        }
    }
}

impl Book {
    fn rule_for(&self, flow: &FlowFacts) -> Option<String> {
        let (_, rule) = self.policy.rule_for(flow)?;
        Some(rule.name.clone())
    }

    fn on_failure(&self, flow: &FlowFacts) -> Option<OnFailure> {
        let (_, rule) = self.policy.rule_for(flow)?;
        rule.treatment.on_failure
    }

    /// `None`: it is not to be carried.
    fn treat(&self, flow: &FlowFacts) -> Option<Treatment> {
        let Some((_, rule)) = self.policy.rule_for(flow) else {
            return Some(Treatment::default());
        };
        let wanted = &rule.treatment;
        let mut classes = self.classes.iter();
        let place = classes.position(|class| class.is_same_class(wanted));
        let class = match place {
            Some(place) if wanted.concerns_links() => u8::try_from(place + 1).ok(),
            _ => None,
        };
        (!wanted.direct).then(|| Treatment {
            class: class.and_then(ClassId::new).unwrap_or_default(),
            order: wanted.order.map(|order| match order {
                Order::AtOnce => DatagramOrder::AtOnce,
                Order::Within(time) => DatagramOrder::Within(time),
            }),
        })
    }

    /// Gives each choice of links that is new a class that nobody needs any more.
    fn renew_classes(&mut self) {
        let wanted: Vec<_> = self.policy.classes().into_iter().cloned().collect();
        for treatment in &wanted {
            let mut known = self.classes.iter();
            if known.any(|class| class.is_same_class(treatment)) {
                continue;
            }
            if self.classes.len() < usize::from(MAX_CLASSES) {
                self.classes.push(treatment.clone());
                continue;
            }
            let is_wanted = |class: &tabane_policy::Treatment| {
                wanted
                    .iter()
                    .any(|treatment| class.is_same_class(treatment))
            };
            let mut classes = self.classes.iter_mut();
            if let Some(free) = classes.find(|class| !is_wanted(class)) {
                *free = treatment.clone();
            }
        }
    }

    fn keep(&mut self, flow: FlowFacts, label: &Label, rule: Option<String>) {
        if self.labels.len() >= self.sweep_at + SWEEP_STEP {
            self.sweep();
        }
        let label = label.downgrade();
        self.labels.push(Kept { flow, label, rule });
    }

    fn sweep(&mut self) {
        self.labels.retain(|kept| kept.label.upgrade().is_some());
        self.sweep_at = self.labels.len();
    }
}

impl Names {
    /// Adds the names that its address is known by. An address of IPv4 is one in whatever form a
    /// program has it.
    fn complete(&self, flow: &mut FlowFacts) {
        flow.address = flow.address.map(|it| it.to_canonical());
        if let Some(address) = flow.address {
            flow.domains.extend(self.of(address));
        }
    }

    fn of(&self, address: IpAddr) -> impl Iterator<Item = String> + '_ {
        self.by_address.get(&address).into_iter().flatten().cloned()
    }

    fn insert(&mut self, address: IpAddr, name: &str) {
        if !self.by_address.contains_key(&address) {
            self.addresses.push_back(address);
            if self.addresses.len() > MAX_ADDRESSES
                && let Some(oldest) = self.addresses.pop_front()
            {
                self.by_address.remove(&oldest);
            }
        }
        let names = self.by_address.entry(address).or_default();
        names.retain(|known| known != name);
        names.push_back(name.to_owned());
        if names.len() > MAX_NAMES {
            names.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: [LinkFacts<'_>; 2] = [
        LinkFacts {
            name: "wlan0",
            interface: "wlan0",
            kind: "wifi",
            metered: None,
        },
        LinkFacts {
            name: "usb0",
            interface: "usb0",
            kind: "ethernet",
            metered: None,
        },
    ];

    fn to(address: &str, port: u16) -> FlowFacts {
        FlowFacts {
            address: Some(address.parse().unwrap()),
            port,
            ..FlowFacts::default()
        }
    }

    fn rule(name: &str, fits: &str, what: &str) -> String {
        format!("[[rule]]\nname = '{name}'\n{fits}\n{what}\n")
    }

    fn book(text: &str) -> RuleBook {
        let book = RuleBook::default();
        book.renew(&Policy::parse(text).unwrap());
        book
    }

    fn class(way: &SplitTunnel) -> Option<u8> {
        match way {
            SplitTunnel::Carried(label, _) => Some(label.treatment().class.get()),
            SplitTunnel::Direct => None,
        }
    }

    #[test]
    fn a_new_policy_is_followed_by_what_is_under_way_and_classes_keep_their_meaning() {
        let backup = rule("backup", "port = 22", "never = 'usb*'");
        let book = book(&backup);
        let way = book.admit(to("192.0.2.1", 22));
        assert_eq!(class(&way), Some(1));
        assert_eq!(class(&book.admit(to("192.0.2.1", 23))), Some(0));
        let names = |class: &LinkClass| class.links.clone().unwrap();
        assert_eq!(names(&book.classes(&LINKS)[0].1), ["wlan0"]);
        // Another rule in front of it does not make class 1 another one.
        let call = rule("call", "port = 5060", "redundant = true");
        book.renew(&Policy::parse(&(call.clone() + &backup)).unwrap());
        assert_eq!(class(&way), Some(1));
        let classes = book.classes(&LINKS);
        assert!(classes[1].1.redundant && !classes[0].1.redundant);
        let now_call = rule("call", "port = 22", "redundant = true");
        book.renew(&Policy::parse(&now_call).unwrap());
        assert_eq!(class(&way), Some(2));
        book.renew(&Policy::default());
        assert_eq!(class(&way), Some(0));
    }

    #[test]
    fn connections_count_for_the_rule_they_fall_under_and_move_with_a_new_policy() {
        let book = book(&rule("a", "port = 22", "never = 'usb*'"));
        let counts = |book: &RuleBook| -> Vec<(Option<String>, u64, u64)> {
            let uses = book.uses().into_iter();
            uses.map(|it| (it.rule, it.connections, it.connections_so_far))
                .collect()
        };
        let ways: Vec<_> = [22, 22, 443]
            .map(|port| book.admit(to("192.0.2.1", port)))
            .into();
        let a = Some("a".to_owned());
        assert_eq!(counts(&book), [(a.clone(), 2, 2), (None, 1, 1)]);
        let b = Some("b".to_owned());
        let other =
            rule("b", "port = 22", "direct = true") + &rule("a", "port = 443", "redundant = true");
        book.renew(&Policy::parse(&other).unwrap());
        // What is carried stays so, under the rule that it came by.
        assert_eq!(
            counts(&book),
            [(b.clone(), 0, 0), (a.clone(), 3, 2), (None, 0, 1)]
        );
        assert!(matches!(
            book.admit(to("192.0.2.1", 22)),
            SplitTunnel::Direct
        ));
        drop(ways);
        assert_eq!(counts(&book), [(b, 0, 1), (a, 0, 2), (None, 0, 1)]);
        let flow = to("192.0.2.1", 443);
        assert_eq!(book.explain(flow).0.as_deref(), Some("a"));
        book.renew(&Policy::default());
        assert_eq!(counts(&book), []);
    }

    #[test]
    fn names_are_known_from_the_answers_that_passed() {
        let book = book(&rule("a", "domain = '*.example.org'", "direct = true"));
        assert_eq!(class(&book.admit(to("192.0.2.7", 443))), Some(0));
        let mut answer = vec![0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
        answer.extend(b"\x03www\x07example\x03org\0\0\x01\0\x01");
        answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x07");
        book.see_answer(&answer);
        assert_eq!(class(&book.admit(to("192.0.2.7", 443))), None);
        assert_eq!(class(&book.admit(to("192.0.2.8", 443))), Some(0));
    }

    /// A page that a program loads by its proxy may name hosts in either form.
    #[test]
    fn an_address_of_ipv4_is_the_same_in_the_form_of_ipv6() {
        let named = rule("named", "domain = 'www.example.org'", "direct = true");
        let book = book(&(rule("range", "address = '192.0.2.0/28'", "direct = true") + &named));
        book.0
            .borrow_mut()
            .names
            .insert("192.0.2.77".parse().unwrap(), "www.example.org");
        for address in ["192.0.2.7", "192.0.2.77"] {
            for address in [address.to_owned(), format!("::ffff:{address}")] {
                assert_eq!(class(&book.admit(to(&address, 443))), None, "{address}");
                let rule = book.explain(to(&address, 443)).0;
                assert!(rule.is_some(), "{address}");
            }
        }
    }

    #[test]
    fn what_is_remembered_is_limited() {
        let mut names = Names::default();
        for n in 0..2 * MAX_ADDRESSES as u32 {
            names.insert(std::net::Ipv4Addr::from(n).into(), "a.example");
        }
        let one = "192.0.2.1".parse().unwrap();
        (0..10).for_each(|n| names.insert(one, &format!("{n}.example")));
        assert_eq!(names.by_address.len(), MAX_ADDRESSES);
        assert_eq!(names.of(one).count(), MAX_NAMES);
        let book = RuleBook::default();
        for n in 0..10 * SWEEP_STEP as u16 {
            book.admit(to("192.0.2.1", n));
        }
        assert!(book.0.borrow().labels.len() <= 2 * SWEEP_STEP);
    }
}
