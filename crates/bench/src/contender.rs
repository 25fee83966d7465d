//! Who is measured, and how each is made to carry the same job.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tabane_netem::Scenario;

use super::bond::Bond;
use super::iperf::{self, Goodput};
use super::options::{Direction, Options};
use super::process::{Cpu, Finished, Running};
use super::record::Measurement;
use super::stage::{Mark, Stage};
use super::stream::{self, StreamReport};

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

    /// What the kernel's TCP uses meanwhile. The product's local connections are left at the
    /// kernel's default.
    fn congestion(&self) -> &'static str {
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

/// One scenario's lab with everything the contenders need.
#[derive(Debug)]
pub(super) struct Bench {
    // Dropped before the lab it lives in. None if not asked for; why, if it did not come up.
    bond: Option<Result<Bond, String>>,
    stage: Stage,
    seconds: u64,
    upload: bool,
    is_stream: bool,
}

/// A job done.
#[derive(Debug)]
enum Outcome {
    Bulk(Goodput),
    Stream(StreamReport),
}

impl Bench {
    pub(super) fn set_up(
        scenario: &Scenario,
        direction: Direction,
        binary: &Path,
        options: &Options,
    ) -> Result<Self> {
        let stage = Stage::up(scenario)?;
        if options.groups.contains(&Group::Mptcp) {
            stage.enable_mptcp().context("multipath TCP")?;
        }
        let bond = options.groups.contains(&Group::Tabane).then(|| {
            Bond::up(&stage, binary, options.congestion.as_deref())
                .map_err(|error| format!("{error:#}"))
        });
        Ok(Self {
            bond,
            stage,
            seconds: options.seconds,
            upload: direction == Direction::Upload,
            is_stream: measures_stream(&scenario.name),
        })
    }

    /// Brings the network to rest, starts its schedule anew and gives `contender` its TCP.
    pub(super) fn prepare(&self, contender: &Contender) -> Result<Mark> {
        self.stage.rest()?;
        self.stage.set_congestion(contender.congestion())?;
        self.stage.begin()
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Has `contender` do the job once.
    pub(super) fn measure(&self, contender: &Contender, repeat: u64) -> Result<Measurement> {
        let mark = self.prepare(contender)?;
        let relay_cpu = || self.bond().map(Bond::relay_cpu).unwrap_or_default();
        let relay_cpu_before = relay_cpu();
        let done = if self.is_stream {
            self.stream(contender)
                .map(|(r, client)| (Outcome::Stream(r), client.total()))
        } else {
            self.bulk(contender)
                .map(|(goodput, client)| (Outcome::Bulk(goodput), client.total()))
        };
        let mut measured = match done {
            Ok((outcome, client_cpu)) => {
                let mut measured = match outcome {
                    Outcome::Bulk(goodput) => Measurement::bulk(contender, repeat, goodput),
                    Outcome::Stream(report) => Measurement::stream(contender, repeat, report),
                };
                if contender.is_ours() {
                    let relay = relay_cpu().since(relay_cpu_before);
                    measured.cpu_s = Some((client_cpu + relay.total()).as_secs_f64());
                }
                measured
            }
            Err(error) => Measurement::failed(contender, repeat, &error),
        };
        measured.carried = Some(self.stage.carried(&mark)?);
        if contender.is_ours() {
            measured.tabane = self.bond().ok().and_then(Bond::take_report);
        }
        Ok(measured)
    }

    /// iperf3; with the processor time of the program that carried it at the client.
    pub(super) fn bulk(&self, contender: &Contender) -> Result<(Goodput, Cpu)> {
        let mut server = self.server(contender, "iperf3");
        iperf::server(&mut server);
        let mut server = Running::start("iperf3 server", &mut server)?;
        server.wait_for_line(iperf::LISTENING, SERVER_WITHIN)?;
        let mut client = self.client(contender, "iperf3")?;
        iperf::client(&mut client, self.stage.service(), self.seconds, self.upload);
        if let Contender::Tcp { link } = contender {
            let link = &self.stage.links()[*link];
            client.args(["--bind", &format!("{}%{}", link.client, link.interface)]);
        }
        let within = Duration::from_secs(self.seconds) + iperf::PATIENCE;
        let finished = Running::start(&contender.to_string(), &mut client)?.finish(within)?;
        let cpu = finished.cpu;
        // A report tells more than a status, also of a failure.
        let goodput = match iperf::parse(&finished.stdout) {
            Ok(goodput) => goodput,
            Err(error) => return Err(finished.succeeded().err().map_or(error, |said| said)),
        };
        Ok((goodput, cpu))
    }

    /// The stream whose every byte is known.
    fn stream(&self, contender: &Contender) -> Result<(StreamReport, Cpu)> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.to_string_lossy();
        let mut sender = self.server(contender, &own);
        stream::sender(&mut sender, self.seconds);
        let mut sender = Running::start("stream sender", &mut sender)?;
        sender.wait_for_line(stream::LISTENING, SERVER_WITHIN)?;
        let mut receiver = self.client(contender, &own)?;
        stream::receiver(&mut receiver, self.stage.service());
        let within = Duration::from_secs(self.seconds) + stream::PATIENCE;
        let received: Finished =
            Running::start(&contender.to_string(), &mut receiver)?.finish(within)?;
        let cpu = received.cpu;
        let received = received.succeeded()?;
        let sent = sender
            .finish(stream::PATIENCE)?
            .succeeded()
            .context("stream sender")?;
        Ok((StreamReport::parse(&sent.stdout, &received.stdout)?, cpu))
    }

    pub(super) fn server(&self, contender: &Contender, program: &str) -> Command {
        match contender {
            Contender::Mptcp { .. } => {
                let mut command = self.stage.at_server("mptcpize");
                command.args(["run", program]);
                command
            }
            Contender::Tcp { .. } | Contender::Tabane | Contender::TabaneOneLink => {
                self.stage.at_server(program)
            }
        }
    }

    pub(super) fn client(&self, contender: &Contender, program: &str) -> Result<Command> {
        Ok(match contender {
            Contender::Tcp { .. } => self.stage.at_client(program),
            Contender::Mptcp { .. } => {
                let mut command = self.stage.at_client("mptcpize");
                command.args(["run", program]);
                command
            }
            Contender::Tabane => self.bond()?.run(&self.stage, None, program),
            Contender::TabaneOneLink => {
                let link = &self.stage.links()[0].interface;
                self.bond()?.run(&self.stage, Some(link), program)
            }
        })
    }

    pub(super) fn bond(&self) -> Result<&Bond> {
        match &self.bond {
            Some(Ok(bond)) => Ok(bond),
            Some(Err(error)) => Err(anyhow!("{error}")),
            None => Err(anyhow!("tabane was not asked for")),
        }
    }
}

impl Contender {
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Tabane | Self::TabaneOneLink)
    }
}

/// What a server may take until it listens.
const SERVER_WITHIN: Duration = Duration::from_secs(5);

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
