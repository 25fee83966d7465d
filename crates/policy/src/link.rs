//! What the policy comes to for one link.

use std::fmt;

use tabane_base::Rate;

use crate::budget::Budget;
use crate::glob;

/// The highest priority number there is.
pub const MAX_PRIORITY: u8 = 15;

/// What is known of a link before any policy.
#[derive(Clone, Copy, Debug)]
pub struct LinkFacts<'a> {
    /// Its name: its interface's as a rule.
    pub name: &'a str,
    /// The interface's, where several gateways are behind one, each a link with a name of its own.
    pub interface: &'a str,
    /// What it is, in a word: `wifi`, `cellular`, `ethernet`, …
    pub kind: &'a str,
    /// The system knows that its traffic costs by volume; `None` where nobody said.
    pub metered: Option<bool>,
}

impl LinkFacts<'_> {
    /// Whether a pattern for names fits it; what fits an interface fits every gateway behind it.
    pub(crate) fn is_called(&self, pattern: &str) -> bool {
        glob::fits(pattern, self.name) || glob::fits(pattern, self.interface)
    }
}

/// Whether a link is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkUse {
    /// By its priority.
    #[default]
    Normal,
    /// Only while no other works.
    Backup,
    /// Not at all.
    Never,
}

/// What may carry the packets of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carriers {
    /// UDP, and TLS where that does not pass.
    #[default]
    Auto,
    /// UDP alone.
    Udp,
    /// TLS alone.
    Tls,
}

/// How a link is to be used, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether it is used.
    pub usage: LinkUse,
    /// Which share of it may be used, 0 to 1 (SBAM's α).
    pub weight: f64,
    /// Links of a higher number help only while those of lower ones cannot carry the demand, or
    /// are down.
    pub priority: u8,
    /// Its traffic costs by volume: nothing is sent over it that need not be.
    pub metered: bool,
    /// What it may carry in a period.
    pub budget: Option<Budget>,
    /// The most towards this host.
    pub down: Option<Rate>,
    /// The most from this host.
    pub up: Option<Rate>,
    /// What may carry its packets.
    pub carrier: Carriers,
    /// The proxy by which TLS goes there: a URL.
    pub proxy: Option<String>,
    /// The line of the entry that decided; `None` where none fits.
    pub line: Option<usize>,
}

impl Decision {
    /// For a link that no entry fits: metered ones wait until they are needed.
    pub(crate) fn unmentioned(facts: &LinkFacts<'_>) -> Self {
        let metered = facts.metered.unwrap_or(false);
        Self {
            usage: LinkUse::Normal,
            weight: 1.0,
            priority: u8::from(metered),
            metered,
            budget: None,
            down: None,
            up: None,
            carrier: Carriers::Auto,
            proxy: None,
            line: None,
        }
    }
}

impl fmt::Display for Decision {
    /// In a few words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.usage, self.priority) {
            (LinkUse::Never, _) => return f.write_str("never used"),
            (LinkUse::Backup, _) => f.write_str("only while no other works")?,
            (LinkUse::Normal, 0) => f.write_str("always used")?,
            (LinkUse::Normal, n) => {
                write!(f, "used when priorities below {n} cannot carry the demand")?;
            }
        }
        if self.weight < 1.0 {
            write!(f, ", {:.0} % of it", self.weight * 100.0)?;
        }
        if let Some(rate) = self.down {
            write!(f, ", at most {rate} down")?;
        }
        if let Some(rate) = self.up {
            write!(f, ", at most {rate} up")?;
        }
        match self.carrier {
            Carriers::Auto => {}
            Carriers::Udp => f.write_str(", by UDP alone")?,
            Carriers::Tls => f.write_str(", by TLS alone")?,
        }
        if self.proxy.is_some() {
            f.write_str(", by a proxy where it is TLS")?;
        }
        if let Some(budget) = self.budget {
            write!(f, ", {budget}")?;
        }
        if self.metered {
            f.write_str(", metered")?;
        }
        Ok(())
    }
}
