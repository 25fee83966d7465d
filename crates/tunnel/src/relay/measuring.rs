//! Bytes for those who want to know how fast their links are [P-T.8].
//!
//! Owns how much of that each client gets, and the far end of it. Bytes go the way of every
//! connection's (`connection`), so a user's rate and volume hold for them as well.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_base::Duration;
use tabane_core::PublicKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};

use crate::request::Measure;

/// How long one stream measures at the most: a client that forgets it costs no more.
const LONGEST: Duration = Duration::from_secs(10);
/// How long a client's streams may measure, added up, within [`PERIOD`]: `tabane speed` takes
/// 30 s, for bytes and echoes go side by side.
const PER_PERIOD: Duration = Duration::from_secs(300);
const PERIOD: Duration = Duration::from_secs(600);
/// Streams at once of one client: bytes and echoes, twice, because the end of those before may
/// arrive after the beginning of the next.
const AT_ONCE: usize = 4;
/// Streams at once in all; others are told to come later.
const ALL_AT_ONCE: usize = 32;
/// Clients that are remembered; others are told to come later. Each is forgotten after [`PERIOD`].
const MOST_CLIENTS: usize = 4_096;
/// Bytes written or read by one call.
const BLOCK: usize = 64 * 1024;
/// How often a client is told what has come of its bytes.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// Who measures at present, and who has lately. Copies are the same.
#[derive(Clone, Default)]
pub(super) struct Measuring(Arc<Mutex<Accounts>>);

#[derive(Default)]
struct Accounts {
    of_clients: BTreeMap<PublicKey, Account>,
    /// Streams of all of them.
    under_way: usize,
}

/// What one client has had.
struct Account {
    since: Instant,
    spent: Duration,
    under_way: usize,
}

/// One stream's permission to measure, for so long. Its end is counted when it is dropped.
pub(super) struct Turn {
    measuring: Measuring,
    key: PublicKey,
    began_at: Instant,
    lasts: Duration,
}

impl Measuring {
    /// Lets the client of this key measure, unless it or others have enough.
    pub(super) fn begin(&self, key: PublicKey) -> Option<Turn> {
        let began_at = Instant::now();
        let lasts = self.admit(key, began_at)?;
        Some(Turn {
            measuring: self.clone(),
            key,
            began_at,
            lasts,
        })
    }

    fn admit(&self, key: PublicKey, now: Instant) -> Option<Duration> {
        let accounts = &mut *self.accounts();
        if accounts.under_way >= ALL_AT_ONCE {
            return None;
        }
        let clients = &mut accounts.of_clients;
        // Whoever is known costs no look at the others.
        if !clients.contains_key(&key) {
            clients.retain(|_, account| account.under_way > 0 || now < account.since + PERIOD);
            if clients.len() >= MOST_CLIENTS {
                return None;
            }
        }
        let account = clients.entry(key).or_insert(Account {
            since: now,
            spent: Duration::ZERO,
            under_way: 0,
        });
        if now >= account.since + PERIOD {
            (account.since, account.spent) = (now, Duration::ZERO);
        }
        let lasts = PER_PERIOD.saturating_sub(account.spent).min(LONGEST);
        if account.under_way >= AT_ONCE || lasts.is_zero() {
            return None;
        }
        account.under_way += 1;
        accounts.under_way += 1;
        Some(lasts)
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, key: PublicKey, lasted: Duration) {
        let accounts = &mut *self.accounts();
        if let Some(account) = accounts.of_clients.get_mut(&key) {
            accounts.under_way -= 1;
            account.under_way -= 1;
            account.spent += lasted;
        }
    }
}

impl Turn {
    /// Is the far end of `tcp` until that ends, or the time is over.
    pub(super) async fn serve(self, measure: Measure, mut tcp: TcpStream) {
        let serving = async {
            match measure {
                Measure::Down => give(&mut tcp).await,
                Measure::Up => take(&mut tcp).await,
                Measure::Echo => give_back(&mut tcp).await,
            }
        };
        // What ends it early is the other end's affair.
        let _ = timeout(self.lasts, serving).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.measuring.end(self.key, self.began_at.elapsed());
    }
}

async fn give(tcp: &mut TcpStream) {
    let block = vec![0; BLOCK];
    while tcp.write_all(&block).await.is_ok() {}
}

async fn take(tcp: &mut TcpStream) {
    let (mut reader, mut writer) = tcp.split();
    let taken = Cell::new(0u64);
    let taking = async {
        let mut block = vec![0; BLOCK];
        while let Ok(len @ 1..) = reader.read(&mut block).await {
            taken.set(taken.get() + len as u64);
        }
    };
    let telling = async {
        let mut ticks = interval(REPORT_INTERVAL);
        loop {
            ticks.tick().await;
            if writer.write_all(&taken.get().to_be_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = taking => {}
        () = telling => {}
    }
    // Nobody may be there to be told.
    let _ = writer.write_all(&taken.get().to_be_bytes()).await;
}

async fn give_back(tcp: &mut TcpStream) {
    let (mut reader, mut writer) = tcp.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> PublicKey {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        PublicKey(key)
    }

    #[test]
    fn a_client_measures_so_long_in_a_period_and_no_other_pays_for_it() {
        let measuring = Measuring::default();
        let start = Instant::now();
        let full = PER_PERIOD.as_secs() / LONGEST.as_secs();
        for _ in 0..full {
            assert_eq!(measuring.admit(key(1), start), Some(LONGEST));
            measuring.end(key(1), LONGEST);
        }
        assert_eq!(measuring.admit(key(1), start), None);
        assert_eq!(measuring.admit(key(2), start), Some(LONGEST));
        let later = start + PERIOD;
        assert_eq!(measuring.admit(key(1), later), Some(LONGEST));
    }

    #[test]
    fn what_is_left_of_the_time_is_what_a_stream_gets() {
        let measuring = Measuring::default();
        let start = Instant::now();
        let rest = Duration::from_secs(3);
        measuring.admit(key(1), start).unwrap();
        measuring.end(key(1), PER_PERIOD - rest);
        assert_eq!(measuring.admit(key(1), start), Some(rest));
    }

    #[test]
    fn streams_at_once_are_few_for_one_and_for_all() {
        let measuring = Measuring::default();
        let start = Instant::now();
        let clients = ALL_AT_ONCE / AT_ONCE;
        for client in 0..clients {
            for _ in 0..AT_ONCE {
                assert!(measuring.admit(key(client), start).is_some(), "{client}");
            }
        }
        assert!(measuring.admit(key(clients), start).is_none(), "in all");
        measuring.end(key(0), Duration::ZERO);
        measuring.end(key(1), Duration::ZERO);
        assert!(measuring.admit(key(0), start).is_some());
        assert!(measuring.admit(key(0), start).is_none(), "of one");
        assert!(measuring.admit(key(clients), start).is_some());
    }

    #[test]
    fn clients_that_are_remembered_are_so_many() {
        let measuring = Measuring::default();
        let start = Instant::now();
        for client in 0..MOST_CLIENTS {
            assert!(measuring.admit(key(client), start).is_some());
            measuring.end(key(client), Duration::ZERO);
        }
        assert!(measuring.admit(key(MOST_CLIENTS), start).is_none());
        assert!(measuring.admit(key(0), start).is_some());
        assert!(measuring.admit(key(MOST_CLIENTS), start + PERIOD).is_some());
    }
}
