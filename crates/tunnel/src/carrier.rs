//! Carries a session's packets where UDP does not pass: TLS 1.3 on TCP, through proxies if need be;
//! or, where an HTTP proxy lets nothing else out, UDP from there on (CONNECT-UDP, RFC 9298).
//!
//! Owns how such a connection is dialled over one link and how it is taken in at the relay, up to
//! the bytes that packets are framed in. To whoever is on the way it is a browser's visit to a web
//! server: the same port, names of protocols, and HTTP within. Nobody is authenticated here, for
//! the session inside is, by the key of the join string: an interceptor who opens the TLS learns
//! sizes and times. What is in the packets, when a link needs this carrier and which is better is
//! for others to say.

mod accept;
mod capsule;
mod certificate;
mod dial;
mod door;
mod frame;
mod head;
mod proxy;
mod resumed;
mod socket;

use tokio::io::{AsyncRead, AsyncWrite};

pub use accept::{Acceptor, Visit, VisitError, fuzz_visit};
pub use capsule::{encapsulate, fuzz_capsules};
pub use certificate::{Certificate, CertificateError};
pub use dial::{Dial, DialError};
pub use frame::{Deframer, FrameError, MAX_PACKET, frame};
pub use head::{Answer, parse_answer};
pub use proxy::{Proxy, ProxyError, ProxyParseError};

/// Where clients look for it, as browsers do.
pub const TLS_PORT: u16 = 443;

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that carries framed packets.
pub type BoxStream = Box<dyn Stream>;

/// What installs the one cryptographic provider of this program.
fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// ALPN of HTTP/1.1, which is what is spoken before packets are.
const HTTP_1: &[u8] = b"http/1.1";
