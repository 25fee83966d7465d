//! Routes to the networks behind clients, as ends tell one another of them [P-T.11].
//!
//! Owns the wire form of the list of a group's routes and domains. Parsing is total, as that of
//! requests is.

use std::net::SocketAddr;

use tabane_base::Prefix;

use crate::domain::Domain;
use crate::range::{emit_prefix, parse_prefix};
use crate::request::{RequestError, emit_address, emit_name, parse_address, parse_name};
use crate::target::MAX_NAME;

/// The most routes that are told; of more, the first.
pub(crate) const MAX_ROUTES: usize = 128;
/// The longest name of a user that is told.
const MAX_USER: usize = 64;
/// The longest list: how many there are, and of each its range, state, and the user's name.
const MAX_LIST: usize = 2 + MAX_ROUTES * (1 + 16 + 1 + 1 + 1 + MAX_USER);
/// The longest with domains: of each, the resolver, state, the user's name and its own.
pub(crate) const MAX_NAMED_LIST: usize =
    MAX_LIST + 2 + MAX_ROUTES * (1 + 16 + 2 + 1 + 1 + MAX_USER + 1 + MAX_NAME);

/// A route that a client of the same group has, as the relay tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRoute {
    /// The addresses that lead there.
    pub prefix: Prefix,
    /// Whose client it is, as the relay calls the user.
    pub user: String,
    /// The client is there. What goes to one that is away is refused.
    pub is_here: bool,
}

/// A domain whose names a client of the same group answers for, as the relay tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteDomain {
    /// The names.
    pub domain: Domain,
    /// Who is asked, within one of the client's routes.
    pub resolver: SocketAddr,
    /// Whose client it is.
    pub user: String,
    /// The client is there. Of one that is away nobody is asked.
    pub is_here: bool,
}

/// What others of a group have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteList {
    /// Networks.
    pub routes: Vec<SiteRoute>,
    /// Names.
    pub domains: Vec<SiteDomain>,
}

/// The whole list as the relay sends it.
pub(crate) fn emit_named_list(list: &SiteList) -> Vec<u8> {
    let mut out = emit_list(&list.routes);
    let told = &list.domains[..list.domains.len().min(MAX_ROUTES)];
    out.extend(u16::try_from(told.len()).unwrap_or(u16::MAX).to_be_bytes());
    for it in told {
        emit_address(it.resolver, &mut out);
        emit_holder(it.is_here, &it.user, &mut out);
        emit_name(Some(it.domain.name()), &mut out);
    }
    out
}

/// Reads such a list and gives it with the number of bytes it took; `None` where more are needed.
pub(crate) fn parse_named_list(bytes: &[u8]) -> Result<Option<(SiteList, usize)>, RequestError> {
    let Some((routes, mut used)) = parse_list(bytes)? else {
        return Ok(None);
    };
    let Some(count) = parse_count(&bytes[used..])? else {
        return Ok(None);
    };
    used += 2;
    let mut domains = Vec::with_capacity(count);
    for _ in 0..count {
        let Some((resolver, len)) = parse_address(&bytes[used..])? else {
            return Ok(None);
        };
        used += len;
        let Some((is_here, user, len)) = parse_holder(&bytes[used..])? else {
            return Ok(None);
        };
        used += len;
        let Some((name, len)) = parse_name(&bytes[used..])? else {
            return Ok(None);
        };
        used += len;
        let domain = name.and_then(|name| Domain::in_small_letters(&name));
        domains.push(SiteDomain {
            domain: domain.ok_or(RequestError::Name)?,
            resolver,
            user,
            is_here,
        });
    }
    Ok(Some((SiteList { routes, domains }, used)))
}

fn emit_holder(is_here: bool, user: &str, out: &mut Vec<u8>) {
    out.push(u8::from(is_here));
    let user = &user.as_bytes()[..user.len().min(MAX_USER)];
    out.push(u8::try_from(user.len()).unwrap_or(0));
    out.extend(user);
}

fn parse_count(bytes: &[u8]) -> Result<Option<usize>, RequestError> {
    let count = bytes.first_chunk::<2>().map(|it| u16::from_be_bytes(*it));
    let count = count.map(usize::from);
    match count.is_some_and(|count| count > MAX_ROUTES) {
        true => Err(RequestError::Range),
        false => Ok(count),
    }
}

/// Whether it is there, whose it is, and the number of bytes that took.
fn parse_holder(bytes: &[u8]) -> Result<Option<(bool, String, usize)>, RequestError> {
    let Some((&[is_here, len], rest)) = bytes.split_first_chunk::<2>() else {
        return Ok(None);
    };
    let len = usize::from(len);
    if is_here > 1 || len > MAX_USER {
        return Err(RequestError::Name);
    }
    let Some(user) = rest.get(..len) else {
        return Ok(None);
    };
    // It is shown in terminals.
    let is_name = user.iter().all(u8::is_ascii_graphic);
    let user = String::from_utf8(user.to_vec()).ok().filter(|_| is_name);
    let user = user.ok_or(RequestError::Name)?;
    Ok(Some((is_here == 1, user, 2 + len)))
}

/// The list of networks as the relay sends it.
pub(crate) fn emit_list(routes: &[SiteRoute]) -> Vec<u8> {
    let told = &routes[..routes.len().min(MAX_ROUTES)];
    let count = u16::try_from(told.len()).unwrap_or(u16::MAX);
    let mut out = count.to_be_bytes().to_vec();
    for route in told {
        emit_prefix(route.prefix, &mut out);
        emit_holder(route.is_here, &route.user, &mut out);
    }
    out
}

/// Reads such a list and gives it with the number of bytes it took; `None` where more are needed.
pub(crate) fn parse_list(bytes: &[u8]) -> Result<Option<(Vec<SiteRoute>, usize)>, RequestError> {
    let Some(count) = parse_count(bytes)? else {
        return Ok(None);
    };
    let mut used = 2;
    let mut routes = Vec::with_capacity(count);
    for _ in 0..count {
        let Some((prefix, len)) = parse_prefix(&bytes[used..]).map_err(|_| RequestError::Range)?
        else {
            return Ok(None);
        };
        used += len;
        let Some((is_here, user, len)) = parse_holder(&bytes[used..])? else {
            return Ok(None);
        };
        routes.push(SiteRoute {
            prefix,
            user,
            is_here,
        });
        used += len;
    }
    Ok(Some((routes, used)))
}

/// For the fuzzer: a list is what it is written as, and its front asks for more.
///
/// # Panics
/// It is otherwise.
pub fn fuzz_routes(data: &[u8]) {
    if let Ok(Some((list, used))) = parse_named_list(data) {
        assert_eq!(emit_named_list(&list), data[..used]);
        for cut in 0..used {
            assert_eq!(parse_named_list(&data[..cut]), Ok(None), "cut at {cut}");
        }
    }
    if let Ok(Some((routes, used))) = parse_list(data) {
        assert_eq!(emit_list(&routes), data[..used]);
        for cut in 0..used {
            assert_eq!(parse_list(&data[..cut]), Ok(None), "cut at {cut}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn route(prefix: &str, user: &str, is_here: bool) -> SiteRoute {
        SiteRoute {
            prefix: Prefix::parse(prefix).unwrap(),
            user: user.to_owned(),
            is_here,
        }
    }

    #[test]
    fn a_list_parses_back_and_every_truncation_asks_for_more() {
        let name = "x".repeat(MAX_USER);
        let routes = vec![route("2001:db8::/32", &name, true); MAX_ROUTES];
        let few = vec![
            route("192.168.20.0/24", "ann", true),
            route("10.0.0.1/32", "b@example", false),
        ];
        for routes in [Vec::new(), few, routes] {
            let bytes = emit_list(&routes);
            assert!(bytes.len() <= MAX_LIST);
            assert_eq!(parse_list(&bytes), Ok(Some((routes.clone(), bytes.len()))));
            let domain = SiteDomain {
                domain: "x".repeat(MAX_NAME).parse().unwrap(),
                resolver: "[2001:db8::53]:53".parse().unwrap(),
                user: name.clone(),
                is_here: false,
            };
            let domains = vec![domain; routes.len()];
            let list = SiteList { routes, domains };
            let bytes = emit_named_list(&list);
            assert!(bytes.len() <= MAX_NAMED_LIST);
            assert_eq!(parse_named_list(&bytes), Ok(Some((list, bytes.len()))));
            if bytes.len() < 1_000 {
                fuzz_routes(&bytes);
            }
        }
    }

    #[test]
    fn garbage_and_names_that_terminals_obey_are_refused() {
        let bad = [0, 1, 4, 10, 0, 0, 0, 8, 1, 1, 0x1b];
        assert_eq!(parse_list(&bad), Err(RequestError::Name));
        assert_eq!(parse_list(&[0xff, 0xff]), Err(RequestError::Range));
        let mut rng = Seed(21).rng("garbage");
        for _ in 0..50_000 {
            let mut bytes = vec![0; rng.below(60) as usize];
            rng.fill(&mut bytes);
            if let [high, low, kind, ..] = &mut bytes[..] {
                (*high, *low) = (0, *low % 4);
                *kind = 4 + 2 * (*kind % 2);
            }
            fuzz_routes(&bytes);
        }
    }
}
