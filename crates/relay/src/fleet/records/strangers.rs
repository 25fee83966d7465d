//! Whatever etcd, or who may write there, says, followed for fuzzing.

use tabane_core::PublicKey;

use super::{Records, holdings};
use crate::access::AccessList;
use crate::etcd::{Change, Entry, strangers};

/// Follows what etcd says, for fuzzing: lines of a door of etcd's, or behind a letter of its own a
/// key, a space and a value that stands there.
///
/// # Panics
/// When what is known does not hold.
pub fn fuzz_etcd(data: &[u8]) {
    const PREFIX: &str = "f/";
    let mut records = Records::default();
    for (number, line) in (1..).zip(data.split(|byte| *byte == b'\n')) {
        let Some(record) = line.strip_prefix(b"r") else {
            let changed = strangers::read(line).unwrap_or_default();
            for (key, entry) in changed.entries {
                records.apply(PREFIX, &key, entry);
            }
            continue;
        };
        let mut words = record.splitn(2, |byte| *byte == b' ');
        let key = String::from_utf8_lossy(words.next().unwrap_or_default());
        let key = format!("{PREFIX}{key}");
        let entry = words.next().map(|value| Entry {
            key: key.clone(),
            value: value.to_vec(),
            created_at: number,
            changed_at: number,
            lease: 0,
        });
        records.apply(PREFIX, &key, entry);
    }
    let size: usize = records.entries.values().map(Entry::size).sum();
    assert_eq!(records.size, size, "what there is, is counted");
    let is_there = |key: &String| records.entries.contains_key(key);
    assert!(records.good.keys().all(is_there) && records.odd.keys().all(is_there));
    let access = records.access();
    let (unchanged, changes) = records
        .difference(PREFIX, &access, &access)
        .expect("what was read can be written");
    assert!(unchanged.is_empty() && changes.is_empty());
    drop(holdings(&records));
    drop(records.relays(PublicKey([1; 32])));
    // What is written is understood again, and means the same.
    let (_, all) = records
        .difference(PREFIX, &AccessList::default(), &access)
        .expect("the same");
    let mut again = Records::default();
    for change in all {
        if let Change::Put { key, value, lease } = change {
            let entry = Entry {
                key,
                value,
                created_at: 1,
                changed_at: 1,
                lease,
            };
            again.put(PREFIX, entry);
        }
    }
    assert!(again.odd.is_empty(), "{:?}", again.odd);
}
