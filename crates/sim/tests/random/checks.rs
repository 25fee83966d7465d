//! What holds whatever happens.

use tabane_base::{Bytes, Duration};
use tabane_core::CloseReason;
use tabane_sim::{JobState, Side, World};

/// A received packet may overshoot the memory it is kept in by its contents and their bookkeeping.
const PACKET_MEMORY: u64 = 9_000 + 64;
/// What may go to an address that has not proved itself, per byte from there [P-3.3].
const AMPLIFICATION: f64 = 3.0;
/// All is over so long after nothing disturbs any more.
pub(crate) const HEALING: Duration = Duration::from_secs(30);

/// At any time: nobody has ended, memory and what goes to strangers are bounded.
pub(crate) fn check(world: &World, limits: [Bytes; 2]) {
    for (side, limit) in [Side::Client, Side::Server].into_iter().zip(limits) {
        let host = world.host(side);
        let closed = host.closed();
        assert!(
            closed.is_empty(),
            "{side:?} ended: {closed:?}\n{}",
            describe(world)
        );
        let most = limit + Bytes::new(PACKET_MEMORY * (1 + world.jobs().len() as u64));
        let held = host.receive_memory_max();
        assert!(held <= most, "{side:?} holds {held}, the limit is {limit}");
    }
    for (address, exchanged) in world.network().exchanged() {
        let times = exchanged.amplification_of_much;
        assert!(
            times <= AMPLIFICATION,
            "{address} got {times} times what it had sent"
        );
    }
}

/// What was neither reset nor stopped arrived whole.
pub(crate) fn check_jobs(world: &World) {
    for (index, job) in world.jobs().iter().enumerate() {
        for side in [Side::Client, Side::Server] {
            let state = job.state(side);
            let disturbed = job.was_disturbed();
            assert!(
                disturbed || state == JobState::Finished,
                "job {index} at {side:?} is {state:?} and nobody wanted that"
            );
        }
    }
}

/// Nothing is left of the streams once their last words are acknowledged, which takes as long as
/// anything after healing where a clock's leap has made round trips look long; a good-bye ends both
/// ends, and nothing comes after it.
pub(crate) fn check_end(mut world: World) {
    world.run_for(Duration::from_secs(5));
    let is_left = |world: &World, side| {
        let session = world.session(side);
        session.is_some_and(|session| session.snapshot(world.clock(side)).streams > 0)
    };
    world.run_while(world.now() + HEALING, |world| {
        is_left(world, Side::Client) || is_left(world, Side::Server)
    });
    for side in [Side::Client, Side::Server] {
        let session = world.session(side).expect("the session lives");
        let snapshot = session.snapshot(world.clock(side));
        assert_eq!(snapshot.streams, 0, "streams are left over at {side:?}");
        assert_eq!(snapshot.receive_memory, Bytes::ZERO, "memory at {side:?}");
    }
    world.close(Side::Client, CloseReason::Finished);
    world.close_beside();
    world.run_for(Duration::from_secs(5));
    for side in [Side::Client, Side::Server] {
        let host = world.host(side);
        let sessions = 1 + world.besides();
        assert_eq!(host.closed().len(), sessions, "{side:?} does not end");
        assert_eq!(host.late_events(), 0, "{side:?} speaks after its end");
    }
}

pub(crate) fn describe(world: &World) -> String {
    let mut text = String::new();
    for (index, job) in world
        .jobs()
        .iter()
        .enumerate()
        .filter(|(_, job)| !job.is_over())
    {
        text += &format!("job {index}: {job:#?}\n");
    }
    for side in [Side::Client, Side::Server] {
        if let Some(session) = world.session(side) {
            text += &format!("{side:?}: {:#?}\n", session.snapshot(world.now()));
            text += &format!("next timer {:?}\n", session.poll_timeout());
        }
    }
    text
}
