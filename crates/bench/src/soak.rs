//! `cargo xtask bench soak`: hours of an unquiet network, and what they leave behind.
//!
//! Owns the order of events. A machine with `tabane up` and a relay carry connections of all
//! kinds (`traffic`) while links are pulled, fall silent, change their rate and address, and the
//! relay is restarted. Each round ends at rest, where both processes are looked at (`ledger`).

mod disturbance;
mod ledger;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tabane_base::Seed;
use tabane_netem::Scenario;

use super::bond::Bond;
use super::process::Running;
use super::stage::Stage;
use disturbance::Disturbances;
use ledger::{Ledger, Sample};
use traffic::{Tally, Traffic};

pub(super) const USAGE: &str = "\
usage: cargo xtask bench soak [OPTION...]
A machine with `tabane up` and its relay, for a long time on links that are pulled, fall silent,
change their rate and their address; the relay is restarted. Fails where memory, descriptors,
threads or streams grow after warming up, or a byte is wrong. Needs root.
  --minutes N      how long [3]
  --seed N         of everything that is drawn [the time]
  --binary FILE    a tabane built elsewhere";

/// Of one round with traffic.
const BUSY: Duration = Duration::from_secs(6);
/// Nothing may be left of a round's connections after so long.
const REST_WITHIN: Duration = Duration::from_secs(30);
const REST_STEP: Duration = Duration::from_millis(200);
const START_WITHIN: Duration = Duration::from_secs(20);
/// What the daemon says once it has a session.
const CARRIES: &str = "the relay answers: new connections";
/// The relay is restarted in every so manieth round.
const RESTART_EVERY: u32 = 6;
/// In the last quarter it is not: so long a life at least is watched.
const RESTART_UNTIL: f64 = 0.75;

const LINKS: &str = r#"
name = "soak"
why = "three links of different kinds"
[[link]]
name = "dsl"
rate = "16mbit"
delay = "12ms"
queue = "150kB"
[[link]]
name = "lte"
rate = "30mbit"
delay = "30ms"
jitter = "5ms"
queue = "300kB"
[[link]]
name = "wifi"
rate = "40mbit"
delay = "5ms"
queue = "200kB"
loss = "0.5%"
"#;

struct Options {
    minutes: f64,
    seed: u64,
    binary: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Option<Self>> {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let mut options = Self {
            minutes: 3.0,
            seed: now.map_or(1, |since| since.as_secs()),
            binary: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next();
                value.with_context(|| format!("{word} needs a value\n{USAGE}"))
            };
            match *word {
                "--minutes" => options.minutes = value()?.parse().context("--minutes")?,
                "--seed" => options.seed = value()?.parse().context("--seed")?,
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--help" | "-h" => return Ok(None),
                other => anyhow::bail!("unknown: {other}\n{USAGE}"),
            }
        }
        ensure!(options.minutes > 0.0, "--minutes must be more than 0");
        Ok(Some(options))
    }
}

/// Runs for as long as asked; `false` where something grew or a byte was wrong.
pub(super) fn run(own: &Path, arguments: &[&str]) -> Result<bool> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{USAGE}");
        return Ok(true);
    };
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary)
            .with_context(|| format!("cannot find {}", binary.display()))?,
        None => own.join("tabane"),
    };
    println!("soak: seed {}, {} min", options.seed, options.minutes);
    let scenario = Scenario::parse(LINKS, None, &mut |_| Err(String::new()))?;
    let mut soak = Soak::begin(&scenario, &binary, Seed(options.seed))?;
    let lasting = Duration::from_secs_f64(options.minutes * 60.0);
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed() < lasting {
        round += 1;
        let part = begin.elapsed().as_secs_f64() / lasting.as_secs_f64();
        let with_restart = round % RESTART_EVERY == 0 && part < RESTART_UNTIL;
        soak.round(round, with_restart)
            .with_context(|| format!("round {round}"))?;
    }
    soak.conclude()
}

/// Everything that runs.
struct Soak {
    // Dropped in this order: what sends, what carries it, and the network beneath.
    traffic: Traffic,
    up: Running,
    bond: Bond,
    disturbances: Disturbances,
    stage: Stage,
    ledger: Ledger,
}

impl Soak {
    fn begin(scenario: &Scenario, binary: &Path, seed: Seed) -> Result<Self> {
        let stage = Stage::up(scenario)?;
        let bond = Bond::up(&stage, binary, None)?;
        let mut command = bond.up_command(&stage);
        command.args(["up", "--all", "--no-ping"]);
        let mut up = Running::start("tabane up", &mut command)?;
        up.wait_for_line(CARRIES, START_WITHIN)?;
        let traffic = Traffic::between(stage.client(), stage.server(), stage.service(), seed)?;
        Ok(Self {
            traffic,
            up,
            bond,
            disturbances: Disturbances::new(seed, stage.links()),
            stage,
            ledger: Ledger::default(),
        })
    }

    fn round(&mut self, round: u32, with_restart: bool) -> Result<()> {
        let before = self.traffic.tally();
        self.traffic.resume();
        let mut what = self.disturbances.begin(&self.stage)?;
        sleep(BUSY / 2);
        if with_restart {
            self.bond.restart_relay(&self.stage)?;
            self.ledger.relay_restarted();
            what += ", relay killed and started";
        }
        sleep(BUSY / 2);
        self.disturbances.end(&self.stage)?;
        self.traffic.pause();
        let (machine, relay) = self.at_rest()?;
        self.ledger.enter(machine, relay);
        let tally = self.traffic.tally() - before;
        eprintln!("soak: {round}: {what}; {tally}; machine {machine}; relay {relay}");
        // Who hears a reset of a relay that died is told the truth.
        ensure!(
            tally.cut == 0 || with_restart,
            "{} connections were cut though the relay lived",
            tally.cut
        );
        ensure!(
            tally.wrong == 0,
            "{} connections had wrong bytes",
            tally.wrong
        );
        Ok(())
    }

    /// Waits until nothing of the round is left, and looks.
    fn at_rest(&self) -> Result<(Sample, Sample)> {
        let deadline = Instant::now() + REST_WITHIN;
        loop {
            let machine = self.streams("up")?;
            let relay = self.streams(&format!("relay-{}", Bond::PORT))?;
            let flows = self.traffic.flows();
            let is_still = |streams: Option<u64>| streams.is_some_and(|count| count <= flows);
            if is_still(machine) && is_still(relay) && self.traffic.is_idle() {
                // A relay has a socket for each flow.
                let relay = Sample::of(self.bond.relay(), relay.unwrap_or(0))?;
                return Ok((Sample::of(&self.up, self.plain_flows()?)?, relay));
            }
            ensure!(
                Instant::now() < deadline,
                "{REST_WITHIN:?} after the last connection ended, {machine:?} streams are left at \
                 the machine and {relay:?} at the relay, of which {flows} may be UDP flows"
            );
            sleep(REST_STEP);
        }
    }

    /// UDP flows that began while no relay answered: the daemon has a connected socket for each.
    fn plain_flows(&self) -> Result<u64> {
        let table = "/proc/thread-self/net/udp";
        let client = self.stage.client();
        let table = client.run(|| std::fs::read_to_string(table))??;
        let to = format!(":{:04X}", traffic::PORT);
        let remotes = table
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2));
        Ok(remotes.filter(|remote| remote.ends_with(&to)).count() as u64)
    }

    /// Streams of an instance; none where it has no session at present.
    fn streams(&self, instance: &str) -> Result<Option<u64>> {
        let mut command: Command = self.bond.up_command(&self.stage);
        command.args(["status", "--json", "--instance", instance]);
        let finished = Running::start("tabane status", &mut command)?.finish(START_WITHIN)?;
        let text = finished.succeeded().context("tabane status")?.stdout;
        let state: serde_json::Value = serde_json::from_str(&text).context("tabane status")?;
        let totals = &state["totals"];
        let has_session = totals["sessions"].as_u64().is_some_and(|n| n > 0);
        Ok(totals["streams"].as_u64().filter(|_| has_session))
    }

    fn conclude(self) -> Result<bool> {
        let tally: Tally = self.traffic.tally();
        println!("connections         {tally}");
        Ok(self.ledger.judge())
    }
}
