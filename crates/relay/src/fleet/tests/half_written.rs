//! Values in etcd that somebody has left half written.

use super::*;

/// Of every kind there is: each value as it stands, cut in half.
#[test]
fn whatever_is_half_written_all_goes_on_by_what_was_there_before() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        let (user, admits) = world.ann("1GB/month");
        let oslo = world.relay("oslo").await;
        let client = key();
        oslo.enrol(client, &admits.token).await.unwrap();
        let etcd = Etcd::new(world.at.clone());
        let snapshot = etcd.list("fleet/").await.unwrap();
        let kinds = [
            "fleet", "list", "user/", "token/", "client/", "volume/", "held/", "alive/",
        ];
        let mut damaged = Vec::new();
        for kind in kinds {
            let place = format!("fleet/{kind}");
            let of_kind = snapshot
                .entries
                .iter()
                .filter(|it| it.key.starts_with(&place));
            let before = damaged.len();
            damaged.extend(of_kind.map(|it| Change::Put {
                key: it.key.clone(),
                value: it.value[..it.value.len() / 2].to_vec(),
                lease: it.lease,
            }));
            assert!(damaged.len() > before, "there is no {kind}");
        }
        etcd.change(&[], &damaged).await.unwrap();
        let last = UserEntry::new("bob".parse().unwrap(), 0);
        let value = serde_json::to_vec(&last).unwrap();
        let marker = Change::put("fleet/user/bob".to_owned(), value);
        etcd.change(&[], &[marker]).await.unwrap();
        until("bob", || oslo.keeper().list().users().len() == 2).await;

        let known = AccessAnswer::Known(Some(user.name.clone()));
        assert_eq!(oslo.knows(client), Some(known));
        let answer = oslo.enrol(key(), &admits.token).await;
        assert_eq!(answer, Ok(AccessAnswer::Enrolled(Some(user.name.clone()))));
        let lent = holding(oslo.keeper(), &user).lent;
        tell_used(oslo.keeper(), &user, lent);
        until("more is lent", || holding(oslo.keeper(), &user).lent > lent).await;
        let news = oslo.keeper().news().borrow().clone();
        assert_eq!((news.away, news.sent_away), (None, None));
    });
}

#[test]
fn a_value_that_is_half_written_takes_nobodys_place() {
    block_on(async {
        let Some(world) = World::make(1).await else {
            return;
        };
        world.add_user(&ann(None));
        let oslo = world.relay("oslo").await;
        let etcd = Etcd::new(world.at.clone());
        let damage = Change::put("fleet/user/ann".to_owned(), b"{\"name\":\"an".to_vec());
        let marker = serde_json::to_vec(&UserEntry::new("bob".parse().unwrap(), 0)).unwrap();
        let marker = Change::put("fleet/user/bob".to_owned(), marker);
        etcd.change(&[], &[damage, marker]).await.unwrap();
        until("bob", || oslo.keeper().list().users().len() == 2).await;
        assert_eq!(oslo.keeper().list().users()[0], ann(None));
        assert_eq!(world.owner.report().unwrap().odd, ["user/ann"]);
    });
}
