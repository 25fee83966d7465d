//! What this machine lacks for each mode, and the command that mends it.
//!
//! Owns the findings and which modes they stop. Looking is done by [`machine`] (the kernel, by
//! trying) and [`network`] (the relays, over every link); judging is done here and in
//! `verdicts`, without touching anything. Nothing is changed: what is tried is taken down again.

mod machine;
mod network;
mod verdicts;

use clap::ValueEnum;
use serde::Serialize;

pub(crate) use machine::Machine;
pub(crate) use network::Network;
pub(crate) use verdicts::judge;

/// A way of using tabane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// `tabane run -- CMD`
    Run,
    /// `tabane proxy`, `tabane run --proxy`
    Proxy,
    /// `tabane up`, for the whole machine
    Up,
    /// `tabane relay`
    Relay,
    /// `tabane sctp`
    Sctp,
    /// `tabane gateway`
    Gateway,
    /// `tabane lab`, and `tabane demo` with namespaces
    Lab,
}

impl Mode {
    pub(crate) const ALL: [Self; 7] = [
        Self::Run,
        Self::Proxy,
        Self::Up,
        Self::Relay,
        Self::Sctp,
        Self::Gateway,
        Self::Lab,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Proxy => "proxy",
            Self::Up => "up",
            Self::Relay => "relay",
            Self::Sctp => "sctp",
            Self::Gateway => "gateway",
            Self::Lab => "lab",
        }
    }
}

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grade {
    /// As it should be.
    Good,
    /// It works, but not as well as it could.
    Poor,
    /// It stops the modes named.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) grade: Grade,
    pub(crate) what: String,
    /// The command, or the step, that mends it.
    pub(crate) remedy: Option<String>,
    /// The modes that it matters to.
    pub(crate) modes: Vec<Mode>,
}

impl Finding {
    fn good(check: &'static str, modes: &[Mode], what: impl Into<String>) -> Self {
        Self {
            check,
            grade: Grade::Good,
            what: what.into(),
            remedy: None,
            modes: modes.to_vec(),
        }
    }

    fn bad(
        grade: Grade,
        check: &'static str,
        modes: &[Mode],
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            grade,
            remedy: Some(remedy.into()),
            ..Self::good(check, modes, what)
        }
    }
}

/// Whether nothing that `mode` needs is missing.
pub(crate) fn works(mode: Mode, findings: &[Finding]) -> bool {
    let stops =
        |finding: &Finding| finding.grade == Grade::Missing && finding.modes.contains(&mode);
    !findings.iter().any(stops)
}
