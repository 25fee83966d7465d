//! The other process of a relay that is being upgraded: what both tell each other meanwhile.
//!
//! Lines over one link: `ready` once, then from the old process what is the new one's from there on
//! (`lodged` for each place in use, `pool`, `fleet`), and from both what each user has passed on at
//! the one who says so, so that a user's volume is one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use tabane_base::Bytes;
use tabane_tunnel::{PoolPlace, User};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};

/// What the new process says once it serves.
const READY: &str = "ready";
const POOL: &str = "pool";
const FLEET: &str = "fleet";

/// What comes from the other process, line by line.
pub(crate) type Words = Lines<BufReader<tokio::net::UnixStream>>;

/// The way to the other process.
#[derive(Debug)]
pub(crate) struct Partner {
    link: UnixStream,
    /// Of each user, bytes that it knows of, or is about to.
    told: BTreeMap<String, u64>,
    /// Words that the link has not taken yet, as the other one does not read.
    unsaid: Vec<u8>,
}

/// Something that it says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    Ready,
    /// A user has passed so much on there.
    Used(&'a str, Bytes),
    /// A place of the pool is in use there.
    Lodged(PoolPlace),
    /// All those have been said: the pool is the other's.
    Pool,
    /// The place in the fleet is the other's.
    Fleet,
}

impl<'a> Word<'a> {
    /// A line of its; `None` for what this version does not know.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        match line {
            READY => return Some(Self::Ready),
            POOL => return Some(Self::Pool),
            FLEET => return Some(Self::Fleet),
            _ => {}
        }
        if let Some(rest) = line.strip_prefix("lodged ") {
            let (client, number) = rest.split_once(' ')?;
            let (client, number) = (client.parse().ok()?, number.parse().ok()?);
            return Some(Self::Lodged(PoolPlace { client, number }));
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
        let partner = Self {
            link,
            told: BTreeMap::new(),
            unsaid: Vec::new(),
        };
        Ok((partner, BufReader::new(reading).lines()))
    }

    pub(crate) fn say_ready(&mut self) -> io::Result<()> {
        writeln!(self.link, "{READY}")
    }

    /// Says which places are in use here, and that the pool is its from here on. It has to read
    /// meanwhile.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) async fn say_pool(&self, places: &[PoolPlace]) -> io::Result<()> {
        let lodged = places.iter();
        let lodged = lodged.map(|it| format!("lodged {} {}\n", it.client, it.number));
        self.say(lodged.collect::<String>() + POOL + "\n").await
    }

    /// Says that the place in the fleet is its from here on.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) async fn say_fleet(&self) -> io::Result<()> {
        self.say(format!("{FLEET}\n")).await
    }

    async fn say(&self, words: String) -> io::Result<()> {
        let mut link = tokio::net::UnixStream::from_std(self.link.try_clone()?)?;
        link.write_all(words.as_bytes()).await
    }

    /// What users have passed until now is known to it, by the file.
    pub(crate) fn skip(&mut self, users: &[User]) {
        self.told = users
            .iter()
            .map(|user| (user.name().to_owned(), passed(user)))
            .collect();
    }

    /// Tells what users have passed since it was told last. One that does not read just now is told
    /// later, of everything.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn tell(&mut self, users: &[User]) -> io::Result<()> {
        self.tell_passed(users.iter().map(|user| (user.name(), passed(user))))
    }

    fn tell_passed<'a>(&mut self, users: impl Iterator<Item = (&'a str, u64)>) -> io::Result<()> {
        if self.unsaid.is_empty() {
            for (name, now) in users {
                let known = self.told.get(name).copied().unwrap_or(0);
                if now > known {
                    writeln!(self.unsaid, "used {name} {}", now - known)?;
                    self.told.insert(name.to_owned(), now);
                }
            }
        }
        while !self.unsaid.is_empty() {
            match self.link.write(&self.unsaid) {
                Ok(said) => drop(self.unsaid.drain(..said)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
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

    /// A process that stands still for a moment, and has many users, loses none of what is said.
    #[tokio::test]
    async fn who_does_not_read_for_a_while_is_told_all_the_same() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut partner, _) = Partner::new(ours).unwrap();
        let (_, mut words) = Partner::new(theirs).unwrap();
        let names: Vec<String> = (0..2_000).map(|i| format!("user-{i}")).collect();
        let at = |passed: u64| names.iter().map(move |name| (&name[..], passed));
        const LAST: u64 = 30;
        for passed in 1..=LAST {
            partner.tell_passed(at(passed)).unwrap();
        }
        let mut heard = BTreeMap::new();
        while heard.values().sum::<u64>() < LAST * names.len() as u64 {
            // What could not be said before is said now.
            partner.tell_passed(at(LAST)).unwrap();
            let line = words.next_line().await.unwrap().unwrap();
            let Some(Word::Used(name, bytes)) = Word::parse(&line) else {
                panic!("{line}");
            };
            *heard.entry(name.to_owned()).or_insert(0) += bytes.get();
        }
        assert_eq!(heard.len(), names.len());
        assert!(heard.values().all(|it| *it == LAST), "{heard:?}");
    }

    #[test]
    fn words_are_read_as_they_are_said_and_others_are_left_out() {
        assert_eq!(Word::parse("ready"), Some(Word::Ready));
        assert_eq!(Word::parse("pool"), Some(Word::Pool));
        assert_eq!(Word::parse("fleet"), Some(Word::Fleet));
        let client = tabane_core::PublicKey([7; 32]);
        let lodged = format!("lodged {client} 12");
        let place = PoolPlace { client, number: 12 };
        assert_eq!(Word::parse(&lodged), Some(Word::Lodged(place)));
        let used = Word::parse("used ann 1500");
        assert_eq!(used, Some(Word::Used("ann", Bytes::new(1_500))));
        for other in [
            "",
            "used",
            "used ann",
            "used ann -1",
            "used ann x",
            "steady",
            "lodged",
            "lodged x 1",
            &lodged[..50],
            "pools",
        ] {
            assert_eq!(Word::parse(other), None, "{other}");
        }
    }
}
