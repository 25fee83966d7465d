//! Packets overtake one another, as on networks with several ways or queues: links carry what they
//! carry where packets keep their order, with default settings.

#[path = "links/constant.rs"]
mod constant;

use std::fmt::Write as _;

use constant::link;
use tabane_base::{Bytes, Duration, Instant, Seed};
use tabane_sim::{LinkId, Setup, Side, Tamper, Transfer, World};

const FROM: Instant = Instant::from_millis(2_000);
const UNTIL: Instant = Instant::from_millis(5_000);
/// Of what is carried where nothing is overtaken.
const CARRIED: f64 = 0.93;

/// Rates in Mbit/s and one-way delays in ms.
const NETWORKS: [&[(u64, u64)]; 4] = [&[(20, 10)], &[(100, 5)], &[(50, 30)], &[(100, 3), (10, 40)]];

/// Packets in a hundred that are held back, each way, and for how many ms at most.
const HELD: [(u32, u64); 4] = [(10, 10), (30, 5), (30, 20), (100, 15)];

fn carried(links: &[(u64, u64)], (percent, ms): (u32, u64), transfer: Transfer) -> f64 {
    let queue = Duration::from_millis(150);
    let specs = links.iter().map(|it| link(*it, queue));
    let mut world = World::new(Setup::new(Seed(5), specs.collect()));
    for link in 0..links.len() {
        let tamper = Tamper {
            reorder: f64::from(percent) / 100.0,
            reorder_by: Duration::from_millis(ms),
            ..Tamper::default()
        };
        world.network_mut().set_tamper(LinkId(link), tamper);
    }
    world.connect();
    world.add(transfer);
    world.run_until(UNTIL);
    let receiver = match transfer.up {
        Bytes::ZERO => Side::Client,
        _ => Side::Server,
    };
    let goodput = world.outcome(receiver).goodput_between(FROM, UNTIL);
    goodput.as_mbps_f64()
}

#[test]
fn links_that_reorder_carry_what_others_do() {
    let mut table =
        String::from("Mbit/s and ms, held in % by ms: down and up, of what is carried in order\n");
    let mut is_less = false;
    for links in NETWORKS {
        let transfers = [Transfer::download(), Transfer::upload()];
        let ordered = transfers.map(|transfer| carried(links, (0, 0), transfer));
        for held in HELD {
            let _ = write!(table, "{links:?} {held:?}");
            for (transfer, ordered) in transfers.into_iter().zip(ordered) {
                let part = carried(links, held, transfer) / ordered;
                is_less |= part < CARRIED;
                let _ = write!(table, " {part:.2}");
            }
            table.push('\n');
        }
    }
    println!("{table}");
    assert!(!is_less, "{table}");
}
