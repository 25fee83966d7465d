//! How a relay of a fleet decides about newcomers, whose tokens it burns.
//!
//! However many come at once, etcd is asked about all of them together, so that nobody waits for
//! the answers about all who were there before.

use tabane_core::PublicKey;

use super::super::records::client_key;
use super::changing::ATTEMPTS;
use super::{Trouble, Worker};
use crate::access::{AccessAnswer, UserName};
use crate::etcd::{EtcdError, MAX_OPERATIONS};
use crate::keeper::Shown;

/// Newcomers about whom etcd is asked at once: one that is let in changes its own entry and its
/// token's, and goes by its user's.
const MOST_ASKED: usize = MAX_OPERATIONS / 3;

/// A key that was proved, and what was shown with it.
type Newcomer = (PublicKey, Option<Vec<u8>>);

impl Worker {
    /// Decides about all of `shown`, and burns their tokens.
    pub(super) async fn enrol(&mut self, shown: &Shown) -> Result<Vec<AccessAnswer>, Trouble> {
        let mut answers = Vec::new();
        for newcomers in shown.chunks(MOST_ASKED) {
            answers.extend(self.authorise(newcomers).await?);
        }
        let users = answers.iter().filter_map(|answer| match answer {
            AccessAnswer::Known(user) | AccessAnswer::Enrolled(user) => user.clone(),
            _ => None,
        });
        let mut users: Vec<UserName> = users.collect();
        users.sort();
        users.dedup();
        self.lend(&users).await?;
        Ok(answers)
    }

    /// Decides about as many as etcd can be asked about at once.
    async fn authorise(&mut self, newcomers: &[Newcomer]) -> Result<Vec<AccessAnswer>, Trouble> {
        let prefix = self.etcd.prefix().to_owned();
        let mut has_looked = false;
        for _ in 0..ATTEMPTS {
            let (before, now) = (self.records.access(), self.now());
            let mut after = (*before).clone();
            let decide = |(key, token): &Newcomer| after.authorise(*key, token.as_deref(), now);
            let answers: Vec<AccessAnswer> = newcomers.iter().map(decide).collect();
            let unknown = keys_of_unknown(newcomers, &answers);
            if !has_looked && !unknown.is_empty() {
                has_looked = true;
                self.refresh_all(&unknown).await?;
                continue;
            }
            if after == *before {
                return Ok(answers);
            }
            let difference = self.records.difference(&prefix, &before, &after);
            let (unchanged, changes) =
                difference.map_err(|error| EtcdError::Answer(format!("{error:#}")))?;
            match self.etcd.change(&unchanged, &changes).await? {
                Some(revision) => {
                    self.note_changes(changes, revision);
                    return Ok(answers);
                }
                None => {
                    let keys = unchanged
                        .iter()
                        .map(|(key, _)| key[prefix.len()..].to_owned());
                    self.refresh_all(&keys.collect::<Vec<_>>()).await?;
                }
            }
        }
        Err(EtcdError::Away("others change the same token all the time".to_owned()).into())
    }
}

/// Under which keys stands what another relay may have made or changed a moment ago, of those who
/// would be refused by what is known here.
fn keys_of_unknown(newcomers: &[Newcomer], answers: &[AccessAnswer]) -> Vec<String> {
    let mut keys = Vec::new();
    for ((key, token), answer) in newcomers.iter().zip(answers) {
        if matches!(
            answer,
            AccessAnswer::RefusedUnknown | AccessAnswer::RefusedRevoked
        ) {
            keys.push(client_key(*key));
            let token = token.as_deref().map(String::from_utf8_lossy);
            keys.extend(
                token
                    .map(|it| format!("token/{it}"))
                    .filter(|it| it.len() < 64),
            );
        }
    }
    keys
}
