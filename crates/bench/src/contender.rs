//! Who is measured on which scenario, and in which direction.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use tabane_netem::Scenario;

/// Scenarios of which not the rate but every byte and every silence counts.
const STREAM_SCENARIOS: [&str; 1] = ["cut"];

/// Scenarios on which one link through us is compared with TCP on it.
const ONE_LINK_SCENARIOS: [&str; 2] = ["twin", "unequal"];

/// What `--only` chooses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Tcp,
    Mptcp,
    Tabane,
}

impl Group {
    pub(super) const ALL: [Self; 3] = [Self::Tcp, Self::Mptcp, Self::Tabane];
}

impl FromStr for Group {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "mptcp" => Ok(Self::Mptcp),
            "tabane" => Ok(Self::Tabane),
            other => bail!("--only {other}: expected tcp, mptcp or tabane"),
        }
    }
}

/// Where a bulk goes, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    Download,
    Upload,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Download => "download",
            Self::Upload => "upload",
        })
    }
}

/// A way to get one TCP connection's bytes across.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contender {
    /// Plain TCP with BBR over link number `link` alone, from 0.
    Tcp { link: usize },
    /// The kernel's multipath TCP over all links.
    Mptcp { congestion: &'static str },
    /// The product over all links.
    Tabane,
    /// The product over the first link alone.
    TabaneOneLink,
}

impl Contender {
    /// What `--only` calls it.
    pub(super) fn group(&self) -> Group {
        match self {
            Self::Tcp { .. } => Group::Tcp,
            Self::Mptcp { .. } => Group::Mptcp,
            Self::Tabane | Self::TabaneOneLink => Group::Tabane,
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Tabane | Self::TabaneOneLink)
    }

    /// What the kernel's TCP uses meanwhile. The product's local connections are left at the
    /// kernel's default.
    pub(super) fn congestion(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "bbr",
            Self::Mptcp { congestion } => congestion,
            Self::Tabane | Self::TabaneOneLink => "cubic",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { link } => write!(f, "tcp link{}", link + 1),
            Self::Mptcp { congestion } => write!(f, "mptcp {congestion}"),
            Self::Tabane => f.write_str("tabane"),
            Self::TabaneOneLink => f.write_str("tabane link1"),
        }
    }
}

pub(super) fn measures_stream(scenario: &str) -> bool {
    STREAM_SCENARIOS.contains(&scenario)
}

/// Those of `groups` that are measured on `scenario`, in their order within a repeat.
pub(super) fn contenders(scenario: &Scenario, groups: &[Group]) -> Vec<Contender> {
    let has = |group| groups.contains(&group);
    let mut all = Vec::new();
    if has(Group::Tcp) && !measures_stream(&scenario.name) {
        all.extend((0..scenario.links.len()).map(|link| Contender::Tcp { link }));
    }
    if has(Group::Mptcp) {
        all.extend(["cubic", "bbr"].map(|congestion| Contender::Mptcp { congestion }));
    }
    if has(Group::Tabane) {
        all.push(Contender::Tabane);
        if ONE_LINK_SCENARIOS.contains(&scenario.name.as_str()) {
            all.push(Contender::TabaneOneLink);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> Scenario {
        let text = format!(
            "name = \"{name}\"\nwhy = \"test\"\nlink = [{{ name = \"a\" }}, {{ name = \"b\" }}]"
        );
        Scenario::parse(&text, None, &mut |_| Err(String::new())).unwrap()
    }

    #[test]
    fn each_scenario_has_its_contenders() {
        let names = |name: &str, groups: &[Group]| -> Vec<String> {
            let all = contenders(&scenario(name), groups);
            all.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            names("far", &Group::ALL),
            [
                "tcp link1",
                "tcp link2",
                "mptcp cubic",
                "mptcp bbr",
                "tabane"
            ]
        );
        assert_eq!(names("twin", &[Group::Tabane]), ["tabane", "tabane link1"]);
        assert_eq!(
            names("cut", &Group::ALL),
            ["mptcp cubic", "mptcp bbr", "tabane"]
        );
    }
}
