//! What makes UDP suspected, and what comparisons come to, by tables.

use super::*;

const MBIT: u64 = 125_000;
const INTO: usize = 1;

/// A path under load towards here: so many bytes a second, so many of a thousand packets lost.
struct Path {
    rate: u64,
    permille: u64,
    count: Count,
}

impl Path {
    fn new(rate: u64, permille: u64) -> Self {
        Self {
            rate,
            permille,
            count: Count::default(),
        }
    }

    fn after(&mut self, at: Instant, span: Duration) -> Sample {
        let bytes = self.rate * span.as_millis() as u64 / 1_000;
        let arrived = bytes / 1_200;
        let lost = arrived * self.permille / (1_000 - self.permille);
        self.count.bytes += bytes;
        self.count.packets += arrived + lost;
        self.count.lost += lost;
        Sample {
            at,
            counts: [Count::default(), self.count],
            is_active: true,
        }
    }
}

/// What is suspected after each of the seconds that `path` goes through.
fn watched(path: &mut Path, permilles: &[u64]) -> Vec<bool> {
    let mut now = Instant::now();
    let mut watch = Watch::default();
    let mut told = Vec::new();
    for permille in permilles {
        path.permille = *permille;
        now += LOOK_ALONE;
        told.push(watch.add(path.after(now, LOOK_ALONE)).is_some());
    }
    told
}

#[test]
fn losses_are_suspected_when_they_last() {
    let rows: &[(u64, &[u64], bool)] = &[
        (MBIT, &[0, 500, 500, 500], true),
        (MBIT, &[0, 40, 40, 40], true),
        // The search for the rate, a bad moment, a link that loses one of a hundred.
        (MBIT, &[500, 500, 0, 0, 0, 0], false),
        (MBIT, &[0, 500, 500, 0, 500, 500, 0], false),
        (50 * MBIT, &[10; 20], false),
        // A few packets lost of a few.
        (2_000, &[500; 20], false),
    ];
    for (rate, permilles, suspected) in rows {
        let told = watched(&mut Path::new(*rate, 0), permilles);
        assert_eq!(told.contains(&true), *suspected, "{rate} {permilles:?}");
    }
}

#[test]
fn what_udp_carried_is_told_and_pauses_begin_anew() {
    let now = Instant::now();
    let mut path = Path::new(MBIT, 300);
    let mut watch = Watch::default();
    let mut look = |seconds: u32| {
        let at = now + seconds * LOOK_ALONE;
        watch.add(path.after(at, LOOK_ALONE))
    };
    assert_eq!([1, 2, 3].map(&mut look), [None; 3]);
    let suspicion = look(4).unwrap();
    assert_eq!(suspicion.way, INTO);
    assert!(
        suspicion.carried.abs_diff(MBIT) < MBIT / 50,
        "{suspicion:?}"
    );
    assert_eq!([10, 11, 12].map(&mut look), [None; 3]);
    assert!(look(13).is_some());
}

/// Compares until there is a verdict: how long that took, and what it was.
fn compared(carried: u64, is_back: bool, mut udp: Path, mut tls: Path) -> (Duration, Verdict) {
    let begun = Instant::now();
    let suspicion = Suspicion { way: INTO, carried };
    let mut comparison = Comparison::new(begun, suspicion, is_back);
    let mut now = begun;
    loop {
        now += LOOK_BESIDE;
        let [udp, tls] = [&mut udp, &mut tls].map(|path| path.after(now, LOOK_BESIDE));
        if let Some(verdict) = comparison.add(udp, tls) {
            return (now - begun, verdict);
        }
        assert!(now - begun < 2 * PATIENCE, "no verdict");
    }
}

#[test]
fn tls_is_better_only_where_it_carries_far_more() {
    let rows = [
        ("policed at 1 of 50 Mbit/s", MBIT, MBIT, 48 * MBIT, true),
        ("policed, and little to carry", MBIT, 0, 4 * MBIT, true),
        ("a slow link that both share", 2 * MBIT, MBIT, MBIT, false),
        ("pushed aside", 10 * MBIT, MBIT / 2, 9 * MBIT, false),
        ("random losses", 10 * MBIT, 9 * MBIT, MBIT, false),
        ("faster by now", MBIT, 10 * MBIT, 10 * MBIT, false),
        ("nothing to carry", MBIT, 0, 0, false),
        ("next to nothing to carry", 100, 100, 1_000, false),
    ];
    for (what, carried, udp, tls, better) in rows {
        let (took, verdict) = compared(carried, false, Path::new(udp, 0), Path::new(tls, 0));
        assert_eq!(verdict != Verdict::UdpWillDo, better, "{what}: {verdict:?}");
        let longest = if better { 3 } else { 6 };
        assert!(took <= Duration::from_secs(longest), "{what}: {took:?}");
    }
}

#[test]
fn udp_is_taken_back_once_it_is_not_policed_or_tls_is_worse() {
    let rows = [
        ("policed as before", MBIT, 500, 48 * MBIT, false),
        ("policed elsewhere", 4 * MBIT, 100, 48 * MBIT, false),
        ("policed no more", 20 * MBIT, 5, 30 * MBIT, true),
        ("TLS is the slow one", MBIT, 0, MBIT / 2, true),
        ("nothing to carry", 0, 0, 0, false),
    ];
    for (what, udp, permille, tls, back) in rows {
        let (took, verdict) = compared(MBIT, true, Path::new(udp, permille), Path::new(tls, 0));
        assert_eq!(verdict == Verdict::UdpWillDo, back, "{what}: {verdict:?}");
        assert_eq!(took, PATIENCE, "{what}");
    }
}

#[test]
fn silence_decides_at_once() {
    for (is_back, silent_udp, better) in [
        (false, true, true),
        (true, true, true),
        (true, false, false),
    ] {
        let mut comparison = Comparison::new(
            Instant::now(),
            Suspicion {
                way: INTO,
                carried: MBIT,
            },
            is_back,
        );
        let mut sample = Path::new(0, 0).after(Instant::now(), LOOK_BESIDE);
        let other = sample;
        sample.is_active = false;
        let (udp, tls) = if silent_udp {
            (sample, other)
        } else {
            (other, sample)
        };
        let verdict = comparison.add(udp, tls).unwrap();
        assert_eq!(verdict != Verdict::UdpWillDo, better);
    }
}
