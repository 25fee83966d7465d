//! The policy file: entries for links, and rules for connections, of each the first that fits
//! decides; and reactions to what happens, all that fit.

use std::collections::BTreeSet;
use std::fmt;

use tabane_base::Rate;
use toml::de::DeTable;

use crate::budget::{Budget, Period};
use crate::gateway::Gateway;
use crate::glob;
use crate::link::{Carriers, Decision, LinkFacts, LinkUse, MAX_PRIORITY};
use crate::matching::FlowFacts;
use crate::reaction::{self, Reaction};
use crate::reader::{Fault, Fields, Reader, number, share};
use crate::rule::{Rule, Treatment};

/// Ways of choosing among links that rules may differ in; each is a class of its own in a session.
pub const MAX_CLASSES: usize = 15;

/// A policy file that cannot be used; nothing of it is.
#[derive(Debug, thiserror::Error)]
pub struct PolicyError {
    /// Everything that is wrong, in the order of the file.
    pub faults: Vec<Fault>,
    /// The files with lists that it names: another version of one may mend it.
    pub files: BTreeSet<String>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.faults.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}line {}: {}", fault.line, fault.what)?;
        }
        Ok(())
    }
}

/// What the user wants of the links, and for which connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    entries: Vec<Entry>,
    rules: Vec<Rule>,
    reactions: Vec<Reaction>,
    files: BTreeSet<String>,
}

/// One `[[link]]`.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    line: usize,
    name: Option<String>,
    kind: Option<String>,
    usage: LinkUse,
    weight: Option<f64>,
    priority: Option<u8>,
    metered: Option<bool>,
    budget: Option<Budget>,
    budget_from: Option<u8>,
    down: Option<Rate>,
    up: Option<Rate>,
    carrier: Carriers,
    proxy: Option<String>,
    gateway: Option<Gateway>,
}

const LINK_KEYS: [&str; 14] = [
    "name",
    "interface",
    "gateway",
    "kind",
    "use",
    "weight",
    "priority",
    "metered",
    "budget",
    "budget-from",
    "down",
    "up",
    "carrier",
    "proxy",
];

const PROXY_EXPECTED: &str = "http://[USER:PASSWORD@]HOST[:PORT] or socks5://…";

impl Policy {
    /// Whether it has a proxy's password in it, which is for nobody but its owner.
    #[must_use]
    pub fn has_password(&self) -> bool {
        let mut proxies = self.entries.iter().filter_map(|entry| entry.proxy.as_ref());
        proxies.any(|proxy| proxy.contains('@'))
    }

    /// Reads a policy file, with the lists that it names empty.
    ///
    /// # Errors
    /// [`PolicyError`], naming all faults, each with its line, its key and what was expected.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        Self::parse_with(text, &mut |_| Ok(String::new()))
    }

    /// The same with its lists, whose files `read` is asked for by their names.
    ///
    /// # Errors
    /// As there; a list that cannot be read is a fault of the line that names it.
    pub fn parse_with(
        text: &str,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, PolicyError> {
        let mut reader = Reader::new(text, read);
        let (file, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            reader.syntax(error.span(), error.message());
        }
        let mut file = file.into_inner();
        let links = reader.tables("link", &mut file);
        let read = |fields| Entry::read(&mut reader, fields);
        let entries: Vec<Entry> = links.into_iter().filter_map(read).collect();
        let rules = reader.tables("rule", &mut file);
        let read = |fields| Rule::read(&mut reader, fields);
        let rules: Vec<Rule> = rules.into_iter().filter_map(read).collect();
        let reactions = reader.tables("on-event", &mut file);
        let read = |fields| Reaction::read(&mut reader, fields);
        let reactions: Vec<Reaction> = reactions.into_iter().filter_map(read).collect();
        reader.finish(&file, &["link", "rule", "on-event"]);
        check_together(&mut reader, &rules);
        reaction::check_together(&mut reader, &reactions);
        let (mut faults, files) = (reader.faults, reader.files);
        faults.sort_by_key(|fault| fault.line);
        match faults.is_empty() {
            true => Ok(Self {
                entries,
                rules,
                reactions,
                files,
            }),
            false => Err(PolicyError { faults, files }),
        }
    }

    /// The files beside this one that it has lists from.
    #[must_use]
    pub const fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// The rules, in the order of the file.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The gateways that are links of their own, in the order of the file.
    pub fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.entries
            .iter()
            .filter_map(|entry| entry.gateway.as_ref())
    }

    /// What is done when something happens, in the order of the file.
    #[must_use]
    pub fn reactions(&self) -> &[Reaction] {
        &self.reactions
    }

    /// The rule for a connection: the first that fits, with its place.
    #[must_use]
    pub fn rule_for(&self, flow: &FlowFacts) -> Option<(usize, &Rule)> {
        self.rules
            .iter()
            .enumerate()
            .find(|(_, rule)| rule.fits(flow))
    }

    /// The treatments that differ in their choice of links, each once: the classes of a session,
    /// from 1 on. At most [`MAX_CLASSES`].
    #[must_use]
    pub fn classes(&self) -> Vec<&Treatment> {
        classes(&self.rules)
    }

    /// The number of the class that a treatment belongs to; 0 where any link will do.
    #[must_use]
    pub fn class_of(&self, treatment: &Treatment) -> usize {
        let classes = self.classes();
        let mut classes = classes.iter();
        let place = classes.position(|class| class.is_same_class(treatment));
        place.map_or(0, |place| place + 1)
    }

    /// How a link is to be used: what the first entry that fits it says.
    #[must_use]
    pub fn decide(&self, link: &LinkFacts<'_>) -> Decision {
        let default = Decision::unmentioned(link);
        let Some(entry) = self.entries.iter().find(|entry| entry.fits(link)) else {
            return default;
        };
        let metered = entry.metered.unwrap_or(default.metered);
        Decision {
            usage: entry.usage,
            weight: entry.weight.unwrap_or(1.0),
            priority: entry.priority.unwrap_or_else(|| u8::from(metered)),
            metered,
            budget: entry.budget(),
            down: entry.down,
            up: entry.up,
            carrier: entry.carrier,
            proxy: entry.proxy.clone(),
            line: Some(entry.line),
        }
    }
}

fn classes(rules: &[Rule]) -> Vec<&Treatment> {
    let mut classes: Vec<&Treatment> = Vec::new();
    for rule in rules.iter().filter(|rule| rule.treatment.concerns_links()) {
        let is_known = |class: &&Treatment| class.is_same_class(&rule.treatment);
        if !classes.iter().any(is_known) {
            classes.push(&rule.treatment);
        }
    }
    classes
}

/// What is wrong with rules that are right one by one.
fn check_together(reader: &mut Reader<'_>, rules: &[Rule]) {
    for (place, rule) in rules.iter().enumerate() {
        let mut earlier = rules[..place].iter();
        if let Some(other) = earlier.find(|other| other.shadows(rule)) {
            let (name, line) = (&other.name, other.line);
            reader.fault(
                rule.line,
                format!(
                    "rule {:?} is never reached: {name:?} (line {line}) takes all of it",
                    rule.name
                ),
            );
        }
        if let Some(other) = rules[..place].iter().find(|other| other.name == rule.name) {
            let what = format!("name = {:?}: line {} has it", rule.name, other.line);
            reader.fault(rule.line, what);
        }
    }
    if classes(rules).len() > MAX_CLASSES {
        let line = rules.last().map_or(1, |rule| rule.line);
        reader.fault(
            line,
            format!("more than {MAX_CLASSES} different choices of links"),
        );
    }
}

impl Entry {
    fn read(reader: &mut Reader<'_>, mut fields: Fields<'_>) -> Option<Self> {
        let before = reader.faults.len();
        let fields = &mut fields;
        let used = "\"normal\", \"backup\" or \"never\"";
        let name = reader.text(fields, "name");
        let entry = Self {
            line: fields.line,
            gateway: Gateway::read(reader, fields, name.as_deref()),
            name,
            kind: reader.text(fields, "kind"),
            usage: reader
                .value(fields, "use", used, |value| match value.as_str()? {
                    "normal" => Some(LinkUse::Normal),
                    "backup" => Some(LinkUse::Backup),
                    "never" => Some(LinkUse::Never),
                    _ => None,
                })
                .unwrap_or_default(),
            weight: reader.value(fields, "weight", "a share from 0 to 1", |value| {
                share(value).filter(|weight| (0.0..=1.0).contains(weight))
            }),
            priority: reader.value(fields, "priority", "0 to 15", |value| {
                number(value).filter(|priority| *priority <= MAX_PRIORITY)
            }),
            metered: reader.flag(fields, "metered"),
            budget: reader.value(fields, "budget", Budget::EXPECTED, |value| {
                Budget::parse(value.as_str()?)
            }),
            budget_from: reader.value(fields, "budget-from", "a day from 1 to 31", |value| {
                number(value).filter(|day| (1..=31).contains(day))
            }),
            down: reader.quantity(fields, "down"),
            up: reader.quantity(fields, "up"),
            carrier: reader
                .value(
                    fields,
                    "carrier",
                    "\"auto\", \"udp\" or \"tls\"",
                    |value| match value.as_str()? {
                        "auto" => Some(Carriers::Auto),
                        "udp" => Some(Carriers::Udp),
                        "tls" => Some(Carriers::Tls),
                        _ => None,
                    },
                )
                .unwrap_or_default(),
            proxy: reader.value(fields, "proxy", PROXY_EXPECTED, |value| {
                let text = value.as_str()?;
                let is_known = |scheme: &&str| text.starts_with(*scheme);
                let known = ["http://", "socks5://"].iter().find(|it| is_known(it))?;
                (text.len() > known.len()).then(|| text.to_owned())
            }),
        };
        reader.finish_fields(fields, &LINK_KEYS);
        entry.check_together(reader);
        (reader.faults.len() == before).then_some(entry)
    }

    fn fits(&self, link: &LinkFacts<'_>) -> bool {
        let (name, kind) = (self.name.as_ref(), self.kind.as_ref());
        name.is_none_or(|pattern| link.is_called(pattern))
            && kind.is_none_or(|pattern| glob::fits(pattern, link.kind))
    }

    fn budget(&self) -> Option<Budget> {
        let mut budget = self.budget?;
        if let (Period::Month { from }, Some(day)) = (&mut budget.period, self.budget_from) {
            *from = day;
        }
        Some(budget)
    }

    /// What does not fit together.
    fn check_together(&self, reader: &mut Reader<'_>) {
        if self.priority.is_some() && self.usage != LinkUse::Normal {
            let what = "priority: only links with use = \"normal\" have one";
            reader.fault(self.line, what);
        }
        if self.proxy.is_some() && self.carrier == Carriers::Udp {
            reader.fault(self.line, "proxy: proxies carry TLS, not carrier = \"udp\"");
        }
        for (key, rate) in [("down", self.down), ("up", self.up)] {
            if rate == Some(Rate::ZERO) {
                let what = format!("{key}: nothing would pass; say use = \"never\"");
                reader.fault(self.line, what);
            }
        }
        let is_monthly = |budget: Budget| matches!(budget.period, Period::Month { .. });
        if self.budget_from.is_some() && !self.budget.is_some_and(is_monthly) {
            reader.fault(self.line, "budget-from: goes with a budget per month");
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use super::*;

    const WIFI: LinkFacts<'_> = LinkFacts {
        name: "wlan0",
        interface: "wlan0",
        kind: "wifi",
        metered: None,
    };
    const PHONE: LinkFacts<'_> = LinkFacts {
        name: "usb0",
        interface: "usb0",
        kind: "ethernet",
        metered: Some(true),
    };

    #[test]
    fn without_entries_everything_is_used_and_metered_links_when_needed() {
        let policy = Policy::parse("").expect("empty");
        let wifi = policy.decide(&WIFI);
        assert_eq!(
            (wifi.usage, wifi.weight, wifi.priority),
            (LinkUse::Normal, 1.0, 0)
        );
        let phone = policy.decide(&PHONE);
        assert_eq!((phone.priority, phone.metered, phone.line), (1, true, None));
    }

    #[test]
    fn the_first_entry_that_fits_decides() {
        let text = r#"
            [[link]]
            name = "usb*"
            metered = true
            budget = "5GB/month"
            budget-from = 15
            down = "20mbit"
            up = "512kbit"
            [[link]]
            kind = "wifi"
            weight = 0.5
            priority = 3
            [[link]]
            use = "never"
        "#;
        let policy = Policy::parse(text).expect("valid");
        let phone = policy.decide(&PHONE);
        let budget = Budget {
            amount: Bytes::mega(5_000),
            period: Period::Month { from: 15 },
        };
        assert_eq!(phone.budget, Some(budget));
        assert_eq!(
            (phone.line, phone.down),
            (Some(2), Some(Rate::from_mbps(20)))
        );
        let wifi = policy.decide(&WIFI);
        assert_eq!((wifi.weight, wifi.priority, wifi.line), (0.5, 3, Some(9)));
        let other = LinkFacts {
            name: "eth0",
            interface: "eth0",
            kind: "ethernet",
            metered: None,
        };
        assert_eq!(policy.decide(&other).usage, LinkUse::Never);
    }

    #[test]
    fn what_is_said_of_an_interface_holds_for_gateways_behind_it_unless_they_are_named_before() {
        let text = r#"
            [[link]]
            name = "dsl"
            interface = "eth0"
            gateway = ["192.168.1.1", "fe80::1"]
            [[link]]
            name = "eth0"
            use = "never"
        "#;
        let policy = Policy::parse(text).expect("valid");
        let usage = |name| {
            let interface = "eth0";
            let kind = "ethernet";
            let metered = None;
            let facts = LinkFacts {
                name,
                interface,
                kind,
                metered,
            };
            policy.decide(&facts).usage
        };
        assert_eq!(usage("dsl"), LinkUse::Normal);
        assert_eq!(usage("eth0"), LinkUse::Never);
        assert_eq!(usage("eth0@192.168.1.254"), LinkUse::Never);
        let named: Vec<_> = policy.gateways().collect();
        assert_eq!(
            (named.len(), named[0].name.as_str(), named[0].line),
            (1, "dsl", 2)
        );
        assert_eq!(named[0].addresses.len(), 2);
    }

    #[test]
    fn faults_name_line_and_key_and_what_was_expected() {
        for (text, expected) in [
            ("[[link]]\nweigth = 1", "line 2: weigth: unknown key"),
            ("[[link]]\nweigth = 1", "weigth"),
            ("\n[[link]]\nweight = 1.5", "line 3: weight = 1.5: expected"),
            ("[[link]]\nweight = -0.1", "from 0 to 1"),
            ("[[link]]\ndown = \"-5mbit\"", "a rate such as"),
            ("[[link]]\ndown = \"0mbit\"", "never"),
            ("[[link]]\nbudget = \"5GB\"", "per day or month"),
            (
                "[[link]]\nbudget = \"5GB/day\"\nbudget-from = 3",
                "per month",
            ),
            (
                "[[link]]\nbudget = \"5GB/month\"\nbudget-from = 32",
                "1 to 31",
            ),
            ("[[link]]\npriority = 16", "0 to 15"),
            ("[[link]]\npriority = 1\nuse = \"backup\"", "normal"),
            ("[[link]]\nuse = \"sometimes\"", "normal"),
            ("[[link]]\ncarrier = \"tcp\"", "\"auto\", \"udp\""),
            ("[[link]]\nproxy = \"proxy:80\"", "http://"),
            ("[[link]]\nproxy = \"http://a\"\ncarrier = \"udp\"", "TLS"),
            ("[link]\nname = \"x\"", "line 1"),
            (
                "[[link]]\nname = \"dsl\"\ngateway = \"10.0.0.1\"",
                "interface",
            ),
            ("[[link]]\nname = \"dsl\"\ninterface = \"eth0\"", "gateway"),
            (
                "[[link]]\ninterface = \"eth0\"\ngateway = \"10.0.0.1\"",
                "a name of its own",
            ),
            (
                "[[link]]\nname = \"d*\"\ninterface = \"eth0\"\ngateway = \"10.0.0.1\"",
                "a name of its own",
            ),
            (
                "[[link]]\nname = \"dsl\"\ninterface = \"eth0\"\n\
                 gateway = [\"10.0.0.1\", \"10.0.0.2\"]",
                "one address of each family",
            ),
            (
                "[[link]]\nname = \"dsl\"\ninterface = \"eth0\"\ngateway = \"0.0.0.0\"",
                "the address of a router",
            ),
        ] {
            let error = Policy::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?} gives {error:?}");
        }
    }

    #[test]
    fn a_decision_reads_as_a_sentence() {
        let policy = Policy::parse("[[link]]\nweight = 0.25\nbudget = \"1GB/day\"").expect("valid");
        assert_eq!(
            policy.decide(&PHONE).to_string(),
            "used when priorities below 1 cannot carry the demand, 25 % of it, \
             1.00 GB per day, metered"
        );
    }
}
