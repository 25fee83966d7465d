//! `cargo xtask bench share`: who gets how much of one bottleneck that several use at once.
//!
//! Downloads of the product, each a session of its own, beside each other and beside the kernel's
//! TCP. Whoever is named first begins first; the second half of the time that all have in common
//! counts.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tabane_netem::Scenario;

use super::bond::Bond;
use super::contender::Direction;
use super::iperf;
use super::options::Options;
use super::process::Running;
use super::stage::Stage;

/// A link of a home; its queue is twice what it holds, as cheap routers have it.
const BOTTLENECKS: [&str; 2] = [
    "name = \"50mbit 20ms 250kB\"\nwhy = \"a home's link\"\n\
     [[link]]\nname = \"one\"\nrate = \"50mbit\"\ndelay = \"10ms\"\nqueue = \"250kB\"",
    "name = \"20mbit 60ms 150kB\"\nwhy = \"a farther one, its queue as long as itself\"\n\
     [[link]]\nname = \"one\"\nrate = \"20mbit\"\ndelay = \"30ms\"\nqueue = \"150kB\"",
];

/// How much later the second begins.
const HEAD_START: Duration = Duration::from_secs(1);
/// What a server may take until it listens.
const SERVER_WITHIN: Duration = Duration::from_secs(5);
/// Of the ports that servers listen on, the first.
const PORT: u16 = 5301;

/// One who downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Tabane,
    Tcp(&'static str),
}

const COMPANIES: [&[Contender]; 9] = [
    &[Contender::Tabane, Contender::Tabane],
    &[Contender::Tabane, Contender::Tcp("cubic")],
    &[Contender::Tcp("cubic"), Contender::Tabane],
    &[
        Contender::Tabane,
        Contender::Tcp("cubic"),
        Contender::Tcp("cubic"),
    ],
    &[Contender::Tabane, Contender::Tcp("bbr")],
    &[Contender::Tcp("bbr"), Contender::Tabane],
    &[Contender::Tcp("cubic"), Contender::Tcp("cubic")],
    // What ours beside BBR is to be compared with.
    &[Contender::Tcp("cubic"), Contender::Tcp("bbr")],
    &[Contender::Tcp("bbr"), Contender::Tcp("cubic")],
];

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tabane => f.write_str("tabane"),
            Self::Tcp(congestion) => write!(f, "tcp {congestion}"),
        }
    }
}

/// Measures and prints every row; `false` when all failed.
pub(super) fn run(binary: &Path, options: &Options) -> Result<bool> {
    ensure!(
        options.directions.len() == 1,
        "share has one direction: --download or --upload"
    );
    println!("| bottleneck | contenders | Mbit/s each | Jain | smallest of equal share |");
    println!("|---|---|---|---|---|");
    let mut any = false;
    for text in BOTTLENECKS {
        let scenario = Scenario::parse(text, None, &mut |_| Err(String::new()))
            .context("a bottleneck of the program's own")?;
        for company in COMPANIES {
            let rates = (0..options.repeats)
                .map(|_| measure(&scenario, company, binary, options))
                .collect::<Result<Vec<_>>>();
            println!("| {} | {} |", scenario.name, row(company, &rates));
            any |= rates.is_ok();
        }
    }
    Ok(any)
}

fn row(company: &[Contender], runs: &Result<Vec<Vec<f64>>>) -> String {
    let names: Vec<_> = company.iter().map(Contender::to_string).collect();
    let names = names.join(", ");
    let runs = match runs {
        Ok(runs) => runs,
        Err(error) => return format!("{names} | failed: {error:#} | |"),
    };
    let of = |index: usize| runs.iter().map(move |rates| rates[index]);
    let rates: Vec<f64> = (0..company.len())
        .map(|index| of(index).sum::<f64>() / runs.len() as f64)
        .collect();
    let each: Vec<_> = rates
        .iter()
        .map(|bps| format!("{:.1}", bps / 1e6))
        .collect();
    let equal = rates.iter().sum::<f64>() / rates.len() as f64;
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    format!(
        "{names} | {} | {:.2} | {:.2}",
        each.join(", "),
        jain(&rates),
        least / equal
    )
}

/// Jain's index: 1 when all have the same, 1/n when one has everything.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (squares * rates.len() as f64)
}

/// The rates of all contenders, in bit/s, on a lab of their own.
fn measure(
    scenario: &Scenario,
    company: &[Contender],
    binary: &Path,
    options: &Options,
) -> Result<Vec<f64>> {
    let stage = Stage::up(scenario)?;
    let bond = if company.contains(&Contender::Tabane) {
        Some(Bond::up(&stage, binary, options.congestion.as_deref())?)
    } else {
        None
    };
    stage.rest()?;
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for (index, contender) in company.iter().enumerate() {
        let port = (PORT + index as u16).to_string();
        let mut server = stage.at_server("iperf3");
        iperf::server(&mut server);
        server.args(["--port", &port]);
        let mut server = Running::start("iperf3 server", &mut server)?;
        server.wait_for_line(iperf::LISTENING, SERVER_WITHIN)?;
        servers.push(server);
        let mut client = match contender {
            Contender::Tabane => {
                let bond = bond.as_ref().context("ours has a bond")?;
                bond.run(&stage, None, "iperf3")
            }
            Contender::Tcp(_) => stage.at_client("iperf3"),
        };
        iperf::client(
            &mut client,
            stage.service(),
            options.seconds,
            options.directions == [Direction::Upload],
        );
        client.args(["--port", &port]);
        if let Contender::Tcp(congestion) = contender {
            client.args(["--congestion", congestion]);
        }
        if index > 0 {
            std::thread::sleep(HEAD_START);
        }
        clients.push(Running::start(&contender.to_string(), &mut client)?);
    }
    let within = Duration::from_secs(options.seconds) + iperf::PATIENCE;
    let rate = |client: Running| {
        let finished = client.finish(within)?;
        second_half(&iperf::parse(&finished.stdout)?.intervals_bps)
    };
    clients.into_iter().map(rate).collect()
}

fn second_half(intervals_bps: &[f64]) -> Result<f64> {
    let half = &intervals_bps[intervals_bps.len() / 2..];
    ensure!(!half.is_empty(), "iperf3 reports no intervals");
    Ok(half.iter().sum::<f64>() / half.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_have_an_index_of_one() {
        assert!((jain(&[5.0, 5.0, 5.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9.0, 0.0]) - 0.5).abs() < 1e-9);
        let company = [Contender::Tabane, Contender::Tcp("cubic")];
        let runs = Ok(vec![vec![10e6, 30e6], vec![20e6, 40e6]]);
        assert_eq!(
            row(&company, &runs),
            "tabane, tcp cubic | 15.0, 35.0 | 0.86 | 0.60"
        );
        assert!(row(&company, &Err(anyhow::anyhow!("why"))).contains("failed: why"));
    }

    #[test]
    fn the_second_half_counts() {
        assert_eq!(second_half(&[1.0, 2.0, 3.0, 5.0]).unwrap(), 4.0);
        assert!(second_half(&[]).is_err());
    }

    #[test]
    fn the_bottlenecks_are_scenarios_of_one_link() {
        for text in BOTTLENECKS {
            let scenario = Scenario::parse(text, None, &mut |_| Err(String::new()));
            assert_eq!(scenario.unwrap().links.len(), 1);
        }
    }
}
