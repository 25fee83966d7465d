//! What a relay holds of volumes when it meets etcd again: etcd may know less of it than the relay,
//! and the relay less than its life before.

use tabane_fleet::{Account, Allotment};

use super::super::records::{Records, user_key};
use super::changing::Writing;
use super::{Balance, Post, Trouble, Worker};
use crate::access::UserName;

impl Worker {
    /// Begins with what was known last: etcd may be of an older day by now.
    pub(super) fn recall(&mut self) {
        let prefix = self.etcd.prefix().to_owned();
        // A copy that cannot be read is complained of where it is needed.
        let kept = self.copy.read(&prefix).ok().flatten();
        if let (Some(fleet), Some((entries, revision))) = (self.fleet, kept) {
            self.records.believe(&prefix, fleet);
            self.records.replace(&prefix, entries, revision);
        }
    }

    /// Remembers what this relay was lent and `now` does not know, until that is written there.
    pub(super) fn note_owed(&mut self, now: &Records) {
        for user in self.records.access().users() {
            let (user_key, (_, held)) = (user_key(&user.name), self.keys(&user.name));
            if now.created_at(&user_key) != self.records.created_at(&user_key) {
                self.forget(&user.name);
                continue;
            }
            // A newer one is this relay's own, of which its copy did not come to know.
            let is_older = now.changed_at(&held) < self.records.changed_at(&held);
            let holding = self.records.value::<Allotment>(&held);
            if let (true, Post::Held, Some(holding)) = (is_older, self.post, holding) {
                tracing::warn!(user = %user.name, "etcd knows less than what this relay was lent");
                self.owed.insert(user.name.clone(), holding);
            }
        }
    }

    /// Somebody else may have that name next.
    pub(super) fn forget(&mut self, user: &UserName) {
        self.used.remove(user);
        self.lent.remove(user);
        self.owed.remove(user);
    }

    /// Has etcd know what this relay was lent, though it be of an older day; in a new life, and
    /// behind a rival, all of that counts as used.
    pub(super) async fn restore(&mut self) -> Result<(), Trouble> {
        if self.has_rival() {
            return Ok(());
        }
        let access = self.records.access();
        let users: Vec<UserName> = access.users().iter().map(|it| it.name.clone()).collect();
        self.write_each(&users, Self::restoring).await?;
        self.owed.clear();
        if self.balance == Balance::Rivals {
            self.used.clear();
            self.lent.clear();
        }
        self.balance = Balance::Own;
        Ok(())
    }

    /// What is to be written for that, if anything is.
    fn restoring(&self, user: &UserName) -> Result<Option<[Writing; 2]>, Trouble> {
        let (account_key, holding_key) = self.keys(user);
        let mut account: Account = self.records.value(&account_key).unwrap_or_default();
        let mut holding: Allotment = self.records.value(&holding_key).unwrap_or_default();
        let before = (account.clone(), holding.clone());
        if let Some(known) = self.owed.get(user) {
            account.restore(&mut holding, known);
        }
        if self.balance != Balance::Own {
            holding.count_as_used();
        }
        let after = (account, holding);
        (before != after)
            .then(|| self.volume(user, &after))
            .transpose()
    }
}
