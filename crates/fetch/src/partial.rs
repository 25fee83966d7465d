//! A file that is not whole yet: its bytes in FILE.part, what is known of them in FILE.part.json.
//!
//! What the second says is in the first, even after a loss of power: bytes are synced before they
//! are noted. Both go when the file is whole, or cannot be continued.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest::{self, Digest, SHA256};
use serde::{Deserialize, Serialize};
use tabane_ranges::{ByteRange, EntityTag, Spans, Version};

use tabane_store::atomic_file;

use crate::{Data, Parts, Sink, Url};

/// How often what is there is noted. A kill costs what came since.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// What is given back of the bytes on a full disk, so that they can be noted at all.
const ROOM: u64 = 256 * 1024;

/// What is noted.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    url: String,
    length: u64,
    /// With its quotes. Without one, only a digest tells versions apart.
    etag: Option<String>,
    /// First bytes and ends of what is there.
    ranges: Vec<(u64, u64)>,
}

/// Keeps a file's bytes as they come.
pub(crate) struct Partial {
    data: Arc<File>,
    part: PathBuf,
    note: PathBuf,
    url: String,
    version: Option<Version>,
    written: Spans,
    is_resumable: bool,
    noted_at: Instant,
    /// Somebody is noting at this moment.
    is_noting: Arc<AtomicBool>,
    is_done: bool,
}

impl Partial {
    /// Opens what there is of `path`, and tells it; nothing where another URL, or a note that makes
    /// no sense, says that it is of something else.
    pub(crate) fn open(
        path: &Path,
        urls: &[Url],
        restart: bool,
    ) -> Result<(Self, Option<(Version, Spans)>)> {
        let beside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (part, note) = (beside(".part"), beside(".part.json"));
        let data = atomic_file::open_part(&part)?;
        if data.try_lock().is_err() {
            bail!("{} is being written by another process", part.display());
        }
        let noted = atomic_file::read(&note)?;
        let noted = noted.and_then(|text| serde_json::from_str::<Note>(&text).ok());
        let length = data.metadata()?.len();
        let url = urls.first().map(Url::to_string).unwrap_or_default();
        let begun = noted
            .filter(|noted| !restart && noted.url == url)
            .and_then(|noted| noted.begun(length));
        if begun.is_none() {
            data.set_len(0)?;
        }
        let (version, written) = match begun.clone() {
            Some((version, written)) => (Some(version), written),
            None => (None, Spans::default()),
        };
        let partial = Self {
            data: Arc::new(data),
            part,
            note,
            url,
            is_resumable: version.is_some(),
            version,
            written,
            noted_at: Instant::now(),
            is_noting: Arc::default(),
            is_done: false,
        };
        Ok((partial, begun))
    }

    /// The digest of what is there.
    pub(crate) fn digest(&self) -> Result<Digest> {
        let mut context = digest::Context::new(&SHA256);
        let mut file = self.data.try_clone()?;
        file.rewind()?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(context.finish()),
                amount => context.update(&buffer[..amount]),
            }
        }
    }

    /// The file is whole: it gets its name.
    pub(crate) fn publish(mut self, path: &Path) -> Result<()> {
        let length = self.version.as_ref().and_then(|version| version.length);
        if let Some(length) = length {
            self.data.set_len(length)?;
        }
        fs::rename(&self.part, path).with_context(|| format!("cannot write {}", path.display()))?;
        self.is_done = true;
        remove(&self.note);
        Ok(())
    }

    /// It is of no use.
    pub(crate) fn discard(mut self) {
        self.is_done = true;
        remove(&self.part);
        remove(&self.note);
    }

    /// Whatever ended it before it was whole: makes the most of what is there. Tells how much
    /// another try need not fetch.
    pub(crate) fn keep(mut self) -> Option<u64> {
        self.note_all()
    }

    /// Bytes that are noted; all is removed where there can be none.
    fn note_all(&mut self) -> Option<u64> {
        self.is_done = true;
        while self.is_noting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut is_full = false;
        while let Some(noted) = self.noted().filter(|noted| !noted.ranges.is_empty()) {
            match note_down(&self.data, &self.note, &noted) {
                Ok(()) => return Some(self.written.total().get()),
                Err(error) if is_storage_full(&error) && !is_full => {
                    is_full = true;
                    if let Err(error) = self.give_room() {
                        tracing::debug!(%error, "no room is given back");
                    }
                }
                Err(error) => {
                    tracing::warn!("what there is so far cannot be continued: {error:#}");
                    return None;
                }
            }
        }
        remove(&self.part);
        remove(&self.note);
        None
    }

    /// Gives the last bytes back to the disk.
    fn give_room(&mut self) -> io::Result<()> {
        let length = self.data.metadata()?.len().saturating_sub(ROOM);
        self.data.set_len(length)?;
        let rest = ByteRange {
            start: 0,
            end: length,
        };
        self.written = self.written.iter().map(|span| span.within(rest)).collect();
        Ok(())
    }

    fn noted(&self) -> Option<Note> {
        let version = self.version.as_ref().filter(|_| self.is_resumable)?;
        Some(Note {
            url: self.url.clone(),
            length: version.length?,
            etag: version.tag.as_ref().map(|tag| tag.as_str().to_owned()),
            ranges: self.written.iter().map(|s| (s.start, s.end)).collect(),
        })
    }
}

impl Note {
    /// `size`: of the bytes' file.
    fn begun(self, size: u64) -> Option<(Version, Spans)> {
        let tag = match &self.etag {
            Some(text) => Some(EntityTag::strong(text)?),
            None => None,
        };
        let is_sound = |(start, end): &(u64, u64)| start < end && *end <= self.length.min(size);
        if !self.ranges.iter().all(is_sound) {
            return None;
        }
        let spans = self.ranges.iter().map(|(start, end)| ByteRange {
            start: *start,
            end: *end,
        });
        let length = Some(self.length);
        Some((Version { length, tag }, spans.collect()))
    }
}

impl Sink for Partial {
    fn begin(&mut self, version: &Version, _: &Parts) -> io::Result<()> {
        self.version = Some(version.clone());
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: Data) -> io::Result<()> {
        self.data.write_all_at(&bytes, position)?;
        let end = position + bytes.len() as u64;
        self.written.insert(ByteRange {
            start: position,
            end,
        });
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.version = None;
        self.written = Spans::default();
        self.is_resumable = false;
        remove(&self.note);
        self.data.set_len(0)
    }

    fn checkpoint(&mut self, _: &Spans, resumable: bool) -> io::Result<()> {
        self.is_resumable = resumable && self.version.is_some();
        let is_due = self.noted_at.elapsed() >= NOTE_INTERVAL;
        if !is_due || self.is_noting.load(Ordering::Acquire) {
            return Ok(());
        }
        self.noted_at = Instant::now();
        let Some(noted) = self.noted() else {
            return Ok(());
        };
        // A disk that is slow to sync must not hold up the network.
        self.is_noting.store(true, Ordering::Release);
        let (data, path) = (self.data.clone(), self.note.clone());
        let is_noting = self.is_noting.clone();
        std::thread::spawn(move || {
            if let Err(error) = note_down(&data, &path, &noted) {
                tracing::debug!("not noted: {error:#}");
            }
            is_noting.store(false, Ordering::Release);
        });
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_done {
            self.note_all();
        }
    }
}

fn is_storage_full(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::StorageFull)
}

fn note_down(data: &File, path: &Path, noted: &Note) -> Result<()> {
    data.sync_data()?;
    let text = serde_json::to_string(noted)?;
    // Whoever has the URL may have the file: signed ones are passwords.
    atomic_file::replace(path, text.as_bytes(), atomic_file::SECRET)
}

/// It may not be there.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tabane_store::Scratch;

    fn urls(text: &str) -> Vec<Url> {
        vec![Url::parse(text).unwrap()]
    }

    fn version() -> Version {
        Version {
            length: Some(10),
            tag: EntityTag::strong("\"a\""),
        }
    }

    fn some(partial: &mut Partial) {
        partial.version = Some(version());
        partial.write(4, Data::from_static(b"efg")).unwrap();
        partial.checkpoint(&Spans::default(), true).unwrap();
    }

    #[test]
    fn what_was_there_is_there_again() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        let urls = urls("http://a/file");
        let (mut partial, begun) = Partial::open(&path, &urls, false).unwrap();
        assert_eq!(begun, None);
        assert!(Partial::open(&path, &urls, false).is_err(), "locked");
        some(&mut partial);
        drop(partial);
        let note = fs::metadata(scratch.path().join("file.part.json")).unwrap();
        assert_eq!(
            note.permissions().mode() & 0o777,
            0o600,
            "the URL is nobody's affair"
        );
        let (mut partial, begun) = Partial::open(&path, &urls, false).unwrap();
        let (found, spans) = begun.unwrap();
        assert_eq!(found, version());
        assert_eq!(
            spans.iter().collect::<Vec<_>>(),
            [ByteRange { start: 4, end: 7 }]
        );
        partial.write(0, Data::from_static(b"abcd")).unwrap();
        partial.write(7, Data::from_static(b"hij")).unwrap();
        partial.publish(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abcdefghij");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_of_something_else_is_not_continued() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        for (url, restart, spoil) in [
            ("http://a/other", false, None),
            ("http://a/file", true, None),
            ("http://a/file", false, Some("{}")),
            (
                "http://a/file",
                false,
                Some(r#"{"url":"http://a/file","length":10,"etag":"\"a\"","ranges":[[4,9]]}"#),
            ),
        ] {
            let (mut partial, _) = Partial::open(&path, &urls("http://a/file"), true).unwrap();
            some(&mut partial);
            drop(partial);
            let note = scratch.path().join("file.part.json");
            if let Some(text) = spoil {
                fs::write(&note, text).unwrap();
            }
            let (_, begun) = Partial::open(&path, &urls(url), restart).unwrap();
            assert_eq!(begun, None, "{url} {restart} {spoil:?}");
        }
    }

    #[test]
    fn what_cannot_be_continued_leaves_nothing() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        let (mut partial, _) = Partial::open(&path, &urls("http://a/file"), false).unwrap();
        some(&mut partial);
        partial.checkpoint(&Spans::default(), false).unwrap();
        drop(partial);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
