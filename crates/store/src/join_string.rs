//! The join string: everything a client needs to know of a relay, in one line that can be pasted.
//!
//! `tabane://HOST:PORT?addr=HOST:PORT&key=KEY&fleet=KEY&sum=SUM&token=TOKEN`. `addr` may repeat;
//! `fleet`, the key of a fleet that the relay is of, is there only where it is of one. Printed with
//! the token last and of fixed length, so that every way of cutting it short is noticed. `sum` has
//! a check of the addresses, one of the key and one of the token, so that what was mistyped is
//! named; strings of older versions come without. Owns the text form; what a token is worth is the
//! relay's business.

use std::fmt;
use std::str::FromStr;

use tabane_base::{Destination, DestinationError};
use tabane_core::{KeyParseError, PublicKey};
use thiserror::Error;

/// Where relays listen if nothing else is said: "45" + "10", unassigned by IANA, easy to remember,
/// not below 1024.
pub const DEFAULT_PORT: u16 = 4510;

const SCHEME: &str = "tabane://";
/// More addresses than a relay has; keeps the string one line.
const MAX_ADDRESSES: usize = 8;
/// 22 symbols of 6 bits: 132 random bits cannot be guessed.
const TOKEN_LENGTH: usize = 22;
/// URL-safe, as in base64url; 64 symbols, so a random byte masked to 6 bits picks one evenly.
const TOKEN_SYMBOLS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Symbols of one check: 24 bits.
const CHECK_LENGTH: usize = 4;
/// What the checks are of, in their order.
const CHECKED: [&str; 3] = ["address", "key", "token"];
const SUM_LENGTH: usize = CHECK_LENGTH * CHECKED.len();

/// What admits a client that the relay does not know yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(String);

/// How to find, recognise and enter a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinString {
    /// Where the relay listens; at least one. Names are resolved when connecting.
    pub addresses: Vec<Destination>,
    /// The key it must prove.
    pub key: PublicKey,
    /// The key of its fleet, which signs the list of all its relays.
    pub fleet: Option<PublicKey>,
    /// What it wants to see from a client it does not know.
    pub token: Token,
}

/// Why a text is no join string.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinStringError {
    /// It does not begin as one.
    #[error("a join string begins with {SCHEME} (the relay prints it when it starts)")]
    Scheme,
    /// A part is not there.
    #[error("the join string is cut short: it has no {0}; copy the whole line, in quotes")]
    Missing(&'static str),
    /// The key is none.
    #[error("the join string is cut short or damaged: {0}; copy the whole line, in quotes")]
    Key(KeyParseError),
    /// The token is too short or too long: so many characters.
    #[error(
        "the join string is cut short or damaged: a token has {TOKEN_LENGTH} characters, this has \
         {0}; copy the whole line, in quotes"
    )]
    TokenLength(usize),
    /// A token has no such character.
    #[error("the join string is damaged: {0:?} does not occur in a token")]
    TokenCharacter(char),
    /// An address is none.
    #[error("the join string's address {text:?} is not valid: {source}")]
    Address {
        /// As it stands there.
        text: String,
        /// Why it is none.
        source: DestinationError,
    },
    /// More addresses than a relay has.
    #[error("the join string has more than {MAX_ADDRESSES} addresses")]
    TooManyAddresses,
    /// A part stands there twice.
    #[error("the join string has '{0}' twice")]
    Repeated(&'static str),
    /// These parts do not fit their checks.
    #[error(
        "the join string is mistyped in its {0}: it does not match the check in `sum`; compare it \
         with what the relay printed, or copy the whole line"
    )]
    Mistyped(String),
    /// The checks themselves are damaged.
    #[error(
        "the join string is cut short or damaged: its sum has {SUM_LENGTH} letters and digits; \
         copy the whole line, in quotes"
    )]
    Sum,
    /// A part that no join string has.
    #[error("the join string has an unknown part {0:?}; perhaps the relay is newer: update tabane")]
    UnknownPart(String),
}

impl Token {
    /// A fresh token from 22 random bytes.
    pub fn from_random(random: [u8; TOKEN_LENGTH]) -> Self {
        Self(
            random
                .map(|byte| char::from(TOKEN_SYMBOLS[usize::from(byte & 63)]))
                .iter()
                .collect(),
        )
    }

    /// What is shown to the relay.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Enough to tell tokens apart in a list and in logs without giving them away.
    pub fn label(&self) -> &str {
        &self.0[..6]
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Token {
    type Err = JoinStringError;

    fn from_str(text: &str) -> Result<Self, JoinStringError> {
        let foreign = |c: &char| !(c.is_ascii() && TOKEN_SYMBOLS.contains(&(*c as u8)));
        if let Some(c) = text.chars().find(foreign) {
            return Err(JoinStringError::TokenCharacter(c));
        }
        if text.len() != TOKEN_LENGTH {
            return Err(JoinStringError::TokenLength(text.len()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for JoinString {
    type Err = JoinStringError;

    fn from_str(text: &str) -> Result<Self, JoinStringError> {
        let text = text.trim();
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| {
            if SCHEME.starts_with(text) && !text.is_empty() {
                JoinStringError::Missing("address")
            } else {
                JoinStringError::Scheme
            }
        })?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.strip_suffix('/').unwrap_or(address);
        if address.is_empty() {
            return Err(JoinStringError::Missing("address"));
        }
        // Without a query, what looks like a broken address is most likely a cut-off one.
        if query.is_empty() {
            return Err(JoinStringError::Missing("key"));
        }
        let mut addresses = vec![parse_address(address)?];
        let (mut key, mut fleet, mut token, mut sum) = (None, None, None, None);
        for part in query.split('&') {
            match part.split_once('=') {
                Some(("addr", value)) => addresses.push(parse_address(value)?),
                Some(("key", value)) => {
                    let value = value.parse().map_err(JoinStringError::Key)?;
                    set_once(&mut key, value, "key")?;
                }
                Some(("fleet", value)) => {
                    let value = value.parse().map_err(JoinStringError::Key)?;
                    set_once(&mut fleet, value, "fleet")?;
                }
                Some(("sum", value)) => set_once(&mut sum, value, "sum")?,
                Some(("token", value)) => set_once(&mut token, value.parse()?, "token")?,
                None if ["", "a", "ad", "add", "addr", "k", "ke", "key"].contains(&part) => {
                    return Err(JoinStringError::Missing("key"));
                }
                None if ["token", "sum", "fleet"]
                    .iter()
                    .any(|it| it.starts_with(part)) =>
                {
                    return Err(JoinStringError::Missing("token"));
                }
                Some(_) | None => return Err(JoinStringError::UnknownPart(part.to_owned())),
            }
        }
        if addresses.len() > MAX_ADDRESSES {
            return Err(JoinStringError::TooManyAddresses);
        }
        let join = Self {
            addresses,
            key: key.ok_or(JoinStringError::Missing("key"))?,
            fleet,
            token: token.ok_or(JoinStringError::Missing("token"))?,
        };
        if let Some(sum) = sum {
            join.check(sum)?;
        }
        Ok(join)
    }
}

impl JoinString {
    /// The checks of [`CHECKED`].
    fn checks(&self) -> [String; CHECKED.len()] {
        let addresses: Vec<String> = self.addresses.iter().map(Destination::to_string).collect();
        let fleet = self.fleet.map(|fleet| format!(",{fleet}"));
        let parts = [
            addresses.join(","),
            format!("{}{}", self.key, fleet.unwrap_or_default()),
            self.token.0.clone(),
        ];
        parts.map(|part| symbols(crc24(part.as_bytes())))
    }

    fn check(&self, sum: &str) -> Result<(), JoinStringError> {
        if sum.len() != SUM_LENGTH || !sum.bytes().all(|byte| TOKEN_SYMBOLS.contains(&byte)) {
            return Err(JoinStringError::Sum);
        }
        let told = sum.as_bytes().chunks(CHECK_LENGTH);
        let checks = self.checks();
        let wrong = CHECKED.iter().zip(checks.iter().zip(told));
        let wrong = wrong.filter(|(_, (check, told))| check.as_bytes() != *told);
        let wrong: Vec<&str> = wrong.map(|(part, _)| *part).collect();
        match wrong[..] {
            [] => Ok(()),
            _ => Err(JoinStringError::Mistyped(wrong.join(" and its "))),
        }
    }
}

/// OpenPGP's CRC-24 (RFC 9580 §6.1.1): whatever goes wrong within three neighbouring characters
/// shows, and of all else all but one in 16 million.
fn crc24(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x0186_4cfb;
    bytes.iter().fold(0x00b7_04ce, |crc, byte| {
        let crc = crc ^ u32::from(*byte) << 16;
        (0..8).fold(crc, |crc, _| match crc & 0x0080_0000 {
            0 => crc << 1,
            _ => (crc << 1) ^ POLYNOMIAL,
        })
    })
}

/// 24 bits as they are printed.
fn symbols(bits: u32) -> String {
    let symbol = |i: usize| TOKEN_SYMBOLS[(bits >> (18 - 6 * i)) as usize & 63];
    (0..CHECK_LENGTH).map(|i| char::from(symbol(i))).collect()
}

fn parse_address(text: &str) -> Result<Destination, JoinStringError> {
    Destination::parse(text, None).map_err(|source| JoinStringError::Address {
        text: text.to_owned(),
        source,
    })
}

fn set_once<T>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), JoinStringError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(JoinStringError::Repeated(name)),
    }
}

impl fmt::Display for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut addresses = self.addresses.iter();
        let first = addresses.next().expect("a join string has an address");
        write!(f, "{SCHEME}{first}?")?;
        for address in addresses {
            write!(f, "addr={address}&")?;
        }
        let sum = self.checks().concat();
        write!(f, "key={}&", self.key)?;
        if let Some(fleet) = self.fleet {
            write!(f, "fleet={fleet}&")?;
        }
        write!(f, "sum={sum}&token={}", self.token.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn sample(addresses: &[&str]) -> JoinString {
        JoinString {
            addresses: addresses
                .iter()
                .map(|a| parse_address(a).unwrap())
                .collect(),
            key: PublicKey([0xa5; 32]),
            fleet: None,
            token: Token::from_random(std::array::from_fn(|i| i as u8 * 11)),
        }
    }

    const SETS: [&[&str]; 4] = [
        &["192.0.2.1:4510"],
        &["[2001:db8::1]:4510"],
        &["relay.example.org:1"],
        &[
            "192.0.2.1:4510",
            "[2001:db8::1]:4511",
            "relay.example.org:65535",
        ],
    ];

    #[test]
    fn round_trips() {
        for set in SETS {
            let join = sample(set);
            assert_eq!(join.to_string().parse(), Ok(join.clone()), "{join}");
            assert_eq!(format!("  {join}\n").parse(), Ok(join));
        }
    }

    #[test]
    fn a_fleets_key_is_pinned_and_cut_off_nowhere_unnoticed() {
        let join = JoinString {
            fleet: Some(PublicKey([0x3c; 32])),
            ..sample(SETS[3])
        };
        let text = join.to_string();
        assert_eq!(text.parse(), Ok(join.clone()), "{join}");
        for n in 0..text.len() {
            assert!(text[..n].parse::<JoinString>().is_err(), "{}", &text[..n]);
        }
        let at = text.find("fleet=").unwrap() + 8;
        let mut typed = text.clone().into_bytes();
        typed[at] = if typed[at] == b'P' { b'Q' } else { b'P' };
        let typed = String::from_utf8(typed).unwrap();
        let error = typed.parse::<JoinString>().unwrap_err();
        assert_eq!(error, JoinStringError::Mistyped("key".to_owned()));
        let without = JoinString {
            fleet: None,
            ..join
        };
        assert!(!without.to_string().contains("fleet"), "as it always was");
    }

    #[test]
    fn parts_may_come_in_any_order() {
        let join = sample(SETS[3]);
        let text = join.to_string();
        let (head, query) = text.split_once('?').unwrap();
        let parts: Vec<&str> = query.split('&').collect();
        let turned = [parts[3], parts[0], parts[2], parts[4], parts[1]].join("&");
        assert_eq!(format!("{head}/?{turned}").parse(), Ok(join));
    }

    #[test]
    fn every_truncation_is_noticed_as_such() {
        for set in SETS {
            let text = sample(set).to_string();
            for n in 0..text.len() {
                let error = text[..n].parse::<JoinString>().expect_err(&text[..n]);
                let message = error.to_string();
                let cut_address = matches!(error, JoinStringError::Address { .. });
                assert!(
                    n == 0 || message.contains("cut short") || cut_address,
                    "{n} characters: {message}"
                );
                assert!(!message.contains('\n'));
            }
            for n in 1..text.len() {
                assert!(text[n..].parse::<JoinString>().is_err(), "{}", &text[n..]);
            }
        }
    }

    #[test]
    fn a_checksum_is_optional_and_names_what_was_mistyped() {
        // The catalogue of parametrised CRC algorithms gives this for "123456789".
        assert_eq!(crc24(b"123456789"), 0x0021_cf02);
        let join = sample(SETS[3]);
        let text = join.to_string();
        let at = text.find("sum=").unwrap();
        let without = format!("{}{}", &text[..at], &text[at + SUM_LENGTH + 5..]);
        assert_eq!(without.parse(), Ok(join), "as older versions print it");
        let of = |text: &str| text.parse::<JoinString>().unwrap_err();
        let key = text.find("key=").unwrap() + 4;
        for (from, part) in [
            (text.find("192").unwrap(), "address"),
            (text.find("relay.").unwrap(), "address"),
            (key, "key"),
            (text.find("token=").unwrap() + 6, "token"),
        ] {
            for i in from..from + 3 {
                // One character for another, and two that changed places.
                let mut typed = text.clone().into_bytes();
                typed[i] = if typed[i] == b'2' { b'3' } else { b'2' };
                let typed = String::from_utf8(typed).unwrap();
                assert_eq!(
                    of(&typed),
                    JoinStringError::Mistyped(part.to_owned()),
                    "{typed}"
                );
                let mut turned = text.clone().into_bytes();
                turned.swap(i, i + 1);
                let turned = String::from_utf8(turned).unwrap();
                if turned != text && !turned.contains("..") {
                    let error = of(&turned).to_string();
                    assert!(error.contains(part), "{turned}: {error}");
                }
            }
        }
        assert_eq!(of(&text.replace("&sum=", "&sum=A")), JoinStringError::Sum);
    }

    #[test]
    fn names_the_fault() {
        let key = PublicKey([1; 32]).to_string();
        let token = "A".repeat(TOKEN_LENGTH);
        let of = |text: String| text.parse::<JoinString>().unwrap_err();
        let with = |address: &str| of(format!("tabane://{address}?key={key}&token={token}"));
        assert_eq!(
            of(format!("https://a:1?key={key}&token={token}")),
            JoinStringError::Scheme
        );
        for address in [
            "a",
            "a:",
            "a:0",
            "a:70000",
            "a:4510x",
            "::1:4510",
            "[::1:4510",
            "a b:1",
        ] {
            assert!(
                matches!(with(address), JoinStringError::Address { .. }),
                "{address}"
            );
        }
        assert_eq!(
            of(format!("tabane://a:1?key={}&token={token}", &key[1..])),
            JoinStringError::Key(KeyParseError::Length(42))
        );
        assert_eq!(
            of(format!("tabane://a:1?key={key}&token={token}A")),
            JoinStringError::TokenLength(23)
        );
        assert_eq!(
            of(format!("tabane://a:1?key={key}&token=%{token}")),
            JoinStringError::TokenCharacter('%')
        );
        assert_eq!(
            of(format!("tabane://a:1?key={key}&key={key}&token={token}")),
            JoinStringError::Repeated("key")
        );
        assert_eq!(
            of(format!("tabane://a:1?key={key}&token={token}&x=1")),
            JoinStringError::UnknownPart("x=1".into())
        );
        let many = "addr=a:1&".repeat(MAX_ADDRESSES);
        assert_eq!(
            of(format!("tabane://a:1?{many}key={key}&token={token}")),
            JoinStringError::TooManyAddresses
        );
    }

    #[test]
    fn garbage_never_panics() {
        let seed = Seed(3);
        let mut rng = seed.rng("join string garbage");
        let model = sample(SETS[3]).to_string().into_bytes();
        for _ in 0..50_000 {
            let mut bytes = model.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(join) = text.parse::<JoinString>() {
                assert_eq!(join.to_string().parse(), Ok(join), "{seed}: {text}");
            }
        }
    }
}
