//! Which host a visitor asks for, before it was answered: the server name of a TLS ClientHello
//! (RFC 6066 §3, RFC 8446 §4.1.2), or the Host of an HTTP/1 request (RFC 9112 §3.2).
//!
//! Reads the front of a connection and nothing of what is encrypted. Total and pure: any bytes give
//! a name, a wish for more, or that there is none; no more than [`MAX_FRONT`] are ever wanted.

use crate::target::HostName;

/// Bytes that are looked at: the longest ClientHello that comes to be are some 20 kB (post-quantum
/// keys, many tickets), and web servers take heads of 8 to 32 kB.
pub(crate) const MAX_FRONT: usize = 64 * 1024;

/// Fields in the head of a request.
const MAX_FIELDS: usize = 128;

/// Fronts up to this are read with every piece that comes.
const SHORT_FRONT: usize = 4 * 1024;

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// The longest record that may be sent (RFC 8446 §5.1).
const MAX_RECORD: usize = 1 << 14;

/// What the front of a connection says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not all of it is there yet: so many bytes more are wanted, at the least.
    More(usize),
    /// This host.
    For(HostName),
    /// No host, or it is nothing that has one.
    Nobody,
}

/// Reads the front of a connection, from its first byte on.
pub(crate) fn asked_name(front: &[u8]) -> Asked {
    let asked = match front.first() {
        None => Asked::More(1),
        Some(&HANDSHAKE_RECORD) => in_client_hello(front),
        Some(byte) if byte.is_ascii_alphabetic() => in_http(front),
        Some(_) => Asked::Nobody,
    };
    match asked {
        Asked::More(_) if front.len() >= MAX_FRONT => Asked::Nobody,
        asked => asked,
    }
}

/// The front of a connection as it comes. Reading all of it with every piece would take the square
/// of its length, and whoever comes may cut it as small as it likes: a ClientHello is read again
/// once as much is there as was missing, the head of a long request once it has ended.
#[derive(Debug, Default)]
pub(crate) struct Front {
    bytes: Vec<u8>,
    /// Fewer are not worth reading.
    wanted: usize,
    /// Bytes that were looked at.
    #[cfg(test)]
    looked_at: usize,
}

impl Front {
    /// How many more there may be.
    pub(crate) fn room(&self) -> usize {
        MAX_FRONT.saturating_sub(self.bytes.len())
    }

    /// Takes what came next, no more than there is room for.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Asked {
        let before = self.bytes.len();
        self.bytes.extend_from_slice(piece);
        let is_full = self.room() == 0;
        if !is_full && (self.bytes.len() < self.wanted || !may_be_whole(&self.bytes, before)) {
            return Asked::More(1);
        }
        #[cfg(test)]
        {
            self.looked_at += self.bytes.len();
        }
        let asked = asked_name(&self.bytes);
        if let Asked::More(missing) = asked {
            self.wanted = self.bytes.len() + missing;
        }
        asked
    }

    /// All that came.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

fn may_be_whole(front: &[u8], before: usize) -> bool {
    let new = &front[before.saturating_sub(3)..];
    let has_ended = || {
        let ends = |at: usize| new[at..].starts_with(b"\n") || new[at..].starts_with(b"\r\n");
        let lines = new.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        lines.map(|(at, _)| at + 1).any(ends)
    };
    front.len() <= SHORT_FRONT || front.first() == Some(&HANDSHAKE_RECORD) || has_ended()
}

fn in_http(front: &[u8]) -> Asked {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(front) {
        Ok(httparse::Status::Partial) => return Asked::More(1),
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Asked::Nobody,
    }
    // What a request names in its target goes before the field.
    let target = request.path.and_then(|path| path.split_once("://"));
    if let Some((_, rest)) = target {
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        return named(&rest[..end]);
    }
    let is_host = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(is_host);
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => std::str::from_utf8(host.value).map_or(Asked::Nobody, named),
        // Two might be read in two ways.
        _ => Asked::Nobody,
    }
}

/// A host with a port or without.
fn named(authority: &str) -> Asked {
    let authority = authority.trim();
    let host = authority
        .split_once(':')
        .map_or(authority, |(host, _)| host);
    host_name(host)
}

fn host_name(host: &str) -> Asked {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    HostName::new(&host).map_or(Asked::Nobody, Asked::For)
}

fn in_client_hello(front: &[u8]) -> Asked {
    let mut message = Vec::new();
    let mut rest = front;
    // One message may come in several records.
    loop {
        match hello_in(&message) {
            Asked::More(_) => {}
            asked => return asked,
        }
        let Some((&[kind, major, _, high, low], after)) = rest.split_first_chunk::<5>() else {
            return match rest.first() {
                Some(kind) if *kind != HANDSHAKE_RECORD => Asked::Nobody,
                _ => hello_in(&message),
            };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind != HANDSHAKE_RECORD || major != 3 || len == 0 || len > MAX_RECORD {
            return Asked::Nobody;
        }
        let there = &after[..len.min(after.len())];
        message.extend_from_slice(there);
        rest = &after[there.len()..];
        if there.len() < len {
            return hello_in(&message);
        }
    }
}

/// Reads a handshake message that may not be all there.
fn hello_in(message: &[u8]) -> Asked {
    let Some((&[kind, high, middle, low], body)) = message.split_first_chunk::<4>() else {
        return match message.first() {
            Some(kind) if *kind != CLIENT_HELLO => Asked::Nobody,
            _ => Asked::More(4 - message.len()),
        };
    };
    let len = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if kind != CLIENT_HELLO || len > MAX_FRONT {
        return Asked::Nobody;
    }
    match body.get(..len) {
        None => Asked::More(len - body.len()),
        Some(body) => server_name(body).map_or(Asked::Nobody, host_name),
    }
}

/// The server name in the body of a ClientHello that is all there.
fn server_name(body: &[u8]) -> Option<&str> {
    // Version and random.
    let rest = body.get(2 + 32..)?;
    let (_session, rest) = take_short(rest)?;
    let (_suites, rest) = take_long(rest)?;
    let (_compression, rest) = take_short(rest)?;
    let (mut extensions, _) = take_long(rest)?;
    while let Some((kind, rest)) = extensions.split_first_chunk::<2>() {
        let (content, rest) = take_long(rest)?;
        extensions = rest;
        if u16::from_be_bytes(*kind) == SERVER_NAME {
            let (list, _) = take_long(content)?;
            let (&kind, rest) = list.split_first()?;
            let (name, _) = take_long(rest)?;
            // No other kind was ever defined.
            return (kind == HOST_NAME).then(|| std::str::from_utf8(name).ok())?;
        }
    }
    None
}

/// What stands behind its length of one byte, and the rest.
fn take_short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(len.into())
}

/// The same with two bytes.
fn take_long(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_be_bytes(*len).into())
}

/// For the fuzzer: what more bytes behind them do not change, a name or its absence, is told as
/// early as it is there, and nothing more is wanted than is allowed.
///
/// # Panics
/// It is otherwise.
pub fn fuzz_asked_name(front: &[u8]) {
    let whole = asked_name(front);
    if let Asked::For(name) = &whole {
        assert!(!name.as_str().bytes().any(|byte| byte.is_ascii_uppercase()));
    }
    assert!(!matches!(whole, Asked::More(_)) || front.len() < MAX_FRONT);
    let step = front.len() / 64 + 1;
    for cut in (0..front.len()).step_by(step) {
        match asked_name(&front[..cut]) {
            Asked::More(missing) => {
                // What is no hello after all may show it sooner.
                let is_named = matches!(whole, Asked::For(_));
                let is_due = !is_named || cut + missing <= front.len();
                assert!(missing > 0 && is_due, "{missing} at {cut}");
            }
            early => assert_eq!(early, whole, "at {cut}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tabane_base::Seed;

    fn for_name(name: &str) -> Asked {
        Asked::For(HostName::new(name).unwrap())
    }

    /// What rustls says first, in one record.
    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut out = Vec::new();
        client.write_tls(&mut out).unwrap();
        out
    }

    /// The same message in records of so many bytes.
    fn cut_up(hello: &[u8], size: usize) -> Vec<u8> {
        let records = hello[5..].chunks(size).map(|part| {
            let len = u16::try_from(part.len()).unwrap().to_be_bytes();
            [&[22, 3, 1, len[0], len[1]], part].concat()
        });
        records.collect::<Vec<_>>().concat()
    }

    /// The same with an extension of so many bytes before all others.
    fn padded(hello: &[u8], size: usize) -> Vec<u8> {
        let body = &hello[9..];
        let session = usize::from(body[34]);
        let suites_at = 35 + session;
        let suites = usize::from(u16::from_be_bytes([body[suites_at], body[suites_at + 1]]));
        let at = suites_at + 2 + suites + 2;
        let len = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
        let old = usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
        let extensions = [
            &len(old + 4 + size)[..],
            &[0, 21],
            &len(size),
            &vec![0; size],
            &body[at + 2..],
        ]
        .concat();
        let body = [&body[..at], &extensions].concat();
        let size = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1, size[1], size[2], size[3]], &body[..]].concat();
        cut_up(&[&[0; 5], &message[..]].concat(), 16_000)
    }

    #[test]
    fn a_server_name_is_found_however_it_is_split() {
        let whole = hello("www.Example.org");
        for front in [whole.clone(), cut_up(&whole, 1), cut_up(&whole, 7)] {
            assert_eq!(asked_name(&front), for_name("www.example.org"));
            for cut in 0..front.len() {
                assert!(matches!(asked_name(&front[..cut]), Asked::More(_)), "{cut}");
            }
        }
        let behind = [&whole[..], b"anything"].concat();
        assert_eq!(asked_name(&behind), for_name("www.example.org"));
    }

    #[test]
    fn long_hellos_are_read_as_far_as_they_may_be() {
        let whole = hello("a.example");
        assert_eq!(asked_name(&padded(&whole, 60_000)), for_name("a.example"));
        // A message that says it is longer is not waited for.
        let endless = [22, 3, 1, 0x40, 0, 1, 1, 0, 1];
        assert_eq!(asked_name(&endless), Asked::Nobody);
        // One that is cut into records of a byte each comes to more than is looked at.
        let crumbs = cut_up(&padded(&whole, 30_000), 1);
        assert_eq!(asked_name(&crumbs[..MAX_FRONT]), Asked::Nobody);
        let before = asked_name(&crumbs[..MAX_FRONT - 1]);
        assert!(matches!(before, Asked::More(_)));
    }

    /// However small somebody cuts what it says, it costs no square of it.
    #[test]
    fn crumbs_are_not_read_again_and_again() {
        let whole = hello("a.example");
        let request = format!(
            "GET / HTTP/1.1\r\nX: {}\r\nHost: a.example\r\n\r\n",
            "x".repeat(60_000)
        );
        let mut endless = [22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff].to_vec();
        endless.resize(MAX_FRONT, 0);
        for (front, expected) in [
            (padded(&whole, 60_000), for_name("a.example")),
            (cut_up(&padded(&whole, 9_000), 1), for_name("a.example")),
            (cut_up(&padded(&whole, 30_000), 1), Asked::Nobody),
            (request.into_bytes(), for_name("a.example")),
            (endless, Asked::Nobody),
        ] {
            for size in [1, 7, 1_000] {
                let mut reader = Front::default();
                let mut asked = Asked::More(1);
                for piece in front[..front.len().min(MAX_FRONT)].chunks(size) {
                    asked = reader.take(piece);
                    if !matches!(asked, Asked::More(_)) {
                        break;
                    }
                }
                assert_eq!(asked, expected, "in pieces of {size}");
                let most = SHORT_FRONT * SHORT_FRONT / 2 + 20 * MAX_FRONT;
                assert!(
                    reader.looked_at < most,
                    "{} bytes are looked at",
                    reader.looked_at
                );
            }
        }
    }

    #[test]
    fn without_a_name_there_is_nobody() {
        // rustls sends no server name for an address.
        assert_eq!(asked_name(&hello("192.0.2.1")), Asked::Nobody);
        for front in [
            &[22, 2, 0, 0, 1][..],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 5, 2],
            &[21, 3, 1],
            b"SSH-2.0-OpenSSH\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x00",
        ] {
            assert_eq!(asked_name(front), Asked::Nobody, "{front:?}");
        }
        assert_eq!(asked_name(b""), Asked::More(1));
    }

    #[test]
    fn a_request_names_its_host() {
        let request = b"GET / HTTP/1.1\r\nAccept: */*\r\nhOst: A.example:8080\r\n\r\nbody";
        assert_eq!(asked_name(request), for_name("a.example"));
        let head = request.len() - b"body".len();
        for cut in 0..head {
            assert!(
                matches!(asked_name(&request[..cut]), Asked::More(_)),
                "{cut}"
            );
        }
        let absolute = b"GET http://b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(asked_name(absolute), for_name("b.example"));
        let mut endless = b"GET / HTTP/1.1\r\nX: ".to_vec();
        endless.resize(MAX_FRONT, b'x');
        assert_eq!(asked_name(&endless), Asked::Nobody);
    }

    #[test]
    fn garbage_never_panics() {
        let seed = Seed(22);
        let mut rng = seed.rng("hellos");
        let whole = hello("www.example.org");
        for _ in 0..20_000 {
            let mut front = whole.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(front.len() as u64) as usize;
                front[at] = rng.below(256) as u8;
            }
            fuzz_asked_name(&front);
        }
    }
}
