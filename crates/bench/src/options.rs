//! The options of `cargo xtask bench`, and which scenarios they mean.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use tabane_lab::{load_scenarios, trace_directories};
use tabane_netem::{LinkSpec, RateModel, Scenario};

use super::contender::{Contender, Direction, Group, measures_stream};

pub(super) const USAGE: &str = "\
usage: cargo xtask bench [BENCH] [SCENARIO...|all] [OPTION...]
Our figures and our peers', in the same run, on emulated links. Needs root, iperf3 and mptcpize.
  BENCH            what is measured; none: the goodput of one download of one TCP connection, over
                   each single link by plain TCP with BBR, over all links by kernel MPTCP with
                   CUBIC and BBR, and by tabane
    latency        what a bulk adds to round trips on each link, and to those through the bond
    fetch          10 KB to 20 MB against the best single link; 100 KB beside a bulk
    udp            a flow of datagrams at 90 % of the sum of the rates, in order and in time
    selftest       the kernel's own multipath test: 16 MiB each way within its deadline
    carriers       networks that drop or police UDP, and what TLS carries there
    cost           processor time for a gigabit, of client and relay apart, both ways
    share          several downloads at once on one link
    startup        how long from the first packet to 90 % of the sum, and back there after an
                   outage; --svg FILE draws it
    sockets        connection setup, uploads ahead of links, readers who do not read, beside plain
                   sockets
    expose         a server behind a client, visited by way of the relay: downloads, setup, crowds
                   (for three times --seconds), cuts
    sites          from a host behind one client to one behind another, each with two links
    lan            50 hosts with 20 connections each behind one `tabane up --lan`
    arms           table 1 of the ARMS paper with `tabane sctp`; see `bench arms --help`
    web            files from nginx by curl, aria2, `tabane get` and `tabane web`; see
                   `bench web --help`
    gateway        kernels' TCP over links that delay, without `tabane gateway` and with it; see
                   `bench gateway --help`
    relay          memory and goodput of a relay with a thousand sessions; [SESSIONS]
    workers        a relay's worker beside another: goodput and handshakes for its processor time,
                   memory of idle sessions; [SESSIONS] of each crowd
    flood          what known clients keep, and a newcomer waits, while strangers flood a relay
    soak           hours of an unquiet network; see `bench soak --help`
    figures        all of them but `share`, with a total; hours, unless rows are named
  SCENARIO         a file's name in scenarios/, one variant (arms/1m-30ms+2m-60ms), or a path;
                   none: a few that suit the bench; all: every file, goodput both ways
  --seconds N      per measurement, start-up included [20]
  --repeat N       of everything; tables show medians [3, selftest: 10]; also --runs
  --download       download alone; what is meant unless `all` is asked for
  --upload         upload alone; with --download, both
  --congestion NAME  how tabane sends on each link [its default]
  --only LIST      of tcp, mptcp, tabane; separated by commas
  --busy           beside a busy loop on each core
  --binary FILE    a tabane built elsewhere
  --svg FILE       draw what `startup` measured
  --json FILE      everything that was measured
  --date TEXT      goes into the JSON
  --markdown       tables for the README";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Goodput,
    Latency,
    Fetch,
    Udp,
    Selftest,
    Sockets,
    Share,
    Lan,
    Cost,
    Startup,
    Carriers,
    Expose,
    Sites,
    Figures,
}

impl Kind {
    /// What asks for it; goodput needs no word.
    fn named(word: &str) -> Option<Self> {
        let all = [
            Self::Latency,
            Self::Fetch,
            Self::Udp,
            Self::Selftest,
            Self::Sockets,
            Self::Share,
            Self::Lan,
            Self::Cost,
            Self::Startup,
            Self::Carriers,
            Self::Expose,
            Self::Sites,
            Self::Figures,
        ];
        all.into_iter().find(|kind| kind.name() == word)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Latency => "latency",
            Self::Fetch => "fetch",
            Self::Udp => "udp",
            Self::Selftest => "selftest",
            Self::Sockets => "sockets",
            Self::Share => "share",
            Self::Lan => "lan",
            Self::Cost => "cost",
            Self::Startup => "startup",
            Self::Carriers => "carriers",
            Self::Expose => "expose",
            Self::Sites => "sites",
            Self::Figures => "figures",
        }
    }

    /// When none is named: few, and of every sort.
    fn scenarios(self) -> &'static [&'static str] {
        match self {
            Self::Goodput => &["twin", "unequal", "cut", "wire"],
            Self::Latency => &["unequal", "bloat", "far", "wide"],
            Self::Fetch => &["twin", "unequal", "far", "drag"],
            Self::Udp => &["unequal", "wide", "far"],
            Self::Cost => &["wire"],
            Self::Startup => &["twin", "unequal", "far", "outage"],
            Self::Figures => &["all"],
            // They make their own.
            Self::Selftest
            | Self::Sockets
            | Self::Share
            | Self::Lan
            | Self::Carriers
            | Self::Expose
            | Self::Sites => &[],
        }
    }

    fn repeats(self) -> u64 {
        match self {
            Self::Selftest => 10,
            Self::Cost => 1,
            Self::Goodput
            | Self::Latency
            | Self::Fetch
            | Self::Udp
            | Self::Sockets
            | Self::Share
            | Self::Lan
            | Self::Startup
            | Self::Carriers
            | Self::Expose
            | Self::Sites
            | Self::Figures => 3,
        }
    }

    /// Whether it can be measured on `scenario`.
    fn suits(self, scenario: &Scenario) -> bool {
        let is_wire = scenario.links.iter().any(LinkSpec::is_wire);
        match self {
            Self::Goodput
            | Self::Figures
            | Self::Selftest
            | Self::Sockets
            | Self::Share
            | Self::Lan
            | Self::Carriers
            | Self::Expose
            | Self::Sites
            | Self::Cost => true,
            Self::Latency | Self::Fetch => !is_wire && !measures_stream(&scenario.name),
            Self::Udp => !is_wire && scenario.links.iter().all(is_steady),
            Self::Startup => !is_wire && scenario.links.iter().all(has_one_rate),
        }
    }
}

/// Whether there is a rate that the link always has.
pub(super) fn is_steady(link: &LinkSpec) -> bool {
    let ways = [&link.up, &link.down];
    has_one_rate(link) && ways.into_iter().all(|way| way.outages.is_empty())
}

/// Whether the link has the same rate whenever it works.
fn has_one_rate(link: &LinkSpec) -> bool {
    [&link.up, &link.down].into_iter().all(|way| {
        let is_constant = matches!(way.rate, RateModel::Constant(_));
        is_constant && way.changes.is_empty()
    })
}

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) kind: Kind,
    /// Of scenarios, or of rows of a bench that has networks of its own.
    pub(super) names: Vec<String>,
    pub(super) seconds: u64,
    pub(super) repeats: u64,
    /// They were asked for, and hold for every bench.
    has_repeats: bool,
    /// Not empty, each once.
    pub(super) directions: Vec<Direction>,
    pub(super) congestion: Option<String>,
    pub(super) groups: Vec<Group>,
    /// Somebody else wants all cores meanwhile.
    pub(super) busy: bool,
    pub(super) binary: Option<PathBuf>,
    pub(super) json: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
    pub(super) date: Option<String>,
    pub(super) markdown: bool,
}

impl Options {
    /// None if help was asked for.
    pub(super) fn parse(arguments: &[&str]) -> Result<Option<Self>> {
        let kind = arguments.first().and_then(|word| Kind::named(word));
        let arguments = &arguments[usize::from(kind.is_some())..];
        let kind = kind.unwrap_or(Kind::Goodput);
        let mut options = Self {
            kind,
            names: Vec::new(),
            seconds: 20,
            repeats: kind.repeats(),
            has_repeats: false,
            directions: Vec::new(),
            congestion: None,
            groups: Group::ALL.to_vec(),
            busy: false,
            binary: None,
            json: None,
            svg: None,
            date: None,
            markdown: false,
        };
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().copied();
                value.with_context(|| format!("{argument} needs a value; see --help"))
            };
            match argument {
                "--help" | "-h" => return Ok(None),
                "--seconds" => options.seconds = count(argument, value()?)?,
                "--repeat" | "--runs" => {
                    options.repeats = count(argument, value()?)?;
                    options.has_repeats = true;
                }
                "--download" => options.add(Direction::Download),
                "--upload" => options.add(Direction::Upload),
                "--congestion" => options.congestion = Some(value()?.to_owned()),
                "--only" => {
                    let groups = value()?.split(',').map(Group::from_str);
                    options.groups = groups.collect::<Result<_>>()?;
                }
                "--busy" => options.busy = true,
                "--binary" => options.binary = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--svg" => options.svg = Some(value()?.into()),
                "--date" => options.date = Some(value()?.to_owned()),
                "--markdown" => options.markdown = true,
                _ if argument.starts_with('-') => {
                    bail!("unknown option {argument}; see `cargo xtask bench --help`")
                }
                _ => options.names.push(argument.to_owned()),
            }
        }
        let has_networks = matches!(kind, Kind::Selftest | Kind::Share | Kind::Expose);
        ensure!(
            options.names.is_empty() || !has_networks,
            "this bench has networks of its own; see --help"
        );
        if options.names.is_empty() {
            options.names = kind.scenarios().iter().map(|&s| s.to_owned()).collect();
        }
        if options.directions.is_empty() {
            options.add(Direction::Download);
            let is_all = options.names.iter().any(|name| name == "all");
            let is_both = is_all && matches!(kind, Kind::Goodput | Kind::Figures);
            if is_both || kind == Kind::Cost {
                options.add(Direction::Upload);
            }
        }
        Ok(Some(options))
    }

    /// The same for one of the benches of `figures`. One direction must do for those that are not
    /// of goodput.
    pub(super) fn with(&self, kind: Kind) -> Self {
        let mut options = self.clone();
        options.kind = kind;
        if !self.has_repeats {
            options.repeats = kind.repeats();
        }
        if kind != Kind::Goodput {
            options.directions.truncate(1);
        }
        if kind == Kind::Carriers {
            options.names.clear();
        }
        options
    }

    /// Whether `contender` was asked for.
    pub(super) fn wants(&self, contender: &Contender) -> bool {
        self.groups.contains(&contender.group())
    }

    fn add(&mut self, direction: Direction) {
        if !self.directions.contains(&direction) {
            self.directions.push(direction);
        }
    }

    /// Every row: a scenario and where the bulk goes. Streams have one direction, and the
    /// selftest's rows have both in one.
    pub(super) fn rows(&self, scenarios: &[Scenario]) -> Vec<(Scenario, Direction)> {
        let mut rows = Vec::new();
        for scenario in scenarios.iter().filter(|s| self.kind.suits(s)) {
            let directions = match self.kind == Kind::Selftest || measures_stream(&scenario.name) {
                true => &[Direction::Download][..],
                false => &self.directions,
            };
            rows.extend(directions.iter().map(|&d| (scenario.clone(), d)));
        }
        rows
    }

    /// What is to be measured, in the order asked for; `all` by file name.
    pub(super) fn scenarios(&self, root: &Path) -> Result<Vec<Scenario>> {
        let directory = root.join("scenarios");
        let mut found = Vec::new();
        for name in &self.names {
            match name.as_str() {
                "all" => {
                    for path in scenario_files(&directory)? {
                        match load(&path) {
                            Ok(scenarios) => found.extend(scenarios),
                            // A clone alone has no recorded links.
                            Err(error) if trace_directories(&path).is_empty() => {
                                eprintln!("bench: left out: {error:#}");
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
                path if path.ends_with(".toml") => found.extend(load(Path::new(path))?),
                name => found.extend(named(&directory, name)?),
            }
        }
        Ok(found)
    }
}

fn count(option: &str, value: &str) -> Result<u64> {
    let parsed = value.parse().ok().filter(|&n| n > 0);
    parsed.with_context(|| format!("{option} {value}: expected a number above zero"))
}

fn scenario_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn load(path: &Path) -> Result<Vec<Scenario>> {
    Ok(load_scenarios(path, &trace_directories(path))?)
}

/// `FILE`, with all its variants, or `FILE/VARIANT`.
fn named(directory: &Path, name: &str) -> Result<Vec<Scenario>> {
    let (file, variant) = name
        .split_once('/')
        .map_or((name, None), |(f, v)| (f, Some(v)));
    let path = directory.join(format!("{file}.toml"));
    if !path.is_file() {
        let known = scenario_files(directory)?;
        let known = known.iter().filter_map(|path| path.file_stem()?.to_str());
        let known = known.collect::<Vec<_>>().join(", ");
        bail!("there is no scenario {file}; there are {known}, and files ending in .toml");
    }
    let mut found = load(&path)?;
    if variant.is_some() {
        let known: Vec<String> = found.iter().map(|s| s.name.clone()).collect();
        found.retain(|scenario| scenario.name == name);
        ensure!(
            !found.is_empty(),
            "no {name}; there is {}",
            known.join(", ")
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_names_mix() {
        let options = Options::parse(&["far", "--seconds", "5", "--only", "tcp,mptcp", "wide"]);
        let options = options.unwrap().unwrap();
        assert_eq!(options.names, ["far", "wide"]);
        assert_eq!((options.seconds, options.repeats), (5, 3));
        assert_eq!(options.groups, [Group::Tcp, Group::Mptcp]);
        assert_eq!(options.directions, [Direction::Download]);
        assert!(Options::parse(&["--help"]).unwrap().is_none());
    }

    #[test]
    fn mistakes_are_named() {
        for (arguments, said) in [
            (&["--seconds", "0"][..], "above zero"),
            (&["--repeat"], "needs a value"),
            (&["--only", "sctp"], "sctp"),
            (&["--fast"], "--fast"),
        ] {
            let error = Options::parse(arguments).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn all_means_both_ways_and_a_stream_has_one() {
        let root = crate::repository_root();
        let rows = |arguments: &[&str]| -> Vec<(String, Direction)> {
            let options = Options::parse(arguments).unwrap().unwrap();
            let rows = options.rows(&options.scenarios(&root).unwrap());
            rows.into_iter().map(|(s, d)| (s.name, d)).collect()
        };
        let all = rows(&["all", "--runs", "1"]);
        for direction in [Direction::Download, Direction::Upload] {
            assert!(all.contains(&("far".to_owned(), direction)));
        }
        assert!(!all.contains(&("cut".to_owned(), Direction::Upload)));
        let up = [("far".to_owned(), Direction::Upload)];
        assert_eq!(rows(&["far", "--upload", "--upload"]), up);
        let only_up = rows(&["all", "--upload"]);
        assert!(
            only_up
                .iter()
                .all(|(s, d)| s == "cut" || *d == Direction::Upload)
        );
    }

    #[test]
    fn variants_are_scenarios_of_their_own() {
        let root = crate::repository_root();
        let names = |text: &str| -> Result<Vec<String>> {
            let options = Options::parse(&[text])?.unwrap();
            Ok(options
                .scenarios(&root)?
                .into_iter()
                .map(|s| s.name)
                .collect())
        };
        assert_eq!(names("twin").unwrap(), ["twin"]);
        assert_eq!(names("shake").unwrap(), ["shake/two", "shake/three"]);
        assert_eq!(names("shake/two").unwrap(), ["shake/two"]);
        assert!(
            names("shake/ten")
                .unwrap_err()
                .to_string()
                .contains("shake/three")
        );
        assert!(names("nowhere").is_err());
    }
}
