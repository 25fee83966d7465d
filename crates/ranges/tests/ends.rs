//! When a transfer ends that comes to nothing, and why.

#![allow(clippy::unwrap_used)]

use tabane_base::{Bytes, Duration, Instant};
use tabane_ranges::{
    Answer, Command, EntityTag, Event, Failure, Fault, LinkId, LinkLimits, Order, Request, Rule,
    Settings, Transfer,
};

const PATIENCE: Duration = Duration::from_secs(3);
const SIZE: u64 = 10_000_000;

fn settings(order: Order) -> Settings {
    Settings {
        rule: Rule::Tabane,
        order,
        by_digest: false,
        sources: 1,
        patience: PATIENCE,
    }
}

fn transfer(order: Order) -> Transfer {
    let mut transfer = Transfer::new(Instant::EPOCH, settings(order));
    transfer.handle_link(Instant::EPOCH, LinkId(1), LinkLimits::default());
    transfer
}

/// The next request; others that are dropped meanwhile do not matter.
fn request(transfer: &mut Transfer, now: Instant) -> Option<Request> {
    loop {
        match transfer.poll_command(now)? {
            Command::Start(request) => return Some(request),
            Command::Cancel(_) => {}
        }
    }
}

/// Lets time pass until it ends; nothing comes any more.
fn end(transfer: &mut Transfer, mut now: Instant) -> (Instant, Failure) {
    for _ in 0..10_000 {
        while request(transfer, now).is_some() {}
        while let Some(event) = transfer.poll_event() {
            if let Event::Failed(failure) = event {
                return (now, failure);
            }
        }
        now = transfer.poll_timeout();
    }
    panic!("it never ends");
}

fn tag() -> Option<EntityTag> {
    EntityTag::strong("\"1\"")
}

fn soon(since: Instant, at: Instant) -> bool {
    (PATIENCE..=PATIENCE + Duration::from_millis(100)).contains(&(at - since))
}

#[test]
fn patience_is_what_it_says_with_a_request_out() {
    let mut silent = transfer(Order::Any);
    let (at, failure) = end(&mut silent, Instant::EPOCH);
    assert_eq!(failure, Failure::Silent(PATIENCE));
    assert!(soon(Instant::EPOCH, at), "{at:?}");

    // The same in the middle of a body.
    let mut stalled = transfer(Order::Any);
    let now = Instant::EPOCH + Duration::from_secs(1);
    let first = request(&mut stalled, Instant::EPOCH).unwrap();
    let (length, tag) = (Some(SIZE), tag());
    stalled.handle_answer(now, first.id, Answer::Whole { length, tag });
    stalled.handle_data(now, first.id, 1_000);
    let (at, failure) = end(&mut stalled, now);
    assert_eq!(failure, Failure::Silent(PATIENCE));
    assert!(soon(now, at), "{at:?}");
}

#[test]
fn a_reader_that_takes_its_time_is_waited_for() {
    let window = Bytes::new(1_000);
    let mut held = transfer(Order::Stream { window });
    let mut now = Instant::EPOCH;
    let first = request(&mut held, now).unwrap();
    let (length, tag) = (Some(SIZE), tag());
    held.handle_answer(now, first.id, Answer::Whole { length, tag });
    held.handle_data(now, first.id, 1_000);
    assert!(!held.wants(first.id));
    let until = now + 4 * PATIENCE;
    while now < until {
        while request(&mut held, now).is_some() {}
        while let Some(event) = held.poll_event() {
            assert!(!matches!(event, Event::Failed(_)), "{event:?} at {now:?}");
        }
        now = held.poll_timeout();
    }
}

/// As soon as it costs money, or is for need alone, the other link brings what was asked of it.
#[test]
fn a_link_that_is_liked_less_is_left_at_once() {
    let worse = [
        LinkLimits {
            tier: 1,
            metered: true,
            ..LinkLimits::default()
        },
        LinkLimits {
            backup: true,
            ..LinkLimits::default()
        },
    ];
    for worse in worse {
        let mut both = transfer(Order::Any);
        let mut now = Instant::EPOCH;
        both.handle_link(now, LinkId(2), LinkLimits::default());
        let mut asked = Vec::new();
        // Both bring 1 MB/s until one alone needs 4 s for the rest.
        for ms in 0..3_000 {
            now = Instant::from_millis(ms);
            while let Some(fresh) = request(&mut both, now) {
                let range = fresh.range.unwrap();
                let (first, end) = (range.start, range.end.min(SIZE));
                let part = Answer::Part {
                    first,
                    last: end - 1,
                    total: SIZE,
                    tag: tag(),
                };
                both.handle_answer(now, fresh.id, part);
                asked.push((fresh, end - first));
            }
            for link in [LinkId(1), LinkId(2)] {
                let mut mine = asked.iter_mut();
                let mine =
                    mine.find(|(it, left)| it.link == link && *left > 0 && both.wants(it.id));
                let Some((it, left)) = mine else { continue };
                let len = 1_000.min(*left);
                *left -= len;
                both.handle_data(now, it.id, usize::try_from(len).unwrap());
                if *left == 0 {
                    both.handle_end(now, it.id);
                }
            }
        }
        assert!(both.requests(LinkId(2)) > 0);
        // Nothing has changed for the better one.
        both.handle_link(now, LinkId(1), LinkLimits::default());
        both.handle_link(now, LinkId(2), worse);
        assert!(both.requests(LinkId(1)) > 0);
        assert_eq!(both.requests(LinkId(2)), 0);
        let links: Vec<LinkId> = std::iter::from_fn(|| request(&mut both, now))
            .map(|fresh| fresh.link)
            .collect();
        assert!(links.iter().all(|link| *link == LinkId(1)), "{links:?}");
    }
}

#[test]
fn a_cut_is_called_a_cut() {
    let window = Bytes::mega(1);
    let mut cut = transfer(Order::Stream { window });
    let now = Instant::EPOCH;
    let first = request(&mut cut, now).unwrap();
    // Nothing by which the rest could be told to be of the same file.
    let (length, tag) = (Some(SIZE), None);
    cut.handle_answer(now, first.id, Answer::Whole { length, tag });
    cut.handle_data(now, first.id, 1_000);
    cut.handle_fault(now, first.id, Fault::Broken);
    assert_eq!(end(&mut cut, now), (now, Failure::Cut));
}

#[test]
fn a_server_of_tiny_parts_is_asked_for_the_whole() {
    let mut transfer = transfer(Order::Any);
    let mut now = Instant::EPOCH;
    transfer.handle_link(now, LinkId(2), LinkLimits::default());
    let mut ranged = 0;
    loop {
        let Some(asked) = request(&mut transfer, now) else {
            now = transfer.poll_timeout();
            continue;
        };
        let tag = tag();
        let Some(range) = asked.range else {
            let length = Some(SIZE);
            transfer.handle_answer(now, asked.id, Answer::Whole { length, tag });
            transfer.handle_data(now, asked.id, usize::try_from(SIZE).unwrap());
            transfer.handle_end(now, asked.id);
            break;
        };
        ranged += 1;
        assert!(ranged < 10, "it goes on asking");
        let (first, last, total) = (range.start, range.start, SIZE);
        let part = Answer::Part {
            first,
            last,
            total,
            tag,
        };
        transfer.handle_answer(now, asked.id, part);
        transfer.handle_data(now, asked.id, 1);
        transfer.handle_end(now, asked.id);
    }
    while request(&mut transfer, now).is_some() {}
    let events = std::iter::from_fn(|| transfer.poll_event());
    assert_eq!(events.last(), Some(Event::Complete));
}
