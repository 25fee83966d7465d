//! The question by which a login page is found, and what its answers mean.
//!
//! A host is asked over one link for a page that is known to be empty (204 No Content). Whoever
//! answers anything else in its place is a portal: with a redirection, as RFC 8910 §1 describes
//! them, with 511 (RFC 6585 §6), or with a page of its own for everything.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use tabane_linux::Egress;
use tabane_linux::threads::lookup_host;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::plain::{PlainWay, connect_tcp};

/// How long all of one question may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long one address may.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);
/// Addresses of the host that are tried.
const MAX_ADDRESSES: usize = 4;
/// What is read of an answer's head.
const MAX_HEAD_BYTES: usize = 8_192;
/// What is shown of a page's address.
const MAX_PAGE_BYTES: usize = 512;

/// What is asked: an `http` URL whose host answers 204.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Host, and port where it is not 80.
    authority: String,
    host: String,
    port: u16,
    path: String,
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The host itself has answered.
    Open,
    /// Somebody else has, who wants people to go to this page.
    Portal { page: String },
    /// Nobody has, or something that says nothing.
    Silence,
}

/// No such URL can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write http://HOST[:PORT]/PATH, where that host answers 204 (No Content), or \"off\"")]
pub struct NoProbe;

impl Default for Probe {
    fn default() -> Self {
        Self::from_str("http://connectivity-check.ubuntu.com/").expect("written as it should be")
    }
}

impl FromStr for Probe {
    type Err = NoProbe;

    fn from_str(text: &str) -> Result<Self, NoProbe> {
        let rest = text.strip_prefix("http://").ok_or(NoProbe)?;
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['#', '@']) {
            return Err(NoProbe);
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (authority, Some(80)),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port {
            Some(port) if port != 0 && !host.is_empty() => Ok(Self {
                authority: authority.to_owned(),
                host: host.to_owned(),
                port,
                path: path.to_owned(),
            }),
            _ => Err(NoProbe),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl Probe {
    /// What `config.toml` says of it.
    pub(crate) fn wished(setting: Option<&str>) -> anyhow::Result<Option<Self>> {
        match setting {
            None => Ok(Some(Self::default())),
            Some("off") => Ok(None),
            Some(text) => {
                let probe = text.parse().map(Some);
                probe.with_context(|| format!("config.toml: portal_probe = {text:?}"))
            }
        }
    }

    /// Asks over this link.
    pub(super) async fn ask(&self, egress: &Egress) -> Finding {
        match timeout(PATIENCE, self.exchange(egress)).await {
            Ok(Ok(head)) => self.judge(&head),
            Ok(Err(error)) => {
                let link = &egress.interface;
                tracing::debug!(%error, "{link}: {self} does not answer");
                Finding::Silence
            }
            Err(_) => Finding::Silence,
        }
    }

    /// What was found, together with what the network's routers say of a portal (RFC 8910): their
    /// word names the page where the answer does not, or where nothing answers at all. Whose host
    /// answers has no portal any more.
    pub(super) fn with_advertised(&self, found: Finding, advertised: Option<String>) -> Finding {
        let is_web = |uri: &String| uri.starts_with("http://") || uri.starts_with("https://");
        match (found, advertised.filter(is_web)) {
            (Finding::Portal { page }, Some(uri)) if page == self.to_string() => {
                Finding::Portal { page: uri }
            }
            (Finding::Silence, Some(uri)) => Finding::Portal { page: uri },
            (found, _) => found,
        }
    }

    /// The head of the first answer that comes.
    async fn exchange(&self, egress: &Egress) -> io::Result<Vec<u8>> {
        let addresses = lookup_host((&*self.host, self.port)).await?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses.take(MAX_ADDRESSES) {
            match timeout(ADDRESS_PATIENCE, self.exchange_with(address, egress)).await {
                Ok(Ok(head)) => return Ok(head),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    async fn exchange_with(&self, address: SocketAddr, egress: &Egress) -> io::Result<Vec<u8>> {
        let question = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tabane\r\nAccept: */*\r\n\
             Cache-Control: no-cache\r\nConnection: close\r\n\r\n",
            self.path, self.authority
        );
        let mut stream = connect_tcp(address, &PlainWay::Over(egress.clone())).await?;
        stream.write_all(question.as_bytes()).await?;
        read_head(&mut stream).await
    }

    /// What the head of an answer means.
    fn judge(&self, head: &[u8]) -> Finding {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        // What is no HTTP is no page to send people to.
        let _ = answer.parse(head);
        let mut headers = answer.headers.iter();
        let location = headers.find(|header| header.name.eq_ignore_ascii_case("location"));
        let location = location.and_then(|header| std::str::from_utf8(header.value).ok());
        let page = match answer.code {
            Some(204) => return Finding::Open,
            Some(301..=303 | 307 | 308) => match location {
                // Some hosts want to be asked by TLS; that is themselves.
                Some(page) if self.is_own(page) => return Finding::Open,
                Some(page) => self.shown(page),
                None => self.to_string(),
            },
            Some(200..=299 | 511) => self.to_string(),
            _ => return Finding::Silence,
        };
        Finding::Portal { page }
    }

    fn is_own(&self, page: &str) -> bool {
        let rest = page.split_once("://").map(|(_, rest)| rest);
        let host = rest.map(|rest| rest.split(['/', ':', '?', '#']).next().unwrap_or(rest));
        host.is_some_and(|host| host.eq_ignore_ascii_case(&self.host))
    }

    /// A portal's words as they may be shown on a terminal; what makes no page there is asked for
    /// by the probe's own address, which leads to it as well.
    fn shown(&self, page: &str) -> String {
        let is_web = page.starts_with("http://") || page.starts_with("https://");
        let is_plain = page.bytes().all(|byte| byte.is_ascii_graphic());
        match is_web && is_plain && page.len() <= MAX_PAGE_BYTES {
            true => page.to_owned(),
            false => self.to_string(),
        }
    }
}

/// What comes until the head ends, or is longer than any. Each byte is looked at with those before
/// it and never again, however small the pieces.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::new();
    loop {
        let before = head.len().saturating_sub(END.len() - 1);
        let is_over = stream.read_buf(&mut head).await? == 0 || head.len() >= MAX_HEAD_BYTES;
        if is_over || head[before..].windows(END.len()).any(|end| end == END) {
            return Ok(head);
        }
    }
}

/// Judges the head of an answer, for fuzzing.
///
/// # Panics
/// What would be shown as a page's address is none, or more than that.
pub fn fuzz_portals(head: &[u8]) {
    if let Finding::Portal { page } = Probe::default().judge(head) {
        assert!(page.starts_with("http://") || page.starts_with("https://"));
        assert!(page.bytes().all(|byte| byte.is_ascii_graphic()), "{page:?}");
        assert!(page.len() <= MAX_PAGE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Probe {
        "http://check.test/generate_204".parse().expect("sound")
    }

    #[tokio::test]
    async fn a_head_ends_where_it_ends_however_it_comes() {
        let answer = b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\nbody";
        for piece in [1, 3, 64] {
            let (mut portal, mut asked) = tokio::io::duplex(piece);
            let says = portal.write_all(answer);
            let hears = async {
                let head = read_head(&mut asked).await;
                drop(asked);
                head.unwrap()
            };
            let (_, head) = tokio::join!(says, hears);
            assert_eq!(probe().judge(&head), Finding::Open, "in pieces of {piece}");
            assert!(
                head.len() < answer.len() - 4 + piece,
                "in pieces of {piece}"
            );
        }
    }

    fn portal(page: &str) -> Finding {
        let page = page.to_owned();
        Finding::Portal { page }
    }

    #[test]
    fn what_is_asked_is_read_and_written() {
        for text in [
            "http://check.test/generate_204",
            "http://192.0.2.1:8080/x?y=z",
            "http://[2001:db8::1]:81/",
            "http://[2001:db8::1]/",
        ] {
            assert_eq!(text.parse::<Probe>().expect(text).to_string(), text);
        }
        let six: Probe = "http://[2001:db8::1]:81".parse().expect("sound");
        assert_eq!((&*six.host, six.port, &*six.path), ("2001:db8::1", 81, "/"));
        for text in [
            "https://check.test/",
            "check.test",
            "http://",
            "http://a:0/",
            "http://a b/",
        ] {
            assert_eq!(text.parse::<Probe>(), Err(NoProbe), "{text}");
        }
        assert_eq!(Probe::wished(Some("off")).expect("a word"), None);
        assert_eq!(
            Probe::wished(None).expect("nothing said"),
            Some(Probe::default())
        );
        let error = format!("{:#}", Probe::wished(Some("no")).expect_err("no URL"));
        assert!(
            error.contains("portal_probe = \"no\": write http://"),
            "{error}"
        );
    }

    #[test]
    fn only_the_empty_page_comes_from_the_host_itself() {
        let judge = |head: &str| probe().judge(head.as_bytes());
        assert_eq!(judge("HTTP/1.1 204 No Content\r\n\r\n"), Finding::Open);
        let login = "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\
                     Location: http://10.0.0.1/login?x=1\r\n\r\n";
        assert_eq!(judge(login), portal("http://10.0.0.1/login?x=1"));
        let own = "HTTP/1.1 301 Moved\r\nLocation: https://check.test/generate_204\r\n\r\n";
        assert_eq!(judge(own), Finding::Open);
        // One that says 200 to everything, and one that knows RFC 6585.
        let asked = portal("http://check.test/generate_204");
        assert_eq!(
            judge("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>"),
            asked
        );
        assert_eq!(
            judge("HTTP/1.1 511 Network Authentication Required\r\n\r\n"),
            asked
        );
    }

    #[test]
    fn routers_name_the_page_where_no_answer_does() {
        let uri = || Some("https://portal.test/api".to_owned());
        let with = |found, said| probe().with_advertised(found, said);
        let said = portal("https://portal.test/api");
        assert_eq!(with(Finding::Silence, uri()), said);
        assert_eq!(with(portal("http://check.test/generate_204"), uri()), said);
        assert_eq!(
            with(portal("http://10.0.0.1/"), uri()),
            portal("http://10.0.0.1/")
        );
        assert_eq!(with(Finding::Open, uri()), Finding::Open);
        let none = Some("urn:ietf:params:capport:unrestricted".to_owned());
        assert_eq!(with(Finding::Silence, none), Finding::Silence);
        assert_eq!(with(Finding::Silence, None), Finding::Silence);
    }

    #[test]
    fn what_a_stranger_says_is_not_shown_as_it_is() {
        let judge = |head: &str| probe().judge(head.as_bytes());
        let asked = portal("http://check.test/generate_204");
        let long = format!("http://{}/", "x".repeat(600));
        for page in [
            "javascript:alert(1)",
            "/login",
            "http://\u{1b}[2Jx/",
            &long,
            "",
        ] {
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {page}\r\n\r\n");
            let finding = judge(&head);
            assert!(
                finding == asked || finding == Finding::Silence,
                "{page:?}: {finding:?}"
            );
        }
        for head in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 403 Forbidden\r\n\r\n",
            "HTTP/1.1 503 x\r\n\r\n",
        ] {
            assert_eq!(judge(head), Finding::Silence, "{head:?}");
        }
    }
}
