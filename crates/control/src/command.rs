//! What clients want of an instance, and when it is asked.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::trace::TraceBatch;

/// When an instance publishes its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As it sees fit; clients are given the last one.
    ByItself,
    /// When it is asked to ([`Command::Look`]): its thread has no time to spare while nobody wants
    /// to know.
    WhenAsked,
}

/// Something a client wants of the instance. The answer goes through `reply`; an instance that
/// has published its new state before lets the client see it.
#[derive(Debug)]
pub enum Command {
    /// Publish what is true now. Comes only at [`Pace::WhenAsked`], a few times a second at most,
    /// and not before the last one was answered.
    Look {
        /// Tells that it is published.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Use a link in another way.
    ChangeLink {
        /// The link's name.
        name: String,
        /// What is changed of it.
        change: LinkChange,
        /// `Err` says in words why not.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Say which rule a connection would fall under.
    Explain {
        /// Which connection.
        question: RuleQuestion,
        /// `Err` says in words why that cannot be said.
        reply: oneshot::Sender<Result<RuleAnswer, String>>,
    },
    /// Record a session, packet by packet, until nobody listens any more.
    Trace {
        /// Which; none: the only one.
        session: Option<u64>,
        /// What happened, as it happens; `Err` says in words why not. What finds no room may wait
        /// until there is some.
        reply: oneshot::Sender<Result<mpsc::Receiver<TraceBatch>, String>>,
    },
}

/// What to change about a link. What is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// What share of it may be used, 0 to 1; at 0 it carries data only while no other link works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub weight: Option<f64>,
    /// Whether it is left alone altogether.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

impl LinkChange {
    /// What is wrong with it.
    ///
    /// # Errors
    /// In words for whoever asked.
    pub fn check(self) -> Result<Self, String> {
        match self {
            Self {
                weight: None,
                paused: None,
            } => Err("nothing to change: give weight, paused, or both".to_owned()),
            Self {
                weight: Some(weight),
                ..
            } if !(0.0..=1.0).contains(&weight) => {
                Err(format!("weight is a number from 0 to 1, not {weight}"))
            }
            change => Ok(change),
        }
    }
}

/// A connection that might be: which rule would it fall under?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleQuestion {
    /// The name that is asked for.
    #[serde(default)]
    pub domain: Option<String>,
    /// The address, where it is known.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// A UDP flow and not a TCP connection.
    #[serde(default)]
    pub udp: bool,
    /// The program.
    #[serde(default)]
    pub process: Option<String>,
    /// The host behind the client that begins it, by its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The same by its network card's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
}

/// Which rule a connection would fall under.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RuleAnswer {
    /// Its name; none fits.
    pub rule: Option<String>,
    /// The names that rules were asked for: what was given, and what its address was looked up by
    /// through this instance.
    pub names: Vec<String>,
    /// Of a host behind the client: its card's address, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_checked() {
        let parse = |text: &str| {
            serde_json::from_str::<LinkChange>(text)
                .map_err(|error| error.to_string())
                .and_then(LinkChange::check)
        };
        assert!(parse(r#"{"weight": 0.5}"#).is_ok());
        assert!(parse(r#"{"weight": 0, "paused": true}"#).is_ok());
        for (bad, word) in [
            ("{}", "nothing to change"),
            (r#"{"weight": 1.01}"#, "0 to 1"),
            (r#"{"weight": -1}"#, "0 to 1"),
            (r#"{"weight": 1e999}"#, "out of range"),
            (r#"{"weight": "1"}"#, "string"),
            (r#"{"wieght": 1}"#, "unknown field"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }
}
