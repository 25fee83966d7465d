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
    /// Of each user, bytes that it knows of, or will once it has read what is under way.
    told: BTreeMap<String, u64>,
    /// What the link has no room for yet.
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

    /// Tells what users have passed since it was told last, as far as the link takes it: nobody is
    /// waited for.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn tell(&mut self, users: &[User]) -> io::Result<()> {
        self.tell_of(users.iter().map(|user| (user.name(), passed(user))))
    }

    fn tell_of<'a>(&mut self, passed: impl Iterator<Item = (&'a str, u64)>) -> io::Result<()> {
        self.say_on()?;
        if !self.unsaid.is_empty() {
            return Ok(());
        }
        for (name, now) in passed {
            let known = self.told.get(name).copied().unwrap_or(0);
            if now > known {
                writeln!(self.unsaid, "used {name} {}", now - known)?;
                self.told.insert(name.to_owned(), now);
            }
        }
        self.say_on()
    }

    fn say_on(&mut self) -> io::Result<()> {
        while !self.unsaid.is_empty() {
            match self.link.write(&self.unsaid) {
                Ok(written) => drop(self.unsaid.drain(..written)),
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

    #[test]
    fn what_many_users_have_passed_is_told_whole_however_slowly_it_is_heard() {
        const USERS: u64 = 3_000;
        let told = tabane_tunnel::block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (mut partner, _) = Partner::new(ours).unwrap();
            let (_other, mut words) = Partner::new(theirs).unwrap();
            let mut tell = |turn: u64| {
                let names = (1..=USERS).map(|user| (format!("user-{user}"), turn * user));
                let passed: Vec<_> = names.collect();
                let told =
                    partner.tell_of(passed.iter().map(|(name, bytes)| (name.as_str(), *bytes)));
                told.unwrap();
            };
            // Nobody listens at first.
            (1..=3).for_each(&mut tell);
            let mut idle = 0;
            let mut heard = vec![0; USERS as usize + 1];
            while heard.iter().sum::<u64>() < 3 * USERS * (USERS + 1) / 2 {
                let line = tokio::select! {
                    biased;
                    line = words.next_line() => line.unwrap().unwrap(),
                    () = tokio::task::yield_now() => {
                        idle += 1;
                        assert!(idle < 1_000, "something was never told");
                        tell(3);
                        continue;
                    }
                };
                let Some(Word::Used(name, bytes)) = Word::parse(&line) else {
                    panic!("{line}");
                };
                let user = name
                    .strip_prefix("user-")
                    .and_then(|user| user.parse().ok());
                let user: usize = user.unwrap_or_else(|| panic!("{line}"));
                heard[user] += bytes.get();
            }
            assert!(
                (1..)
                    .zip(&heard[1..])
                    .all(|(user, bytes)| *bytes == 3 * user)
            );
        });
        told.unwrap();
    }
}
