//! Whose turn it is, and what is dropped.

use super::*;

const LIMIT: Duration = Duration::from_millis(100);
const ORDINARY: ClassId = ClassId::ORDINARY;

fn push(outbox: &mut Outbox, now: Instant, flow: u64, len: usize) {
    assert!(outbox.push(
        now,
        (FlowId(flow), ORDINARY),
        DatagramOrder::AtOnce,
        &vec![0; len]
    ));
}

fn take(outbox: &mut Outbox, now: Instant) -> Option<u64> {
    let (flow, _) = outbox.peek(now, ORDINARY)?;
    outbox
        .take(flow, Duration::ZERO)
        .map(|(label, _)| label.flow.0)
}

#[test]
fn a_flow_that_sends_little_does_not_wait_for_one_that_sends_much() {
    let mut outbox = Outbox::new(LIMIT);
    let now = Instant::EPOCH;
    (0..50).for_each(|_| push(&mut outbox, now, 1, 1_000));
    for _ in 0..5 {
        take(&mut outbox, now);
    }
    push(&mut outbox, now, 2, 100);
    assert_eq!(take(&mut outbox, now), Some(2));
    // Two that send much take turns by bytes.
    (0..50).for_each(|_| push(&mut outbox, now, 3, 500));
    let mut bytes = [0; 2];
    for _ in 0..40 {
        match take(&mut outbox, now) {
            Some(1) => bytes[0] += 1_000_i32,
            Some(3) => bytes[1] += 500,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        (bytes[0] - bytes[1]).abs() <= 2 * QUANTUM as i32,
        "{bytes:?}"
    );
}

/// A queue fed at twice the rate at which it is emptied: the longest wait of the last second,
/// and how many were dropped.
#[test]
fn a_queue_that_stays_long_is_shortened_from_the_front_and_nothing_waits_for_ever() {
    let mut outbox = Outbox::new(LIMIT);
    let mut taken = 0;
    for ms in 0..3_000 {
        let now = Instant::from_millis(ms);
        push(&mut outbox, now, 1, 1_000);
        if ms % 2 == 0 {
            taken += u64::from(take(&mut outbox, now).is_some());
        }
        assert!(outbox.bytes() <= 102_000, "{}", outbox.bytes());
    }
    assert_eq!(taken, 1_500);
    assert!(outbox.dropped() > 1_300, "{}", outbox.dropped());
    let late = Instant::from_millis(10_000);
    assert_eq!(take(&mut outbox, late), None);
    assert_eq!((outbox.bytes(), outbox.is_empty(ORDINARY)), (0, true));
}

/// A flow with a deadline that sends more than passes: once that has gone on for as long as a
/// burst may take, hardly anything is older than the deadline.
#[test]
fn of_a_backlog_that_goes_on_what_is_older_than_its_deadline_is_dropped() {
    let deadline = Duration::from_millis(25);
    let mut outbox = Outbox::new(LIMIT);
    let mut oldest = Duration::ZERO;
    for ms in 0..1_000 {
        let now = Instant::from_millis(ms);
        for _ in 0..2 {
            let sent = outbox.push(
                now,
                (FlowId(1), ORDINARY),
                DatagramOrder::Within(deadline),
                &(ms as u32).to_be_bytes().repeat(250),
            );
            assert!(sent);
        }
        let (flow, _) = outbox.peek(now, ORDINARY).expect("it waits");
        let (_, data) = outbox.take(flow, Duration::ZERO).expect("it waits");
        let sent_ms = u32::from_be_bytes(data[..4].try_into().expect("four bytes"));
        let waited = now.since(Instant::from_millis(u64::from(sent_ms)));
        if ms < 100 {
            assert_eq!(outbox.dropped(), 0, "a burst of {ms} ms");
        } else if ms > 300 {
            oldest = oldest.max(waited);
        }
    }
    assert!(oldest <= deadline, "{oldest:?}");
}

#[test]
fn a_few_packets_outlive_their_deadline() {
    let mut outbox = Outbox::new(LIMIT);
    let order = DatagramOrder::Within(Duration::from_millis(1));
    for _ in 0..10 {
        assert!(outbox.push(Instant::EPOCH, (FlowId(1), ORDINARY), order, &[0; 1_000]));
    }
    let taken = (0..10).filter(|i| take(&mut outbox, Instant::from_millis(90 + i)).is_some());
    assert_eq!((taken.count(), outbox.dropped()), (10, 0));
}

#[test]
fn a_burst_that_drains_loses_nothing() {
    let mut outbox = Outbox::new(LIMIT);
    (0..80).for_each(|_| push(&mut outbox, Instant::EPOCH, 1, 1_000));
    for ms in 0..80 {
        assert_eq!(take(&mut outbox, Instant::from_millis(ms)), Some(1));
    }
    assert_eq!(outbox.dropped(), 0);
}

#[test]
fn numbers_grow_without_gaps_and_never_repeat_even_when_flows_are_forgotten() {
    let mut outbox = Outbox::new(LIMIT);
    let order = DatagramOrder::Within(Duration::from_millis(25));
    let mut last = BTreeMap::new();
    for round in 0..3 {
        for flow in 0..2 * MAX_FLOWS as u64 {
            let now = Instant::from_millis(round * 10_000 + flow);
            assert!(outbox.push(now, (FlowId(flow), ORDINARY), order, b"x"));
            let (flow, _) = outbox.peek(now, ORDINARY).expect("it waits");
            let (label, _) = outbox.take(flow, Duration::ZERO).expect("it waits");
            let number = label.place.expect("it is in order").number;
            let before = last.insert(flow, number);
            assert!(before.is_none_or(|before| before < number), "{flow:?}");
        }
    }
    assert_eq!(outbox.queues.len(), MAX_FLOWS);
}

#[test]
fn flows_that_begin_number_from_0_whatever_has_ended_before() {
    let mut outbox = Outbox::new(LIMIT);
    let order = DatagramOrder::Within(Duration::from_millis(25));
    for flow in (0..4 * MAX_FLOWS as u64).map(FlowId) {
        for number in 0..2 {
            assert!(outbox.push(Instant::EPOCH, (flow, ORDINARY), order, b"x"));
            let (label, _) = outbox.take(flow, Duration::ZERO).expect("it waits");
            assert_eq!(label.place.expect("it is in order").number, number);
        }
        // Every other one ends; in the end the rest have to make room.
        if flow.0 % 2 == 0 {
            outbox.forget(flow);
        }
    }
}

#[test]
fn too_much_is_refused() {
    let mut outbox = Outbox::new(LIMIT);
    let big = vec![0; 60_000];
    let taken = (0..20).filter(|_| {
        outbox.push(
            Instant::EPOCH,
            (FlowId(1), ORDINARY),
            DatagramOrder::AtOnce,
            &big,
        )
    });
    assert_eq!(taken.count(), 9);
}

/// A hostile server answers with datagrams of nothing, or nearly (docs/security.md, M9).
#[test]
fn datagrams_of_nothing_take_room_as_others_do() {
    for size in [0, 1] {
        let mut outbox = Outbox::new(LIMIT);
        let mut sent = || {
            let to = (FlowId(1), ORDINARY);
            outbox.push(Instant::EPOCH, to, DatagramOrder::AtOnce, &[0; 1][..size])
        };
        let taken = (0..100_000).take_while(|_| sent()).count();
        assert!((1_000..5_000).contains(&taken), "{taken} of {size} B");
        while take(&mut outbox, Instant::EPOCH).is_some() {}
        assert_eq!(outbox.held(), 0);
    }
}

/// No path is there for a class, so no turn comes that would drop what is too old.
#[test]
fn what_waits_in_vain_leaves_room_for_others_once_it_is_too_old() {
    let mut outbox = Outbox::new(LIMIT);
    let pathless = ClassId::new(1).expect("a class");
    let sent = |outbox: &mut Outbox, now, flow, class| {
        let to = (FlowId(flow), class);
        outbox.push(now, to, DatagramOrder::AtOnce, &[0; 1_000])
    };
    for flow in 0..3 {
        while sent(&mut outbox, Instant::EPOCH, flow, pathless) {}
    }
    let soon = Instant::from_millis(90);
    assert!(!sent(&mut outbox, soon, 3, ORDINARY));
    let later = Instant::from_millis(110);
    assert!(sent(&mut outbox, later, 3, ORDINARY));
    assert_eq!((outbox.bytes_in(pathless), outbox.bytes()), (0, 1_000));
    assert_eq!(outbox.peek(later, pathless), None);
    assert_eq!(take(&mut outbox, later), Some(3));
}

#[test]
fn a_flow_that_changes_its_class_takes_along_what_waits() {
    let mut outbox = Outbox::new(LIMIT);
    let now = Instant::EPOCH;
    (0..3).for_each(|_| push(&mut outbox, now, 1, 1_000));
    push(&mut outbox, now, 2, 100);
    let other = ClassId::new(1).expect("a class");
    assert!(outbox.push(now, (FlowId(1), other), DatagramOrder::AtOnce, b"x"));
    assert_eq!(
        (outbox.bytes_in(ORDINARY), outbox.bytes_in(other)),
        (100, 3_001)
    );
    assert_eq!(take(&mut outbox, now), Some(2));
    assert!(outbox.is_empty(ORDINARY) || outbox.peek(now, ORDINARY).is_none());
    assert_eq!(outbox.peek(now, other), Some((FlowId(1), 1_000)));
    outbox.forget(FlowId(1));
    assert_eq!((outbox.bytes(), outbox.peek(now, other)), (0, None));
}

/// With a datagram that waits for each of so many flows, what a thousand moves of one from class to
/// class take.
#[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
fn moved(flows: u64) -> std::time::Duration {
    let mut outbox = Outbox::new(LIMIT);
    (0..flows).for_each(|flow| push(&mut outbox, Instant::EPOCH, flow, 1));
    let since = std::time::Instant::now();
    for n in 0..1_000 {
        let class = ClassId::new((n % 2) as u8).expect("a class");
        outbox.set_class(FlowId(flows - 1), class);
    }
    since.elapsed()
}

/// A client moves them by eight bytes, some hundred times in a packet.
#[test]
fn a_flow_that_changes_its_class_is_not_looked_for_among_all() {
    let rounds = (0..20).map(|_| (moved(1), moved(1_000)));
    let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
    let (one, all) = least.expect("twenty");
    println!("1,000 moves: {one:?} of one flow, {all:?} of 1,000");
    assert!(all < 10 * one, "{one:?} of one flow, {all:?} of 1,000");
}
