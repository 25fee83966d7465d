//! How long a flow may be silent.

use super::*;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_flow_ends_when_nothing_has_passed_either_way_for_so_long() {
    let association = Association::new(b"first", Box::new(|_| ()), None, None);
    let begin = Instant::now();
    let passing = async {
        sleep(IDLE - Duration::from_secs(1)).await;
        association.send(b"more");
        sleep(IDLE - Duration::from_secs(2)).await;
        association.on_answer();
    };
    tokio::join!(association.expired(IDLE), passing);
    assert_eq!(begin.elapsed(), IDLE * 3 - Duration::from_secs(3));
}

#[test]
fn questions_end_soon_and_all_else_late() {
    let at = |port| Target::from(SocketAddr::from(([192, 0, 2, 1], port)));
    for (target, is_shared, is_to_site, seconds) in [
        (Target::Resolver, true, false, 10),
        (at(DNS_PORT), false, true, 10),
        (at(DNS_PORT), false, false, 60),
        (at(DNS_PORT), true, false, 120),
        (at(443), false, false, 120),
        (at(443), false, true, 120),
        (at(443), true, false, 120),
    ] {
        let idle = idle_of(&target, is_shared, is_to_site);
        assert_eq!(
            idle.as_secs(),
            seconds,
            "{target:?} {is_shared} {is_to_site}"
        );
    }
}
