//! News that a file in a directory has a new version.
//!
//! Owns an inotify descriptor. A version counts when it is whole: renamed into place, or closed
//! after writing. That a file was deleted or renamed away is told to who asks for it: many who
//! write a file take the old one away first.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

use crate::reactor;

/// Bytes for events of one read; names have at most 255 bytes, and there are other events after.
const BUFFER_BYTES: usize = 4_096;

/// What is new of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEvent {
    /// It has a new version, or may have one because there was too much news to keep.
    Version,
    /// It is gone, at least for a moment.
    Gone,
}

/// Watches one directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    watched: AsyncFd<OwnedFd>,
}

impl DirectoryWatch {
    /// Watches `directory`, which must exist.
    ///
    /// # Errors
    /// It does not exist, or there are as many watches as the kernel allows.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let versions = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
        let ends = WatchFlags::MOVED_FROM | WatchFlags::DELETE;
        inotify::add_watch(&fd, directory, versions | ends | WatchFlags::ONLYDIR)?;
        let watched = reactor::watch(fd)?;
        Ok(Self { watched })
    }

    /// Waits until the file `name` has a new version, or may have one because there was too much
    /// news to keep.
    ///
    /// # Errors
    /// The directory is gone.
    pub async fn changed(&self, name: &CStr) -> io::Result<()> {
        while self.news(|file| file == name).await? != FileEvent::Version {}
        Ok(())
    }

    /// Waits for news of any file that is wanted, and gives the last.
    ///
    /// # Errors
    /// As there.
    pub async fn news(&self, is_wanted: impl Fn(&CStr) -> bool) -> io::Result<FileEvent> {
        loop {
            let mut ready = self.watched.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = inotify::Reader::new(self.watched.get_ref(), &mut buffer);
            let mut news = None;
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(rustix::io::Errno::WOULDBLOCK) => break,
                    Err(error) => return Err(error.into()),
                };
                if event.events().contains(ReadFlags::IGNORED) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let events = event.events();
                if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                    news = Some(FileEvent::Version);
                } else if event.file_name().is_some_and(&is_wanted) {
                    let is_gone = events.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE);
                    news = Some(if is_gone {
                        FileEvent::Gone
                    } else {
                        FileEvent::Version
                    });
                }
            }
            ready.clear_ready();
            if let Some(news) = news {
                return Ok(news);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn is_pending(future: impl Future<Output = io::Result<()>>) -> bool {
        let future = std::pin::pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        matches!(future.poll(&mut cx), Poll::Pending)
    }

    #[test]
    fn whole_versions_of_one_file_are_told() {
        let directory = std::env::temp_dir().join(format!("tabane-watch-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let watch = DirectoryWatch::start(&directory).unwrap();
            fs::write(directory.join("other"), "x").unwrap();
            assert!(is_pending(watch.changed(c"file")));
            fs::write(directory.join("file"), "x").unwrap();
            watch.changed(c"file").await.unwrap();
            fs::remove_file(directory.join("file")).unwrap();
            assert!(is_pending(watch.changed(c"file")));
            fs::rename(directory.join("other"), directory.join("file")).unwrap();
            watch.changed(c"file").await.unwrap();
            // The last news of a file counts.
            let of_file = || watch.news(|name| name == c"file");
            fs::rename(directory.join("file"), directory.join("old")).unwrap();
            assert_eq!(of_file().await.unwrap(), FileEvent::Gone);
            fs::write(directory.join("file"), "x").unwrap();
            fs::remove_file(directory.join("file")).unwrap();
            assert_eq!(of_file().await.unwrap(), FileEvent::Gone);
            fs::write(directory.join("file"), "x").unwrap();
            fs::remove_file(directory.join("file")).unwrap();
            fs::write(directory.join("file"), "x").unwrap();
            assert_eq!(of_file().await.unwrap(), FileEvent::Version);
            fs::remove_dir_all(&directory).unwrap();
            let gone = watch.changed(c"file").await.unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        });
        assert!(DirectoryWatch::start(&directory).is_err());
    }
}
