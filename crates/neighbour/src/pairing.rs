//! How two machines learn each other's keys by a code that a person carries from one to the other.
//!
//! SPAKE2 within a TLS connection whose ends have proved their keys to each other, with both keys
//! as the identities: who sits in between has other keys, so the secrets differ unless the code was
//! guessed, and each guess is one try. The borrower proves first that it knows the code; whoever
//! does not know it learns nothing but that.
//!
//! | | borrower → sharer | sharer → borrower |
//! |---|---|---|
//! | 1 | its share | its share; empty: nobody is expected |
//! | 2 | proof, its name | proof, its name; empty: the proof was wrong |
//!
//! Each is one byte of length and so many bytes.

use std::io;

use aws_lc_rs::hmac;
use spake2::{Ed25519Group, Identity, Password, Spake2};
use tabane_core::PublicKey;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::code::Code;

/// The most bytes a name may have.
pub const MAX_NAME: usize = 64;
const PROOF: usize = 32;

/// The two keys, as TLS has shown them.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) borrower: PublicKey,
    pub(crate) sharer: PublicKey,
}

/// Why it came to nothing.
#[derive(Debug, Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it does not expect anybody")]
    Unexpected,
    #[error("the code is wrong")]
    WrongCode,
    #[error("what it says is no pairing")]
    Garbled,
}

/// The side that types the code; gives the other's name.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    code: &Code,
    ends: Ends,
    name: &str,
) -> Result<String, Failed> {
    let (borrower, sharer) = identities(ends);
    let password = Password::new(code.digits());
    let (exchange, share) = Spake2::<Ed25519Group>::start_a(&password, &borrower, &sharer);
    write(stream, &share).await?;
    let answer = read(stream).await?;
    if answer.is_empty() {
        return Err(Failed::Unexpected);
    }
    let secret = secret(exchange, &answer)?;
    write(stream, &prove(&secret, "borrower", name)).await?;
    let answer = read(stream).await?;
    if answer.is_empty() {
        return Err(Failed::WrongCode);
    }
    check(&secret, "sharer", &answer)
}

/// The side that made the code up, first half: `code` is what one try has taken. Gives the other's
/// name, once it has proved that it knows the code; then [`welcome`] or [`refuse`] it.
pub(crate) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    code: impl FnOnce() -> Option<Code>,
    ends: Ends,
) -> Result<(String, hmac::Key), Failed> {
    let offered = read(stream).await?;
    let Some(code) = code() else {
        refuse(stream).await?;
        return Err(Failed::Unexpected);
    };
    let (borrower, sharer) = identities(ends);
    let password = Password::new(code.digits());
    let (exchange, share) = Spake2::<Ed25519Group>::start_b(&password, &borrower, &sharer);
    let secret = secret(exchange, &offered)?;
    write(stream, &share).await?;
    let proof = read(stream).await?;
    match check(&secret, "borrower", &proof) {
        Ok(name) => Ok((name, secret)),
        Err(error) => {
            refuse(stream).await?;
            Err(error)
        }
    }
}

/// Second half: proves that we know it, too.
pub(crate) async fn welcome<S: AsyncWrite + Unpin>(
    stream: &mut S,
    secret: &hmac::Key,
    name: &str,
) -> io::Result<()> {
    write(stream, &prove(secret, "sharer", name)).await
}

pub(crate) async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    write(stream, &[]).await
}

fn identities(ends: Ends) -> (Identity, Identity) {
    (
        Identity::new(&ends.borrower.0),
        Identity::new(&ends.sharer.0),
    )
}

fn secret(exchange: Spake2<Ed25519Group>, share: &[u8]) -> Result<hmac::Key, Failed> {
    let secret = exchange.finish(share).map_err(|_| Failed::Garbled)?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &secret))
}

/// Proof and name.
pub(crate) fn prove(secret: &hmac::Key, side: &str, name: &str) -> Vec<u8> {
    let tag = hmac::sign(secret, &signed(side, name.as_bytes()));
    [tag.as_ref(), name.as_bytes()].concat()
}

/// The name, if the proof is right.
pub(crate) fn check(secret: &hmac::Key, side: &str, message: &[u8]) -> Result<String, Failed> {
    let (tag, name) = message.split_at_checked(PROOF).ok_or(Failed::Garbled)?;
    hmac::verify(secret, &signed(side, name), tag).map_err(|_| Failed::WrongCode)?;
    let name = str::from_utf8(name).map_err(|_| Failed::Garbled)?;
    let is_sound = (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control);
    is_sound.then(|| name.to_owned()).ok_or(Failed::Garbled)
}

fn signed(side: &str, name: &[u8]) -> Vec<u8> {
    [side.as_bytes(), &[0], name].concat()
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, message: &[u8]) -> io::Result<()> {
    let length = u8::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&[length], message].concat()).await?;
    stream.flush().await
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u8().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn ends(sharer: u8) -> Ends {
        Ends {
            borrower: PublicKey([1; 32]),
            sharer: PublicKey([sharer; 32]),
        }
    }

    /// Both sides as they see each other, with the code that each has.
    async fn run(
        (code, seen): (&str, Ends),
        (offered, own): (&str, Ends),
    ) -> (Result<String, Failed>, Result<String, Failed>) {
        let (mut near, mut far) = duplex(1024);
        let code: Code = code.parse().unwrap();
        let asked = async move { ask(&mut near, &code, seen, "laptop").await };
        let answered = async move {
            let offered = offered.parse().ok();
            let (name, secret) = answer(&mut far, || offered, own).await?;
            welcome(&mut far, &secret, "desk").await?;
            Ok(name)
        };
        tokio::join!(asked, answered)
    }

    #[tokio::test]
    async fn the_code_and_the_keys_make_a_pair() {
        let (asked, answered) = run(("123456", ends(2)), ("123-456", ends(2))).await;
        assert_eq!(asked.unwrap(), "desk");
        assert_eq!(answered.unwrap(), "laptop");
    }

    #[tokio::test]
    async fn another_code_or_another_key_in_between_does_not() {
        let right = ("123456", ends(2));
        for wrong in [("123457", ends(2)), ("123456", ends(3))] {
            let (asked, answered) = run(wrong, right).await;
            assert!(matches!(asked, Err(Failed::WrongCode)), "{asked:?}");
            assert!(matches!(answered, Err(Failed::WrongCode)), "{answered:?}");
        }
        let (asked, answered) = run(right, ("none", ends(2))).await;
        assert!(matches!(asked, Err(Failed::Unexpected)), "{asked:?}");
        assert!(matches!(answered, Err(Failed::Unexpected)), "{answered:?}");
    }

    #[tokio::test]
    async fn a_proof_is_not_taken_back_from_who_repeats_it() {
        let (mut near, mut far) = duplex(1024);
        let code: Code = "123456".parse().unwrap();
        // A mirror: it sends back whatever it gets, without knowing the code.
        let mirror = async move {
            while let Ok(message) = read(&mut far).await {
                write(&mut far, &message).await.unwrap();
            }
        };
        let asked = async move { ask(&mut near, &code, ends(2), "laptop").await };
        let (asked, ()) = tokio::join!(asked, mirror);
        assert!(asked.is_err());
    }
}
