//! News that a file in a directory has a new version.
//!
//! Owns an inotify descriptor. A version counts when it is whole: renamed into place, or closed
//! after writing. That a file was deleted is no version, and not told.

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
        let flags = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, directory, flags)?;
        let watched = reactor::watch(fd)?;
        Ok(Self { watched })
    }

    /// Waits until the file `name` has a new version, or may have one because there was too much
    /// news to keep.
    ///
    /// # Errors
    /// The directory is gone.
    pub async fn changed(&self, name: &CStr) -> io::Result<()> {
        self.any_changed(|file| file == name).await
    }

    /// The same of any file that is wanted.
    ///
    /// # Errors
    /// As there.
    pub async fn any_changed(&self, is_wanted: impl Fn(&CStr) -> bool) -> io::Result<()> {
        loop {
            let mut ready = self.watched.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = inotify::Reader::new(self.watched.get_ref(), &mut buffer);
            let mut is_changed = false;
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(rustix::io::Errno::WOULDBLOCK) => break,
                    Err(error) => return Err(error.into()),
                };
                if event.events().contains(ReadFlags::IGNORED) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                is_changed |= event.file_name().is_some_and(&is_wanted)
                    || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            }
            ready.clear_ready();
            if is_changed {
                return Ok(());
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
            fs::remove_dir_all(&directory).unwrap();
            let gone = watch.changed(c"file").await.unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        });
        assert!(DirectoryWatch::start(&directory).is_err());
    }
}
