//! The other process of a relay that is being upgraded: what both tell each other meanwhile.
//!
//! Lines over one link: `ready` once, and then what each user has passed on at the one who says so,
//! so that a user's volume is one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use tabane_base::Bytes;
use tabane_tunnel::User;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};

/// What the new process says once it serves.
const READY: &str = "ready";

/// What comes from the other process, line by line.
pub(crate) type Words = Lines<BufReader<tokio::net::UnixStream>>;

/// The way to the other process.
#[derive(Debug)]
pub(crate) struct Partner {
    link: UnixStream,
    /// Of each user, bytes that it knows of.
    told: BTreeMap<String, u64>,
}

/// Something that it says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    Ready,
    /// A user has passed so much on there.
    Used(&'a str, Bytes),
}

impl<'a> Word<'a> {
    /// A line of its; `None` for what this version does not know.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        if line == READY {
            return Some(Self::Ready);
        }
        let (name, bytes) = line.strip_prefix("used ")?.rsplit_once(' ')?;
        Some(Self::Used(name, Bytes::new(bytes.parse().ok()?)))
    }
}

impl Partner {
    /// By this link.
    ///
    /// # Errors
    /// Out of descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub(crate) fn new(link: UnixStream) -> io::Result<(Self, Words)> {
        link.set_nonblocking(true)?;
        let reading = tokio::net::UnixStream::from_std(link.try_clone()?)?;
        let told = BTreeMap::new();
        Ok((Self { link, told }, BufReader::new(reading).lines()))
    }

    pub(crate) fn say_ready(&mut self) -> io::Result<()> {
        writeln!(self.link, "{READY}")
    }

    /// What users have passed until now is known to it, by the file.
    pub(crate) fn skip(&mut self, users: &[User]) {
        self.told = users
            .iter()
            .map(|user| (user.name().to_owned(), passed(user)))
            .collect();
    }

    /// Tells what users have passed since it was told last.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn tell(&mut self, users: &[User]) -> io::Result<()> {
        for user in users {
            let (name, now) = (user.name(), passed(user));
            let known = self.told.get(name).copied().unwrap_or(0);
            if now > known {
                writeln!(self.link, "used {name} {}", now - known)?;
                self.told.insert(name.to_owned(), now);
            }
        }
        Ok(())
    }
}

/// Bytes that a user has passed at this process.
fn passed(user: &User) -> u64 {
    let usage = user.usage();
    usage.down.get() + usage.up.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_said_and_others_are_left_out() {
        assert_eq!(Word::parse("ready"), Some(Word::Ready));
        let used = Word::parse("used ann 1500");
        assert_eq!(used, Some(Word::Used("ann", Bytes::new(1_500))));
        for other in [
            "",
            "used",
            "used ann",
            "used ann -1",
            "used ann x",
            "steady",
        ] {
            assert_eq!(Word::parse(other), None, "{other}");
        }
    }
}
