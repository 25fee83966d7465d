//! Scenario files: which links there are, and what happens to them.
//!
//! A file describes one network, or a set of variants that each pick some of its links. Everything
//! optional has the neutral value (no delay, no loss); only a queue must be given where a rate is,
//! because no default would suit. Traces are named here and read by whoever calls: this crate
//! opens no files.

mod direction;
mod file;
mod timetable;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tabane_base::{Bytes, Duration, Rate};
use toml::Spanned;

use crate::jitter::JitterShape;
use crate::link::{LinkConfig, RateModel};
use crate::link_spec::{Direction, LinkSpec};
use crate::quantity::Text;
use crate::radio::Radio;
use crate::schedule::{Change, Outage};
use crate::trace::Trace;
use direction::{PerDirection, TraceName};
use file::{ChangeTable, File, LinkTable, OutageTable};

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
        /// Where the key concerned stands, counted from 1.
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
            reader.check_times(table, file.duration.0)?;
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
            let picked = reader.pick(&links, &variant.links)?;
            scenarios.push(scenario(format!("{}/{}", file.name, variant.name), picked));
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
    fn link(&mut self, table: &LinkTable) -> Result<LinkSpec, ScenarioError> {
        Ok(LinkSpec {
            up: self.config(table, Direction::Up)?,
            down: self.config(table, Direction::Down)?,
            name: table.name.get_ref().clone(),
        })
    }

    fn config(
        &mut self,
        table: &LinkTable,
        direction: Direction,
    ) -> Result<LinkConfig, ScenarioError> {
        if let Some(radio) = &table.radio {
            return self.radio(table, radio, direction);
        }
        let rate = self.rate(table, direction)?;
        let queue = table.queue.as_ref().map(|queue| queue.of(direction).0);
        let limited = rate != RateModel::Constant(Rate::MAX) || !table.change.is_empty();
        if queue.is_none() && limited {
            let name = table.name.get_ref();
            let what = format!("link `{name}` has a rate but no `queue`: expected a size");
            let spans = [
                table.rate.as_ref().map(Spanned::span),
                table.trace.as_ref().map(Spanned::span),
                table.change.first().map(|change| change.at.span()),
            ];
            let span = spans.into_iter().flatten().next();
            return Err(self.invalid(span.unwrap_or_else(|| table.name.span()), what));
        }
        Ok(LinkConfig {
            rate,
            queue: queue.unwrap_or(Bytes::MAX),
            delay: time(table.delay.as_ref(), direction),
            jitter: time(table.jitter.as_ref(), direction),
            jitter_shape: (table.jitter_shape.as_ref())
                .map_or(JitterShape::Uniform, |shape| shape.of(direction).0),
            loss: table.loss.of(direction).0,
            changes: changes(table, direction),
            outages: outages(table),
        })
    }

    /// A link made by seed, and what the file adds to it.
    fn radio(
        &self,
        table: &LinkTable,
        radio: &Spanned<Text<Radio>>,
        direction: Direction,
    ) -> Result<LinkConfig, ScenarioError> {
        let owned = [
            ("rate", table.rate.is_some()),
            ("trace", table.trace.is_some()),
            ("queue", table.queue.is_some()),
            ("delay", table.delay.is_some()),
            ("jitter", table.jitter.is_some()),
            ("jitter_shape", table.jitter_shape.is_some()),
        ];
        if let Some((key, _)) = owned.into_iter().find(|(_, is_there)| *is_there) {
            let name = table.name.get_ref();
            let what = format!("`radio` decides `{key}` of link `{name}`: expected one of them");
            return Err(self.invalid(radio.span(), what));
        }
        let mut config = radio.get_ref().0.config(direction);
        config.loss = table.loss.of(direction).0;
        config.changes.extend(changes(table, direction));
        config.outages.extend(outages(table));
        Ok(config)
    }

    fn rate(
        &mut self,
        table: &LinkTable,
        direction: Direction,
    ) -> Result<RateModel, ScenarioError> {
        let name = table.name.get_ref();
        match (&table.rate, &table.trace) {
            (Some(rate), Some(trace)) => {
                let (first, second) = if rate.span().start < trace.span().start {
                    (("rate", rate.span()), ("trace", trace.span()))
                } else {
                    (("trace", trace.span()), ("rate", rate.span()))
                };
                let what = format!(
                    "link `{name}` has `{}` here and `{}` on line {}: expected one of them",
                    second.0,
                    first.0,
                    self.line(&first.1)
                );
                Err(self.invalid(second.1, what))
            }
            (Some(rate), None) => Ok(RateModel::Constant(rate.get_ref().of(direction).0)),
            (None, Some(names)) => {
                let trace = self.trace(names.get_ref().of(direction));
                trace.map(RateModel::Trace).map_err(|what| {
                    self.invalid(names.span(), format!("`trace` of link `{name}`: {what}"))
                })
            }
            (None, None) => Ok(RateModel::Constant(Rate::MAX)),
        }
    }

    fn trace(&mut self, name: &TraceName) -> Result<Arc<Trace>, String> {
        let key = (name.file.clone(), name.reversed);
        if let Some(trace) = self.traces.get(&key) {
            return Ok(Arc::clone(trace));
        }
        let file = &name.file;
        let text = (self.load_trace)(file).map_err(|why| {
            format!("`{file}`: {why}; expected the name of a trace that is there")
        })?;
        let trace = Trace::parse(&text).map_err(|why| format!("`{file}`: {why}"))?;
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
                let what = format!(
                    "two links are called `{}`: expected another `name`",
                    link.name
                );
                return Err(self.invalid(file.link[index].name.span(), what));
            }
        }
        Ok(())
    }

    fn pick(
        &self,
        links: &[LinkSpec],
        names: &Spanned<Vec<Spanned<String>>>,
    ) -> Result<Vec<LinkSpec>, ScenarioError> {
        let count = names.get_ref().len();
        if count == 0 || count > MAX_LINKS {
            let what = format!("`links` names {count}: expected 1 to {MAX_LINKS}");
            return Err(self.invalid(names.span(), what));
        }
        let find = |name: &Spanned<String>| {
            let link = links.iter().find(|link| link.name == *name.get_ref());
            link.cloned().ok_or_else(|| {
                let known: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
                let (asked, known) = (name.get_ref(), known.join(", "));
                let what =
                    format!("`links` names `{asked}`, which no link is called: expected {known}");
                self.invalid(name.span(), what)
            })
        };
        names.get_ref().iter().map(find).collect()
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or_default();
        before.matches('\n').count() + 1
    }

    fn invalid(&self, span: Range<usize>, what: String) -> ScenarioError {
        let line = self.line(&span);
        ScenarioError::Invalid { line, what }
    }
}

fn time(given: Option<&PerDirection<Text<Duration>>>, direction: Direction) -> Duration {
    given.map_or(Duration::ZERO, |time| time.of(direction).0)
}

fn changes(table: &LinkTable, direction: Direction) -> Vec<Change> {
    let change = |change: &ChangeTable| Change {
        at: change.at.get_ref().0,
        every: change.every.as_ref().map(|every| every.get_ref().0),
        rate: change.rate.as_ref().map(|rate| rate.of(direction).0),
        delay: change.delay.as_ref().map(|delay| delay.of(direction).0),
        loss: change.loss.as_ref().map(|loss| loss.of(direction).0),
    };
    table.change.iter().map(change).collect()
}

fn outages(table: &LinkTable) -> Vec<Outage> {
    let outage = |outage: &OutageTable| Outage {
        at: outage.at.get_ref().0,
        lasts: outage.lasts.get_ref().0,
        every: outage.every.as_ref().map(|every| every.get_ref().0),
    };
    table.outage.iter().map(outage).collect()
}

#[cfg(test)]
mod tests;
