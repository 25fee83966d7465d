//! A client of etcd, by its JSON gateway (etcd 3.4 and newer, "gRPC gateway" of its manual).
//!
//! Owns connections to a cluster's members with the going over to another where one does not
//! answer, TLS, passwords, limits on what an answer may have, and errors that say what to do. What
//! keys mean is `fleet`'s. Nothing is sent twice that might be done twice: a change whose answer
//! was lost is an error, and whoever asked for it looks what became of it.

mod address;
mod clock;
mod connection;
mod messages;
#[cfg(test)]
pub(crate) mod server;
pub(crate) mod strangers;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::{Cell, RefCell};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tabane_core::one_line;
use thiserror::Error;
use tokio::sync::Mutex;

pub use address::FleetAddress;
pub(crate) use messages::{Change, Entry, MAX_KEPT};
pub(crate) use watch::{Changed, Watch};

use connection::Connection;
use messages::{
    Authenticated, Fault, Leased, Looked, LookedAt, Pages, Range, Results, Settled, Told, Version,
    encode, range_end,
};

/// Entries asked for at a time: with values of a few hundred bytes, some 100 kB.
const PAGE: usize = 500;
/// Bytes of an error that are looked at.
const MAX_FAULT: usize = 16 * 1024;
/// Operations of one change: etcd takes 128 (`--max-txn-ops`).
pub(crate) const MAX_OPERATIONS: usize = 120;

/// Why etcd did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum EtcdError {
    /// No member answers in time, or none has a leader.
    #[error("etcd cannot be reached: {0}")]
    Away(String),
    /// It takes nothing more.
    #[error(
        "etcd is full (NOSPACE) and takes no changes: compact and defragment it, then \
         `etcdctl alarm disarm` (docs/fleet.md, \"When etcd is full\")"
    )]
    Full,
    /// User, password or certificate.
    #[error("etcd does not let this relay in: {0}")]
    Denied(String),
    /// Its TLS, or ours.
    #[error("no TLS with etcd: {0}")]
    Tls(String),
    /// Before 3.4 the gateway is another one.
    #[error("{0}: etcd 3.4 or newer is needed")]
    Version(String),
    /// What was asked for is not there any more.
    #[error("etcd has forgotten what came after the revision that was asked for")]
    Compacted,
    /// It answered something else than its manual says.
    #[error("etcd's answer is not understood: {0}")]
    Answer(String),
}

/// What a cluster is asked through. For one thread.
pub(crate) struct Etcd {
    address: FleetAddress,
    /// One question at a time.
    connection: Mutex<Option<Connection>>,
    /// The member that is asked first.
    at: Cell<usize>,
    token: RefCell<Option<String>>,
    /// Seconds that etcd's clock is ahead of ours.
    ahead_s: Cell<i64>,
    /// Counts connections: who watches by another one looks again.
    generation: Cell<u64>,
}

/// Everything under a prefix at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// In the order in which they were made.
    pub(crate) entries: Vec<Entry>,
    pub(crate) revision: i64,
}

impl Etcd {
    pub(crate) fn new(address: FleetAddress) -> Self {
        Self {
            address,
            connection: Mutex::default(),
            at: Cell::default(),
            token: RefCell::default(),
            ahead_s: Cell::default(),
            generation: Cell::default(),
        }
    }

    /// What our keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.address.prefix
    }

    /// Seconds that etcd's clock is ahead of this machine's, by its last answer.
    pub(crate) fn ahead_s(&self) -> i64 {
        self.ahead_s.get()
    }

    /// The cluster's version, where it is one that this works with.
    pub(crate) async fn check_version(&self) -> Result<String, EtcdError> {
        let Version {
            etcdserver: version,
        } = self.ask("/version", None).await?;
        let mut parts = version.split('.').map(|part| part.parse::<u32>());
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (3, 4) => {
                Ok(one_line(&version))
            }
            _ => {
                let version = one_line(&version);
                Err(EtcdError::Version(format!("etcd's version is '{version}'")))
            }
        }
    }

    /// Everything under `prefix`, as it was at one moment.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let end = range_end(prefix);
        let mut from = prefix.as_bytes().to_vec();
        let (mut pages, mut revision) = (Pages::default(), 0);
        loop {
            let question = json!({
                "key": encode(&from),
                "range_end": encode(&end),
                "limit": PAGE,
                "revision": revision.to_string(),
            });
            let page: Range = self.ask("/v3/kv/range", Some(question)).await?;
            revision = page.header.revision.0;
            match pages.add(page, &from)? {
                Some(next) => from = next,
                None => break,
            }
        }
        let mut entries = pages.entries;
        entries.sort_by_key(|entry| entry.created_at);
        Ok(Snapshot { entries, revision })
    }

    /// What stands under one key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        let question = json!({ "key": encode(key.as_bytes()) });
        let range: Range = self.ask("/v3/kv/range", Some(question)).await?;
        range.first()
    }

    /// What stands under each of these keys, all at one moment; at most [`MAX_OPERATIONS`].
    pub(crate) async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, EtcdError> {
        let looks = keys
            .iter()
            .map(|key| json!({ "request_range": { "key": encode(key.as_bytes()) } }));
        let question = json!({ "success": looks.collect::<Vec<_>>() });
        let looked: Looked = self.ask("/v3/kv/txn", Some(question)).await?;
        if looked.responses.len() != keys.len() {
            let why = format!("{} of {} keys", looked.responses.len(), keys.len());
            return Err(EtcdError::Answer(why));
        }
        looked.responses.into_iter().map(LookedAt::read).collect()
    }

    /// Makes all of these changes if every key of `unchanged` was last changed at the revision that
    /// stands beside it (0: there is none), else nothing; the revision at which they were made.
    pub(crate) async fn change(
        &self,
        unchanged: &[(String, i64)],
        changes: &[Change],
    ) -> Result<Option<i64>, EtcdError> {
        let compare = unchanged.iter().map(|(key, revision)| {
            json!({
                "key": encode(key.as_bytes()),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": revision.to_string(),
            })
        });
        let question = json!({
            "compare": compare.collect::<Vec<_>>(),
            "success": changes.iter().map(Change::to_json).collect::<Vec<_>>(),
        });
        let settled: Settled = self.ask_once("/v3/kv/txn", question).await?;
        Ok(settled.succeeded.then_some(settled.header.revision.0))
    }

    /// A lease of so many seconds.
    pub(crate) async fn grant(&self, ttl_s: u64) -> Result<i64, EtcdError> {
        let question = json!({ "TTL": ttl_s.to_string() });
        let leased: Leased = self.ask("/v3/lease/grant", Some(question)).await?;
        Ok(leased.id.0)
    }

    /// Keeps a lease for another term; false if it is over.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let question = json!({ "ID": lease.to_string() });
        let kept: Results<Leased> = self.ask("/v3/lease/keepalive", Some(question)).await?;
        Ok(kept.result.is_some_and(|kept| kept.ttl.0 > 0))
    }

    /// Ends a lease, and takes away what is there by it.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let question = json!({ "ID": lease.to_string() });
        let _: IgnoredAny = self.ask("/v3/lease/revoke", Some(question)).await?;
        Ok(())
    }

    /// What changes under `prefix` from `revision` on.
    pub(crate) async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch, EtcdError> {
        let question = json!({ "create_request": {
            "key": encode(prefix.as_bytes()),
            "range_end": encode(&range_end(prefix)),
            "start_revision": revision.to_string(),
            "progress_notify": true,
        }});
        let mut connection = Connection::open(&self.address, self.at.get()).await?;
        let token = self.token.borrow().clone();
        let answer = connection
            .send("/v3/watch", Some(&question), token.as_deref())
            .await?;
        if !answer.status().is_success() {
            let (_, body) = connection::read(answer).await?;
            return Err(self.fault(&body));
        }
        Ok(Watch::new(connection, answer))
    }

    /// Changes with every connection that is begun: a watch of an older one may hang on a member
    /// that is cut off.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Asks one member after the other until one answers.
    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        question: Option<Value>,
    ) -> Result<T, EtcdError> {
        self.ask_members(path, question, true).await
    }

    /// The same; a change that was sent and not answered is not sent to another.
    async fn ask_once<T: DeserializeOwned>(
        &self,
        path: &str,
        question: Value,
    ) -> Result<T, EtcdError> {
        self.ask_members(path, Some(question), false).await
    }

    async fn ask_members<T: DeserializeOwned>(
        &self,
        path: &str,
        question: Option<Value>,
        may_repeat: bool,
    ) -> Result<T, EtcdError> {
        let mut connection = self.connection.lock().await;
        let mut faults = Vec::new();
        let members = self.address.members.len();
        let mut turn = 0;
        while turn <= members {
            let (error, was_sent) = match self.try_ask(&mut connection, path, &question).await {
                Ok(body) => return self.understand(&body),
                Err(failed) => failed,
            };
            *connection = None;
            match error {
                EtcdError::Away(why) => {
                    faults.push(format!("{}: {why}", self.address.members[self.at.get()]));
                    self.at.set((self.at.get() + 1) % members);
                }
                other => return Err(other),
            }
            if was_sent && !may_repeat {
                break;
            }
            turn += 1;
        }
        faults.dedup();
        faults.truncate(members);
        Err(EtcdError::Away(faults.join("; ")))
    }

    /// The body of the answer; or why there is none, and whether the question may have arrived.
    async fn try_ask(
        &self,
        slot: &mut Option<Connection>,
        path: &str,
        question: &Option<Value>,
    ) -> Result<Vec<u8>, (EtcdError, bool)> {
        let unsent = |error| (error, false);
        if slot.as_ref().is_none_or(Connection::is_closed) {
            let opened = Connection::open(&self.address, self.at.get()).await;
            let opened = opened.map_err(unsent)?;
            self.generation.set(self.generation.get() + 1);
            *slot = Some(opened);
        }
        let connection = slot.as_mut().expect("it was just made");
        for attempt in 0..2 {
            if self.token.borrow().is_none() && self.address.user.is_some() && path != "/version" {
                let token = self.log_in(connection).await.map_err(unsent)?;
                *self.token.borrow_mut() = Some(token);
            }
            let token = self.token.borrow().clone();
            let sent = connection.send(path, question.as_ref(), token.as_deref());
            let answer = sent.await.map_err(|error| (error, true))?;
            let before = answer.status();
            let (date, body) = connection::read(answer).await.map_err(|e| (e, true))?;
            if let Some(date) = date {
                self.ahead_s.set(date - connection::unix_seconds());
            }
            if before.is_success() {
                return Ok(body);
            }
            let fault = self.fault(&body);
            // A password's token lasts five minutes from its last use.
            if matches!(fault, EtcdError::Denied(_)) && token.is_some() && attempt == 0 {
                *self.token.borrow_mut() = None;
                continue;
            }
            // Nothing was done: it said so.
            return Err((fault, false));
        }
        Err(unsent(EtcdError::Denied(
            "the password's token does not last".into(),
        )))
    }

    async fn log_in(&self, connection: &mut Connection) -> Result<String, EtcdError> {
        let (user, password) = self.address.user.clone().unwrap_or_default();
        let question = json!({ "name": user, "password": password });
        let sent = connection.send("/v3/auth/authenticate", Some(&question), None);
        let answer = sent.await?;
        let is_good = answer.status().is_success();
        let (_, body) = connection::read(answer).await?;
        if !is_good {
            return Err(match self.fault(&body) {
                EtcdError::Answer(why) => EtcdError::Denied(why),
                other => other,
            });
        }
        let told: Authenticated = self.understand(&body)?;
        Ok(told.token)
    }

    fn understand<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, EtcdError> {
        serde_json::from_slice(body)
            .map_err(|error| EtcdError::Answer(one_line(&error.to_string())))
    }

    /// What an answer means that is an error.
    fn fault(&self, body: &[u8]) -> EtcdError {
        // What may be one of several forms is read as a whole first.
        let body = &body[..body.len().min(MAX_FAULT)];
        match serde_json::from_slice::<Fault>(body) {
            Ok(fault) => fault.into(),
            Err(_) => {
                let text = one_line(&String::from_utf8_lossy(body));
                match text.contains("404") {
                    true => EtcdError::Version(format!("etcd says '{}'", text.trim())),
                    false => EtcdError::Answer(text.trim().to_owned()),
                }
            }
        }
    }
}

impl From<Fault> for EtcdError {
    fn from(fault: Fault) -> Self {
        let Told { code, message } = fault.told();
        let message = one_line(&message);
        match code {
            // Codes of gRPC: resource exhausted, out of range, permission denied and
            // unauthenticated, invalid argument, deadline exceeded and unavailable.
            8 => Self::Full,
            11 => Self::Compacted,
            7 | 16 => Self::Denied(message),
            3 if message.contains("auth") || message.contains("user name is empty") => {
                Self::Denied(message)
            }
            4 | 14 => Self::Away(message),
            _ if message.contains("no leader") || message.contains("timed out") => {
                Self::Away(message)
            }
            _ => Self::Answer(message),
        }
    }
}
