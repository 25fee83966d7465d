//! Names that another site's resolver is asked for, as the DNS has them on the wire.
//!
//! Owns which questions these are: names of the domains that others offer, and the names of
//! addresses that lead to them. Pure; what this machine's network means by itself is nobody else's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_tunnel::{Domain, SiteDomain};

use super::{Routes, Whose};
use crate::near_names::{SUFFIXES, question};

const HEADER: usize = 12;
/// Behind a question's name: its type and class.
const QUESTION_TAIL: usize = 4;
/// Where the names of addresses are; those of a site's are asked there without a domain's saying.
const REVERSE: [&str; 2] = ["in-addr.arpa", "ip6.arpa"];

/// A question for another site's resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SiteQuestion {
    /// Who is asked.
    pub(crate) resolver: SocketAddr,
    /// The question's own number, by which programs know its answer.
    id: u16,
}

/// Why names of this domain are not asked for at other sites, if they are not.
pub(super) fn fault_of(domain: &Domain) -> Option<String> {
    let takes = |own: &&&str| domain.covers(own);
    if let Some(own) = SUFFIXES.iter().find(takes) {
        return Some(format!(
            "names under {own} are each network's own; its owner had better give the site another \
             domain, like lan-b.example"
        ));
    }
    let mut reverse = REVERSE.iter().filter_map(|own| own.parse::<Domain>().ok());
    let is_reverse = reverse.any(|own| own.overlaps(domain));
    is_reverse.then(|| "names of addresses are asked for by routes, not by domains".to_owned())
}

impl Routes {
    /// The domains that are asked for at others.
    fn asked(&self) -> impl Iterator<Item = &SiteDomain> {
        let of_user = move |it: &&SiteDomain| {
            let ip = it.resolver.ip();
            let mut routes = self.others.iter();
            fault_of(&it.domain).is_none()
                && self.whose(ip) == Whose::Site
                && routes.any(|route| route.user == it.user && route.prefix.contains(ip))
        };
        self.domains.iter().filter(move |it| of_user(it))
    }

    /// Whose resolver knows this name, written in small letters and without the last dot.
    pub(super) fn resolver_of(&self, name: &str) -> Option<SocketAddr> {
        let named = self.asked().filter(|it| it.domain.covers(name));
        if let Some(best) = named.max_by_key(|it| it.domain.as_str().len()) {
            return Some(best.resolver);
        }
        let ip = address_of(name)?;
        if self.whose(ip) != Whose::Site {
            return None;
        }
        let mut routes = self.others.iter();
        let user = &routes.find(|it| it.prefix.contains(ip))?.user;
        self.asked()
            .find(|it| it.user == *user)
            .map(|it| it.resolver)
    }

    /// The resolver of another site that a question is for.
    pub(super) fn site_question(&self, message: &[u8]) -> Option<SiteQuestion> {
        if self.domains.is_empty() {
            return None;
        }
        let (name, _) = question(message)?;
        let id = message
            .first_chunk::<2>()
            .map(|id| u16::from_be_bytes(*id))?;
        let resolver = self.resolver_of(&name)?;
        Some(SiteQuestion { resolver, id })
    }
}

/// The address whose name is asked for (RFC 1035 §3.5, RFC 3596 §2.5).
fn address_of(name: &str) -> Option<IpAddr> {
    if let Some(octets) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<u8> = octets.rsplit('.').map_while(|it| it.parse().ok()).collect();
        let octets = <[u8; 4]>::try_from(octets).ok()?;
        return Some(Ipv4Addr::from(octets).into());
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let digit = |it: &str| u128::from_str_radix(it, 16).ok().filter(|_| it.len() == 1);
    let digits: Vec<u128> = digits.rsplit('.').map_while(digit).collect();
    let whole = digits.iter().fold(0, |whole, digit| whole << 4 | digit);
    (digits.len() == 32).then(|| Ipv6Addr::from(whole).into())
}

/// The answer to a question that nobody can be asked: the resolver failed (RFC 1035 §4.1.1). `None`
/// for what is no question.
pub(crate) fn failure(message: &[u8]) -> Option<Vec<u8>> {
    const RESPONSE: u8 = 0x80;
    const OPCODE_AND_RECURSION: u8 = 0x79;
    const AVAILABLE: u8 = 0x80;
    const SERVFAIL: u8 = 2;
    let (_, rest) = question(message)?;
    let end = message.len() - rest.get(QUESTION_TAIL..)?.len();
    let mut answer = message[..end].to_vec();
    answer[2] = RESPONSE | answer[2] & OPCODE_AND_RECURSION;
    answer[3] = AVAILABLE | SERVFAIL;
    answer[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::super::tests::routes;
    use super::*;

    fn domain(domain: &str, resolver: &str, user: &str) -> SiteDomain {
        SiteDomain {
            domain: domain.parse().unwrap(),
            resolver: resolver.parse().unwrap(),
            user: user.to_owned(),
            is_here: true,
        }
    }

    fn message(name: &str) -> Vec<u8> {
        let mut message = vec![7, 9, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    #[test]
    fn a_site_is_asked_for_its_names_and_those_of_its_addresses() {
        let mut routes = routes(
            &["192.168.20.0/24", "192.168.30.0/24", "2001:db8:20::/48"],
            &["192.168.30.0/24"],
        );
        routes.domains = vec![
            domain("lan-b.example", "192.168.20.53:53", "ann"),
            domain("deep.lan-b.example", "[2001:db8:20::53]:5353", "ann"),
            // Of somebody else's network, of one near here, and what is each network's own.
            domain("bank.example", "192.168.20.9:53", "eve"),
            domain("shop.example", "192.168.30.9:53", "ann"),
            domain("mail.example", "203.0.113.9:53", "ann"),
            domain("lan", "192.168.20.53:53", "ann"),
            domain("arpa", "192.168.20.53:53", "ann"),
            domain("10.in-addr.arpa", "192.168.20.53:53", "ann"),
        ];
        let v6 = "7.".to_owned() + &"0.".repeat(19) + "0.2.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        for (name, resolver) in [
            ("nas.Lan-B.example", Some("192.168.20.53:53")),
            ("lan-b.example", Some("192.168.20.53:53")),
            ("a.deep.lan-b.example", Some("[2001:db8:20::53]:5353")),
            ("7.20.168.192.in-addr.arpa", Some("192.168.20.53:53")),
            (&*v6, Some("192.168.20.53:53")),
            ("7.30.168.192.in-addr.arpa", None),
            ("7.40.168.192.in-addr.arpa", None),
            ("20.168.192.in-addr.arpa", None),
            ("1.0.0.10.in-addr.arpa", None),
            ("www.bank.example", None),
            ("www.shop.example", None),
            ("www.mail.example", None),
            ("printer.lan", None),
            ("example", None),
            ("", None),
        ] {
            let asked = routes.site_question(&message(name));
            let expected = resolver.map(|resolver| SiteQuestion {
                resolver: resolver.parse().unwrap(),
                id: 0x0709,
            });
            assert_eq!(asked, expected, "{name}");
        }
    }

    #[test]
    fn a_question_that_fails_is_answered_as_what_it_is() {
        let mut asked = message("nas.lan-b.example");
        let question_ends = asked.len();
        asked.extend(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
        let answer = failure(&asked).unwrap();
        assert_eq!(answer[..2], [7, 9]);
        assert_eq!(answer[2..4], [0x81, 0x82]);
        assert_eq!(answer[4..12], [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(answer[12..], asked[12..question_ends]);
        for length in 0..question_ends {
            assert_eq!(failure(&asked[..length]), None, "{length}");
        }
    }
}
