//! How long the relay's word on families is waited for.

use super::*;
use crate::reach::tests::client_of_nobody;
use tokio::task::LocalSet;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn the_relays_word_on_families_is_waited_for_half_a_second_at_most() {
    let body = async {
        for (said_after_ms, expected) in [(None, 500), (Some(200), 200), (Some(700), 500)] {
            let far_ends = FarEnds::from(client_of_nobody());
            let families = far_ends.0.families.clone();
            if let Some(ms) = said_after_ms {
                tokio::task::spawn_local(async move {
                    sleep(Duration::from_millis(ms)).await;
                    families.send_replace(Some(Families::BOTH));
                });
            }
            let begin = Instant::now();
            far_ends.families_known().await;
            assert_eq!(begin.elapsed().as_millis(), expected, "{said_after_ms:?}");
        }
    };
    LocalSet::new().run_until(body).await;
}
