//! What this machine lacks for each mode, and the command that mends it.
//!
//! Owns the findings and which modes they stop. Looking is done by [`machine`] (the kernel, by
//! trying) and [`network`] (the relays, over every link); judging is done here and in
//! `verdicts`, without touching anything. Nothing is changed: what is tried is taken down again.

mod machine;
mod network;
mod verdicts;

use serde::Serialize;

pub use machine::Machine;
pub(crate) use machine::has_net_admin;
pub use network::Network;
pub use verdicts::judge;

/// A way of using tabane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One command, by hooks or with a network of its own.
    Run,
    /// A SOCKS5 and HTTP proxy.
    Proxy,
    /// The whole machine.
    Up,
    /// The far end of others.
    Relay,
    /// Associations over UDP.
    Sctp,
    /// Help for flows in the middle.
    Gateway,
    /// Emulated links in namespaces.
    Lab,
}

impl Mode {
    /// In the order in which they are told of.
    pub const ALL: [Self; 7] = [
        Self::Run,
        Self::Proxy,
        Self::Up,
        Self::Relay,
        Self::Sctp,
        Self::Gateway,
        Self::Lab,
    ];

    /// The command's name.
    #[must_use]
    pub fn name(self) -> &'static str {
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
pub enum Grade {
    /// As it should be.
    Good,
    /// It works, but not as well as it could.
    Poor,
    /// It stops the modes named.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is called.
    pub check: &'static str,
    /// See [`Grade`].
    pub grade: Grade,
    /// What was found.
    pub what: String,
    /// The command, or the step, that mends it.
    pub remedy: Option<String>,
    /// The modes that it matters to.
    pub modes: Vec<Mode>,
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
#[must_use]
pub fn works(mode: Mode, findings: &[Finding]) -> bool {
    let stops =
        |finding: &Finding| finding.grade == Grade::Missing && finding.modes.contains(&mode);
    !findings.iter().any(stops)
}
