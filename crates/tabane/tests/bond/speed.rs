//! `tabane speed`: what each link and both together carry, by links whose rates are known.

use serde_json::Value;

use crate::policy::{HARDLY_ANYTHING, policy, received, used};
use crate::world::World;

/// Both ways, in Mbit/s.
const RATES: [u64; 2] = [20, 10];

fn shaped() -> Option<World> {
    let world = World::new(&[])?;
    world.limit_rates(RATES);
    world.join();
    Some(world)
}

fn speed(world: &World, flags: &[&str]) -> Value {
    let mut command = world.tabane(&["speed", "--json"]);
    let output = command.args(flags).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Headers take some. A machine that is busy with other things takes more, for a while.
fn speed_within(
    world: &World,
    flags: &[&str],
    rows: impl Fn(&Value) -> Vec<(Value, u64)>,
) -> Value {
    let mut tries = 0;
    loop {
        let report = speed(world, flags);
        let of_rate = |(row, rate_mbps): &(Value, u64), way| {
            row[way].as_f64().unwrap() / (*rate_mbps as f64 * 1e6)
        };
        let rows = rows(&report);
        for (row, _) in &rows {
            for echo in ["idle_ms", "down_loaded_ms", "up_loaded_ms"] {
                assert!(row[echo].as_f64().unwrap() > 0.0, "{echo}: {row}");
            }
        }
        let ways = ["down_bps", "up_bps"];
        let carries = |row| {
            ways.iter()
                .all(|way| (0.6..1.15).contains(&of_rate(row, *way)))
        };
        if rows.iter().all(carries) {
            return report;
        }
        tries += 1;
        assert!(tries < 3, "{report:#}");
    }
}

#[test]
fn links_are_measured_one_by_one_and_together() {
    let Some(world) = shaped() else { return };
    assert!(policy(&world, "set c1 --budget 1GB/month").status.success());
    let report = speed_within(&world, &[], |report| {
        let [first, second] = RATES;
        let links = &report["links"];
        let together = report["together"].clone();
        vec![
            (links[0].clone(), first),
            (links[1].clone(), second),
            (together, first + second),
        ]
    });
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "{report:#}");
    for (row, name) in links.iter().zip(["c1", "c2"]) {
        assert_eq!(row["link"], name, "{report:#}");
        assert_eq!(row["carrier"], "udp", "{report:#}");
    }
    assert!(used(&world, "c1") > 1_000_000, "it counts as used");
}

#[test]
fn a_metered_link_is_left_out_until_it_is_named() {
    let Some(world) = shaped() else { return };
    assert!(policy(&world, "set c2 --metered true").status.success());
    let before = received(&world, "c2");
    let first_row = |rate| move |report: &Value| vec![(report["links"][0].clone(), rate)];
    let report = speed_within(&world, &[], first_row(RATES[0]));
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let left_out = &report["links"][1];
    assert_eq!(left_out["link"], "c2", "{report:#}");
    let problem = left_out["problem"].as_str().unwrap();
    assert!(problem.contains("metered") && problem.contains("--link c2"));
    assert!(report["together"].is_null(), "{report:#}");
    speed_within(&world, &["--link", "c2"], first_row(RATES[1]));
}
