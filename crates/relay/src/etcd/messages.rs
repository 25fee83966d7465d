//! What the gateway is asked and answers: JSON as protobuf has it, with bytes in base64 and 64-bit
//! numbers as texts.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{EtcdError, MAX_OPERATIONS, PAGE};

/// The most bytes of all that is kept in etcd: a hundred thousand values are less.
pub(crate) const MAX_KEPT: usize = 64 << 20;
/// The most changes in one message of a watch: etcd tells of 1,000 revisions at a time, each of up
/// to 128 (`--max-txn-ops`).
pub(super) const MAX_EVENTS: usize = 128_000;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    /// The revision at which it came.
    pub(crate) created_at: i64,
    /// The revision at which it was changed last.
    pub(crate) changed_at: i64,
    /// 0: none.
    pub(crate) lease: i64,
}

impl Entry {
    /// Bytes of memory.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.value.len()
    }
}

/// One of several changes that are made at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Put {
        key: String,
        value: Vec<u8>,
        /// With whose end it goes away; 0: it stays.
        lease: i64,
    },
    Delete {
        key: String,
    },
}

impl Change {
    pub(crate) fn put(key: String, value: Vec<u8>) -> Self {
        let lease = 0;
        Self::Put { key, value, lease }
    }

    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Put { key, value, lease } => json!({ "request_put": {
                "key": encode(key.as_bytes()),
                "value": encode(value),
                "lease": lease.to_string(),
            }}),
            Self::Delete { key } => json!({ "request_delete_range": {
                "key": encode(key.as_bytes()),
            }}),
        }
    }
}

pub(super) fn encode(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, EtcdError> {
    let decoded = BASE64_STANDARD.decode(text);
    decoded.map_err(|error| EtcdError::Answer(error.to_string()))
}

/// The first key that does not begin with `prefix`, whose last character is no 0xff.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A number that is a text, or missing for 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Number(pub(super) i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self::default())
    }
}

/// What stands there is not kept: a list of millions is no number either.
impl Visitor<'_> for Number {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self, E> {
        // A cluster's id has all 64 bits.
        let number = text.parse::<u64>().map(u64::cast_signed);
        let number = number.or_else(|_| text.parse());
        number
            .map(Self)
            .map_err(|_| E::custom("a number that is none"))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self, E> {
        Ok(Self(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self, E> {
        let number = i64::try_from(number);
        number
            .map(Self)
            .map_err(|_| E::custom("a number that is none"))
    }
}

/// A list of no more than so many: one takes far more memory than the `{}` that asks for it.
fn at_most<'de, const MOST: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct AtMost<const MOST: usize, T>(Vec<T>);

    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST}")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Vec<T>, A::Error> {
            while let Some(next) = list.next_element()? {
                if self.0.len() == MOST {
                    return Err(serde::de::Error::invalid_length(MOST + 1, &self));
                }
                self.0.push(next);
            }
            Ok(self.0)
        }
    }

    deserializer.deserialize_seq(AtMost::<MOST, T>(Vec::new()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: String,
    value: String,
    create_revision: Number,
    pub(super) mod_revision: Number,
    lease: Number,
}

impl KeyValue {
    /// `None` where the key is no text: it is nobody's of ours.
    pub(super) fn read(self) -> Result<Option<Entry>, EtcdError> {
        let Ok(key) = String::from_utf8(decode(&self.key)?) else {
            return Ok(None);
        };
        Ok(Some(Entry {
            key,
            value: decode(&self.value)?,
            created_at: self.create_revision.0,
            changed_at: self.mod_revision.0,
            lease: self.lease.0,
        }))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Range {
    pub(super) header: Header,
    #[serde(default, deserialize_with = "at_most::<PAGE, _, _>")]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default)]
    pub(super) more: bool,
}

impl Range {
    /// The only entry there is, where one key was asked for.
    pub(super) fn first(self) -> Result<Option<Entry>, EtcdError> {
        match self.kvs.into_iter().next() {
            Some(kv) => kv.read(),
            None => Ok(None),
        }
    }
}

/// What the pages that were read have.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) entries: Vec<Entry>,
    /// Their bytes of memory.
    size: usize,
}

impl Pages {
    /// Adds a page that was asked for from a key on; the key from which on the rest is to be asked
    /// for, where there is any.
    ///
    /// # Errors
    /// It is not what etcd says; or pages lead on and on, which would fill any memory.
    pub(super) fn add(&mut self, page: Range, from: &[u8]) -> Result<Option<Vec<u8>>, EtcdError> {
        let last = page.kvs.last().filter(|_| page.more);
        let next = last.map(|last| decode(&last.key)).transpose()?;
        for kv in page.kvs {
            if let Some(entry) = kv.read()? {
                self.size += entry.size();
                self.entries.push(entry);
            }
        }
        let Some(mut next) = next else {
            return Ok(None);
        };
        next.push(0);
        if next.as_slice() <= from || self.size > MAX_KEPT {
            return Err(EtcdError::Answer("pages without an end".to_owned()));
        }
        Ok(Some(next))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Version {
    pub(super) etcdserver: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Settled {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
}

/// What stands under several keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Looked {
    #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
    pub(super) responses: Vec<LookedAt>,
}

#[derive(Debug, Deserialize)]
pub(super) struct LookedAt {
    response_range: Range,
}

impl LookedAt {
    pub(super) fn read(self) -> Result<Option<Entry>, EtcdError> {
        self.response_range.first()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Leased {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// One line of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Results<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Told>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Watched {
    pub(super) header: Header,
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) compact_revision: Number,
    pub(super) cancel_reason: String,
    #[serde(deserialize_with = "at_most::<MAX_EVENTS, _, _>")]
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchEvent {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) kv: KeyValue,
}

/// An error, by itself or as a stream has it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Fault {
    OfStream { error: Told },
    Plain(Told),
}

#[derive(Debug, Deserialize)]
pub(super) struct Told {
    #[serde(alias = "grpc_code")]
    pub(super) code: u32,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn told(self) -> Told {
        match self {
            Self::OfStream { error } | Self::Plain(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str], value_len: usize) -> Range {
        let value = encode(&vec![0; value_len]);
        let entry = |key: &&str| json!({ "key": encode(key.as_bytes()), "value": value });
        let kvs: Vec<Value> = keys.iter().map(entry).collect();
        serde_json::from_value(json!({ "header": {}, "kvs": kvs, "more": true })).unwrap()
    }

    #[test]
    fn entries_of_nothing_take_no_memory_without_end() {
        let list = |most: usize| vec!["{}"; most].join(",");
        let page = |most| {
            let text = format!("{{\"header\":{{}},\"kvs\":[{}]}}", list(most));
            serde_json::from_str::<Range>(&text).is_ok()
        };
        assert!(page(PAGE) && !page(PAGE + 1));
        let told = |most| {
            let text = format!("{{\"result\":{{\"events\":[{}]}}}}", list(most));
            serde_json::from_str::<Results<Watched>>(&text).is_ok()
        };
        assert!(told(MAX_EVENTS) && !told(MAX_EVENTS + 1));
        let number = |text: &str| serde_json::from_str::<Number>(text).map(|it| it.0).ok();
        let id = u64::MAX.to_string();
        assert_eq!(number(&format!("\"{id}\"")), Some(-1));
        assert_eq!((number("\"-2\""), number("7")), (Some(-2), Some(7)));
        assert_eq!(
            (number("[0,0]"), number(&id), number("\"\"")),
            (None, None, None)
        );
    }

    /// What it takes to read so many pages of one entry each.
    fn taken(pages: usize) -> std::time::Duration {
        let pages: Vec<Range> = (0..pages).map(|n| page(&[&format!("{n:08}")], 1)).collect();
        let since = std::time::Instant::now();
        let (mut read, mut from) = (Pages::default(), Vec::new());
        for page in pages {
            from = read.add(page, &from).unwrap().unwrap();
        }
        since.elapsed()
    }

    #[test]
    fn pages_are_no_square_of_work() {
        let few = (0..5).map(|_| taken(1_000)).min().unwrap();
        let many = taken(40_000);
        println!("{few:?} for 1,000 pages, {many:?} for forty times as many");
        assert!(many < 1_000 * few.max(std::time::Duration::from_micros(20)));
    }

    #[test]
    fn pages_that_lead_back_or_never_end_are_not_followed() {
        let mut read = Pages::default();
        let next = read.add(page(&["a", "b"], 10), b"a").unwrap();
        assert_eq!(next.as_deref(), Some(&b"b\0"[..]));
        let again = read.add(page(&["a", "b"], 10), b"b\0");
        assert!(matches!(again, Err(EtcdError::Answer(_))), "{again:?}");
        let (mut pages, mut from) = (0, Vec::new());
        let ended = loop {
            pages += 1;
            match read.add(page(&[&format!("{pages:04}")], 1 << 23), &from) {
                Ok(next) => from = next.unwrap(),
                Err(error) => break error,
            }
            assert!(pages < 100, "as much as anybody likes");
        };
        assert!(ended.to_string().contains("without an end"), "{ended}");
    }
}
