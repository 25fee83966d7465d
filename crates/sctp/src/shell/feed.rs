//! Files and pipes, read and written by a thread of their own: the loop that moves packets must not
//! wait for a disk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use tokio::sync::{mpsc, oneshot};

use tabane_store::atomic_file;

/// Bytes read at a time.
const BLOCK: usize = 64 * 1024;
/// Blocks that may wait: 4 MB.
const BLOCKS: usize = 64;

/// What is to be sent.
pub(crate) struct Source {
    /// Its length, where that is known.
    pub length: Option<u64>,
    /// Blocks; the last is an error or none.
    pub blocks: mpsc::Receiver<Result<Vec<u8>>>,
}

impl Source {
    /// Opens a file, or standard input for `-` or nothing.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let (feed, blocks) = mpsc::channel(BLOCKS);
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            spawn("sctp-stdin", move || {
                pass(&mut io::stdin().lock(), &feed);
            })?;
            return Ok(Self {
                length: None,
                blocks,
            });
        };
        let name = path.display().to_string();
        let mut file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let before = Stamp::of(&file).with_context(|| format!("cannot read {name}"))?;
        if before.is_directory {
            bail!("{name} is a directory; name a file, or pipe `tar c` into this command");
        }
        let length = before.length;
        spawn("sctp-file", move || {
            let Some(read) = pass(&mut file, &feed) else {
                return;
            };
            if let Err(error) = before.check(&file, read, &name) {
                let _ = feed.blocking_send(Err(error));
            }
        })?;
        Ok(Self { length, blocks })
    }
}

/// Hands over everything; how much that was, unless reading failed or nobody wants it any more.
fn pass(from: &mut impl Read, feed: &mpsc::Sender<Result<Vec<u8>>>) -> Option<u64> {
    let mut total = 0;
    loop {
        let mut block = vec![0; BLOCK];
        match from.read(&mut block) {
            Ok(0) => return Some(total),
            Ok(len) => {
                block.truncate(len);
                total += len as u64;
                feed.blocking_send(Ok(block)).ok()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let error = anyhow::Error::new(error).context("cannot read what is to be sent");
                let _ = feed.blocking_send(Err(error));
                return None;
            }
        }
    }
}

/// What tells whether a file was changed while it was read.
struct Stamp {
    /// Only regular files have one.
    length: Option<u64>,
    modified: Option<SystemTime>,
    is_directory: bool,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            length: metadata.is_file().then_some(metadata.len()),
            modified: metadata.modified().ok().filter(|_| metadata.is_file()),
            is_directory: metadata.is_dir(),
        })
    }

    fn check(&self, file: &File, read: u64, name: &str) -> Result<()> {
        let now = Self::of(file)?;
        if let Some(length) = self.length.filter(|length| *length != read) {
            bail!(
                "{name} was changed while it was sent: {length} bytes at first, {read} at the end"
            );
        }
        if now.modified != self.modified {
            bail!("{name} was changed while it was sent");
        }
        Ok(())
    }
}

/// Where received bytes go.
pub(crate) struct Sink {
    blocks: Option<mpsc::Sender<Vec<u8>>>,
    written: oneshot::Receiver<Result<Finish>>,
}

/// Everything is written; the file has still to get its name.
pub(crate) struct Finish {
    part: Option<(PathBuf, PathBuf)>,
}

impl Sink {
    /// Writes to `FILE.part`, which becomes the file when it is complete; into standard output for
    /// `-`, and into what is there and is no file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let (blocks, incoming) = mpsc::channel(BLOCKS);
        let (told, written) = oneshot::channel();
        let is_stdout = path == Path::new("-");
        if is_stdout || atomic_file::is_special(path) {
            let path = path.to_owned();
            spawn("sctp-stream", move || {
                let out = match is_stdout {
                    true => Ok(Box::new(io::stdout()) as Box<dyn Write>),
                    false => atomic_file::open_special(&path).map(|file| Box::new(file) as _),
                };
                let done = out.and_then(|mut out| write_all(&mut out, incoming));
                let _ = told.send(done.map(|()| Finish { part: None }));
            })?;
        } else {
            let part = part_of(path);
            let mut file = atomic_file::open_part(&part)?;
            let emptied = file.set_len(0);
            emptied.with_context(|| format!("cannot write {}", part.display()))?;
            let path = path.to_owned();
            spawn("sctp-file", move || {
                let done = write_all(&mut file, incoming).and_then(|()| Ok(file.sync_all()?));
                let done = done.with_context(|| format!("cannot write {}", part.display()));
                let _ = told.send(done.map(|()| Finish {
                    part: Some((part, path)),
                }));
            })?;
        }
        Ok(Self {
            blocks: Some(blocks),
            written,
        })
    }

    /// One that is finished.
    pub(crate) fn closed() -> Self {
        let (_, written) = oneshot::channel();
        Self {
            blocks: None,
            written,
        }
    }

    /// Whether there is room for another block. A writer that has failed has room for nothing;
    /// `finish` tells.
    pub(crate) fn has_room(&self) -> bool {
        let blocks = self.blocks.as_ref();
        blocks.is_none_or(|blocks| blocks.capacity() > 0 && !blocks.is_closed())
    }

    /// Whether nothing can be written any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.blocks.as_ref().is_some_and(mpsc::Sender::is_closed)
    }

    /// Takes a block; only while there is room.
    pub(crate) fn write(&mut self, block: &[u8]) {
        if let Some(blocks) = &self.blocks {
            // A writer that failed is heard of in `finish`.
            let _ = blocks.try_send(block.to_vec());
        }
    }

    /// Waits until everything is on disk.
    pub(crate) async fn finish(mut self) -> Result<Finish> {
        self.blocks = None;
        self.written.await.context("the writing thread is gone")?
    }
}

impl Finish {
    /// Gives the file its name: it is complete.
    pub(crate) fn commit(self) -> Result<()> {
        match self.part {
            Some((part, path)) => fs::rename(&part, &path)
                .with_context(|| format!("cannot call {} {}", part.display(), path.display())),
            None => Ok(()),
        }
    }
}

/// Where a file is while it is not complete.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn write_all(to: &mut impl Write, mut blocks: mpsc::Receiver<Vec<u8>>) -> Result<()> {
    while let Some(block) = blocks.blocking_recv() {
        to.write_all(&block)?;
    }
    Ok(to.flush()?)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).context("cannot start a thread")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    fn read(source: &mut Source) -> (u64, Option<String>) {
        let mut total = 0;
        loop {
            match source.blocks.blocking_recv() {
                Some(Ok(block)) => total += block.len() as u64,
                Some(Err(error)) => return (total, Some(error.to_string())),
                None => return (total, None),
            }
        }
    }

    #[test]
    fn a_file_that_grows_while_it_is_read_is_told_of() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        let more = BLOCK * (BLOCKS + 8);
        fs::write(&path, vec![1; more]).unwrap();
        let mut whole = Source::open(Some(&path)).unwrap();
        assert_eq!(read(&mut whole), (more as u64, None));
        // The reading thread waits for room before it has read everything.
        let mut grown = Source::open(Some(&path)).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"more").unwrap();
        let (total, error) = read(&mut grown);
        assert_eq!(total, more as u64 + 4);
        assert!(error.unwrap().contains("was changed while it was sent"));
        assert!(Source::open(Some(scratch.path())).is_err());
    }

    #[tokio::test]
    async fn a_sink_that_is_a_pipe_is_written_into_and_stays() {
        let scratch = Scratch::make();
        let pipe = scratch.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        let mut sink = Sink::create(&pipe).unwrap();
        sink.write(b"bytes");
        let finish = sink.finish().await.unwrap();
        // Or nobody would ever write to the reader.
        assert!(!part_of(&pipe).exists());
        finish.commit().unwrap();
        assert_eq!(reader.join().unwrap(), b"bytes");
    }

    #[tokio::test]
    async fn a_sink_has_another_name_until_it_is_complete() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        let mut sink = Sink::create(&path).unwrap();
        sink.write(b"bytes");
        let finish = sink.finish().await.unwrap();
        assert!(!path.exists() && part_of(&path).exists());
        finish.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
    }
}
