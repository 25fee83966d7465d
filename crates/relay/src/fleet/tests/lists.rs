//! Lists of relays in etcd that nobody should go by: old ones, half ones, another fleet's, none.

use tabane_core::Identity;
use tabane_fleet::RelayList;

use super::super::records::LIST;
use super::*;

fn place() -> String {
    format!("fleet/{LIST}")
}

async fn read(etcd: &Etcd) -> Option<Vec<u8>> {
    etcd.get(&place()).await.unwrap().map(|entry| entry.value)
}

async fn write(etcd: &Etcd, list: Option<&[u8]>) {
    let key = place();
    let change = match list {
        Some(list) => Change::put(key, list.to_vec()),
        None => Change::Delete { key },
    };
    etcd.change(&[], &[change]).await.unwrap();
}

async fn until_it_is(etcd: &Etcd, list: &[u8]) {
    let begin = Instant::now();
    while read(etcd).await.as_deref() != Some(list) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it stays so");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_list_that_is_old_damaged_anothers_or_gone_moves_no_relay_and_is_put_right() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let etcd = Etcd::new(world.at.clone());
        let mut oslo = world.relay("oslo").await;
        let old = read(&etcd).await.unwrap();
        let mut rome = world.relay("rome").await;
        let newest = read(&etcd).await.unwrap();
        let stranger = Identity::from_seed([9; 32]);
        let theirs = RelayList::sign(&stranger, 99, Vec::new()).unwrap().emit();
        let mut touched = newest.clone();
        touched[20] ^= 1;
        let bad: [Option<&[u8]>; 6] = [
            Some(&old),
            Some(&newest[..newest.len() / 2]),
            Some(&touched),
            Some(&theirs),
            Some(&[]),
            None,
        ];
        let trying = async {
            for list in bad {
                write(&etcd, list).await;
                until_it_is(&etcd, &newest).await;
                let report = world.owner.report().unwrap();
                assert_eq!(report.relays.len(), 2, "{list:?}");
                assert!(report.odd.is_empty(), "{:?}", report.odd);
            }
        };
        tokio::select! {
            // It was let in after the old one was signed.
            why = rome.keeper().sent_away() => panic!("sent away: {why}"),
            why = oslo.keeper().sent_away() => panic!("sent away: {why}"),
            () = trying => {}
        }

        // So it is where none was running meanwhile, by what each has on its disk.
        let copy = rome.state.join("fleet.copy");
        let text: String = newest.iter().map(|byte| format!("{byte:02x}")).collect();
        let has_list = || std::fs::read_to_string(&copy).is_ok_and(|it| it.contains(&text));
        until("the copy", has_list).await;
        rome.kill();
        oslo.kill();
        for list in [Some(&old[..]), None] {
            write(&etcd, list).await;
            rome.start(&world.at).await.unwrap();
            until_it_is(&etcd, &newest).await;
            rome.kill();
        }
        // One that its owner has taken off goes all the same.
        rome.start(&world.at).await.unwrap();
        world.owner.remove("rome").unwrap();
        let why = rome.keeper().sent_away().await;
        assert!(why.contains("not of the fleet any more"), "{why}");
    });
}
