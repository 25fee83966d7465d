//! A UDP flow of the application over unequal links: how much comes, in which order, how late.
//!
//! The links of `wide` and `far` are those on which no peer carries a UDP flow beyond its best
//! link. The table is compared with `flows.txt`; figures that changed for a good reason are
//! accepted by `TABANE_BLESS=1 cargo test -p tabane-sim`.

use std::fmt::Write as _;

use tabane_base::{Duration, Instant, Seed};
use tabane_core::DatagramOrder;
use tabane_netem::Scenario;
use tabane_sim::{LinkId, Setup, Side, Transfer, UdpLoad, World};

const DEADLINE: Duration = Duration::from_millis(25);
/// When the paths are there; that their rates must be learnt first counts.
const FROM: Instant = Instant::from_millis(1_000);
/// They are learnt by then, and this much of what fits comes in order and in time.
const SETTLED: Instant = Instant::from_millis(3_000);
const SETTLED_MIN: f64 = 0.99;
const UNTIL: Instant = Instant::from_millis(9_000);
/// What a flow can have of the links' rates, as a datagram of 1,400 bytes is a packet of 1,456:
/// IP and UDP 28, header, frame header and label 13, tag 16.
const SIZE: usize = 1_400;
const SIZE_ON_LINK: usize = SIZE + 57;

/// A flow on a scenario.
struct Row {
    scenario: &'static str,
    /// Part of the sum of the links' rates, on the link.
    load: f64,
    ordered: bool,
    /// A download runs beside it.
    beside_bulk: bool,
    /// Of what was sent, or for loads beyond the sum of the sum, this much must come …
    delivered_min: f64,
    /// … and this much in order, within the slowest link's delay and the deadline.
    in_time_min: f64,
}

const fn row(scenario: &'static str, load: f64, delivered_min: f64, in_time_min: f64) -> Row {
    Row {
        scenario,
        load,
        ordered: true,
        beside_bulk: false,
        delivered_min,
        in_time_min,
    }
}

const ROWS: [Row; 14] = [
    row("wide", 0.9, 0.99, 0.975),
    // Until round trips of 200 and 300 ms have told the far link's rate, more comes than passes.
    row("far", 0.9, 0.97, 0.96),
    row("unequal", 0.9, 0.99, 0.98),
    row("twin", 0.9, 0.99, 0.98),
    row("four", 0.9, 0.99, 0.98),
    row("eight", 0.9, 0.99, 0.975),
    row("rtt-skew", 0.9, 0.95, 0.94),
    row("drag", 0.9, 0.99, 0.98),
    row("wide", 1.2, 0.9, 0.0),
    row("far", 1.2, 0.9, 0.0),
    // Fits the fast link.
    row("wide", 0.5, 0.999, 0.999),
    row("far", 0.3, 0.999, 0.999),
    Row {
        ordered: false,
        ..row("far", 0.9, 0.98, 0.0)
    },
    Row {
        beside_bulk: true,
        ..row("far", 0.02, 0.99, 0.99)
    },
];

#[test]
fn udp_flows_use_all_links_and_come_in_order() {
    let mut table = String::from(
        "scenario  load  order    bulk  came   in order  in time  Mbit/s  median ms  p95 ms  \
         queue p95 ms\n",
    );
    let mut failures = String::new();
    for row in &ROWS {
        run(row, &mut table, &mut failures);
    }
    print!("{table}");
    assert!(failures.is_empty(), "\n{failures}");
    compare(&table);
}

fn run(row: &Row, table: &mut String, failures: &mut String) {
    let scenario = load(row.scenario);
    let sum = scenario.rate_down();
    let rate = sum.scaled(row.load * SIZE as f64 / SIZE_ON_LINK as f64);
    let mut world = World::new(Setup::new(Seed(1), scenario.links.clone()));
    world.connect();
    if row.beside_bulk {
        world.add(Transfer::download());
    }
    world.add_flow(UdpLoad {
        from: Side::Server,
        size: SIZE,
        rate,
        order: if row.ordered {
            DatagramOrder::Within(DEADLINE)
        } else {
            DatagramOrder::AtOnce
        },
        starts_at: FROM,
        ends_at: UNTIL,
    });
    world.run_until(UNTIL + Duration::from_secs(1));
    let slowest = scenario.links.iter().map(|link| link.down.delay).max();
    let deadline = slowest.unwrap_or_default() + DEADLINE;
    let outcome = world.flows()[0].outcome(FROM, UNTIL, deadline);
    let goodput = outcome.goodput.as_mbps_f64();
    let waits = (0..world.network().len()).map(LinkId);
    let waits = waits.map(|link| {
        let down = tabane_netem::Direction::Down;
        world.network().queueing_delay(link, down, 0.95)
    });
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let _ = writeln!(
        table,
        "{:9} {:.2}  {:7}  {:4}  {:.3}  {:8.3}  {:7.3}  {goodput:6.2}  {:9.1}  {:6.1}  {:12.1}",
        row.scenario,
        row.load,
        if row.ordered { "25 ms" } else { "at once" },
        if row.beside_bulk { "yes" } else { "no" },
        outcome.delivered,
        outcome.in_order,
        outcome.in_time,
        ms(outcome.delay_median),
        ms(outcome.delay_p95),
        ms(waits.max().unwrap_or_default()),
    );
    let id = format!("{} at {}", row.scenario, row.load);
    let share = outcome.delivered * row.load.max(1.0);
    if share < row.delivered_min {
        let _ = writeln!(failures, "{id}: {share:.3} came");
    }
    if outcome.in_time < row.in_time_min {
        let _ = writeln!(failures, "{id}: {:.3} in time", outcome.in_time);
    }
    let settled = world.flows()[0].outcome(SETTLED, UNTIL, deadline);
    if row.in_time_min > 0.0 && settled.in_time < SETTLED_MIN {
        let _ = writeln!(
            failures,
            "{id}: {:.3} in time once settled",
            settled.in_time
        );
    }
    if row.load <= 1.0 && settled.delivered < SETTLED_MIN {
        let _ = writeln!(failures, "{id}: {:.3} came once settled", settled.delivered);
    }
}

#[expect(clippy::disallowed_methods, reason = "scenarios are files")]
fn load(name: &str) -> Scenario {
    let path = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the scenario ships with us");
    let scenario = Scenario::parse(&text, None, &mut |_| Err("no traces here".to_owned()));
    scenario.expect("the scenario is right")
}

#[expect(clippy::disallowed_methods, reason = "the table of record is a file")]
fn compare(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flows.txt");
    if std::env::var_os("TABANE_BLESS").is_some() {
        std::fs::write(path, table).expect("the tree can be written to");
        return;
    }
    let known = std::fs::read_to_string(path).expect("the table of record is committed");
    assert_eq!(
        table, known,
        "these figures differ from flows.txt (accept with TABANE_BLESS=1)"
    );
}
