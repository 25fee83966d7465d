//! Reaching a destination from the relay: resolve, check against the policy, connect.
//!
//! Owns the order in which addresses are tried and how long (RFC 8305). Addresses are checked after
//! resolution, each one by itself: a name with one private and one public address leads to the
//! public one. The relay's own resolver is exempt from the check, since the relay's owner chose it,
//! but not from what a user is denied.

use std::io;
use std::net::SocketAddr;

use socket2::{SockRef, TcpKeepalive};
use tabane_base::Duration;
use tabane_linux::{abortive::AbortiveStream, buffers, undelivered};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Shared;
use super::departure::Departure;
use super::user::{Asker, User};
use crate::access::Access;
use crate::request::Status;
use crate::resolve::lookup;
use crate::target::Target;

/// Head start of each address over the next (RFC 8305 §5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How long all attempts together may take; programs themselves give up after 10 to 130 s.
const CONNECT_WAIT: Duration = Duration::from_secs(15);

/// Destinations that vanish without a word are noticed after 60 + 4 × 15 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 4;

/// Bytes that wait for us at a UDP port: a thousand short answers that come at once, as when many
/// were asked at once. A kernel's usual buffer holds some 270.
const RECEIVE_BUFFER: usize = 512 * 1024;

/// Where mail servers take mail of one another (RFC 5321 §4.5.4.2).
const MAIL: u16 = 25;

/// Connects to `target` by TCP.
pub(super) async fn connect(
    shared: &Shared,
    asker: Asker<'_>,
    target: &Target,
) -> Result<AbortiveStream, Status> {
    let addresses = addresses(shared, asker, target).await?;
    let tcp = race(addresses, departure(shared, asker, target))
        .await
        .map_err(|error| status(&error))?;
    notice_vanished(&tcp);
    Ok(tcp.into())
}

/// Has whoever vanishes without a word be noticed.
pub(super) fn notice_vanished(tcp: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    if let Err(error) = SockRef::from(tcp).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "SO_KEEPALIVE");
    }
}

/// A UDP socket that speaks with `target` alone.
pub(super) async fn bind_udp(
    shared: &Shared,
    asker: Asker<'_>,
    target: &Target,
) -> Result<UdpSocket, Status> {
    let addresses = addresses(shared, asker, target).await?;
    let departure = departure(shared, asker, target);
    let mut failure = Status::Unreachable;
    for remote in addresses {
        match connected_udp(remote, &departure).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = status(&error),
        }
    }
    Err(failure)
}

/// By what sockets leave that speak with `target`. The relay's resolver is asked by the relay.
fn departure(shared: &Shared, asker: Asker<'_>, target: &Target) -> Departure {
    match target {
        Target::Resolver => shared.own_departure(),
        Target::Address(_) | Target::Name { .. } | Target::Anywhere => shared.departure(asker),
    }
}

async fn connect_tcp(remote: SocketAddr, departure: Departure) -> io::Result<TcpStream> {
    let socket = match remote {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    departure.prepare_tcp(&socket, remote.ip())?;
    // It may be a service of this machine's.
    buffers::allow_small_buffers(&socket)?;
    socket.connect(remote).await
}

async fn connected_udp(remote: SocketAddr, departure: &Departure) -> io::Result<UdpSocket> {
    let socket = departure.udp(remote.ip())?;
    // Fails where there is no route, so that the next address gets its chance.
    socket.connect(remote).await?;
    Ok(socket)
}

/// A UDP socket for everybody of the family of `remote`, which is told what cannot be delivered.
pub(super) fn bind_unconnected(remote: SocketAddr, departure: &Departure) -> io::Result<UdpSocket> {
    let socket = departure.udp(remote.ip())?;
    buffers::grow_receive(&socket, RECEIVE_BUFFER)?;
    undelivered::ask(&socket, remote)?;
    Ok(socket)
}

/// The addresses of `target` that the policy allows, at least one.
async fn addresses(
    shared: &Shared,
    asker: Asker<'_>,
    target: &Target,
) -> Result<Vec<SocketAddr>, Status> {
    let found = match target {
        // A peer is asked for itself alone.
        Target::Resolver if shared.access == Access::Own => return Err(Status::Denied),
        Target::Resolver if shared.resolvers.is_empty() => return Err(Status::Unreachable),
        Target::Resolver => return resolvers(shared, asker.user),
        // Not parsed from any request for a connection or a UDP flow.
        Target::Anywhere => return Err(Status::Malformed),
        Target::Address(address) => vec![*address],
        Target::Name { name, port } => lookup(&shared.lookups, asker.key, name, *port).await?,
    };
    let allowed = found
        .into_iter()
        .filter(|address| shared.allows(asker.user, *address))
        .map(|address| {
            let ip = match shared.access {
                Access::Own => shared.own.nearest(address.ip()),
                Access::Public | Access::Private => address.ip().to_canonical(),
            };
            SocketAddr::new(ip, address.port())
        });
    let allowed = interleave(allowed.collect());
    if allowed.is_empty() {
        return Err(Status::Denied);
    }
    Ok(allowed)
}

impl Shared {
    /// Whether a client, of this user if it is one's, may reach `address`. What a translator of
    /// the network makes of it must be allowed as well.
    pub(super) fn allows(&self, user: Option<&User>, address: SocketAddr) -> bool {
        let beyond = self.own.beyond(address.ip()).into_iter();
        let beyond = beyond.map(|ip| SocketAddr::new(ip, address.port()));
        let mut all = beyond.chain([address]);
        all.all(|address| self.allows_itself(user, address))
    }

    fn allows_itself(&self, user: Option<&User>, address: SocketAddr) -> bool {
        let ip = address.ip();
        let access = match (self.access, user) {
            (Access::Public, Some(user)) if user.may_reach_private() => Access::Private,
            (access, _) => access,
        };
        let by_relay = access.allows(ip)
            && match access {
                Access::Public => !self.own.is_near(ip),
                Access::Private => true,
                Access::Own => self.own.contains(ip) && !ip.to_canonical().is_loopback(),
            };
        // Whoever is let in could send mail in the relay's name, until nobody takes any from it.
        let is_mail = address.port() == MAIL && access != Access::Own;
        let may_mail = || user.is_some_and(|user| user.is_allowed_by_rule(address));
        by_relay && (!is_mail || may_mail()) && user.is_none_or(|user| user.may_reach(address))
    }
}

/// Who is not allowed anything but some destinations still looks names up; a rule that denies a
/// resolver is meant.
fn resolvers(shared: &Shared, user: Option<&User>) -> Result<Vec<SocketAddr>, Status> {
    let is_denied = |it: &SocketAddr| user.is_some_and(|user| user.is_denied_by_rule(*it));
    let all = shared.resolvers.iter().copied();
    let left: Vec<_> = all.filter(|it| !is_denied(it)).collect();
    match left.is_empty() {
        true => Err(Status::Denied),
        false => Ok(left),
    }
}

/// Alternates families, beginning with that of the first address, so that one dead family costs
/// one delay instead of as many as it has addresses (RFC 8305 §4).
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut mixed = Vec::new();
    for address in first {
        mixed.push(address);
        mixed.extend(second.next());
    }
    mixed.extend(second);
    mixed
}

/// The first of `addresses` to answer; each starts when the one before it has failed or has had
/// its head start. The last failure where none answers.
async fn race(addresses: Vec<SocketAddr>, departure: Departure) -> io::Result<TcpStream> {
    let deadline = Instant::now() + CONNECT_WAIT;
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failure = io::Error::from(io::ErrorKind::TimedOut);
    let mut next_at = Instant::now();
    loop {
        if (attempts.is_empty() || Instant::now() >= next_at)
            && let Some(address) = waiting.next()
        {
            attempts.spawn_local(connect_tcp(address, departure.clone()));
            next_at = Instant::now() + ATTEMPT_DELAY;
        }
        let attempt = async {
            tokio::select! {
                attempt = attempts.join_next() => attempt.map(Some),
                () = sleep_until(next_at), if waiting.len() > 0 => Some(None),
            }
        };
        match timeout_at(deadline, attempt).await {
            Ok(Some(Some(Ok(Ok(tcp))))) => return Ok(tcp),
            Ok(Some(Some(Ok(Err(error))))) => {
                failure = error;
                next_at = Instant::now();
            }
            // A head start is over.
            Ok(Some(None)) => {}
            // An attempt that panicked, which connecting does not, counts as failed.
            Ok(Some(Some(Err(_)))) => {}
            // None is left.
            Ok(None) => return Err(failure),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

pub(super) fn status(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Status::Refused,
        io::ErrorKind::TimedOut => Status::TimedOut,
        io::ErrorKind::HostUnreachable => Status::HostUnreachable,
        _ if is_exhaustion(error) => Status::Limit,
        _ => Status::Unreachable,
    }
}

/// Out of descriptors, ports or memory: the relay's own limits, not the destination's fault.
fn is_exhaustion(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const ENOBUFS: i32 = 105;
    const EADDRNOTAVAIL: i32 = 99;
    matches!(
        error.raw_os_error(),
        Some(EMFILE | ENFILE | ENOBUFS | EADDRNOTAVAIL)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::own_addresses::OwnAddresses;
    use crate::relay::tests::shared;
    use crate::relay::{Destinations, UserLimits};
    use tabane_base::{Bytes, Translator};
    use tabane_core::PublicKey;
    use tokio::net::TcpListener;

    const ANYBODY: Asker<'_> = Asker {
        key: PublicKey([1; 32]),
        user: None,
    };

    #[test]
    fn families_alternate_and_nothing_is_lost() {
        let parse = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let mixed = interleave(parse(&["[2::1]:1", "[2::2]:1", "[2::3]:1", "1.1.1.1:1"]));
        assert_eq!(
            mixed,
            parse(&["[2::1]:1", "1.1.1.1:1", "[2::2]:1", "[2::3]:1"])
        );
        let mixed = interleave(parse(&["1.1.1.1:1", "[2::1]:1", "[2::2]:1"]));
        assert_eq!(mixed, parse(&["1.1.1.1:1", "[2::1]:1", "[2::2]:1"]));
        assert_eq!(interleave(Vec::new()), []);
    }

    #[test]
    fn an_address_that_refuses_does_not_hide_the_one_that_answers() {
        let result = crate::block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let open = listener.local_addr().unwrap();
            let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let refusing = closed.local_addr().unwrap();
            drop(closed);
            let usual = shared(Access::Private).own_departure();
            let tcp = race(vec![refusing, open], usual.clone()).await.unwrap();
            assert_eq!(tcp.peer_addr().unwrap(), open);
            race(vec![refusing], usual).await.unwrap_err()
        });
        assert_eq!(status(&result.unwrap()), Status::Refused);
    }

    #[test]
    fn names_are_checked_after_they_were_resolved() {
        crate::block_on(async {
            let target = Target::host("localhost", 1).unwrap();
            let denied = addresses(&shared(Access::Public), ANYBODY, &target).await;
            assert_eq!(denied, Err(Status::Denied));
            let allowed = addresses(&shared(Access::Private), ANYBODY, &target)
                .await
                .unwrap();
            assert!(allowed.iter().all(|address| address.ip().is_loopback()));

            let mapped = Target::Address("[::ffff:127.0.0.1]:1".parse().unwrap());
            let denied = addresses(&shared(Access::Public), ANYBODY, &mapped).await;
            assert_eq!(denied, Err(Status::Denied));
            let resolver = addresses(&shared(Access::Public), ANYBODY, &Target::Resolver).await;
            assert_eq!(resolver, Err(Status::Unreachable));
        })
        .unwrap();
    }

    #[test]
    fn the_relay_s_own_addresses_are_as_private_as_its_loopback() {
        let own = "192.0.2.1:22".parse().unwrap();
        let mapped = "[::ffff:192.0.2.1]:22".parse().unwrap();
        let other = "192.0.2.2:22".parse().unwrap();
        let public = shared(Access::Public);
        assert!(!public.allows(None, own) && !public.allows(None, mapped));
        assert!(public.allows(None, other));
        assert!(shared(Access::Private).allows(None, own));

        let may = |private, deny: &[&str]| {
            let deny = deny.iter().map(|rule| rule.parse().unwrap()).collect();
            let allow = Vec::new();
            let destinations = Destinations {
                allow,
                deny,
                private,
            };
            let limits = UserLimits {
                destinations,
                ..UserLimits::default()
            };
            public.allows(Some(&User::new("ann", limits, Bytes::ZERO)), own)
        };
        assert!(!may(false, &[]) && may(true, &[]) && !may(true, &["*:22"]));
    }

    fn ann(allow: &[&str], deny: &[&str]) -> User {
        let rules = |texts: &[&str]| {
            texts
                .iter()
                .map(|rule| rule.parse().unwrap())
                .collect::<Vec<_>>()
        };
        let destinations = Destinations {
            allow: rules(allow),
            deny: rules(deny),
            private: false,
        };
        let limits = UserLimits {
            destinations,
            ..UserLimits::default()
        };
        User::new("ann", limits, Bytes::ZERO)
    }

    #[test]
    fn mail_to_servers_is_for_those_alone_whose_rules_name_it() {
        let mail = "198.51.100.1:25".parse().unwrap();
        for access in [Access::Public, Access::Private] {
            let shared = shared(access);
            assert!(!shared.allows(None, mail), "{access:?}");
            assert!(!shared.allows(Some(&ann(&[], &["*:22"])), mail));
            assert!(shared.allows(Some(&ann(&["*:25"], &[])), mail));
            assert!(shared.allows(Some(&ann(&["198.51.100.0/24"], &[])), mail));
            assert!(!shared.allows(Some(&ann(&["*:25"], &["*:25"])), mail));
            // What programs hand mail in by is another port.
            assert!(shared.allows(None, "198.51.100.1:587".parse().unwrap()));
        }
        // A peer's own server is what it is asked for.
        let peer = shared(Access::Own);
        crate::block_on(peer.own.look()).unwrap();
        assert!(peer.allows(None, "192.0.2.1:25".parse().unwrap()));
    }

    #[test]
    fn a_user_who_is_denied_a_resolver_does_not_get_it() {
        crate::block_on(async {
            let resolvers: [SocketAddr; 2] =
                ["127.0.0.53:53", "192.0.2.7:53"].map(|it| it.parse().unwrap());
            let shared = Shared {
                resolvers: resolvers.to_vec(),
                ..shared(Access::Public)
            };
            let ask = async |user: &User| {
                let asker = Asker {
                    user: Some(user),
                    ..ANYBODY
                };
                addresses(&shared, asker, &Target::Resolver).await
            };
            let only_web = ann(&["*:443"], &[]);
            assert_eq!(ask(&only_web).await, Ok(resolvers.to_vec()));
            let not_local = ann(&[], &["127.0.0.0/8"]);
            assert_eq!(ask(&not_local).await, Ok(resolvers[1..].to_vec()));
            assert_eq!(ask(&ann(&[], &["*:53"])).await, Err(Status::Denied));
        })
        .unwrap();
    }

    #[test]
    fn a_translator_of_the_network_leads_to_no_private_address() {
        let public = shared(Access::Public);
        let reaches = |text: &str| public.allows(None, SocketAddr::new(text.parse().unwrap(), 80));
        let shown = "2a00:64::192.0.0.171".parse().unwrap();
        assert!(reaches("2a00:64::10.0.0.1"), "nobody can know");
        public
            .own
            .show([Translator::shown_by(shown).unwrap()].to_vec());
        for private in ["10.0.0.1", "127.0.0.1", "192.0.2.1"] {
            assert!(!reaches(&format!("2a00:64::{private}")), "{private}");
        }
        assert!(reaches("2a00:64::1.1.1.1") && reaches("2a00:65::10.0.0.1"));
        let private = shared(Access::Private);
        private
            .own
            .show([Translator::shown_by(shown).unwrap()].to_vec());
        assert!(private.allows(None, "[2a00:64::10.0.0.1]:80".parse().unwrap()));
    }

    #[test]
    fn a_forged_translator_hides_no_true_one() {
        // It reads the true one's prefix as 8.8.8.8, whatever is behind it.
        let [forged, shown] = ["2a00:64:c000:aa::", "2a00:64:808:808::192.0.0.170"]
            .map(|text| Translator::shown_by(text.parse().unwrap()).unwrap());
        for translators in [vec![forged, shown], vec![shown, forged]] {
            let public = shared(Access::Public);
            public.own.show(translators);
            let reaches =
                |text: &str| public.allows(None, SocketAddr::new(text.parse().unwrap(), 80));
            assert!(!reaches("2a00:64:808:808::10.0.0.1"));
            assert!(reaches("2a00:64:808:808::1.1.1.1") && reaches("8.8.8.8"));
        }
    }

    #[test]
    fn a_peer_serves_its_own_addresses_alone_and_not_its_loopback() {
        crate::block_on(async {
            let peer = shared(Access::Own);
            peer.own.look().await;
            let own = "192.0.2.1:22".parse().unwrap();
            assert!(peer.allows(None, own));
            for other in ["198.51.100.77:22", "127.0.0.1:22", "[::ffff:127.0.0.1]:22"] {
                assert!(!peer.allows(None, other.parse().unwrap()), "{other}");
            }
            let resolver = addresses(&peer, ANYBODY, &Target::Resolver).await;
            assert_eq!(resolver, Err(Status::Denied));
            let private = UserLimits {
                destinations: Destinations {
                    private: true,
                    ..Destinations::default()
                },
                ..UserLimits::default()
            };
            let ann = User::new("ann", private, Bytes::ZERO);
            assert!(!peer.allows(Some(&ann), "198.51.100.77:22".parse().unwrap()));
        })
        .unwrap();
    }

    #[test]
    fn the_addresses_of_the_interfaces_are_own_ones() {
        crate::block_on(async {
            let own = OwnAddresses::default();
            assert!(!own.contains("127.0.0.1".parse().unwrap()));
            own.look().await;
            assert!(own.contains("127.0.0.1".parse().unwrap()));
        })
        .unwrap();
    }
}
