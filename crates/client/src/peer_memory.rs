//! Which peers did not answer lately, kept over restarts, so that connections lose no time by
//! asking them. A note, not a record: that it is missing or damaged is no error.
//!
//! A peer that answers is forgotten here; one that does not is left alone for 30 s, and for twice
//! as long each time it is asked in vain again, up to an hour.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tabane_linux::threads::aside;

use tabane_store::{atomic_file, wall_clock::unix_seconds, xdg_directory};

/// How long a peer is left alone, first and at most.
const FIRST_SECONDS: u64 = 30;
const LAST_SECONDS: u64 = 3_600;
/// Keys of peers that were removed are forgotten when there are more.
const MAX_NOTES: usize = 256;

/// What is known of a peer's absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It answered when it was asked last, or never was asked: worth waiting for.
    None,
    /// It did not, some time ago: to be asked, but not waited for.
    Over,
    /// It did not a moment ago: not to be asked.
    Lasting,
}

/// The note, by the peer's key.
#[derive(Debug, Default)]
pub(crate) struct PeerMemory {
    path: Option<PathBuf>,
    notes: RefCell<BTreeMap<String, Note>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// How often in a row.
    misses: u32,
    /// When it may be asked again: seconds since 1970.
    until: u64,
}

impl PeerMemory {
    /// This user's.
    pub(crate) fn recall() -> Self {
        let directory = xdg_directory("XDG_STATE_HOME", ".local/state");
        Self::at(directory.map(|directory| directory.join("peers.json")))
    }

    fn at(path: Option<PathBuf>) -> Self {
        let text = path.as_ref().and_then(|path| atomic_file::read(path).ok()?);
        let notes = text.and_then(|text| serde_json::from_str(&text).ok());
        Self {
            path,
            notes: RefCell::new(notes.unwrap_or_default()),
        }
    }

    /// What is known of the peer of this key.
    pub(crate) fn absence(&self, key: &str) -> Absence {
        self.absence_at(key, unix_seconds())
    }

    fn absence_at(&self, key: &str, now: u64) -> Absence {
        match self.notes.borrow().get(key) {
            None => Absence::None,
            // The clock may have been set back meanwhile.
            Some(note) if note.until > now && note.until <= now + LAST_SECONDS => Absence::Lasting,
            Some(_) => Absence::Over,
        }
    }

    /// It answers.
    pub(crate) fn on_answer(&self, key: &str) {
        if self.notes.borrow_mut().remove(key).is_some() {
            self.save();
        }
    }

    /// It does not.
    pub(crate) fn on_silence(&self, key: &str) {
        self.note_silence(key, unix_seconds());
        self.save();
    }

    fn note_silence(&self, key: &str, now: u64) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() >= MAX_NOTES {
            notes.retain(|_, note| note.until > now);
        }
        let misses = notes.get(key).map_or(0, |note| note.misses);
        let wait = FIRST_SECONDS << misses.min(16);
        let note = Note {
            misses: misses.saturating_add(1),
            until: now + wait.min(LAST_SECONDS),
        };
        notes.insert(key.to_owned(), note);
    }

    fn save(&self) {
        let Some(path) = self.path.clone() else {
            return;
        };
        let notes = self.notes.borrow().clone();
        drop(aside(move || {
            let text = serde_json::to_vec(&notes).unwrap_or_default();
            if let Err(error) = atomic_file::replace(&path, &text, atomic_file::PUBLIC) {
                tracing::debug!("who did not answer is not remembered: {error:#}");
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    #[test]
    fn who_does_not_answer_is_asked_ever_more_rarely_and_waited_for_after_an_answer() {
        let memory = PeerMemory::default();
        assert_eq!(memory.absence_at("a", 0), Absence::None);
        let mut now = 1_000;
        let mut waits = Vec::new();
        for _ in 0..9 {
            memory.note_silence("a", now);
            let begin = now;
            while memory.absence_at("a", now) == Absence::Lasting {
                now += 1;
            }
            assert_eq!(memory.absence_at("a", now), Absence::Over);
            waits.push(now - begin);
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        memory.on_answer("a");
        assert_eq!(memory.absence_at("a", now), Absence::None);
    }

    #[test]
    fn damage_is_no_knowledge_and_a_clock_set_back_holds_nobody_off() {
        let scratch = Scratch::make();
        let path = scratch.path().join("peers.json");
        std::fs::write(&path, "{").unwrap();
        let memory = PeerMemory::at(Some(path));
        assert_eq!(memory.absence_at("a", 0), Absence::None);
        memory.note_silence("a", 1_000_000);
        assert_eq!(memory.absence_at("a", 1_000_001), Absence::Lasting);
        assert_eq!(memory.absence_at("a", 5), Absence::Over);
    }
}
