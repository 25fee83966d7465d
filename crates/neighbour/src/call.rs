//! Finding a neighbour that announces nothing: a call to everybody on the wire, which is answered
//! by the one whose key it was made with. Everybody is a network's broadcast address of IPv4, and
//! on each interface all nodes of IPv6 (`ff02::1`), whom every host is among without asking.
//!
//! | bytes | call | answer |
//! |---|---|---|
//! | 8 | `tabcall1` | `tabhere1` |
//! | 8 | seconds since 1970 | the call's |
//! | 16 | random | the call's |
//! | 32 | HMAC-SHA256 of the 32 before, by the neighbour's public key | the same |
//!
//! Who does not know the key can neither call nor tell whom a call is for; who has overheard one
//! can repeat it for some hours. Friends know it, and whoever has connected to the neighbour
//! before. An answer says no more than where somebody is, and is as long as the call: whether that
//! is the neighbour, TLS shows.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use socket2::SockRef;
use tabane_core::PublicKey;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

const CALL: &[u8; 8] = b"tabcall1";
const ANSWER: &[u8; 8] = b"tabhere1";
const BODY: usize = 32;
const MESSAGE: usize = BODY + 32;
/// How far apart two machines' clocks may be, and how long a call may be repeated.
const MOST_SKEW: Duration = Duration::from_secs(2 * 3600);
/// A call that was lost is made again.
const AGAIN: Duration = Duration::from_millis(600);
/// After an answer that could not be sent; what fails for good must not keep us busy.
const PAUSE: Duration = Duration::from_millis(100);

/// Networks that are called on, at the most; who has more has some that nobody is on.
const MAX_NETWORKS: usize = 64;

/// How everybody on one network is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallRoute {
    /// Where all of them hear it.
    pub to: SocketAddr,
    /// Our address there, which is answered; unspecified leaves it to the system.
    pub from: SocketAddr,
}

/// A socket to call by.
struct Caller {
    socket: UdpSocket,
    route: CallRoute,
    /// There is a better one for the same network.
    is_second: bool,
}

/// Calls the neighbour of this key on these networks, until it answers or this is dropped; `now` is
/// the time since 1970. Our sockets carry `mark`, where there is one. From an address that means
/// something on its link alone it is called only after others were tried in vain: the answer comes
/// from one of its kind, which nobody can keep.
///
/// # Errors
/// Nobody can be called: there is no network, or the system does not let us.
pub async fn call(
    key: PublicKey,
    networks: &[CallRoute],
    now: Duration,
    mark: Option<u32>,
) -> io::Result<SocketAddr> {
    let callers = callers(networks, mark).await?;
    let mut random = [0; 16];
    rand::fill(&mut random).map_err(|_| io::Error::other("no random bytes"))?;
    let body = [&now.as_secs().to_be_bytes()[..], &random].concat();
    let (call, answer) = (message(key, CALL, &body), message(key, ANSWER, &body));
    let mut is_again = false;
    loop {
        let mut sent = Err(io::ErrorKind::NetworkUnreachable.into());
        for caller in callers.iter().filter(|it| is_again || !it.is_second) {
            sent = sent.or(caller.socket.send_to(&call, caller.route.to).await);
        }
        // Another address may get out where the better one does not.
        if is_again {
            sent?;
        }
        let answered = poll_fn(|cx| {
            let mut callers = callers.iter().map(|caller| caller.poll_answer(&answer, cx));
            callers.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        if let Ok(answered) = timeout(AGAIN, answered).await {
            return answered;
        }
        is_again = true;
    }
}

async fn callers(networks: &[CallRoute], mark: Option<u32>) -> io::Result<Vec<Caller>> {
    let mut callers = Vec::new();
    let mut failure = io::Error::from(io::ErrorKind::NetworkUnreachable);
    for route in networks.iter().take(MAX_NETWORKS) {
        let opened = async {
            let socket = UdpSocket::bind(route.from).await?;
            socket.set_broadcast(route.to.is_ipv4())?;
            if let Some(mark) = mark {
                SockRef::from(&socket).set_mark(mark)?;
            }
            io::Result::Ok(socket)
        };
        let mut same = networks.iter().filter(|other| other.to == route.to);
        let is_second = is_of_link(route.from) && same.any(|other| !is_of_link(other.from));
        match opened.await {
            Ok(socket) => callers.push(Caller {
                socket,
                route: *route,
                is_second,
            }),
            // Its address has just gone, most likely.
            Err(error) => failure = error,
        }
    }
    match callers.is_empty() {
        true => Err(failure),
        false => Ok(callers),
    }
}

impl Caller {
    /// Where somebody is who knows the answer.
    fn poll_answer(&self, answer: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        let mut buffer = [0; MESSAGE + 1];
        loop {
            let mut buffer = ReadBuf::new(&mut buffer);
            match self.socket.poll_recv_from(cx, &mut buffer) {
                Poll::Ready(Ok(from)) if buffer.filled() == answer => return Poll::Ready(Ok(from)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Whether it means something on one link alone.
fn is_of_link(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Answers those who call the neighbour of this key, us, until it is dropped; `clock` gives the
/// time since 1970.
pub async fn answer_calls(socket: &UdpSocket, key: PublicKey, clock: impl Fn() -> Duration) {
    let mut buffer = [0; MESSAGE + 1];
    loop {
        let answered = async {
            let (length, from) = socket.recv_from(&mut buffer).await?;
            match answer(key, &buffer[..length], clock()) {
                Some(answer) => socket.send_to(&answer, from).await,
                None => Ok(0),
            }
        };
        if let Err(error) = answered.await {
            // Who called is on a network that is gone, most likely.
            tracing::debug!(%error, "a call was not answered");
            sleep(PAUSE).await;
        }
    }
}

/// What is to be said to a call, if it is one for us and of this hour.
pub(crate) fn answer(key: PublicKey, call: &[u8], now: Duration) -> Option<Vec<u8>> {
    let (body, tag) = call.split_at_checked(BODY)?;
    let (kind, body) = body.split_at_checked(CALL.len())?;
    let (seconds, _) = body.split_first_chunk()?;
    let called_at = Duration::from_secs(u64::from_be_bytes(*seconds));
    let is_fresh = called_at.abs_diff(now) <= MOST_SKEW;
    let is_ours = kind == CALL && hmac::verify(&secret(key), &call[..BODY], tag).is_ok();
    (is_fresh && is_ours).then(|| message(key, ANSWER, body))
}

fn message(key: PublicKey, kind: &[u8; 8], body: &[u8]) -> Vec<u8> {
    let signed = [kind, body].concat();
    let tag = hmac::sign(&secret(key), &signed);
    [&signed, tag.as_ref()].concat()
}

fn secret(key: PublicKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &key.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PublicKey = PublicKey([7; 32]);
    const NOW: Duration = Duration::from_secs(1_790_000_000);

    fn body(at: Duration) -> Vec<u8> {
        [&at.as_secs().to_be_bytes()[..], &[5; 16]].concat()
    }

    #[test]
    fn only_calls_for_this_key_and_hour_are_answered() {
        let call = message(KEY, CALL, &body(NOW));
        assert_eq!(call.len(), MESSAGE);
        assert_eq!(
            answer(KEY, &call, NOW + MOST_SKEW),
            Some(message(KEY, ANSWER, &body(NOW)))
        );
        assert_eq!(
            answer(KEY, &call, NOW + MOST_SKEW + Duration::from_secs(1)),
            None
        );
        assert_eq!(answer(KEY, &call, Duration::ZERO), None);
        assert_eq!(answer(PublicKey([8; 32]), &call, NOW), None);
        assert_eq!(answer(KEY, &message(KEY, ANSWER, &body(NOW)), NOW), None);
        for length in 0..call.len() {
            assert_eq!(answer(KEY, &call[..length], NOW), None, "{length}");
        }
        for at in 0..call.len() {
            let mut other = call.clone();
            other[at] ^= 1;
            assert_eq!(answer(KEY, &other, NOW), None, "{at}");
        }
        let long = [&call[..], &[0]].concat();
        assert_eq!(answer(KEY, &long, NOW), None);
    }

    #[tokio::test]
    async fn who_is_called_answers_and_others_do_not() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let socket = async || UdpSocket::bind(host).await.unwrap();
            let (other, called) = (socket().await, socket().await);
            let networks = [&other, &called].map(|socket| CallRoute {
                to: socket.local_addr().unwrap(),
                from: host.parse().unwrap(),
            });
            tokio::select! {
                found = call(KEY, &networks, NOW, None) => {
                    assert_eq!(found.unwrap(), networks[1].to);
                }
                () = answer_calls(&other, PublicKey([8; 32]), || NOW) => {}
                () = answer_calls(&called, KEY, || NOW) => {}
            }
        }
        assert!(call(KEY, &[], NOW, None).await.is_err());
        // One network cannot be called on, another can.
        let called = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let gone = CallRoute {
            to: "192.0.2.1:9".parse().unwrap(),
            from: "192.0.2.1:0".parse().unwrap(),
        };
        let there = CallRoute {
            to: called.local_addr().unwrap(),
            from: "127.0.0.1:0".parse().unwrap(),
        };
        assert!(call(KEY, &[gone], NOW, None).await.is_err());
        let both = [gone, there];
        tokio::select! {
            found = call(KEY, &both, NOW, None) => assert_eq!(found.unwrap(), there.to),
            () = answer_calls(&called, KEY, || NOW) => {}
        }
    }
}
