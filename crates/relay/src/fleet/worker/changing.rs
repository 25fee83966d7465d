//! What a relay changes in its fleet: how anything is written there; and volumes, which are lent
//! and given back.
//!
//! Every change is one transaction that fails where anything it goes by has changed meanwhile; then
//! it is looked at again. A change whose answer was lost is looked up, never sent twice.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Duration};
use tabane_fleet::{Account, Allotment, allotment_at, allotment_of};
use tokio::time::Instant;

use super::super::exchange::Wish;
use super::super::records::{account_key, holding_key, user_key};
use super::membership::odd;
use super::{Balance, Lent, Post, Trouble, Used, Worker};
use crate::access::{UserEntry, UserName};
use crate::etcd::{Change, Entry, EtcdError, MAX_OPERATIONS};

/// Others win at most so often in a row: each time somebody got on.
pub(super) const ATTEMPTS: usize = 64;
/// What nobody uses here is given back after this, for other relays to lend.
const IDLE: Duration = Duration::from_secs(30);
/// The others are told what was used when it is so much more than they know.
const TELL_LEAST: Bytes = Bytes::mega(1);

/// Users to whom something is lent at a time: for each two keys are written, and a third looked at.
const MOST_LENT: usize = MAX_OPERATIONS / 3;
/// Users about whom etcd is told at a time: newcomers wait for no more.
const MOST_TOLD: usize = 64;

/// One more allotment for a user.
struct Loan {
    user: UserName,
    writings: [Writing; 2],
    lent: Lent,
}

/// Whom etcd is told about, what was used, and whether the rest is given back.
type Telling = (UserName, Wish, bool);

/// A key without the fleet's prefix, and its new value with a lease; without, it goes.
pub(super) type Writing = (String, Option<(Vec<u8>, i64)>);

impl Worker {
    /// Takes over what was changed just now: a second look must see it.
    pub(super) fn note_changes(&mut self, changes: Vec<Change>, revision: i64) {
        let prefix = self.etcd.prefix().to_owned();
        self.is_copied = false;
        for change in changes {
            match change {
                Change::Put { key, value, lease } => {
                    let created_at = self.records.created_at(&key[prefix.len()..]);
                    let entry = Entry {
                        key: key.clone(),
                        value,
                        created_at: created_at.unwrap_or(revision),
                        changed_at: revision,
                        lease,
                    };
                    self.records.apply(&prefix, &key, Some(entry));
                }
                Change::Delete { key } => self.records.apply(&prefix, &key, None),
            }
        }
    }

    /// Looks at one key as it is now.
    pub(super) async fn refresh(&mut self, key: &str) -> Result<(), Trouble> {
        self.refresh_all(&[key.to_owned()]).await
    }

    /// Looks at keys as they are now, as many at a time as etcd tells at once.
    pub(super) async fn refresh_all(&mut self, keys: &[String]) -> Result<(), Trouble> {
        let prefix = self.etcd.prefix().to_owned();
        for keys in keys.chunks(MAX_OPERATIONS) {
            let full: Vec<String> = keys.iter().map(|key| format!("{prefix}{key}")).collect();
            let entries = self.etcd.get_all(&full).await?;
            for (key, entry) in full.iter().zip(entries) {
                self.records.apply(&prefix, key, entry);
            }
        }
        Ok(())
    }

    /// Writes keys where none of them, nor of `goes_by`, has changed since; false where one has,
    /// and all are known as they are now.
    pub(super) async fn write(
        &mut self,
        goes_by: &[String],
        writings: Vec<Writing>,
    ) -> Result<bool, Trouble> {
        let prefix = self.etcd.prefix().to_owned();
        let written = writings.iter().map(|(key, _)| key);
        let keys: Vec<String> = written.chain(goes_by).cloned().collect();
        let unchanged: Vec<(String, i64)> = keys
            .iter()
            .map(|key| (format!("{prefix}{key}"), self.records.changed_at(key)))
            .collect();
        let changes: Vec<Change> = writings
            .into_iter()
            .map(|(key, value)| {
                let key = format!("{prefix}{key}");
                match value {
                    Some((value, lease)) => Change::Put { key, value, lease },
                    None => Change::Delete { key },
                }
            })
            .collect();
        match self.etcd.change(&unchanged, &changes).await? {
            Some(revision) => {
                self.note_changes(changes, revision);
                Ok(true)
            }
            None => {
                self.refresh_all(&keys).await?;
                Ok(false)
            }
        }
    }

    /// Remembers what users have used.
    pub(super) fn note(&mut self, wishes: Vec<Wish>) {
        for wish in wishes {
            // Whoever has no session here may have one at the other process.
            let is_idle = wish.sessions == 0 && !self.is_beside;
            let idle_since = is_idle.then(Instant::now);
            let told = match self.used.get(&wish.user) {
                Some(used) if used.wish.period == wish.period => used.told,
                Some(_) | None => Bytes::ZERO,
            };
            let used = Used {
                told,
                idle_since,
                wish,
            };
            self.used.insert(used.wish.user.clone(), used);
        }
    }

    /// Nobody has a session anywhere but here.
    pub(super) fn note_idle(&mut self) {
        for it in self.used.values_mut().filter(|it| it.wish.sessions == 0) {
            it.idle_since.get_or_insert_with(Instant::now);
        }
    }

    /// Tells all that was used.
    pub(super) async fn tell_all(&mut self) -> Result<(), Trouble> {
        self.tell_of_all(false).await
    }

    async fn tell_of_all(&mut self, settles: bool) -> Result<(), Trouble> {
        let wishes = self.used.values().map(|it| it.wish.clone());
        let all: Vec<Telling> = wishes.map(|it| (it.user.clone(), it, settles)).collect();
        self.tell(&all).await
    }

    /// Has more lent to whoever needs it, where this process borrows: the one after it hears of
    /// what is used here, and borrows for both.
    pub(super) async fn lend_where_needed(&mut self) -> Result<(), Trouble> {
        if self.post == Post::Left {
            self.publish(false);
            return Ok(());
        }
        let busy = self.used.values().filter(|it| it.idle_since.is_none());
        let busy: Vec<UserName> = busy.map(|it| it.wish.user.clone()).collect();
        self.lend(&busy).await?;
        self.publish(false);
        Ok(())
    }

    /// Has one more allotment lent to this relay for each of `users` that needs one.
    pub(super) async fn lend(&mut self, users: &[UserName]) -> Result<(), Trouble> {
        for users in users.chunks(MOST_LENT) {
            self.lend_at_once(users).await?;
        }
        Ok(())
    }

    async fn lend_at_once(&mut self, users: &[UserName]) -> Result<(), Trouble> {
        for _ in 0..ATTEMPTS {
            if self.has_rival() || self.balance == Balance::Rivals {
                return Ok(());
            }
            let mut loans = Vec::new();
            for user in users {
                loans.extend(self.loan(user)?);
            }
            if loans.is_empty() {
                return Ok(());
            }
            let users = loans.iter().map(|it| user_key(&it.user));
            // Fails where a rival has taken the place meanwhile.
            let place = (self.post == Post::Held).then(|| self.place());
            let goes_by: Vec<String> = users.chain(place).collect();
            let writings = loans.iter().flat_map(|it| it.writings.clone()).collect();
            if self.write(&goes_by, writings).await? {
                // Before any of it is used: a later life counts it as used though etcd be away.
                self.write_copy();
                let lent = loans.into_iter().map(|it| (it.user, it.lent));
                self.lent.extend(lent);
                return Ok(());
            }
        }
        Err(EtcdError::Away("others change the same volume all the time".to_owned()).into())
    }

    /// What is to be written so that `user` has one more allotment here, where it needs one.
    fn loan(&self, user: &UserName) -> Result<Option<Loan>, Trouble> {
        let (account_key, holding_key) = self.keys(user);
        let entry = self.records.value::<UserEntry>(&user_key(user));
        let Some(volume) = entry.and_then(|entry| entry.volume) else {
            return Ok(None);
        };
        let period = volume.per.name_at(self.now());
        let mut account: Account = self.records.value(&account_key).unwrap_or_default();
        let mut holding: Allotment = self.records.value(&holding_key).unwrap_or_default();
        let used = match self.used.get(user) {
            Some(known) if known.wish.period == holding.period => known.wish.used,
            Some(_) | None => Bytes::new(holding.used),
        };
        let is_over = account.is_over(&period) || holding.period != account.period;
        if !is_over && !holding.wants_more(used, self.last_part(user, volume.bytes)) {
            return Ok(None);
        }
        let part = self.next_part(user, volume.bytes, used);
        if !is_over {
            holding.used = used.get().min(holding.lent);
        }
        let before = (account.clone(), holding.clone());
        let lent = account.lend(&mut holding, &period, (volume.bytes, part));
        let after = (account, holding);
        if lent == Bytes::ZERO && before == after {
            return Ok(None);
        }
        Ok(Some(Loan {
            user: user.clone(),
            writings: self.volume(user, &after)?,
            lent: Lent {
                at: Instant::now(),
                part,
                used: if is_over { Bytes::ZERO } else { used },
            },
        }))
    }

    /// How much was lent last.
    fn last_part(&self, user: &UserName, volume: Bytes) -> Bytes {
        let last = self.lent.get(user);
        last.map_or_else(|| allotment_of(volume), |last| last.part)
    }

    /// How much is to be lent now that so much is used.
    fn next_part(&self, user: &UserName, volume: Bytes, used: Bytes) -> Bytes {
        let last = self.lent.get(user);
        last.map_or_else(
            || allotment_of(volume),
            |last| allotment_at(volume, used - last.used, last.at.elapsed()),
        )
    }

    /// From how much used on more is asked for, of users of whose volumes there is more.
    pub(super) fn ask_from(&self) -> BTreeMap<UserName, Bytes> {
        let access = self.records.access();
        let of = access.users().iter().filter_map(|user| {
            let volume = user.volume?;
            let (account_key, holding_key) = self.keys(&user.name);
            // Whoever was never here costs no look at an account, and is lent something or nothing
            // when it comes.
            let Some(holding) = self.records.value::<Allotment>(&holding_key) else {
                return Some((user.name.clone(), Bytes::ZERO));
            };
            let account: Account = self.records.value(&account_key).unwrap_or_default();
            let period = volume.per.name_at(self.now());
            if account.is_over(&period) || holding.period != account.period {
                return Some((user.name.clone(), Bytes::ZERO));
            }
            let ask_from = holding.ask_from(self.last_part(&user.name, volume.bytes));
            (account.lent < volume.bytes.get()).then(|| (user.name.clone(), ask_from))
        });
        of.collect()
    }

    /// Tells the others what was used, and gives back what nobody uses here.
    pub(super) async fn tell_used(&mut self) -> Result<(), Trouble> {
        let (now, access) = (Instant::now(), self.records.access());
        self.used.retain(|user, _| access.user(user).is_some());
        self.lent.retain(|user, _| access.user(user).is_some());
        let mut due = Vec::new();
        for (user, it) in &self.used {
            let is_idle = it.idle_since.is_some_and(|since| now - since > IDLE);
            let news = it.wish.used - it.told;
            if is_idle || news >= TELL_LEAST || it.idle_since.is_some() && news > Bytes::ZERO {
                due.push((user.clone(), it.wish.clone(), is_idle));
            }
        }
        // The others' turn comes with the next pulse.
        let due = in_turn(due, self.told_last.as_ref());
        self.told_last = due.last().map(|(user, ..)| user.clone());
        self.tell(&due).await?;
        for (user, wish, is_idle) in due {
            match is_idle {
                true => {
                    self.used.remove(&user);
                    self.lent.remove(&user);
                }
                false => {
                    if let Some(it) = self.used.get_mut(&user) {
                        it.told = wish.used;
                    }
                }
            }
        }
        Ok(())
    }

    /// Has etcd know what users have used, and gives the rest back where that is settled.
    async fn tell(&mut self, of: &[Telling]) -> Result<(), Trouble> {
        if self.has_rival() || self.balance == Balance::Rivals {
            return Ok(());
        }
        self.write_each(of, Self::telling).await
    }

    /// Writes what is to be written about each of `all`, for as many at a time as etcd takes.
    pub(super) async fn write_each<T>(
        &mut self,
        all: &[T],
        of: impl Fn(&Self, &T) -> Result<Option<[Writing; 2]>, Trouble>,
    ) -> Result<(), Trouble> {
        let mut due = Vec::new();
        for it in all {
            if of(self, it)?.is_some() {
                due.push(it);
            }
        }
        for part in due.chunks(MAX_OPERATIONS / 2) {
            for _ in 0..ATTEMPTS {
                let mut writings = Vec::new();
                for it in part {
                    writings.extend(of(self, it)?.into_iter().flatten());
                }
                if writings.is_empty() || self.write(&[], writings).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What is to be written for that, if anything is.
    fn telling(&self, (user, wish, settles): &Telling) -> Result<Option<[Writing; 2]>, Trouble> {
        let (account_key, holding_key) = self.keys(user);
        let Some(mut holding) = self.records.value::<Allotment>(&holding_key) else {
            return Ok(None);
        };
        let mut account: Account = self.records.value(&account_key).unwrap_or_default();
        if holding.period != wish.period {
            return Ok(None);
        }
        let before = (account.clone(), holding.clone());
        match settles {
            true => account.settle(&mut holding, wish.used),
            false => holding.used = wish.used.get().min(holding.lent),
        }
        let after = (account, holding);
        (before != after)
            .then(|| self.volume(user, &after))
            .transpose()
    }

    /// Gives back everything that was not used.
    pub(super) async fn settle_all(&mut self) -> Result<(), Trouble> {
        self.tell_of_all(true).await
    }

    /// What is to be written so that a user's account and holding are these.
    pub(super) fn volume(
        &self,
        user: &UserName,
        (account, holding): &(Account, Allotment),
    ) -> Result<[Writing; 2], Trouble> {
        let (account_key, holding_key) = self.keys(user);
        Ok([
            (account_key, Some((json(account)?, 0))),
            (holding_key, Some((json(holding)?, 0))),
        ])
    }

    pub(super) fn keys(&self, user: &UserName) -> (String, String) {
        (account_key(user), holding_key(user, &self.order.name))
    }
}

/// As many of `due`, which is in order, as are told at a time: those behind `last` first.
fn in_turn<T>(
    mut due: Vec<(UserName, Wish, T)>,
    last: Option<&UserName>,
) -> Vec<(UserName, Wish, T)> {
    if due.len() > MOST_TOLD {
        let first = due.iter().position(|(user, ..)| Some(user) > last);
        due.rotate_left(first.unwrap_or(0));
        due.truncate(MOST_TOLD);
    }
    due
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, Trouble> {
    serde_json::to_vec(value).map_err(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those first in order, who are always busy, do not keep the others from being told of.
    #[test]
    fn whoever_is_due_has_its_turn() {
        let names: Vec<UserName> = (0..150)
            .map(|i| format!("u{i:03}").parse().unwrap())
            .collect();
        let due = || {
            let wish = |user: &UserName| Wish {
                user: user.clone(),
                period: String::new(),
                used: Bytes::ZERO,
                sessions: 1,
            };
            names.iter().map(move |user| (user.clone(), wish(user), ()))
        };
        let (mut last, mut told) = (None, BTreeMap::new());
        for _ in 0..3 {
            let turn = in_turn(due().collect(), last.as_ref());
            assert_eq!(turn.len(), MOST_TOLD);
            last = turn.last().map(|(user, ..)| user.clone());
            for (user, ..) in turn {
                *told.entry(user).or_insert(0) += 1;
            }
        }
        assert_eq!(told.len(), names.len(), "{told:?}");
        assert!(told.values().all(|times| *times <= 2), "{told:?}");
        assert_eq!(in_turn(due().take(3).collect(), last.as_ref()).len(), 3);
    }
}
