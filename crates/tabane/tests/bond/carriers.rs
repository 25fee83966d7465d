//! Networks that let no UDP pass, from one run to the next.

use crate::text;
use crate::world::{TABANE, World};

const WALL: &str = "table inet wall { chain in { type filter hook input priority 0; \
                    iifname { r1, r2 } meta l4proto udp drop; }; }";

#[test]
fn what_carries_links_is_known_to_the_next_run_and_forgotten_when_udp_is_back() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let nft = |rule: &str| world.in_relay("nft").arg(rule).status();
    if !nft(WALL).is_ok_and(|status| status.success()) {
        println!("skipped: no nft");
        return;
    }
    let kept = world.path(".config/tabane/networks.toml");
    let kept = kept.display();
    let until = |count: u32, then: &str| {
        let line = format!(
            "for i in $(seq 200); do \
             [ \"$(grep -c '^gateway' {kept})\" = {count} ] && {then} && exit 0; sleep 0.1; \
             done; cat {kept} >&2; exit 1"
        );
        let output = world.run(&[], &line);
        assert!(output.status.success(), "{count}: {output:?}");
        text(&output.stdout)
    };
    until(2, "true");
    let status = until(
        2,
        &format!("{TABANE} status --json --instance run-$PPID | grep remembered"),
    );
    assert!(status.contains("(remembered of this network)"), "{status}");
    assert!(nft("delete table inet wall").unwrap().success());
    until(0, "true");
}
