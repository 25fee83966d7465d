//! What the relay's own thread, its clients and whoever looks at it are told of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;

use tabane_control::Fleet;
use tabane_fleet::Allotment;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::exchange::Stage;
use super::super::{records, report};
use super::{Balance, CLOCK_TOLERANCE_S, Worker};
use crate::access::UserName;

/// So many times as long as it took to tell what has changed is that not told anew: it takes a walk
/// over all users, and whoever may write to etcd makes as many changes as it likes.
const RESTS: u32 = 4;

impl Worker {
    /// Tells what has changed; before when that is not to be told anew.
    pub(super) fn tell_changes(&mut self) -> Instant {
        let since = Instant::now();
        self.publish(false);
        Instant::now() + since.elapsed() * RESTS
    }

    /// Tells the relay what is in force. From a copy, etcd stays away.
    pub(super) fn publish(&mut self, from_copy: bool) {
        self.publish_list();
        let list = self.records.access();
        let (holdings, ask_from) = match self.has_rival() || self.balance == Balance::Rivals {
            true => Default::default(),
            false => (self.holdings(), self.ask_from()),
        };
        let ahead_s = self.ahead_s();
        let sent_away = self.sent_away();
        self.news.send_if_modified(|news| {
            let is_told = from_copy || news.away.is_none();
            let is_same = news.stage == Stage::Serving
                && is_told
                && (Arc::ptr_eq(&news.list, &list) || *news.list == *list)
                && news.holdings == holdings
                && news.ask_from == ask_from
                && (news.ahead_s - ahead_s).abs() < CLOCK_TOLERANCE_S
                && news.sent_away == sent_away;
            if !is_same {
                if news.away.is_some() && !from_copy {
                    tracing::info!("etcd is back: new clients are let in again");
                }
                news.stage = Stage::Serving;
                if *news.list != *list {
                    news.list = list;
                }
                (news.holdings, news.ask_from) = (holdings, ask_from);
                news.ahead_s = ahead_s;
                news.sent_away = sent_away;
                if !from_copy {
                    news.away = None;
                }
            }
            !is_same
        });
    }

    /// Has clients be told of a newer list, an older one being nobody's, and of what relays have to
    /// do.
    pub(super) fn publish_list(&self) {
        let loads = self.fleet.map(|fleet| report::loads(&self.records, fleet));
        self.loads.send_replace(loads.unwrap_or_default().into());
        if let Some(list) = self.relays()
            && list.epoch() > self.list.borrow().0
        {
            self.list.send_replace((list.epoch(), list.emit().into()));
        }
    }

    /// What this relay holds of each user's volume.
    fn holdings(&self) -> BTreeMap<UserName, Allotment> {
        let access = self.records.access();
        let users = access.users().iter().filter(|user| user.volume.is_some());
        users
            .filter_map(|user| {
                let key = records::holding_key(&user.name, &self.order.name);
                Some((user.name.clone(), self.records.value(&key)?))
            })
            .collect()
    }

    /// Says how the fleet is.
    pub(super) fn tell_report(&self, answer: oneshot::Sender<Fleet>) {
        let Some(key) = self.fleet else { return };
        let fleet = Fleet {
            own: Some(self.order.name.clone()),
            away: self.news.borrow().away.clone(),
            ..report::report(&self.records, key, self.now(), &self.version)
        };
        // Whoever asked may have lost patience.
        drop(answer.send(fleet));
    }
}
