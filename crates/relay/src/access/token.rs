//! Tokens that admit new clients: how often, until when, and in whose name.
//!
//! Owns what a token is worth, and that telling it from a wrong one takes the same time whatever
//! is wrong. Which tokens there are is the list's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{UserName, as_text};
use tabane_store::Token;

/// How often a token admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUses {
    /// So many more clients; with the last it is worthless.
    Left(u32),
    /// Any number of clients, until it expires or is revoked.
    Many,
}

impl TokenUses {
    /// One client.
    pub const ONE: Self = Self::Left(1);
    /// What it is after one more client; `None` when it is worthless then.
    pub(super) fn less_one(self) -> Option<Self> {
        match self {
            Self::Many => Some(Self::Many),
            Self::Left(left @ 2..) => Some(Self::Left(left - 1)),
            Self::Left(_) => None,
        }
    }
}

impl FromStr for TokenUses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "one" => Ok(Self::ONE),
            "many" => Ok(Self::Many),
            number => match number.parse() {
                Ok(left @ 1..) => Ok(Self::Left(left)),
                _ => Err(format!("'{text}' is none of one, many, or a number")),
            },
        }
    }
}

impl fmt::Display for TokenUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(1) => f.write_str("one"),
            Self::Left(left) => left.fmt(f),
            Self::Many => f.write_str("many"),
        }
    }
}

/// A token that still admits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// What is shown.
    #[serde(with = "as_text")]
    pub token: Token,
    /// How many more clients it admits.
    #[serde(with = "as_text")]
    pub uses: TokenUses,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Worthless from then on, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Whose the clients are that it admits.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub user: Option<UserName>,
}

impl TokenEntry {
    /// Whether `shown` is this token, and it still admits at `now`, in seconds since 1970.
    pub(super) fn admits(&self, shown: &[u8], now: u64) -> bool {
        equal_in_constant_time(shown, self.token.as_str()) && !self.is_expired(now)
    }

    /// Whether it is worthless at `now`, in seconds since 1970.
    pub fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// The time a wrong token takes to be refused must not tell how much of it was right.
fn equal_in_constant_time(shown: &[u8], token: &str) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(shown, token.as_bytes()).is_ok()
}
