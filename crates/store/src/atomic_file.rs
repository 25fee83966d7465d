//! Files that are either the old or the new version, whatever happens in between.
//!
//! Everything tabane writes is small, so it is written whole beside its place, synced, and renamed.
//! Owns modes, durability, and whose they are: what root writes where a service with a name of its
//! own keeps its files is that service's. The contents are others' business.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// Readable by its owner only: keys and tokens.
pub const SECRET: u32 = 0o600;
/// Readable by everyone.
pub const PUBLIC: u32 = 0o644;

/// Replaces `path` by `contents`, durably, making its directory if need be.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<()> {
    stage(path, contents, mode, |staged| fs::rename(staged, path))
        .map_err(|error| refused(path, mode, error))
}

/// Writes `path` unless it exists; false if it does. Of two processes that try, one succeeds.
pub fn create(path: &Path, contents: &[u8], mode: u32) -> Result<bool> {
    let linked = stage(path, contents, mode, |staged| {
        let linked = fs::hard_link(staged, path);
        fs::remove_file(staged)?;
        linked
    });
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(refused(path, mode, error)),
    }
}

/// What is secret is of the settings or a relay's state, and both can be elsewhere.
fn refused(path: &Path, mode: u32, error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem if mode == SECRET => {
            " (--config DIR, for a relay --state DIR, names a place that can be written)"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot write {}{advice}", path.display()))
}

/// Writes what a user asked for to where he asked: a file is replaced, a device or a pipe written
/// into, for `/dev/null` is to stay what it is.
///
/// # Errors
/// It cannot be written.
pub fn write_out(path: &Path, contents: &[u8]) -> Result<()> {
    if !is_special(path) {
        return replace(path, contents, PUBLIC);
    }
    let written = open_special(path)?.write_all(contents);
    written.map_err(|error| refused(path, PUBLIC, error))
}

/// Whether there is something that is neither a file nor a directory, or leads to it: a device, a
/// pipe.
#[must_use]
pub fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// Opens what [`is_special`] for writing.
///
/// # Errors
/// It may not be written to.
pub fn open_special(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))
}

/// Opens a file that is written where it is until it is whole. What a link of its name leads to is
/// not ours: in a directory of everybody's, anybody may have put it there.
pub fn open_part(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let opened = options.custom_flags(nix::libc::O_NOFOLLOW).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(nix::libc::ELOOP) => anyhow!(
            "{} is a link, and is not followed: remove it, or write elsewhere",
            path.display()
        ),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })
}

/// Reads a text file; `None` if there is none.
pub fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes a neighbour of `path`, hands it to `publish`, and leaves nothing behind on failure.
fn stage(
    path: &Path,
    contents: &[u8],
    mode: u32,
    publish: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(directory)?;
    let staged = staging_name(path);
    let outcome = write_new(&staged, contents, mode)
        .and_then(|file| give_to_owner(&file, directory))
        .and_then(|()| publish(&staged));
    if outcome.is_err() {
        let _ = fs::remove_file(&staged);
    }
    outcome?;
    File::open(directory)?.sync_all()
}

/// Unique per process and thread; a leftover of a killed process is overwritten by its namesake.
fn staging_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(
        ".{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    path.with_file_name(name)
}

/// What root has just made is whose the directory is, who could not read it otherwise.
fn give_to_owner(file: &File, directory: &Path) -> io::Result<()> {
    let owner = fs::metadata(directory)?;
    if !nix::unistd::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

fn write_new(path: &Path, contents: &[u8], mode: u32) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(contents)?;
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaces_with_the_mode_asked_and_leaves_no_litter() {
        let scratch = Scratch::make();
        let path = scratch.path().join("deep/er/file");
        replace(&path, b"one", SECRET).unwrap();
        replace(&path, b"two", SECRET).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            SECRET
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_root_writes_for_a_service_is_the_service_s() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        std::os::unix::fs::chown(scratch.path(), Some(4242), Some(4243)).unwrap();
        replace(&path, b"one", SECRET).unwrap();
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.uid(), made.gid()), (4242, 4243));
        fs::remove_file(&path).unwrap();
        assert!(create(&path, b"two", SECRET).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().uid(), 4242);
        std::os::unix::fs::chown(scratch.path(), Some(0), Some(0)).unwrap();
        replace(&path, b"three", SECRET).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().uid(), 0);
    }

    /// `tabane get -o /dev/null` by root once put a file into the place of the device.
    #[test]
    fn a_device_or_a_pipe_is_written_into_and_stays() {
        use std::os::unix::fs::FileTypeExt;
        let scratch = Scratch::make();
        let (pipe, link) = (scratch.path().join("pipe"), scratch.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        for path in [&pipe, &link] {
            let reader = std::thread::spawn({
                let pipe = pipe.clone();
                move || fs::read(pipe).unwrap()
            });
            write_out(path, b"words").unwrap();
            // Or nobody would ever write to the reader's.
            assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
            assert_eq!(reader.join().unwrap(), b"words");
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_part_is_never_what_a_link_leads_to() {
        let scratch = Scratch::make();
        let (part, other) = (scratch.path().join("f.part"), scratch.path().join("other"));
        fs::write(&other, b"precious").unwrap();
        for there in [&other, &scratch.path().join("nothing")] {
            std::os::unix::fs::symlink(there, &part).unwrap();
            let error = open_part(&part).unwrap_err().to_string();
            assert!(error.contains("is a link"), "{error}");
            fs::remove_file(&part).unwrap();
        }
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(!scratch.path().join("nothing").exists());
        open_part(&part).unwrap().write_all(b"begun").unwrap();
        let mut begun = open_part(&part).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut begun, &mut text).unwrap();
        assert_eq!(text, "begun");
    }

    #[test]
    fn create_never_overwrites() {
        let scratch = Scratch::make();
        let path = scratch.path().join("key");
        assert!(create(&path, b"first", SECRET).unwrap());
        assert!(!create(&path, b"second", SECRET).unwrap());
        assert_eq!(read(&path).unwrap().as_deref(), Some("first"));
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_reader_never_sees_half_a_file() {
        let scratch = Scratch::make();
        let path = scratch.path().join("file");
        let texts = ["a".repeat(100_000), "b".repeat(70_000)];
        replace(&path, texts[0].as_bytes(), PUBLIC).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for i in 0..200 {
                    replace(&path, texts[i % 2].as_bytes(), PUBLIC).unwrap();
                }
            });
            while !writer.is_finished() {
                let seen = read(&path).unwrap().expect("the file is always there");
                assert!(texts.contains(&seen), "{} bytes", seen.len());
            }
        });
    }

    #[test]
    fn of_many_creators_one_wins() {
        let scratch = Scratch::make();
        let path = scratch.path().join("key");
        let wins = std::thread::scope(|scope| {
            let path = &path;
            let threads: Vec<_> = (0..8)
                .map(|i| scope.spawn(move || create(path, &[b'0' + i], SECRET).unwrap()))
                .collect();
            threads
                .into_iter()
                .filter_map(|t| t.join().ok())
                .filter(|won| *won)
                .count()
        });
        assert_eq!(wins, 1);
    }
}
