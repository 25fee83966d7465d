//! What etcd says, handed to its readers, for fuzzing.

use super::clock;
use super::messages::{Entry, Fault, MAX_KEPT, Pages, Range};
use super::watch;
use super::{Changed, EtcdError};

/// Hands the rest of `data` to the reader that the first byte names; what it says has changed.
///
/// # Panics
/// When what is read does not hold.
pub(crate) fn read(data: &[u8]) -> Option<Changed> {
    let (door, said) = data.split_first()?;
    match door % 4 {
        0 => return watch::read(said).ok(),
        1 => return page(said),
        2 => {
            if let Ok(fault) = serde_json::from_slice::<Fault>(said) {
                drop(EtcdError::from(fault).to_string());
            }
        }
        _ => {
            if let Some(seconds) = std::str::from_utf8(said).ok().and_then(clock::parse) {
                // From 1970 until the year 10,000.
                assert!((0..253_402_300_800 + 31 * 86_400).contains(&seconds));
            }
        }
    }
    None
}

/// A page of what there is under a prefix.
fn page(said: &[u8]) -> Option<Changed> {
    const FROM: &[u8] = b"f/";
    let page: Range = serde_json::from_slice(said).ok()?;
    let revision = page.header.revision.0;
    let mut pages = Pages::default();
    if let Some(next) = pages.add(page, FROM).ok()? {
        assert!(next.as_slice() > FROM, "it leads back");
        assert!(pages.entries.iter().map(Entry::size).sum::<usize>() <= MAX_KEPT);
    }
    let entries = pages.entries.into_iter();
    Some(Changed {
        revision,
        entries: entries.map(|it| (it.key.clone(), Some(it))).collect(),
    })
}
