//! One scenario's lab, and how each contender is made to carry the same job there.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tabane_netem::Scenario;

use super::bond::Bond;
use super::contender::{Contender, Direction, Group, measures_stream};
use super::iperf::{self, Goodput};
use super::options::Options;
use super::process::{Cpu, Finished, Running};
use super::record::Measurement;
use super::stage::{Mark, Stage};
use super::stream::{self, StreamReport};

/// What a server may take until it listens.
const SERVER_WITHIN: Duration = Duration::from_secs(5);

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

    /// How long one measurement takes.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds
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
    pub(super) fn stream(&self, contender: &Contender) -> Result<(StreamReport, Cpu)> {
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
