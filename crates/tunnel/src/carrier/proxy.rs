//! Proxies that a network makes us use: HTTP CONNECT (RFC 9110 §9.3.6) and SOCKS5 (RFC 1928,
//! RFC 1929), from the client's side; and HTTP CONNECT-UDP (RFC 9298).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::head::read_answer;

const HTTP_PORT: u16 = 8080;
const SOCKS_PORT: u16 = 1080;
/// Bytes of a user's name or password (RFC 1929 §2).
const MAX_WORD: usize = 255;

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Kind,
    host: String,
    port: u16,
    login: Option<Login>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    Socks5,
}

#[derive(Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password: String,
}

/// A text names no proxy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected http://[USER:PASSWORD@]HOST[:PORT] or socks5://[USER:PASSWORD@]HOST[:PORT]")]
pub struct ProxyParseError;

/// What a proxy said instead of connecting us.
#[derive(Debug, Error)]
pub enum ProxyError {
    /// It wants to know who we are.
    #[error(
        "the proxy {0} asks for a user and password, or other ones: say proxy = \
         \"http://USER:PASSWORD@…\" in the policy"
    )]
    Password(String),
    /// It said no.
    #[error("the proxy {proxy} does not connect to the relay: {why}")]
    Refused {
        /// The proxy, as it was given.
        proxy: String,
        /// Its answer.
        why: String,
    },
    /// It is no proxy, or the connection broke.
    #[error("the proxy {proxy} does not answer as one: {source}")]
    Garbled {
        /// The proxy, as it was given.
        proxy: String,
        /// What was wrong.
        source: io::Error,
    },
}

impl FromStr for Proxy {
    type Err = ProxyParseError;

    fn from_str(text: &str) -> Result<Self, ProxyParseError> {
        let (scheme, rest) = text.split_once("://").ok_or(ProxyParseError)?;
        let (kind, port) = match scheme {
            "http" => (Kind::Http, HTTP_PORT),
            "socks5" | "socks5h" => (Kind::Socks5, SOCKS_PORT),
            _ => return Err(ProxyParseError),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(Login::parse(login)?), place),
            None => (None, rest),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !port.ends_with(']') => {
                (host, port.parse().map_err(|_| ProxyParseError)?)
            }
            _ => (place, port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let fits = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || port == 0 || !host.chars().all(fits) {
            return Err(ProxyParseError);
        }
        Ok(Self {
            kind,
            host: host.to_owned(),
            port,
            login,
        })
    }
}

impl fmt::Display for Proxy {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            Kind::Http => "http",
            Kind::Socks5 => "socks5",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, ProxyParseError> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let word = |text: &str| {
            let word = decode_percent(text).ok_or(ProxyParseError)?;
            match word.len() {
                0..=MAX_WORD => Ok(word),
                _ => Err(ProxyParseError),
            }
        };
        Ok(Self {
            user: word(user)?,
            password: word(password)?,
        })
    }
}

impl Proxy {
    /// Whether it is on this machine, as far as its name tells.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn silent(&self) -> ProxyError {
        self.garbled(io::ErrorKind::TimedOut.into())
    }

    /// Has the proxy at the other end of `stream` connect to `target`.
    pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        target: SocketAddr,
    ) -> Result<(), ProxyError> {
        match self.kind {
            Kind::Http => self.connect(stream, target).await,
            Kind::Socks5 => self.socks(stream, target).await,
        }
    }

    async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        target: SocketAddr,
    ) -> Result<(), ProxyError> {
        let login = self.authorization();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n");
        match self.answer_to(stream, &request).await? {
            200..300 => Ok(()),
            407 => Err(ProxyError::Password(self.to_string())),
            status => Err(self.refused(format!("HTTP {status}"))),
        }
    }

    async fn socks<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        target: SocketAddr,
    ) -> Result<(), ProxyError> {
        let garbled = |source| self.garbled(source);
        let strange = || garbled(io::Error::new(io::ErrorKind::InvalidData, "no SOCKS5"));
        let methods: &[u8] = match self.login {
            Some(_) => &[5, 2, 0, 2],
            None => &[5, 1, 0],
        };
        stream.write_all(methods).await.map_err(garbled)?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await.map_err(garbled)?;
        match (chosen, &self.login) {
            ([5, 0], _) => {}
            ([5, 2], Some(login)) => {
                let mut hello = vec![1, login.user.len() as u8];
                hello.extend_from_slice(login.user.as_bytes());
                hello.push(login.password.len() as u8);
                hello.extend_from_slice(login.password.as_bytes());
                stream.write_all(&hello).await.map_err(garbled)?;
                let mut verdict = [0; 2];
                stream.read_exact(&mut verdict).await.map_err(garbled)?;
                if verdict[1] != 0 {
                    return Err(ProxyError::Password(self.to_string()));
                }
            }
            ([5, _], _) => return Err(ProxyError::Password(self.to_string())),
            _ => return Err(strange()),
        }
        let mut request = vec![5, 1, 0];
        match target.ip() {
            IpAddr::V4(ip) => {
                request.push(1);
                request.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                request.push(4);
                request.extend_from_slice(&ip.octets());
            }
        }
        request.extend_from_slice(&target.port().to_be_bytes());
        stream.write_all(&request).await.map_err(garbled)?;
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).await.map_err(garbled)?;
        let bound = match reply {
            [5, 0, _, 1] => 4 + 2,
            [5, 0, _, 4] => 16 + 2,
            [5, 0, _, 3] => usize::from(stream.read_u8().await.map_err(garbled)?) + 2,
            [5, code, ..] => return Err(self.refused(format!("SOCKS5 reply {code}"))),
            _ => return Err(strange()),
        };
        let mut rest = vec![0; bound];
        stream.read_exact(&mut rest).await.map_err(garbled)?;
        Ok(())
    }

    /// Whether it may know CONNECT-UDP.
    pub(crate) fn may_pass_udp(&self) -> bool {
        self.kind == Kind::Http
    }

    /// Has the proxy at the other end of `stream` pass UDP on to `target`; capsules follow.
    pub(crate) async fn ask_udp<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        target: SocketAddr,
    ) -> Result<(), ProxyError> {
        // Colons of IPv6 are written so in a path (RFC 9298 §2).
        let host = target.ip().to_string().replace(':', "%3A");
        let (port, login) = (target.port(), self.authorization());
        let itself = match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        };
        let request = format!(
            "GET http://{itself}/.well-known/masque/udp/{host}/{port}/ HTTP/1.1\r\n\
             Host: {itself}\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\
             Capsule-Protocol: ?1\r\n{login}\r\n"
        );
        match self.answer_to(stream, &request).await? {
            101 => Ok(()),
            407 => Err(ProxyError::Password(self.to_string())),
            status => Err(self.refused(format!("HTTP {status}"))),
        }
    }

    fn authorization(&self) -> String {
        let Some(login) = &self.login else {
            return String::new();
        };
        let both = format!("{}:{}", login.user, login.password);
        format!("Proxy-Authorization: Basic {}\r\n", base64(both.as_bytes()))
    }

    async fn answer_to<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        request: &str,
    ) -> Result<u16, ProxyError> {
        let asked = async {
            stream.write_all(request.as_bytes()).await?;
            read_answer(stream).await
        };
        let answer = asked.await.map_err(|source| self.garbled(source))?;
        Ok(answer.status)
    }

    fn refused(&self, why: String) -> ProxyError {
        ProxyError::Refused {
            proxy: self.to_string(),
            why,
        }
    }

    fn garbled(&self, source: io::Error) -> ProxyError {
        ProxyError::Garbled {
            proxy: self.to_string(),
            source,
        }
    }
}

/// `%40` and the like.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_usize, |word, byte| word << 8 | usize::from(*byte));
        for place in 0..4 {
            match place <= group.len() {
                true => text.push(char::from(SYMBOLS[word >> (18 - 6 * place) & 63])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_written_as_urls() {
        let parse = |text: &str| text.parse::<Proxy>().map(|it| it.to_string());
        for (text, shown) in [
            ("http://proxy", "http://proxy:8080"),
            ("http://proxy:3128/", "http://proxy:3128"),
            ("socks5://user:p%40ss@10.0.0.1", "socks5://10.0.0.1:1080"),
            ("http://[fd00::1]:81", "http://[fd00::1]:81"),
            ("http://[fd00::1]", "http://[fd00::1]:8080"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(shown), "{text}");
        }
        for text in [
            "proxy",
            "https://proxy",
            "http://",
            "http://a:0",
            "http://a:x",
            "http://a b",
            "http://u:%4@a",
            "http://a\r\n",
        ] {
            assert_eq!(parse(text), Err(ProxyParseError), "{text}");
        }
        let proxy: Proxy = "socks5://user:p%40ss@10.0.0.1".parse().unwrap();
        assert_eq!(proxy.login.unwrap().password, "p@ss");
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }
}
