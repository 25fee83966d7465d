//! What a relay changes in its fleet: tokens are burnt, volumes lent and given back.
//!
//! Every change is one transaction that fails where anything it goes by has changed meanwhile; then
//! it is looked at again. A change whose answer was lost is looked up, never sent twice.

use std::collections::BTreeMap;

use tabane_base::{Bytes, Duration};
use tabane_fleet::{Account, Allotment, allotment_at, allotment_of};
use tokio::time::Instant;

use super::super::exchange::Wish;
use super::super::records::{account_key, client_key, holding_key};
use super::membership::odd;
use super::{Lent, Post, Trouble, Used, Worker};
use crate::access::{AccessAnswer, UserEntry, UserName};
use crate::etcd::{Change, Entry, EtcdError};
use crate::keeper::Shown;

/// Others win at most so often in a row: each time somebody got on.
const ATTEMPTS: usize = 64;
/// What nobody uses here is given back after this, for other relays to lend.
const IDLE: Duration = Duration::from_secs(30);
/// The others are told what was used when it is so much more than they know.
const TELL_LEAST: Bytes = Bytes::mega(1);

/// Users about whom etcd is told at a time: newcomers wait for no more.
const MOST_TOLD: usize = 64;

/// A key without the fleet's prefix, and its new value with a lease; without, it goes.
pub(super) type Writing = (String, Option<(Vec<u8>, i64)>);

impl Worker {
    /// Decides about all of `shown`, and burns their tokens.
    pub(super) async fn enrol(&mut self, shown: &Shown) -> Result<Vec<AccessAnswer>, Trouble> {
        let mut answers = Vec::new();
        for (key, token) in shown {
            let answer = self.authorise(*key, token.as_deref()).await?;
            if let AccessAnswer::Known(Some(user)) | AccessAnswer::Enrolled(Some(user)) = &answer {
                self.lend(&user.clone()).await?;
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn authorise(
        &mut self,
        key: tabane_core::PublicKey,
        token: Option<&[u8]>,
    ) -> Result<AccessAnswer, Trouble> {
        let prefix = self.etcd.prefix().to_owned();
        let token_key = token.map(|token| format!("token/{}", String::from_utf8_lossy(token)));
        let mut has_looked = false;
        for _ in 0..ATTEMPTS {
            let before = self.records.access();
            let mut after = (*before).clone();
            let answer = after.authorise(key, token, self.now());
            // What another relay made or changed a moment ago may not have come here yet.
            if matches!(
                answer,
                AccessAnswer::RefusedUnknown | AccessAnswer::RefusedRevoked
            ) && !has_looked
            {
                has_looked = true;
                self.refresh(&client_key(key)).await?;
                if let Some(token_key) = token_key.as_ref().filter(|key| key.len() < 64) {
                    self.refresh(token_key).await?;
                }
                continue;
            }
            if after == *before {
                return Ok(answer);
            }
            let difference = self.records.difference(&prefix, &before, &after);
            let (unchanged, changes) =
                difference.map_err(|error| EtcdError::Answer(format!("{error:#}")))?;
            match self.etcd.change(&unchanged, &changes).await {
                Ok(Some(revision)) => {
                    self.note_changes(changes, revision);
                    return Ok(answer);
                }
                Ok(None) => {
                    for (key, _) in &unchanged {
                        self.refresh(&key[prefix.len()..]).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(EtcdError::Away("others change the same token all the time".to_owned()).into())
    }

    /// Takes over what was changed just now: a second look must see it.
    fn note_changes(&mut self, changes: Vec<Change>, revision: i64) {
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
        let prefix = self.etcd.prefix().to_owned();
        let full = format!("{prefix}{key}");
        let entry = self.etcd.get(&full).await?;
        self.records.apply(&prefix, &full, entry);
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
                for key in keys {
                    self.refresh(&key).await?;
                }
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
        let wishes: Vec<Wish> = self.used.values().map(|it| it.wish.clone()).collect();
        for wish in wishes {
            self.tell(&wish.user.clone(), &wish, false).await?;
        }
        Ok(())
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
        for user in busy {
            self.lend(&user).await?;
        }
        self.publish(false);
        Ok(())
    }

    /// Has one more allotment lent to this relay, where `user` needs one.
    async fn lend(&mut self, user: &UserName) -> Result<(), Trouble> {
        let (account_key, holding_key) = self.keys(user);
        let user_key = format!("user/{user}");
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.records.value::<UserEntry>(&user_key) else {
                return Ok(());
            };
            let Some(volume) = entry.volume else {
                return Ok(());
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
                return Ok(());
            }
            let part = self.next_part(user, volume.bytes, used);
            if !is_over {
                holding.used = used.get().min(holding.lent);
            }
            let before = (account.clone(), holding.clone());
            let lent = account.lend(&mut holding, &period, (volume.bytes, part));
            if lent == Bytes::ZERO && before == (account.clone(), holding.clone()) {
                return Ok(());
            }
            let writings = vec![
                (account_key.clone(), Some((json(&account)?, 0))),
                (holding_key.clone(), Some((json(&holding)?, 0))),
            ];
            if self
                .write(std::slice::from_ref(&user_key), writings)
                .await?
            {
                // Before any of it is used: a later life counts it as used though etcd be away.
                self.write_copy();
                let at = Instant::now();
                let used = if is_over { Bytes::ZERO } else { used };
                self.lent.insert(user.clone(), Lent { at, part, used });
                return Ok(());
            }
        }
        Err(EtcdError::Away("others change the same volume all the time".to_owned()).into())
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
        for (user, wish, is_idle) in due {
            self.tell(&user, &wish, is_idle).await?;
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

    async fn tell(&mut self, user: &UserName, wish: &Wish, settles: bool) -> Result<(), Trouble> {
        let (account_key, holding_key) = self.keys(user);
        for _ in 0..ATTEMPTS {
            let Some(mut holding) = self.records.value::<Allotment>(&holding_key) else {
                return Ok(());
            };
            let mut account: Account = self.records.value(&account_key).unwrap_or_default();
            if holding.period != wish.period {
                return Ok(());
            }
            let before = (account.clone(), holding.clone());
            match settles {
                true => account.settle(&mut holding, wish.used),
                false => holding.used = wish.used.get().min(holding.lent),
            }
            if before == (account.clone(), holding.clone()) {
                return Ok(());
            }
            let writings = vec![
                (account_key.clone(), Some((json(&account)?, 0))),
                (holding_key.clone(), Some((json(&holding)?, 0))),
            ];
            if self.write(&[], writings).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives back everything that was not used.
    pub(super) async fn settle_all(&mut self) -> Result<(), Trouble> {
        let wishes: Vec<Wish> = self.used.values().map(|it| it.wish.clone()).collect();
        for wish in wishes {
            self.tell(&wish.user.clone(), &wish, true).await?;
        }
        Ok(())
    }

    /// Has etcd know what this relay was lent, though it be of an older day; in a new life all of
    /// that counts as used.
    pub(super) async fn restore(
        &mut self,
        known: BTreeMap<UserName, Allotment>,
    ) -> Result<(), Trouble> {
        let users: Vec<UserName> = {
            let access = self.records.access();
            access
                .users()
                .iter()
                .map(|user| user.name.clone())
                .collect()
        };
        for user in users {
            let (account_key, holding_key) = self.keys(&user);
            for _ in 0..ATTEMPTS {
                let mut account: Account = self.records.value(&account_key).unwrap_or_default();
                let mut holding: Allotment = self.records.value(&holding_key).unwrap_or_default();
                let before = (account.clone(), holding.clone());
                if let Some(known) = known.get(&user)
                    && account.restore(&mut holding, known)
                {
                    tracing::warn!(%user, "what etcd says is lent is less than this relay holds");
                }
                if !self.has_served {
                    holding.count_as_used();
                }
                if before == (account.clone(), holding.clone()) {
                    break;
                }
                let writings = vec![
                    (account_key.clone(), Some((json(&account)?, 0))),
                    (holding_key.clone(), Some((json(&holding)?, 0))),
                ];
                if self.write(&[], writings).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn keys(&self, user: &UserName) -> (String, String) {
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
