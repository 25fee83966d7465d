//! `access.toml` in a relay's state directory: the access list on disk.
//!
//! Owns the lock under which it is changed and that a change is durable before anybody hears of
//! it, and that what has not changed is not read again. What the list says is [`AccessList`]'s.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use super::AccessList;
use tabane_store::{atomic_file, read_toml};

/// `access.toml` in a relay's state directory.
#[derive(Debug, Clone)]
pub struct AccessFile {
    path: PathBuf,
    known: Arc<Mutex<Option<Known>>>,
}

/// What the file says, as long as it is this one. It is open, so that no other is given its number.
#[derive(Debug)]
struct Known {
    #[expect(dead_code, reason = "it is kept open, so that no other has its number")]
    file: File,
    is: Version,
    list: Arc<AccessList>,
}

/// Another file, or the same after somebody wrote into it, has another one.
#[derive(Debug, PartialEq, Eq)]
struct Version([i128; 5]);

impl Version {
    fn of(file: &Metadata) -> Self {
        let numbers = [file.dev(), file.ino(), file.len()].map(i128::from);
        let times = [file.mtime(), file.mtime_nsec()].map(i128::from);
        let ([device, file, length], [seconds, nanos]) = (numbers, times);
        Self([device, file, length, seconds, nanos])
    }
}

impl AccessFile {
    /// The file's name in its directory.
    pub const NAME: &CStr = c"access.toml";

    /// The file in `directory`; it need not exist yet.
    pub fn new(directory: &Path) -> Self {
        Self {
            path: directory.join(OsStr::from_bytes(Self::NAME.to_bytes())),
            known: Arc::default(),
        }
    }

    /// The list as it is on disk.
    pub fn read(&self) -> Result<AccessList> {
        let list = self.read_if_any()?.unwrap_or_default();
        Ok(Arc::unwrap_or_clone(list))
    }

    /// The same; `None` if there is no file.
    pub(crate) fn read_if_any(&self) -> Result<Option<Arc<AccessList>>> {
        self.read_into(&mut self.known())
    }

    /// What is known of it; nobody here reads while it is changed, to read the same once more.
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_into(&self, known: &mut Option<Known>) -> Result<Option<Arc<AccessList>>> {
        let now = fs::metadata(&self.path).map(|it| Version::of(&it)).ok();
        if let Some(known) = known
            && now.as_ref() == Some(&known.is)
        {
            return Ok(Some(known.list.clone()));
        }
        let file = File::open(&self.path);
        let list: Option<AccessList> = read_toml(&self.path)?;
        let list = list.map(Arc::new);
        if let Some(list) = &list {
            list.check()
                .with_context(|| self.path.display().to_string())?;
            *known = self.identify(file, list);
        }
        Ok(list)
    }

    /// What was read after `file` was opened, unless it is another one by now.
    fn identify(&self, file: io::Result<File>, list: &Arc<AccessList>) -> Option<Known> {
        let file = file.ok()?;
        let is = Version::of(&file.metadata().ok()?);
        let now = Version::of(&fs::metadata(&self.path).ok()?);
        let list = list.clone();
        (is == now).then_some(Known { file, is, list })
    }

    /// Changes the list; nobody else changes it meanwhile, and it is on disk when this returns.
    pub fn update<T>(&self, change: impl FnOnce(&mut AccessList) -> T) -> Result<T> {
        self.update_and_read(change).map(|(outcome, _)| outcome)
    }

    /// Changes the list and gives it as it is then; see [`update`](Self::update).
    pub(crate) fn update_and_read<T>(
        &self,
        change: impl FnOnce(&mut AccessList) -> T,
    ) -> Result<(T, Arc<AccessList>)> {
        let _lock = self.lock()?;
        let mut known = self.known();
        let before = self.read_into(&mut known)?.unwrap_or_default();
        let mut list = (*before).clone();
        let outcome = change(&mut list);
        if list == *before {
            return Ok((outcome, before));
        }
        let text = toml::to_string(&list).context("cannot write the access list as TOML")?;
        atomic_file::replace(&self.path, text.as_bytes(), atomic_file::SECRET)?;
        let list = Arc::new(list);
        // Nobody else replaces it while we have the lock.
        *known = self.identify(File::open(&self.path), &list);
        Ok((outcome, list))
    }

    /// The lock is a file of its own, because the list's file is replaced at every change.
    fn lock(&self) -> Result<File> {
        let path = self.path.with_extension("lock");
        // By whoever comes first, the relay or root, for whoever's the directory is.
        if !path.exists() {
            atomic_file::create(&path, b"", atomic_file::SECRET)?;
        }
        let locked = File::options().write(true).open(&path);
        let locked = locked.and_then(|file| file.lock().map(|()| file));
        locked.with_context(|| format!("cannot lock {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::access::tests::{KEYS, entry, name, shown, token};
    use crate::access::{AccessAnswer, TokenUses, UserEntry};
    use tabane_core::PublicKey;
    use tabane_store::Scratch;

    #[test]
    fn users_are_written_and_read_again_and_contradictions_are_named() {
        let scratch = Scratch::make();
        let file = AccessFile::new(scratch.path());
        let user = UserEntry {
            rate_down: Some("50Mbit/s".parse().unwrap()),
            volume: Some("100GB/month".parse().unwrap()),
            sessions: Some(3),
            allow: vec!["192.0.2.0/24:80,443".parse().unwrap()],
            ports: vec!["443".parse().unwrap(), "udp:8000-8100".parse().unwrap()],
            hosts: vec!["*.ann.example".parse().unwrap()],
            routes: vec!["192.168.20.0/24".parse().unwrap()],
            domains: vec!["lan-b.example".parse().unwrap()],
            group: Some("offices".parse().unwrap()),
            private: true,
            ..UserEntry::new(name("ann"), 7)
        };
        file.update(|list| list.add_user(user.clone()))
            .unwrap()
            .unwrap();
        assert_eq!(file.read().unwrap().users(), [user]);

        let path = scratch.path().join("access.toml");
        let text = fs::read_to_string(&path).unwrap();
        for (bad, word) in [
            (
                format!("{text}{}", &text[text.find("[[user]]").unwrap()..]),
                "two users 'ann'",
            ),
            (text.replace("50Mbit/s", "fast"), "no rate"),
            (text.replace("udp:8000", "udp:0"), "no port"),
            (text.replace("sessions", "sessoins"), "sessoins"),
            (text[..text.len() - 4].to_owned(), "access.toml"),
            (
                format!(
                    "{}[[client]]\nkey = \"{}\"\nenrolled_at = 0\n\
                         token_label = \"x\"\nuser = \"eve\"\n",
                    text.replace("client = []\n", ""),
                    KEYS[0]
                ),
                "no such user",
            ),
        ] {
            fs::write(&path, bad).unwrap();
            let error = format!("{:#}", file.read().unwrap_err());
            assert!(
                error.contains("access.toml") && error.contains(word),
                "{error}"
            );
        }
    }

    #[test]
    fn the_file_keeps_the_list_and_burns_for_good() {
        let scratch = Scratch::make();
        let file = AccessFile::new(scratch.path());
        file.update(|list| list.add_token(entry(1, TokenUses::ONE)))
            .unwrap()
            .unwrap();
        let verdict = file
            .update(|list| list.authorise(KEYS[0], shown(&token(1)), 6))
            .unwrap();
        assert_eq!(verdict, AccessAnswer::Enrolled(None));
        let reopened = AccessFile::new(scratch.path());
        let verdict = reopened
            .update(|list| list.authorise(KEYS[1], shown(&token(1)), 7))
            .unwrap();
        assert_eq!(verdict, AccessAnswer::RefusedUnknown);
        assert_eq!(reopened.read().unwrap().clients()[0].key, KEYS[0]);
    }

    #[test]
    fn what_others_wrote_is_seen_and_what_nobody_wrote_is_not_read_again() {
        let scratch = Scratch::make();
        let file = AccessFile::new(scratch.path());
        assert!(file.read_if_any().unwrap().is_none());
        let add = |file: &AccessFile, n: u8| {
            let added = file.update(|list| list.add_token(entry(n, TokenUses::ONE)));
            added.unwrap().unwrap();
        };
        add(&file, 1);
        let first = file.read_if_any().unwrap().unwrap();
        let again = file.read_if_any().unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        // Another process, as fast as it can.
        for n in 2..50 {
            add(&AccessFile::new(scratch.path()), n);
            let seen = file.read_if_any().unwrap().unwrap();
            assert_eq!(*seen, AccessFile::new(scratch.path()).read().unwrap());
        }
        // A person with an editor that writes into the file.
        let path = scratch.path().join("access.toml");
        fs::write(&path, "token = []\nclient = []\n").unwrap();
        assert_eq!(file.read().unwrap(), AccessList::default());
        fs::remove_file(&path).unwrap();
        assert!(file.read_if_any().unwrap().is_none());
    }

    #[test]
    fn of_many_clients_with_one_token_one_is_admitted() {
        let scratch = Scratch::make();
        let file = AccessFile::new(scratch.path());
        file.update(|list| list.add_token(entry(1, TokenUses::ONE)))
            .unwrap()
            .unwrap();
        let admitted = std::thread::scope(|scope| {
            let file = &file;
            let tries: Vec<_> = (0..8)
                .map(|i| {
                    scope.spawn(move || {
                        let key = PublicKey([i; 32]);
                        file.update(|list| list.authorise(key, shown(&token(1)), 6))
                            .unwrap()
                    })
                })
                .collect();
            let verdicts = tries.into_iter().filter_map(|one| one.join().ok());
            verdicts
                .filter(|verdict| *verdict == AccessAnswer::Enrolled(None))
                .count()
        });
        assert_eq!(admitted, 1);
    }

    #[test]
    fn a_damaged_file_is_an_error_not_an_open_door() {
        let scratch = Scratch::make();
        fs::write(scratch.path().join("access.toml"), "[[token]]\nkey = 1\n").unwrap();
        let file = AccessFile::new(scratch.path());
        let error = format!("{:#}", file.update(|list| list.clone()).unwrap_err());
        assert!(
            error.contains("access.toml:") && !error.contains('\n'),
            "{error}"
        );
    }
}
