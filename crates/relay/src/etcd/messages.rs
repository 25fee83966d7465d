//! What the gateway is asked and answers: JSON as protobuf has it, with bytes in base64 and 64-bit
//! numbers as texts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::EtcdError;

/// The most bytes of all that is kept in etcd: a hundred thousand values are less.
pub(crate) const MAX_KEPT: usize = 64 << 20;

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
        let parsed = match Value::deserialize(deserializer)? {
            Value::String(text) => match text.parse::<u64>() {
                // A cluster's id has all 64 bits.
                Ok(number) => Some(number.cast_signed()),
                Err(_) => text.parse().ok(),
            },
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        let odd = || serde::de::Error::custom("a number that is none");
        parsed.map(Self).ok_or_else(odd)
    }
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
    #[serde(default)]
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

    /// Adds what the page has that was asked for from a key on; the key from which on the rest is
    /// to be asked for, where there is any.
    ///
    /// # Errors
    /// It is not what etcd says; or pages lead on and on, which would fill any memory.
    pub(super) fn read(
        self,
        from: &[u8],
        entries: &mut Vec<Entry>,
    ) -> Result<Option<Vec<u8>>, EtcdError> {
        let last = self.kvs.last().filter(|_| self.more);
        let next = last.map(|last| decode(&last.key)).transpose()?;
        for kv in self.kvs {
            entries.extend(kv.read()?);
        }
        let Some(mut next) = next else {
            return Ok(None);
        };
        next.push(0);
        if next.as_slice() <= from || entries.iter().map(Entry::size).sum::<usize>() > MAX_KEPT {
            return Err(EtcdError::Answer("pages without an end".to_owned()));
        }
        Ok(Some(next))
    }
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
    fn pages_that_lead_back_or_never_end_are_not_followed() {
        let mut entries = Vec::new();
        let next = page(&["a", "b"], 10).read(b"a", &mut entries).unwrap();
        assert_eq!(next.as_deref(), Some(&b"b\0"[..]));
        let again = page(&["a", "b"], 10).read(b"b\0", &mut entries);
        assert!(matches!(again, Err(EtcdError::Answer(_))), "{again:?}");
        let (mut pages, mut from) = (0, Vec::new());
        let ended = loop {
            pages += 1;
            match page(&[&format!("{pages:04}")], 1 << 23).read(&from, &mut entries) {
                Ok(next) => from = next.unwrap(),
                Err(error) => break error,
            }
            assert!(pages < 100, "as much as anybody likes");
        };
        assert!(ended.to_string().contains("without an end"), "{ended}");
    }
}
