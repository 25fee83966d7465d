//! What a program is told when there is no answer from where it asked, with the status that says
//! whose fault it is.

use hyper::StatusCode;
use tabane_fetch::{RequestError, WayError};

/// An answer of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// One line for a person.
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// The program asked for something that makes no sense here.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn no_link() -> Self {
        let text = "no link may be used now; `tabane links` says why";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    pub(crate) fn late(host: &str) -> Self {
        let text = format!("{host} did not answer in time");
        Self::new(StatusCode::GATEWAY_TIMEOUT, text)
    }
}

impl From<&WayError> for Refusal {
    fn from(error: &WayError) -> Self {
        let is_late = match error {
            WayError::Connect { source, .. } => source.kind() == std::io::ErrorKind::TimedOut,
            WayError::Name { .. }
            | WayError::Family { .. }
            | WayError::Own { .. }
            | WayError::Bind { .. } => false,
        };
        let status = match is_late {
            true => StatusCode::GATEWAY_TIMEOUT,
            false => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, error.to_string())
    }
}

impl From<&RequestError> for Refusal {
    fn from(error: &RequestError) -> Self {
        match error {
            RequestError::Way(error) => error.into(),
            RequestError::TimedOut { .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, error.to_string())
            }
            RequestError::Tls { .. }
            | RequestError::NoRoots(_)
            | RequestError::Proxy { .. }
            | RequestError::Http { .. }
            | RequestError::Redirect(_) => Self::new(StatusCode::BAD_GATEWAY, error.to_string()),
        }
    }
}
