//! What routers say of their networks in advertisements, beyond what the kernel itself follows: a
//! translator (RFC 8781), resolvers (RFC 8106), a portal's address (RFC 8910).
//!
//! Owns how these are read and how long they count. The kernel passes them on as it hears them
//! (`RTM_NEWNDUSEROPT`), and keeps none; so routers are asked to say it again (RFC 4861 §6.3.7)
//! where we may. A router is whoever is on the wire: nothing here makes anything trusted.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use socket2::{Domain, Protocol, Socket, Type};
use tabane_base::Translator;
use tokio::io::unix::AsyncFd;

use crate::reactor::watch_reading;

/// `RTNLGRP_ND_USEROPT`, as a bit.
const GROUP: u32 = 1 << 19;
const NEW_OPTION: u16 = 68;
/// Of a netlink message, and of what the kernel puts before the options.
const HEADER: usize = 16;
const OPTIONS_HEADER: usize = 16;
/// Of the attribute with the router's address, that and the address.
const SOURCE: usize = 4 + 16;
const MESSAGE: usize = 4_096;

const RESOLVERS: u8 = 25;
const PORTAL: u8 = 37;
const TRANSLATOR: u8 = 38;

/// Routers of one interface that are listened to; a network has a few.
const MAX_ROUTERS: usize = 8;
const MAX_TRANSLATORS: usize = 2;
const MAX_RESOLVERS: usize = 3;
/// A longer address would be nobody's.
const MAX_PORTAL_BYTES: usize = 512;
/// A portal's address has no lifetime: routers repeat it within this (RFC 4861 §6.2.1).
const PORTAL_TIME: Duration = Duration::from_secs(3_600);

/// What the routers of one interface say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised {
    /// The translators that lead to IPv4.
    pub translators: Vec<Translator>,
    /// Who answers for names.
    pub resolvers: Vec<IpAddr>,
    /// Where a portal says who it is (RFC 8908).
    pub portal: Option<String>,
}

/// One option, and how long it counts; zero takes it back.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Translator(Translator, Duration),
    Resolvers(Vec<IpAddr>, Duration),
    Portal(String),
}

/// An option of a router behind the interface of this number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertisement {
    index: u32,
    router: Ipv6Addr,
    said: Said,
}

/// All that was said and counts.
#[derive(Debug, Default)]
pub struct Advertisements(BTreeMap<(u32, Ipv6Addr), Router>);

/// What one of them has said, and until when that counts.
#[derive(Debug)]
struct Router {
    heard_at: Instant,
    said: Vec<(Said, Instant)>,
}

impl Advertisement {
    /// Reads the kernel's message: its header, what the options are of, the option, the router's
    /// address. `None` for every other, and for what means nothing here.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        /// Router Advertisement.
        const ICMP: [u8; 2] = [134, 0];
        let kind = message.get(4..6)?;
        let after = message.get(HEADER..)?;
        let length = usize::from(u16::from_ne_bytes([*after.get(2)?, *after.get(3)?]));
        let index = u32::from_ne_bytes(*after.get(4..)?.first_chunk()?);
        if kind != NEW_OPTION.to_ne_bytes() || after.get(8..10)? != ICMP {
            return None;
        }
        let option = after.get(OPTIONS_HEADER..OPTIONS_HEADER + length)?;
        let source = after.get(OPTIONS_HEADER + length..)?.get(..SOURCE)?;
        let router: [u8; 16] = *source.get(4..)?.first_chunk()?;
        Some(Self {
            index,
            router: router.into(),
            said: said(option)?,
        })
    }
}

impl Advertisements {
    /// A router has said this.
    pub fn on_advertisement(&mut self, now: Instant, news: Advertisement) {
        let Advertisement {
            index,
            router,
            said,
        } = news;
        self.0.retain(|_, known| {
            known.said.retain(|(_, until)| *until > now);
            !known.said.is_empty()
        });
        if !self.0.contains_key(&(index, router)) {
            self.make_room(index);
        }
        let lasts = match &said {
            Said::Translator(_, lasts) | Said::Resolvers(_, lasts) => *lasts,
            Said::Portal(_) => PORTAL_TIME,
        };
        let known = self.0.entry((index, router)).or_insert(Router {
            heard_at: now,
            said: Vec::new(),
        });
        known.heard_at = now;
        let known = &mut known.said;
        known.retain(|(other, _)| match (other, &said) {
            (Said::Translator(other, _), Said::Translator(it, _)) => other != it,
            (Said::Resolvers(..), Said::Resolvers(..)) | (Said::Portal(_), Said::Portal(_)) => {
                false
            }
            _ => true,
        });
        let translators = known.iter();
        let translators = translators.filter(|(it, _)| matches!(it, Said::Translator(..)));
        let is_full = translators.count() >= MAX_TRANSLATORS;
        if lasts.is_zero() || is_full && matches!(said, Said::Translator(..)) {
            return;
        }
        known.push((said, now + lasts));
    }

    /// The one of an interface that has been silent for longest is another network's, or has
    /// nothing to say.
    fn make_room(&mut self, index: u32) {
        let routers = self.0.iter().filter(|((of, _), _)| *of == index);
        if routers.clone().count() >= MAX_ROUTERS
            && let Some((&silent, _)) = routers.min_by_key(|(_, known)| known.heard_at)
        {
            self.0.remove(&silent);
        }
    }

    /// Forgets what was said behind interfaces that have no network any more: the next one's
    /// routers say what counts there.
    pub fn retain(&mut self, has_network: impl Fn(u32) -> bool) {
        self.0.retain(|(index, _), _| has_network(*index));
    }

    /// What counts for an interface; first what its default routers say.
    #[must_use]
    pub fn of(
        &self,
        now: Instant,
        index: u32,
        is_default: impl Fn(Ipv6Addr) -> bool,
    ) -> Advertised {
        let mut all = Advertised::default();
        let routers = self.0.iter().filter(|((of, _), _)| *of == index);
        let mut routers: Vec<_> = routers.collect();
        routers.sort_by_key(|((_, router), _)| !is_default(*router));
        let said = routers.iter().flat_map(|(_, known)| &known.said);
        for (said, _) in said.filter(|(_, until)| *until > now) {
            match said {
                Said::Translator(it, _) => all.translators.push(*it),
                Said::Resolvers(list, _) => all.resolvers.extend(list),
                Said::Portal(uri) => all.portal = all.portal.or_else(|| Some(uri.clone())),
            }
        }
        all.translators.dedup();
        all.resolvers.truncate(MAX_RESOLVERS);
        all
    }

    /// The translators of all interfaces.
    #[must_use]
    pub fn translators(&self, now: Instant) -> Vec<Translator> {
        let said = self.0.values().flat_map(|known| &known.said);
        let said = said.filter(|(_, until)| *until > now);
        let translators = said.filter_map(|(said, _)| match said {
            Said::Translator(it, _) => Some(*it),
            Said::Resolvers(..) | Said::Portal(_) => None,
        });
        translators.collect()
    }
}

/// Hears what routers say.
#[derive(Debug)]
pub struct RouterListener {
    watched: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl RouterListener {
    /// Listens in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel gives no such socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn start() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUP))?;
        Ok(Self {
            watched: watch_reading(fd)?,
            buffer: vec![0; MESSAGE],
        })
    }

    /// Waits for the next option that means something here; for ever, where nobody listens, or the
    /// kernel gives no more.
    pub async fn hear(listener: &mut Option<Self>) -> Advertisement {
        if let Some(open) = listener {
            match open.next().await {
                Ok(news) => return news,
                Err(error) => tracing::debug!(%error, "routers are not heard any more"),
            }
        }
        *listener = None;
        std::future::pending().await
    }

    async fn next(&mut self) -> io::Result<Advertisement> {
        loop {
            let mut ready = self.watched.readable().await?;
            let buffer = &mut self.buffer;
            let received = ready.try_io(|fd| {
                let fd = fd.get_ref().as_raw_fd();
                Ok(recv(fd, buffer, MsgFlags::MSG_DONTWAIT)?)
            });
            match received {
                Ok(Ok(length)) => {
                    if let Some(news) = Advertisement::parse(&self.buffer[..length]) {
                        return Ok(news);
                    }
                }
                // Some were lost; routers repeat them.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Asks the routers behind an interface to say what they have to say now. Needs `CAP_NET_RAW`.
///
/// # Errors
/// Those of `socket(2)` and `sendto(2)`.
pub fn solicit(interface: &str) -> io::Result<()> {
    /// Without our link-layer address: answers go to all.
    const SOLICITATION: [u8; 8] = [133, 0, 0, 0, 0, 0, 0, 0];
    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.set_multicast_hops_v6(255)?;
    let routers = SocketAddrV6::new(ALL_ROUTERS, 0, 0, 0);
    socket.send_to(&SOLICITATION, &routers.into()).map(drop)
}

/// What an option of an advertisement says.
fn said(option: &[u8]) -> Option<Said> {
    let (kind, length) = (*option.first()?, usize::from(*option.get(1)?) * 8);
    let value = option.get(2..length)?;
    match kind {
        TRANSLATOR => {
            let scaled = u16::from_be_bytes([*value.first()?, *value.get(1)?]);
            // RFC 8781 §4: the length by a code, the lifetime in units of 8 s.
            let bits = *[96, 64, 56, 48, 40, 32].get(usize::from(scaled & 7))?;
            let mut octets = [0; 16];
            octets[..12].copy_from_slice(value.get(2..14)?);
            let translator = Translator::advertised(octets.into(), bits)?;
            let lasts = Duration::from_secs(u64::from(scaled >> 3) * 8);
            Some(Said::Translator(translator, lasts))
        }
        RESOLVERS => {
            let lasts = u32::from_be_bytes(*value.get(2..)?.first_chunk()?);
            let (addresses, _) = value.get(6..)?.as_chunks::<16>();
            let addresses = addresses.iter().map(|octets| IpAddr::from(*octets));
            let list = addresses.take(MAX_RESOLVERS).collect();
            Some(Said::Resolvers(list, Duration::from_secs(lasts.into())))
        }
        PORTAL => {
            let end = value.iter().rposition(|byte| *byte != 0)? + 1;
            let text = std::str::from_utf8(&value[..end]).ok()?;
            let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
            (is_plain && end <= MAX_PORTAL_BYTES).then(|| Said::Portal(text.to_owned()))
        }
        _ => None,
    }
}

/// Reads messages of the kernel whose options strangers have written.
pub fn fuzz_advertisements(data: &[u8]) {
    let mut known = Advertisements::default();
    let now = Instant::now();
    for message in data.chunks(64) {
        if let Some(news) = Advertisement::parse(message) {
            known.on_advertisement(now, news);
        }
    }
    let _ = said(data);
    let _ = known.translators(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(kind: u8, value: &[u8]) -> Vec<u8> {
        let mut option = vec![kind, 0];
        option.extend(value);
        option.resize(option.len().next_multiple_of(8), 0);
        option[1] = u8::try_from(option.len() / 8).unwrap();
        option
    }

    fn message(option: &[u8], router: &str) -> Vec<u8> {
        let mut message = vec![0; 4];
        message.extend(NEW_OPTION.to_ne_bytes());
        message.extend([0; 10]);
        message.extend([10, 0]);
        message.extend(u16::try_from(option.len()).unwrap().to_ne_bytes());
        message.extend(7_u32.to_ne_bytes());
        message.extend([134, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(option);
        message.extend([20, 0, 1, 0]);
        message.extend(router.parse::<Ipv6Addr>().unwrap().octets());
        message
    }

    /// A lifetime in seconds, and 64:ff9b::/96.
    fn translator(seconds: u16, code: u16) -> Vec<u8> {
        let prefix = "64:ff9b::".parse::<Ipv6Addr>().unwrap().octets();
        let mut value = ((seconds / 8) << 3 | code).to_be_bytes().to_vec();
        value.extend(&prefix[..12]);
        option(TRANSLATOR, &value)
    }

    fn known(options: &[(&str, Vec<u8>)], at: Duration) -> Advertised {
        let mut all = Advertisements::default();
        let now = Instant::now();
        for (router, option) in options {
            let news = Advertisement::parse(&message(option, router)).expect("an option");
            all.on_advertisement(now, news);
        }
        all.of(now + at, 7, |_| false)
    }

    #[test]
    fn what_routers_say_counts_for_as_long_as_they_say() {
        let resolver: Ipv6Addr = "2001:db8::53".parse().unwrap();
        let mut value = vec![0, 0, 0, 0, 0, 60];
        value.extend(resolver.octets());
        let resolvers = option(RESOLVERS, &value);
        let uri = option(PORTAL, b"https://portal.test/api");
        let all = [
            ("fe80::1", translator(600, 0)),
            ("fe80::1", resolvers),
            ("fe80::2", uri),
        ];
        let now = known(&all, Duration::ZERO);
        let shown = Translator::advertised("64:ff9b::".parse().unwrap(), 96).unwrap();
        assert_eq!(now.translators, [shown]);
        assert_eq!(now.resolvers, [IpAddr::from(resolver)]);
        assert_eq!(now.portal.as_deref(), Some("https://portal.test/api"));
        let later = known(&all, Duration::from_secs(61));
        assert_eq!((later.translators.len(), later.resolvers.len()), (1, 0));
        assert!(known(&all, Duration::from_secs(601)).translators.is_empty());
        let withdrawn = [
            ("fe80::1", translator(600, 0)),
            ("fe80::1", translator(0, 0)),
        ];
        assert!(known(&withdrawn, Duration::ZERO).translators.is_empty());
    }

    #[test]
    fn what_the_last_network_s_routers_said_does_not_count_in_the_next_one() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let mut all = Advertisements::default();
        let tell = |all: &mut Advertisements, router: &str, code, at| {
            let news = Advertisement::parse(&message(&translator(65_528, code), router)).unwrap();
            all.on_advertisement(at, news);
        };
        let there: Ipv6Addr = "fe80::aaaa".parse().unwrap();
        let first = |all: &Advertisements| {
            let said = all.of(later, 7, |router| router == there);
            said.translators.first().copied()
        };
        for i in 0..8 {
            tell(&mut all, &format!("fe80::{i:x}"), 0, now);
        }
        // Nobody has seen the interface without a network.
        tell(&mut all, "fe80::aaaa", 1, later);
        let true_one = Translator::advertised("64:ff9b::".parse().unwrap(), 64);
        assert_eq!(first(&all), true_one);
        all.retain(|index| index == 7);
        assert_eq!(first(&all), true_one);
        all.retain(|_| false);
        assert_eq!(first(&all), None);
    }

    #[test]
    fn what_no_router_says_is_nothing() {
        for wrong in [
            translator(600, 7),
            option(PORTAL, &[]),
            option(PORTAL, b"https://x/\x1b[2J"),
            option(PORTAL, &[b'x'; 600]),
            option(3, &[0; 30]),
            vec![TRANSLATOR, 1, 0, 0, 0, 0, 0, 0],
            vec![TRANSLATOR, 255],
            vec![],
        ] {
            assert_eq!(said(&wrong), None, "{wrong:?}");
        }
        let whole = message(&translator(600, 0), "fe80::1");
        for length in 0..whole.len() {
            assert_eq!(
                Advertisement::parse(&whole[..length]),
                None,
                "{length} bytes"
            );
        }
        // A thousand routers are not remembered.
        let many: Vec<String> = (0..1_000).map(|i| format!("fe80::{i:x}")).collect();
        let many: Vec<_> = many
            .iter()
            .map(|router| (router.as_str(), translator(600, 0)))
            .collect();
        assert!(known(&many, Duration::ZERO).translators.len() <= MAX_ROUTERS);
    }
}
