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

/// Headers take some, and a busy machine more.
fn assert_carries(row: &Value, rate_mbps: u64) {
    for way in ["down_bps", "up_bps"] {
        let share = row[way].as_f64().unwrap() / (rate_mbps as f64 * 1e6);
        assert!((0.6..1.15).contains(&share), "{way}: {row}");
    }
    for echo in ["idle_ms", "down_loaded_ms", "up_loaded_ms"] {
        assert!(row[echo].as_f64().unwrap() > 0.0, "{echo}: {row}");
    }
}

#[test]
fn links_are_measured_one_by_one_and_together() {
    let Some(world) = shaped() else { return };
    assert!(policy(&world, "set c1 --budget 1GB/month").status.success());
    let report = speed(&world, &[]);
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "{report:#}");
    for (row, (name, rate)) in links.iter().zip(["c1", "c2"].into_iter().zip(RATES)) {
        assert_eq!(row["link"], name, "{report:#}");
        assert_eq!(row["carrier"], "udp", "{report:#}");
        assert_carries(row, rate);
    }
    assert_carries(&report["together"], RATES.iter().sum());
    assert!(used(&world, "c1") > 1_000_000, "it counts as used");
}

#[test]
fn a_metered_link_is_left_out_until_it_is_named() {
    let Some(world) = shaped() else { return };
    assert!(policy(&world, "set c2 --metered true").status.success());
    let before = received(&world, "c2");
    let report = speed(&world, &[]);
    assert!(received(&world, "c2") - before < HARDLY_ANYTHING);
    let left_out = &report["links"][1];
    assert_eq!(left_out["link"], "c2", "{report:#}");
    let problem = left_out["problem"].as_str().unwrap();
    assert!(problem.contains("metered") && problem.contains("--link c2"));
    assert!(report["together"].is_null(), "{report:#}");
    assert_carries(&report["links"][0], RATES[0]);
    let named = speed(&world, &["--link", "c2"]);
    assert_carries(&named["links"][0], RATES[1]);
}
