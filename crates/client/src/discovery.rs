//! Finding out which destinations speak tabane themselves, where the user has asked for that.
//!
//! Owns whom to ask and how often: one datagram, in the background, over one link that may carry
//! it, and a note of what came back. No connection waits for it. Notes of who did not answer are
//! kept in memory only, for on disk they would tell where somebody has been.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use tabane_base::Duration;
use tabane_core::{ClassId, Inquiry, InquiryAnswer, PathPolicy, PublicKey};
use tabane_linux::Egress;
use tabane_tunnel::Access;
use tokio::time::{Instant, timeout};

use crate::plain;
use crate::surroundings::Surroundings;
use tabane_store::{DEFAULT_PORT, secret};

/// Waits for an answer: after the first datagram and, one may have been lost, the second.
const ANSWER_WAITS: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(2)];
/// Who did not answer, or lets no strangers in, is asked again after this.
const NOTE_LASTS: Duration = Duration::from_secs(3_600);
/// Addresses of which notes are kept: more than a machine speaks with in an hour.
const MAX_NOTES: usize = 8_192;
/// How many are asked at once, and how often one more may be.
const BURST: u32 = 10;
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// An answer to our question has no more than this.
const MAX_ANSWER: usize = 256;

/// What is known of destinations, and the right to ask for more.
#[derive(Debug)]
pub(crate) struct Discovery(RefCell<Curiosity>);

/// Whom to ask, and when. Pure.
#[derive(Debug)]
struct Curiosity {
    /// Private ranges are carried, too, so that those in them may be asked.
    private: bool,
    /// When whoever was asked may be asked again.
    notes: BTreeMap<IpAddr, Instant>,
    /// Questions that may be asked at once, and since when.
    allowance: u32,
    since: Instant,
}

impl Discovery {
    /// Nothing is known. Who is in a private range is asked only where `private` is set.
    pub(crate) fn new(private: bool) -> Self {
        Self(RefCell::new(Curiosity::new(private, Instant::now())))
    }

    /// Whether `ip` is to be asked; if so, the caller does, and it will not be so again soon.
    pub(crate) fn take_turn(&self, ip: IpAddr) -> bool {
        self.0.borrow_mut().take_turn(Instant::now(), ip)
    }
}

impl Curiosity {
    const fn new(private: bool, now: Instant) -> Self {
        Self {
            private,
            notes: BTreeMap::new(),
            allowance: BURST,
            since: now,
        }
    }

    fn take_turn(&mut self, now: Instant, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_noted = self.notes.get(&ip).is_some_and(|until| *until > now);
        if is_noted || !self.may_be_asked(ip) || !self.take_allowance(now) {
            return false;
        }
        if self.notes.len() >= MAX_NOTES {
            self.notes.retain(|_, until| *until > now);
        }
        if self.notes.len() < MAX_NOTES {
            self.notes.insert(ip, now + NOTE_LASTS);
        }
        // Without a note one would be asked with every connection.
        self.notes.contains_key(&ip)
    }

    fn may_be_asked(&self, ip: IpAddr) -> bool {
        let is_near = match ip {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
        };
        let access = match self.private {
            true => Access::Private,
            false => Access::Public,
        };
        !is_near && access.allows(ip)
    }

    fn take_allowance(&mut self, now: Instant) -> bool {
        while self.allowance < BURST && now - self.since >= ASK_INTERVAL {
            self.allowance += 1;
            self.since += ASK_INTERVAL;
        }
        if self.allowance == BURST {
            self.since = now;
        }
        let has_any = self.allowance > 0;
        self.allowance -= u32::from(has_any);
        has_any
    }
}

/// Asks who is at `ip`; the key of whoever speaks tabane there and lets strangers in. What belongs
/// to `class` must be allowed to go there.
pub(crate) async fn ask(
    surroundings: &Surroundings,
    ip: IpAddr,
    class: ClassId,
) -> Result<Option<PublicKey>> {
    let links = surroundings.links_for(class).await?;
    let may_ask = |policy: &PathPolicy| !policy.metered && !policy.backup && policy.weight > 0.0;
    let mut links: Vec<_> = links
        .into_iter()
        .filter(|link| may_ask(&link.policy))
        .collect();
    links.sort_by_key(|link| link.policy.priority);
    for link in links {
        let local: Option<IpAddr> = match ip {
            IpAddr::V4(_) => link.v4.map(IpAddr::from),
            IpAddr::V6(_) => link.v6.map(IpAddr::from),
        };
        let (Some(local), Some(egress)) = (local, &link.egress) else {
            continue;
        };
        let remote = SocketAddr::new(ip, DEFAULT_PORT);
        let answer = ask_over(egress, SocketAddr::new(local, 0), remote).await;
        return Ok(answer.unwrap_or_else(|error| {
            tracing::debug!(%remote, %error, "nobody speaks tabane there");
            None
        }));
    }
    Ok(None)
}

async fn ask_over(
    egress: &Egress,
    local: SocketAddr,
    remote: SocketAddr,
) -> io::Result<Option<PublicKey>> {
    let socket = plain::connect_udp_over(egress, local, remote).await?;
    let inquiry = Inquiry::new(u64::from_be_bytes(secret::random()));
    let mut buffer = [0; MAX_ANSWER];
    for wait in ANSWER_WAITS {
        socket.send(&inquiry.datagram()).await?;
        let answered = timeout(wait, async {
            loop {
                let length = socket.recv(&mut buffer).await?;
                if let Some(answer) = inquiry.read_answer(&buffer[..length]) {
                    return io::Result::Ok(answer);
                }
            }
        });
        match answered.await {
            Ok(answer) => {
                return Ok(match answer? {
                    InquiryAnswer::Open(key) => Some(key),
                    InquiryAnswer::Closed => None,
                });
            }
            Err(_) => continue,
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0101_0000 + n).into()
    }

    #[test]
    fn each_is_asked_once_in_an_hour() {
        let now = Instant::now();
        let mut curiosity = Curiosity::new(false, now);
        assert!(curiosity.take_turn(now, ip(1)));
        assert!(!curiosity.take_turn(now, ip(1)));
        let mapped = "::ffff:1.1.0.1".parse().unwrap();
        assert!(!curiosity.take_turn(now + NOTE_LASTS / 2, mapped));
        assert!(curiosity.take_turn(now + NOTE_LASTS, ip(1)));
    }

    #[test]
    fn many_destinations_make_few_questions() {
        let begin = Instant::now();
        let mut curiosity = Curiosity::new(false, begin);
        let mut asked = 0;
        let minute = 60_000;
        for ms in 0..minute {
            let now = begin + Duration::from_millis(ms);
            asked += u32::from(curiosity.take_turn(now, ip(ms as u32)));
        }
        let most = BURST + minute as u32 / ASK_INTERVAL.as_millis() as u32;
        assert!((most - 1..=most).contains(&asked), "{asked}");
        // What was not asked for want of turns is asked when it comes again.
        let later = begin + Duration::from_secs(100);
        assert!(curiosity.take_turn(later, ip(minute as u32 - 1)));
    }

    #[test]
    fn private_ranges_are_asked_only_where_they_are_carried() {
        let now = Instant::now();
        for (address, by_default, with_private) in [
            ("192.168.1.1", false, true),
            ("10.0.0.1", false, true),
            ("fd00::1", false, true),
            ("203.0.113.9", true, true),
            ("127.0.0.1", false, false),
            ("::1", false, false),
            ("169.254.1.1", false, false),
            ("fe80::1", false, false),
            ("224.0.0.1", false, false),
            ("255.255.255.255", false, false),
        ] {
            for (private, expected) in [(false, by_default), (true, with_private)] {
                let mut curiosity = Curiosity::new(private, now);
                let asked = curiosity.take_turn(now, address.parse().unwrap());
                assert_eq!(asked, expected, "{address}, private: {private}");
            }
        }
    }

    #[test]
    fn notes_are_limited() {
        let mut now = Instant::now();
        let mut curiosity = Curiosity::new(false, now);
        // All within an hour of the last.
        for n in 0..MAX_NOTES as u32 {
            curiosity.notes.insert(ip(n), now + NOTE_LASTS);
        }
        assert!(!curiosity.take_turn(now, ip(99_999)));
        now += NOTE_LASTS;
        assert!(curiosity.take_turn(now, ip(99_999)));
        assert_eq!(curiosity.notes.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_come_again_with_time() {
        let discovery = Discovery::new(false);
        assert!(discovery.take_turn(ip(0)) && !discovery.take_turn(ip(0)));
        let asked = (1..100).filter(|n| discovery.take_turn(ip(*n))).count();
        assert_eq!(asked, BURST as usize - 1);
        sleep(ASK_INTERVAL).await;
        assert!(discovery.take_turn(ip(200)) && !discovery.take_turn(ip(201)));
        sleep(NOTE_LASTS).await;
        assert!(discovery.take_turn(ip(0)), "an hour has passed");
    }

    /// Asks a socket here, which answers the question of this number; what came of it, how often it
    /// was asked, and how long that took.
    async fn ask_here(answered: Option<usize>) -> (Option<PublicKey>, usize, Duration) {
        let there = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let remote = there.local_addr().unwrap();
        let (asked, begun_at) = (std::cell::Cell::new(0), Instant::now());
        let answering = async {
            let mut question = [0; 2_048];
            loop {
                let (_, from) = there.recv_from(&mut question).await.unwrap();
                asked.set(asked.get() + 1);
                if answered == Some(asked.get()) {
                    // The head of the question, and a key.
                    let answer = [&question[..1 + 4 + 8], &[7; 32]].concat();
                    there.send_to(&answer, from).await.unwrap();
                }
            }
        };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let lo = Egress::interface("lo");
        tokio::select! {
            key = ask_over(&lo, local, remote) => (key.unwrap(), asked.get(), begun_at.elapsed()),
            () = answering => unreachable!("it has no end"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_asked_has_two_chances_to_answer() {
        let [first, second] = ANSWER_WAITS;
        for (answered, times, least) in [
            (None, 2, first + second),
            (Some(1), 1, Duration::ZERO),
            (Some(2), 2, first),
        ] {
            let (key, asked, took) = ask_here(answered).await;
            assert_eq!((key.is_some(), asked), (answered.is_some(), times));
            let most = least + Duration::from_millis(2);
            assert!((least..=most).contains(&took), "{answered:?}: {took:?}");
        }
    }
}
