//! Finding a neighbour that announces nothing: a call to everybody on the wire, which is answered
//! by the one whose key it was made with.
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

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use socket2::SockRef;
use tabane_core::PublicKey;
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

/// Calls the neighbour of this key at these addresses, those of networks to reach all on them,
/// until it answers or this is dropped; `now` is the time since 1970. Our socket carries `mark`,
/// where there is one.
///
/// # Errors
/// Nobody can be called: there is no network, or the system does not let us.
pub async fn call(
    key: PublicKey,
    networks: &[SocketAddr],
    now: Duration,
    mark: Option<u32>,
) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.set_broadcast(true)?;
    if let Some(mark) = mark {
        SockRef::from(&socket).set_mark(mark)?;
    }
    let mut random = [0; 16];
    rand::fill(&mut random).map_err(|_| io::Error::other("no random bytes"))?;
    let body = [&now.as_secs().to_be_bytes()[..], &random].concat();
    let (call, answer) = (message(key, CALL, &body), message(key, ANSWER, &body));
    loop {
        let mut sent = Err(io::ErrorKind::NetworkUnreachable.into());
        for network in networks {
            sent = sent.or(socket.send_to(&call, network).await);
        }
        sent?;
        let answered = async {
            let mut buffer = [0; MESSAGE + 1];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await?;
                if buffer[..length] == answer {
                    return Ok(from);
                }
            }
        };
        if let Ok(answered) = timeout(AGAIN, answered).await {
            return answered;
        }
    }
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
        let socket = async || UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (other, called) = (socket().await, socket().await);
        let networks = [&other, &called].map(|socket| socket.local_addr().unwrap());
        tokio::select! {
            found = call(KEY, &networks, NOW, None) => assert_eq!(found.unwrap(), networks[1]),
            () = answer_calls(&other, PublicKey([8; 32]), || NOW) => {}
            () = answer_calls(&called, KEY, || NOW) => {}
        }
        assert!(call(KEY, &[], NOW, None).await.is_err());
    }
}
