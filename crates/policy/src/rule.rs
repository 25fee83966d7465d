//! Rules for classes of connections: what they fit, and how what fits is treated.

use std::fmt;

use tabane_base::{Duration, Protocol, Quantity};
use toml::de::DeValue;

use crate::glob;
use crate::link::LinkFacts;
use crate::matching::{FlowFacts, Match, covers_name, text};
use crate::reader::{Fields, Reader};

/// How datagrams are handed out at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they arrive.
    AtOnce,
    /// As they were sent, waiting at most so long.
    Within(Duration),
}

/// The longest wait for an order; no program that is content with UDP waits for longer.
const ORDER_MAX: Duration = Duration::from_secs(1);
const ON_FAILURE_EXPECTED: &str = "\"wait\", \"refuse\" or \"direct\"";
const ORDER_EXPECTED: &str = "\"at-once\" or a time from \"1ms\" to \"1s\"";
const LINK_EXPECTED: &str = "a link's name or a pattern such as \"usb*\" or \"kind:cellular\"";

const TREATMENT_KEYS: [&str; 7] = [
    "links",
    "never",
    "redundant",
    "scheduler",
    "direct",
    "on-failure",
    "order",
];

/// What becomes of a connection or flow that begins while the relay does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// It goes as it would without tabane.
    Direct,
    /// It waits for the relay.
    Wait,
    /// It is told that there is no way.
    Refuse,
}

impl OnFailure {
    /// Whether nothing may go without the relay.
    #[must_use]
    pub fn is_closed(self) -> bool {
        self != Self::Direct
    }
}

/// How what fits is treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    links: Option<Vec<String>>,
    never: Vec<String>,
    /// Everything goes by all its links at once.
    pub redundant: bool,
    /// Not through the relay at all: as it would go without tabane.
    pub direct: bool,
    /// Where the relay does not answer; `None` as everything else.
    pub on_failure: Option<OnFailure>,
    /// For UDP.
    pub order: Option<Order>,
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What the user calls it.
    pub name: String,
    /// Where it begins in the file.
    pub line: usize,
    fits: Match,
    /// What becomes of what fits.
    pub treatment: Treatment,
}

impl Rule {
    pub(crate) fn read(reader: &mut Reader<'_>, mut fields: Fields<'_>) -> Option<Self> {
        let faults = reader.faults.len();
        let line = fields.line;
        let name = reader.text(&mut fields, "name");
        if name.as_ref().is_none_or(String::is_empty) && reader.faults.len() == faults {
            reader.fault(line, "name: every rule has one");
        }
        let fits = Match::read(reader, &mut fields);
        let treatment = Treatment::read(reader, &mut fields, &fits);
        let known = [&["name"][..], &Match::KEYS, &TREATMENT_KEYS].concat();
        reader.finish_fields(&fields, &known);
        let name = name.filter(|_| reader.faults.len() == faults)?;
        Some(Self {
            name,
            line,
            fits,
            treatment,
        })
    }

    /// Whether it is for this connection.
    #[must_use]
    pub fn fits(&self, flow: &FlowFacts) -> bool {
        self.fits.fits(flow)
    }

    /// Whether everything that `later` fits is this rule's already.
    pub(crate) fn shadows(&self, later: &Self) -> bool {
        self.fits.covers(&later.fits)
    }

    /// Whether it asks for an address.
    #[must_use]
    pub fn asks_for_address(&self) -> bool {
        self.fits.address.is_some()
    }

    /// Whether it asks for what only some modes can see: the service class.
    #[must_use]
    pub fn asks_for_dscp(&self) -> bool {
        self.fits.dscp.is_some()
    }

    /// Whether it asks for the program.
    #[must_use]
    pub fn asks_for_process(&self) -> bool {
        self.fits.process.is_some()
    }
}

impl Treatment {
    fn read(reader: &mut Reader<'_>, fields: &mut Fields<'_>, fits: &Match) -> Self {
        let (line, before) = (fields.line, reader.faults.len());
        let links = reader.list(fields, "links", LINK_EXPECTED, text);
        let never = reader.list(fields, "never", LINK_EXPECTED, text);
        let redundant = reader.flag(fields, "redundant");
        let scheduler = reader.value(fields, "scheduler", "\"redundant\"", |value| {
            (value.as_str()? == "redundant").then_some(())
        });
        let direct = reader.flag(fields, "direct").unwrap_or(false);
        let on_failure = reader.value(fields, "on-failure", ON_FAILURE_EXPECTED, on_failure);
        let order = reader.value(fields, "order", ORDER_EXPECTED, order);
        let says_nothing = links.is_none()
            && never.is_none()
            && redundant.is_none()
            && scheduler.is_none()
            && !direct
            && on_failure.is_none()
            && order.is_none();
        if reader.faults.len() > before {
            return Self::default();
        }
        if says_nothing {
            reader.fault(
                line,
                "it says nothing of what to do: links, never, redundant, …",
            );
        }
        if scheduler.is_some() && redundant == Some(false) {
            reader.fault(line, "scheduler and redundant contradict each other");
        }
        let with_direct = [
            ("links", links.is_some()),
            ("never", never.is_some()),
            ("redundant", redundant.is_some() || scheduler.is_some()),
            ("on-failure", on_failure.is_some()),
            ("order", order.is_some()),
        ];
        for (key, _) in with_direct.iter().filter(|(_, given)| direct && *given) {
            reader.fault(
                line,
                format!("{key} and direct contradict each other: what is direct is not carried"),
            );
        }
        let of_our_own = [("direct", direct), ("on-failure", on_failure.is_some())];
        for (key, _) in of_our_own
            .iter()
            .filter(|(_, given)| fits.inbound && *given)
        {
            reader.fault(
                line,
                format!("{key} and inbound contradict each other: visitors come by the relay"),
            );
        }
        if order.is_some() && fits.protocol == Some(Protocol::Tcp) {
            reader.fault(line, "order: TCP is always in order; it is for UDP");
        }
        let treatment = Self {
            links,
            never: never.unwrap_or_default(),
            redundant: scheduler.is_some() || redundant.unwrap_or(false),
            direct,
            on_failure,
            order,
        };
        if treatment.allows_none() {
            reader.fault(line, "links and never leave no link at all");
        }
        treatment
    }

    fn allows_none(&self) -> bool {
        let is_excluded = |link: &str| self.never.iter().any(|never| covers_name(never, link));
        match &self.links {
            Some(links) => links.iter().all(|link| is_excluded(link)),
            None => is_excluded("*"),
        }
    }

    /// Whether a link may carry it.
    #[must_use]
    pub fn allows(&self, link: &LinkFacts<'_>) -> bool {
        let is_named = |links: &Vec<String>| links.iter().any(|pattern| fits_link(pattern, link));
        self.links.as_ref().is_none_or(is_named) && !is_named(&self.never)
    }

    /// Whether it concerns the choice of links at all.
    #[must_use]
    pub fn concerns_links(&self) -> bool {
        self.links.is_some() || !self.never.is_empty() || self.redundant
    }

    /// Whether streams of both may share a class.
    #[must_use]
    pub fn is_same_class(&self, other: &Self) -> bool {
        let of = |treatment: &Self| {
            let Self {
                links,
                never,
                redundant,
                ..
            } = treatment;
            (links.clone(), never.clone(), *redundant)
        };
        of(self) == of(other)
    }
}

fn fits_link(pattern: &str, link: &LinkFacts<'_>) -> bool {
    match pattern.strip_prefix("kind:") {
        Some(kind) => glob::fits(kind, link.kind),
        None => link.is_called(pattern),
    }
}

impl fmt::Display for Treatment {
    /// In a few words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.direct {
            parts.push("not through the relay".to_owned());
        }
        if let Some(links) = &self.links {
            parts.push(format!("only by {}", links.join(", ")));
        }
        if !self.never.is_empty() {
            parts.push(format!("never by {}", self.never.join(", ")));
        }
        if self.redundant {
            parts.push("by all its links at once".to_owned());
        }
        match self.on_failure {
            Some(OnFailure::Wait) => parts.push("waits for the relay".to_owned()),
            Some(OnFailure::Refuse) => parts.push("refused without the relay".to_owned()),
            Some(OnFailure::Direct) => parts.push("directly without the relay".to_owned()),
            None => {}
        }
        match self.order {
            Some(Order::AtOnce) => parts.push("handed out at once".to_owned()),
            Some(Order::Within(time)) => {
                parts.push(format!("in order, waiting at most {} ms", time.as_millis()));
            }
            None => {}
        }
        f.write_str(&parts.join("; "))
    }
}

fn on_failure(value: &DeValue<'_>) -> Option<OnFailure> {
    match value.as_str()? {
        "wait" => Some(OnFailure::Wait),
        "refuse" => Some(OnFailure::Refuse),
        "direct" => Some(OnFailure::Direct),
        _ => None,
    }
}

fn order(value: &DeValue<'_>) -> Option<Order> {
    let text = value.as_str()?;
    if text == "at-once" {
        return Some(Order::AtOnce);
    }
    let time = Duration::parse(text)?;
    let fits = time >= Duration::from_millis(1) && time <= ORDER_MAX;
    fits.then_some(Order::Within(time))
}

#[cfg(test)]
mod tests;
