//! What tells a client of ours from everybody else who visits the relay's web server.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};

/// The path that leads to the relay rather than to its web page. It comes from the relay's public
/// key, which whoever has a join string knows and a scanner does not.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Door(String);

impl Door {
    pub(crate) fn of(relay_key: &[u8; 32]) -> Self {
        let mut text = b"tabane door 1".to_vec();
        text.extend_from_slice(relay_key);
        let hash = digest(&SHA256, &text);
        let hex = hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}"));
        Self(format!("/{}", hex.collect::<String>()))
    }

    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}
