//! What there is to say of a policy file: what is wrong with it, and what of it not everybody can
//! follow.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use tabane_policy::{Fault, Policy};

use crate::policy_files::parse_policy;

/// What a rule asks for that not everybody can tell.
const ONLY_HOOKS: &str = "is known where hooks capture the program (tabane run, tabane up); no \
                          effect for proxies, for hosts behind --lan, and on kernels that do not \
                          tell";

/// See the module.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    /// The one that was looked at.
    pub file: PathBuf,
    /// Where it does not, nothing is ruled, which is no fault.
    pub exists: bool,
    /// What keeps it from being used.
    pub faults: Vec<Fault>,
    /// What works here and not there.
    pub notes: Vec<Fault>,
}

impl PolicyReport {
    /// Looks at `file`, which must be there if it `is_named`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(file: PathBuf, is_named: bool) -> Result<Self> {
        let mut report = Self {
            exists: is_named || file.exists(),
            file,
            faults: Vec::new(),
            notes: Vec::new(),
        };
        if !report.exists {
            return Ok(report);
        }
        let text = std::fs::read_to_string(&report.file);
        let text = text.with_context(|| format!("cannot read {}", report.file.display()))?;
        let directory = report.file.parent().unwrap_or_else(|| Path::new(""));
        match parse_policy(&text, directory) {
            Ok(policy) => report.notes = notes(&policy),
            Err(error) => report.faults = error.faults,
        }
        Ok(report)
    }
}

fn notes(policy: &Policy) -> Vec<Fault> {
    let note = |key: &str, line| Fault {
        line,
        what: format!("{key} {ONLY_HOOKS}"),
    };
    let rules = policy.rules().iter();
    let notes = rules.flat_map(|rule| {
        let process = rule.asks_for_process().then(|| note("process", rule.line));
        let dscp = rule.asks_for_dscp().then(|| note("dscp", rule.line));
        process.into_iter().chain(dscp)
    });
    notes.collect()
}
