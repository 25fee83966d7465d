//! Scenario files: which links there are, and what happens to them.
//!
//! A file describes one network, or a set of variants that each pick some of its links. Everything
//! optional has the neutral value (no delay, no loss); only a queue must be given where a rate is,
//! because no default would suit. Traces are named here and read by whoever calls: this crate
//! opens no files.

mod direction;
mod file;

use std::collections::BTreeMap;
use std::sync::Arc;

use tabane_base::{Bytes, Duration, Rate};
use toml::Spanned;

use crate::link::{LinkConfig, RateModel};
use crate::schedule::{Change, Outage};
use crate::trace::Trace;
pub use direction::Direction;
use direction::TraceName;
use file::{File, LinkTable};

/// The most links a scenario may have: more than any machine has; each costs the lab a subnet.
pub const MAX_LINKS: usize = 32;

/// A network to measure on.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Short name; a variant's is `file/variant`.
    pub name: String,
    /// What it stands for.
    pub why: String,
    /// How long a bulk measurement on it lasts.
    pub duration: Duration,
    /// The links between the two hosts, in order.
    pub links: Vec<LinkSpec>,
}

/// One link, both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// What the file calls it.
    pub name: String,
    /// From client to server.
    pub up: LinkConfig,
    /// From server to client.
    pub down: LinkConfig,
}

impl LinkSpec {
    /// The parameters of one direction.
    #[must_use]
    pub fn config(&self, direction: Direction) -> &LinkConfig {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    /// Whether the link does nothing to packets in either direction.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        self.up.is_wire() && self.down.is_wire()
    }
}

/// What is wrong with a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not TOML, an unknown or missing key, or a value that does not fit it. The text names line,
    /// key and what was expected.
    #[error("{0}")]
    Syntax(#[from] Box<toml::de::Error>),
    /// Keys that are right one by one but not together.
    #[error("line {line}: {what}")]
    Invalid {
        /// Where the table concerned begins, counted from 1.
        line: usize,
        /// What does not fit, by key.
        what: String,
    },
    /// The variant asked for is not there.
    #[error("scenario has no variant `{asked}`; it has {known}")]
    NoSuchVariant {
        /// What was asked for; empty for "the only one".
        asked: String,
        /// What there is.
        known: String,
    },
}

impl Scenario {
    /// Reads a file with all its variants (one scenario if it has none). `load_trace` gives the
    /// text of a trace by its name, or says why not.
    ///
    /// # Errors
    /// [`ScenarioError`], naming the line.
    pub fn parse_all(
        text: &str,
        load_trace: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Vec<Self>, ScenarioError> {
        let file: File = toml::from_str(text).map_err(Box::new)?;
        let mut reader = Reader {
            text,
            load_trace,
            traces: BTreeMap::new(),
        };
        let mut links = Vec::new();
        for table in &file.link {
            links.push(reader.link(table)?);
        }
        reader.check_links(&file, &links)?;
        let scenario = |name: String, links: Vec<LinkSpec>| Self {
            name,
            why: file.why.clone(),
            duration: file.duration.0,
            links,
        };
        if file.variant.is_empty() {
            return Ok(vec![scenario(file.name.clone(), links)]);
        }
        let mut scenarios = Vec::new();
        for variant in &file.variant {
            let picked = reader.pick(&links, &variant.get_ref().links, variant)?;
            scenarios.push(scenario(
                format!("{}/{}", file.name, variant.get_ref().name),
                picked,
            ));
        }
        Ok(scenarios)
    }

    /// Reads a file that has a single scenario, or its variant `variant`.
    ///
    /// # Errors
    /// [`ScenarioError`], naming the line or the variants there are.
    pub fn parse(
        text: &str,
        variant: Option<&str>,
        load_trace: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, ScenarioError> {
        let mut all = Self::parse_all(text, load_trace)?;
        let position = match variant {
            None => (all.len() == 1).then_some(0),
            Some(variant) => all.iter().position(|scenario| {
                scenario.name == variant
                    || scenario.name.split_once('/').map(|(_, name)| name) == Some(variant)
            }),
        };
        match position {
            Some(position) => Ok(all.swap_remove(position)),
            None => Err(ScenarioError::NoSuchVariant {
                asked: variant.unwrap_or_default().to_owned(),
                known: all
                    .iter()
                    .map(|s| s.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// The same network with only link number `index` of it.
    #[must_use]
    pub fn single(&self, index: usize) -> Option<Self> {
        Some(Self {
            name: format!("{}#{}", self.name, index + 1),
            why: self.why.clone(),
            duration: self.duration,
            links: vec![self.links.get(index)?.clone()],
        })
    }

    /// The sum of the links' mean rates towards the client.
    #[must_use]
    pub fn rate_down(&self) -> Rate {
        sum(self.links.iter().map(|link| link.down.mean_rate()))
    }

    /// The sum of the links' mean rates towards the server.
    #[must_use]
    pub fn rate_up(&self) -> Rate {
        sum(self.links.iter().map(|link| link.up.mean_rate()))
    }
}

fn sum(rates: impl Iterator<Item = Rate>) -> Rate {
    Rate::from_bps(rates.fold(0, |sum, rate| sum.saturating_add(rate.as_bps())))
}

/// Turns tables into links; remembers the traces it has read.
struct Reader<'a> {
    text: &'a str,
    load_trace: &'a mut dyn FnMut(&str) -> Result<String, String>,
    traces: BTreeMap<(String, bool), Arc<Trace>>,
}

impl Reader<'_> {
    fn link(&mut self, table: &Spanned<LinkTable>) -> Result<LinkSpec, ScenarioError> {
        let name = table.get_ref().name.clone();
        Ok(LinkSpec {
            up: self.config(table, Direction::Up)?,
            down: self.config(table, Direction::Down)?,
            name,
        })
    }

    fn config(
        &mut self,
        spanned: &Spanned<LinkTable>,
        direction: Direction,
    ) -> Result<LinkConfig, ScenarioError> {
        let table = spanned.get_ref();
        let name = &table.name;
        let rate = match (&table.rate, &table.trace) {
            (Some(_), Some(_)) => {
                let what = format!("link `{name}` has both `rate` and `trace`: expected one");
                return Err(self.invalid(spanned, what));
            }
            (Some(rate), None) => RateModel::Constant(rate.of(direction).0),
            (None, Some(trace)) => {
                let trace = self
                    .trace(trace.of(direction))
                    .map_err(|what| self.invalid(spanned, format!("link `{name}`: {what}")))?;
                RateModel::Trace(trace)
            }
            (None, None) => RateModel::Constant(Rate::MAX),
        };
        let queue = table.queue.as_ref().map(|queue| queue.of(direction).0);
        let limited = rate != RateModel::Constant(Rate::MAX) || !table.change.is_empty();
        if queue.is_none() && limited {
            let what = format!("link `{name}` has a rate but no `queue`: expected a size");
            return Err(self.invalid(spanned, what));
        }
        Ok(LinkConfig {
            rate,
            queue: queue.unwrap_or(Bytes::MAX),
            delay: table.delay.of(direction).0,
            jitter: table.jitter.of(direction).0,
            loss: table.loss.of(direction).0,
            changes: self.changes(spanned, direction)?,
            outages: self.outages(spanned)?,
        })
    }

    fn changes(
        &self,
        spanned: &Spanned<LinkTable>,
        direction: Direction,
    ) -> Result<Vec<Change>, ScenarioError> {
        let mut changes = Vec::new();
        for table in &spanned.get_ref().change {
            let change = table.get_ref();
            changes.push(Change {
                at: change.at.0,
                every: self.period(table, change.every.map(|every| every.0))?,
                rate: change.rate.as_ref().map(|rate| rate.of(direction).0),
                delay: change.delay.as_ref().map(|delay| delay.of(direction).0),
                loss: change.loss.as_ref().map(|loss| loss.of(direction).0),
            });
        }
        Ok(changes)
    }

    fn outages(&self, spanned: &Spanned<LinkTable>) -> Result<Vec<Outage>, ScenarioError> {
        let mut outages = Vec::new();
        for table in &spanned.get_ref().outage {
            let outage = table.get_ref();
            outages.push(Outage {
                at: outage.at.0,
                lasts: outage.lasts.0,
                every: self.period(table, outage.every.map(|every| every.0))?,
            });
        }
        Ok(outages)
    }

    fn period<T>(
        &self,
        table: &Spanned<T>,
        every: Option<Duration>,
    ) -> Result<Option<Duration>, ScenarioError> {
        if every == Some(Duration::ZERO) {
            let what = "`every` is 0: expected a time above zero".to_owned();
            return Err(self.invalid(table, what));
        }
        Ok(every)
    }

    fn trace(&mut self, name: &TraceName) -> Result<Arc<Trace>, String> {
        let key = (name.file.clone(), name.reversed);
        if let Some(trace) = self.traces.get(&key) {
            return Ok(Arc::clone(trace));
        }
        let file = &name.file;
        let text = (self.load_trace)(file).map_err(|why| format!("trace `{file}`: {why}"))?;
        let trace = Trace::parse(&text).map_err(|why| format!("trace `{file}`: {why}"))?;
        let trace = Arc::new(if name.reversed {
            trace.reversed()
        } else {
            trace
        });
        self.traces.insert(key, Arc::clone(&trace));
        Ok(trace)
    }

    fn check_links(&self, file: &File, links: &[LinkSpec]) -> Result<(), ScenarioError> {
        if links.is_empty() || links.len() > MAX_LINKS {
            let what = format!("{} links: expected 1 to {MAX_LINKS} [[link]]", links.len());
            return Err(ScenarioError::Invalid { line: 1, what });
        }
        for (index, link) in links.iter().enumerate() {
            if links[..index].iter().any(|other| other.name == link.name) {
                let what = format!("two links are called `{}`", link.name);
                return Err(self.invalid(&file.link[index], what));
            }
        }
        Ok(())
    }

    fn pick<T>(
        &self,
        links: &[LinkSpec],
        names: &[String],
        table: &Spanned<T>,
    ) -> Result<Vec<LinkSpec>, ScenarioError> {
        if names.is_empty() || names.len() > MAX_LINKS {
            let what = format!(
                "variant of {} links: expected 1 to {MAX_LINKS}",
                names.len()
            );
            return Err(self.invalid(table, what));
        }
        let find = |name: &String| links.iter().find(|link| link.name == *name).cloned();
        names
            .iter()
            .map(|name| find(name).ok_or_else(|| self.invalid(table, format!("no link `{name}`"))))
            .collect()
    }

    fn invalid<T>(&self, table: &Spanned<T>, what: String) -> ScenarioError {
        let before = self.text.get(..table.span().start).unwrap_or_default();
        ScenarioError::Invalid {
            line: before.matches('\n').count() + 1,
            what,
        }
    }
}

#[cfg(test)]
mod tests;
