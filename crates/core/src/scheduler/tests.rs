//! What every scheduler must hold to, and the views that their tests are made of.

use tabane_base::{Rng, Seed};

use super::*;

pub(super) fn path(index: usize, room: u64, mbps: u64, delay_ms: u64) -> PathView {
    let rate = Rate::from_mbps(mbps);
    let packet = Bytes::new(1_000);
    let rtt = Duration::from_millis(2 * delay_ms);
    PathView {
        id: PathId(index as u32),
        index: PathIndex(index),
        room: Bytes::new(room),
        wait: if room >= 1_000 {
            Duration::ZERO
        } else {
            rate.time_for(packet)
        },
        rate,
        weight: 1.0,
        cwnd: rate.amount_in(rtt),
        rtt,
        delay: Duration::from_millis(delay_ms),
        late: Duration::ZERO,
        packet,
        sent_ago: Duration::ZERO,
        listed: 0,
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in SchedulerKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "fastest"
        .parse::<SchedulerKind>()
        .expect_err("no such name");
    assert!(
        error
            .to_string()
            .contains("\"fastest\": choose one of tabane, arrival,"),
        "{error}"
    );
}

fn pick(rng: &mut Rng, values: &[u64]) -> u64 {
    values[rng.below(values.len() as u64) as usize]
}

/// Rates, delays and amounts as links have them, and as broken ones do.
fn any_path(index: usize, rng: &mut Rng) -> PathView {
    let rate = Rate::from_bps(pick(
        rng,
        &[0, 1, 64_000, 5_500_000, 1_000_000_000, u64::MAX],
    ));
    let packet = Bytes::new(pick(rng, &[1_200, 1_472, 9_000]));
    let room = Bytes::new(pick(rng, &[0, 1_199, 3_000, 65_536, u64::MAX]));
    let time = [0, 1, 20_000_000, 5_000_000_000, u64::MAX];
    let wait = match room >= packet {
        true => Duration::ZERO,
        false => Duration::from_nanos(pick(rng, &time)),
    };
    PathView {
        id: PathId((index * 3) as u32),
        index: PathIndex(index),
        room,
        wait,
        rate,
        weight: [0.0, 1e-9, 0.5, 1.0][rng.below(4) as usize],
        cwnd: Bytes::new(pick(rng, &[0, 1, 14_720, 1 << 40, u64::MAX])),
        rtt: Duration::from_nanos(pick(rng, &time)),
        delay: Duration::from_nanos(pick(rng, &time)),
        late: Duration::ZERO,
        packet,
        sent_ago: Duration::from_nanos(pick(rng, &time)),
        listed: pick(rng, &[0, 1, 2, 100_000]) as usize,
    }
}

#[test]
fn rates_of_zero_and_round_trips_of_zero_or_seconds_break_none() {
    for seed in 0..4_000 {
        let mut rng = Seed(seed).rng("scheduler");
        let kind = SchedulerKind::ALL[rng.below(8) as usize];
        let mut scheduler = Scheduler::new(kind);
        for step in 0..8 {
            let count = rng.below(5) as usize;
            let paths: Vec<_> = (0..count).map(|index| any_path(index, &mut rng)).collect();
            let amounts = [0, 1, 100_000, u64::MAX];
            let backlog = Backlog {
                streams: Bytes::new(pick(&mut rng, &amounts)),
                datagrams: Bytes::new(pick(&mut rng, &amounts)),
                ..Backlog::default()
            };
            scheduler.must_deal_again(&paths);
            let dealt = scheduler.deal(&paths);
            assert!(
                dealt.is_none_or(|place| place < count),
                "seed {seed} step {step}: {kind}"
            );
            let Some(grant) = scheduler.choose(&paths, backlog) else {
                continue;
            };
            let path = &paths[grant.index.0];
            assert!(path.has_room(), "seed {seed} step {step}: {kind} {paths:?}");
            assert!(grant.packets > 0, "seed {seed} step {step}: {kind}");
            assert!(
                grant.packets <= path.packets(),
                "seed {seed} step {step}: {kind}"
            );
        }
    }
}
