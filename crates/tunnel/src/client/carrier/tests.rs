//! One link's choice through its life, by tables.

use super::*;
use crate::client::comparison::Count;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn tls_is_dialed_once_udp_is_late_and_never_while_it_answers() {
    let now = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    assert_eq!(choice.dial_at(), None);
    choice.on_udp_asked(now);
    choice.on_udp_asked(now + SECOND);
    assert_eq!(choice.dial_at(), Some(now + UDP_PATIENCE));
    choice.on_udp_up(now, None);
    assert_eq!(choice.dial_at(), None);
    choice.on_silent(now + SECOND);
    choice.on_dial();
    assert_eq!(choice.dial_at(), None);
    choice.on_dial_failed(now + SECOND, Some("HTTP 407".to_owned()));
    assert_eq!(choice.dial_at(), Some(now + SECOND + FIRST_DIAL));
    let why = choice.why(now + 2 * SECOND, None).unwrap();
    assert!(why.contains("407"), "{why}");
}

#[test]
fn udp_is_asked_again_ever_more_rarely() {
    let now = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    choice.on_udp_asked(now);
    choice.on_tls_up(now);
    assert_eq!(choice.dial_at(), None);
    let mut at = choice.ask_at().unwrap();
    assert_eq!(at, now + FIRST_ASK);
    let mut waits = Vec::new();
    for _ in 0..8 {
        choice.on_ask();
        assert_eq!(choice.ask_at(), None);
        choice.on_ask_failed(at);
        let next = choice.ask_at().unwrap();
        waits.push((next - at).as_secs());
        at = next;
    }
    assert_eq!(waits, [30, 60, 120, 240, 300, 300, 300, 300]);
    // UDP comes and goes: what was learnt holds.
    choice.on_udp_up(at, None);
    choice.on_silent(at + SECOND);
    choice.on_tls_up(at + 2 * SECOND);
    assert_eq!(choice.ask_at(), Some(at + 2 * SECOND + LAST_ASK));
    // It was back for good.
    choice.on_udp_up(at, None);
    choice.on_tls_up(at + 2 * TRUST);
    assert_eq!(choice.ask_at(), Some(at + 2 * TRUST + FIRST_ASK));
}

#[test]
fn a_connection_that_ends_is_dialed_again_while_udp_is_asked() {
    let now = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    choice.on_tls_up(now);
    choice.on_tls_gone(now + 2 * STEADY);
    assert_eq!(choice.carrier(), Carrier::Udp);
    assert_eq!(choice.dial_at(), Some(now + 2 * STEADY));
    // Not those that end at once, as behind a firewall that cuts them after some bytes.
    let mut waits = Vec::new();
    for _ in 0..3 {
        choice.on_dial();
        choice.on_tls_up(now);
        choice.on_tls_gone(now + SECOND);
        waits.push(choice.dial_at().unwrap() - (now + SECOND));
    }
    assert_eq!(waits, [FIRST_DIAL, 2 * FIRST_DIAL, 4 * FIRST_DIAL]);
}

/// As on a train without UDP: the network may be back at any moment.
#[test]
fn where_a_connection_has_lasted_the_next_is_not_put_off_for_long() {
    let now = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    let mut waits_after = |lasted| {
        choice.on_tls_up(now);
        let mut at = now + lasted;
        choice.on_tls_gone(at);
        let waits = (0..6).map(|_| {
            choice.on_dial();
            choice.on_dial_failed(at, None);
            let wait = choice.dial_at().unwrap() - at;
            at += wait;
            wait
        });
        waits.max().unwrap()
    };
    assert_eq!(waits_after(SECOND), LAST_DIAL);
    assert_eq!(waits_after(2 * STEADY), LAST_REDIAL);
    // It has become one that cuts them.
    assert_eq!(waits_after(SECOND), LAST_DIAL);
}

#[test]
fn the_policy_has_the_last_word() {
    let now = Instant::now();
    let mut udp = Choice::new(CarrierKind::Udp, None);
    udp.on_udp_asked(now);
    assert_eq!(udp.dial_at(), None);
    let mut tls = Choice::new(CarrierKind::Tls, None);
    assert!(!tls.uses_udp());
    tls.on_udp_asked(now);
    assert_eq!(tls.dial_at(), Some(now));
    tls.on_tls_up(now);
    assert_eq!(tls.ask_at(), None);
}

const MBIT: u64 = 125_000;

/// UDP that loses a tenth of what comes by it, for so long that it is suspected.
fn suspect(choice: &mut Choice, begin: Instant) -> Instant {
    choice.on_udp_up(begin, None);
    let mut now = begin;
    for second in 1..=4 {
        now = choice.look_at().unwrap();
        assert_eq!(now, begin + second * LOOK_ALONE);
        assert_eq!(choice.dial_at(), None);
        let used = sample(now, now - begin, MBIT, 10);
        assert_eq!(choice.on_look(now, Some(used), None), None);
    }
    now
}

/// What has come by a path in `span` at so many bytes a second, one of `lost` packets lost.
fn sample(at: Instant, span: Duration, rate: u64, lost: u64) -> Sample {
    let bytes = rate * span.as_millis() as u64 / 1_000;
    let packets = bytes / 1_000;
    let into = Count {
        bytes,
        packets,
        lost: packets / lost,
    };
    Sample {
        at,
        counts: [Count::default(), into],
        is_active: true,
    }
}

/// Both carry from `begin` on, UDP a megabit a second; what comes of it, and when.
fn compare(choice: &mut Choice, begin: Instant, udp: u64, tls: u64) -> (Change, Instant) {
    assert!(choice.on_beside(begin));
    loop {
        let now = choice.look_at().unwrap();
        let span = now - begin;
        let (udp, tls) = (sample(now, span, udp, 10), sample(now, span, tls, u64::MAX));
        let (used, beside) = match choice.carrier() {
            Carrier::Udp => (udp, tls),
            Carrier::Tls => (tls, udp),
        };
        if let Some(change) = choice.on_look(now, Some(used), Some(beside)) {
            return (change, now);
        }
        assert!(span < Duration::from_secs(20), "no verdict");
    }
}

#[test]
fn policed_udp_is_left_within_ten_seconds_and_tried_again_under_load_alone() {
    let begin = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    let now = suspect(&mut choice, begin);
    assert_eq!(choice.dial_at(), Some(now));
    choice.on_dial();
    assert_eq!(choice.dial_at(), None);
    let (change, now) = compare(&mut choice, now, MBIT, 48 * MBIT);
    assert_eq!(change, Change::Over);
    assert!(now - begin < Duration::from_secs(10), "{:?}", now - begin);
    choice.on_tls_up(now);
    let why = choice.why(now, None).unwrap();
    assert!(
        why.contains("1.00 Mbit/s") && why.contains("48.00 Mbit/s"),
        "{why}"
    );

    let mut at = choice.ask_at().unwrap();
    assert_eq!(at - now, FIRST_POLICED_ASK);
    // Nothing is carried, then much.
    for (rate, may) in [(0, false), (0, false), (48 * MBIT, true)] {
        let tls = sample(at, at - now, rate, u64::MAX);
        assert_eq!(choice.may_ask(at, Some(tls)), may, "{rate}");
        at = choice.ask_at().unwrap();
    }
    choice.on_ask();
    let (change, now) = compare(&mut choice, at, MBIT, 48 * MBIT);
    assert_eq!(change, Change::Stay);
    assert_eq!(choice.ask_at(), Some(now + 2 * FIRST_POLICED_ASK));
    assert_eq!(choice.look_at(), None);
    // Another time TLS has become the slower one.
    choice.on_ask();
    assert!(choice.on_beside(now));
    let begun = now;
    let change = loop {
        let now = choice.look_at().unwrap();
        let [udp, tls] = [9, 1].map(|n| sample(now, now - begun, n * MBIT, u64::MAX));
        if let Some(change) = choice.on_look(now, Some(tls), Some(udp)) {
            break change;
        }
    };
    assert_eq!(change, Change::Over);
    choice.on_udp_up(now, None);
    assert_eq!((choice.why(now, None), choice.dial_at()), (None, None));
}

#[test]
fn losses_that_tls_does_not_help_against_are_doubted_ever_longer() {
    let mut choice = Choice::new(CarrierKind::Auto, None);
    let mut now = suspect(&mut choice, Instant::now());
    let mut waits = Vec::new();
    for _ in 0..3 {
        choice.on_dial();
        let (change, ended) = compare(&mut choice, now, MBIT, MBIT);
        choice.on_dial_dropped();
        assert_eq!(change, Change::Stay);
        // It loses as much on and on.
        now = ended;
        while choice.dial_at().is_none() {
            now = choice.look_at().unwrap();
            choice.on_look(now, Some(sample(now, now - ended, MBIT, 10)), None);
        }
        waits.push((now - ended).as_secs());
    }
    assert_eq!(waits, [30, 60, 120]);
}

#[test]
fn a_dial_in_vain_leaves_suspected_udp_alone_for_a_while() {
    let mut choice = Choice::new(CarrierKind::Auto, None);
    let now = suspect(&mut choice, Instant::now());
    choice.on_dial();
    choice.on_dial_failed(now, Some("refused".to_owned()));
    assert_eq!((choice.dial_at(), choice.is_suspected()), (None, false));
    // With the policy's word for UDP nothing is looked at.
    let mut udp = Choice::new(CarrierKind::Udp, None);
    udp.on_udp_up(now, None);
    assert_eq!(udp.look_at(), None);
}

#[test]
fn a_network_that_is_remembered_has_tls_dialed_beside_the_first_question() {
    let now = Instant::now();
    let begun = |memory| {
        let mut choice = Choice::new(CarrierKind::Auto, Some(memory));
        choice.on_udp_asked(now);
        choice
    };
    for (memory, wait) in [
        (CarrierMemory::Usual, UDP_PATIENCE),
        (CarrierMemory::Port(443), UDP_PATIENCE),
        (CarrierMemory::Silent, Duration::ZERO),
    ] {
        assert_eq!(begun(memory).dial_at(), Some(now + wait), "{memory}");
    }
    // It is so.
    let mut choice = begun(CarrierMemory::Silent);
    assert_eq!(choice.memory(), None);
    choice.on_tls_up(now);
    assert_eq!(choice.memory(), Some(CarrierMemory::Silent));
    let why = |choice: &Choice| choice.why(now, None).unwrap_or_default();
    assert_eq!(
        why(&choice),
        "UDP gets no answer here (remembered of this network)"
    );
    choice.on_ask();
    choice.on_ask_failed(now + FIRST_ASK);
    assert_eq!(why(&choice), "UDP gets no answer here");
    // The network is another by now.
    let mut choice = begun(CarrierMemory::Silent);
    choice.on_udp_up(now, None);
    assert_eq!(
        (choice.memory(), choice.dial_at()),
        (Some(CarrierMemory::Usual), None)
    );
    choice.on_silent(now + SECOND);
    assert_eq!(choice.dial_at(), Some(now + SECOND + UDP_PATIENCE));
    // What is told late is as good, and nothing once the link knows.
    let mut choice = Choice::new(CarrierKind::Auto, None);
    choice.on_udp_asked(now);
    assert!(choice.recall(CarrierMemory::Silent) && !choice.recall(CarrierMemory::Silent));
    assert_eq!(choice.dial_at(), Some(now));
    // The policy has the last word.
    let mut udp = Choice::new(CarrierKind::Udp, Some(CarrierMemory::Silent));
    udp.on_udp_asked(now);
    udp.on_udp_up(now, None);
    assert_eq!((udp.dial_at(), udp.memory()), (None, None));
}

#[test]
fn udp_that_is_known_to_be_policed_is_left_as_soon_as_tls_is_up() {
    let now = Instant::now();
    let rates = PolicedRates {
        is_inbound: true,
        udp: tabane_base::Rate::from_mbps(1),
        tls: tabane_base::Rate::from_mbps(48),
    };
    let memory = CarrierMemory::Policed(rates);
    let mut choice = Choice::new(CarrierKind::Auto, Some(memory));
    choice.on_udp_asked(now);
    choice.on_udp_up(now, None);
    // Of one answer nothing is learnt.
    assert_eq!((choice.memory(), choice.dial_at()), (None, Some(now)));
    choice.on_dial();
    assert!(!choice.on_beside(now), "there is nothing to compare");
    choice.on_tls_up(now);
    assert_eq!(choice.memory(), Some(memory));
    assert!(choice.why(now, None).unwrap().contains("(remembered"));
    assert_eq!(choice.ask_at(), Some(now + FIRST_POLICED_ASK));
}

#[test]
fn the_relays_own_port_is_asked_again_where_another_one_answers() {
    let now = Instant::now();
    let mut choice = Choice::new(CarrierKind::Auto, None);
    choice.on_udp_up(now, None);
    assert_eq!(choice.ask_at(), None);
    choice.on_silent(now);
    choice.on_udp_up(now, Some(443));
    assert_eq!(choice.memory(), Some(CarrierMemory::Port(443)));
    let mut at = now;
    let mut waits = Vec::new();
    for _ in 0..3 {
        // It is up once more, and what was asked stays asked.
        choice.on_udp_up(at, Some(443));
        let next = choice.ask_at().unwrap();
        waits.push((next - at).as_secs());
        at = next;
        assert!(!choice.is_asking());
        choice.on_ask();
        assert!(choice.is_asking());
        choice.on_ask_failed(at);
        assert!(choice.look_at().is_some(), "it is watched all the same");
    }
    assert_eq!(waits, [15, 30, 60]);
    choice.on_udp_up(at, None);
    assert_eq!(
        (choice.ask_at(), choice.memory()),
        (None, Some(CarrierMemory::Usual))
    );
    // It was not back for good.
    choice.on_udp_up(at + SECOND, Some(443));
    assert_eq!(choice.ask_at(), Some(at + SECOND + 8 * FIRST_ASK));
}
