//! What neighbours say within TLS, and callers outside it, handed to its readers, for fuzzing.
//!
//! Owns the doors and what must hold at each; what is said ends where the input does.

use std::io::Cursor;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aws_lc_rs::hmac;
use tabane_core::PublicKey;
use tokio::io::{AsyncRead, join, sink};

use crate::call;
use crate::code::Code;
use crate::head::{judge, lent_port, read_datagram_request, read_request};
use crate::pairing::{self, Ends, Failed, MAX_NAME};

const ENDS: Ends = Ends {
    borrower: PublicKey([1; 32]),
    sharer: PublicKey([2; 32]),
};

/// Hands the rest of `data` to the reader that the first byte names.
///
/// # Panics
/// When what is read does not hold.
pub fn fuzz_readers(data: &[u8]) {
    let Some((door, said)) = data.split_first() else {
        return;
    };
    let code = Code::from_random([7; 8]);
    match door % 7 {
        0 => {
            if let Ok(Some(to)) = at_once(read_request(&mut Cursor::new(said))) {
                let shown = to.to_string();
                assert!(!shown.contains(char::is_control), "{shown:?}");
            }
        }
        1 => drop(at_once(read_datagram_request(&mut Cursor::new(said)))),
        2 => {
            if let Err(error) = judge(said) {
                assert!(error.to_string().chars().count() < 120, "{error}");
            }
            assert!(!matches!(lent_port(said), Ok(0)), "no port to send to");
        }
        // Whoever does not know the code is not let in, and learns no more than that.
        3 => {
            let mut stream = mute(said);
            let answered = at_once(pairing::answer(&mut stream, || Some(code), ENDS));
            assert!(answered.is_err(), "paired without the code");
        }
        4 => {
            let mut stream = mute(said);
            let asked = at_once(pairing::ask(&mut stream, &code, ENDS, "laptop"));
            assert!(asked.is_err(), "paired without the code");
        }
        5 => name(said),
        _ => {
            let key = PublicKey([7; 32]);
            let now = Duration::from_secs(1_790_000_000);
            let answer = call::answer(key, said, now);
            assert!(answer.is_none_or(|answer| answer.len() == said.len()));
        }
    }
}

/// What somebody calls itself who knows the code.
fn name(said: &[u8]) {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &[3; 32]);
    let text = String::from_utf8_lossy(said);
    let proof = pairing::prove(&secret, "borrower", &text);
    match pairing::check(&secret, "borrower", &proof) {
        Ok(name) => {
            assert!((1..=MAX_NAME).contains(&name.len()));
            assert!(!name.contains(char::is_control), "{name:?}");
        }
        Err(Failed::Garbled) => {}
        Err(error) => panic!("a right proof: {error}"),
    }
}

/// What is said, to somebody whose answers nobody hears.
fn mute(said: &[u8]) -> impl AsyncRead + tokio::io::AsyncWrite + Unpin {
    join(Cursor::new(said), sink())
}

/// Nothing here waits for anybody.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("all that is said is there"),
    }
}
