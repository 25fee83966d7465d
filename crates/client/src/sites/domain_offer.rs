//! Domains whose names others of the group ask for here.
//!
//! Owns which may be offered at all, and asking in every session. Whoever asks comes by the route
//! that the resolver is in, as to any other host of it.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::Prefix;
use tabane_linux::interfaces::{self, Interface};
use tabane_tunnel::{Client, Domain, Exposure, ExposureEvent, OpenError, Status};
use tokio::sync::watch;

use super::names::fault_of;
use crate::exposing::{ExposureState, keep_asking};

const DNS_PORT: u16 = 53;

/// One domain, as its task and those who look at it see it.
pub(super) struct DomainOffer {
    pub(super) domain: Domain,
    /// `None`: this machine's address in one of the routes.
    resolver: Option<SocketAddr>,
    routes: Vec<Prefix>,
    pub(super) state: watch::Sender<ExposureState>,
    /// Why it is not even asked for.
    fault: RefCell<Option<String>>,
}

/// Domains that may be offered at all beside these networks, of what the user names.
///
/// # Errors
/// Why one of them may not be.
pub fn check_domains(
    domains: &[(Domain, Option<SocketAddr>)],
    routes: &[Prefix],
) -> Result<(), String> {
    for (place, (domain, resolver)) in domains.iter().enumerate() {
        if let Some(fault) = fault_of(domain) {
            return Err(format!("{domain}: {fault}"));
        }
        if domains[..place].iter().any(|(other, _)| other == domain) {
            return Err(format!("{domain} is named twice"));
        }
        let is_led = |ip: IpAddr| routes.iter().any(|route| route.contains(ip));
        match resolver {
            Some(resolver) if !is_led(resolver.ip()) => {
                return Err(format!(
                    "{domain}: its resolver {} is in no --route; others could not ask it",
                    resolver.ip()
                ));
            }
            None if routes.is_empty() => {
                return Err(format!("{domain} needs a --route that its resolver is in"));
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// This machine's own address in one of these networks.
fn own_address(interfaces: &[Interface], routes: &[Prefix]) -> Option<IpAddr> {
    let mut routes = routes.iter();
    routes.find_map(|route| {
        let mut own = interfaces.iter().flat_map(|it| &it.addresses);
        let own = own.find(|own| own.ready && route.contains(own.address));
        own.map(|own| own.address)
    })
}

impl DomainOffer {
    pub(super) fn new(domain: Domain, resolver: Option<SocketAddr>, routes: Vec<Prefix>) -> Self {
        Self {
            domain,
            resolver,
            routes,
            state: watch::Sender::new(ExposureState::Asked),
            fault: RefCell::default(),
        }
    }

    pub(super) async fn follow(self: Rc<Self>, relay: Client) {
        let ask = || self.ask(&relay);
        keep_asking(
            |it| relay.until_reachable(it),
            &self.state,
            ask,
            |status| self.why(status),
            async |mut exposure: Exposure| {
                // Nobody comes by it; what is told is that somebody else wants the same.
                while !matches!(exposure.next().await, ExposureEvent::Over) {}
            },
        )
        .await;
    }

    async fn ask(&self, relay: &Client) -> Result<Exposure, OpenError> {
        let resolver = match self.resolver {
            Some(resolver) => Some(resolver),
            None => {
                let interfaces = interfaces::list().await.unwrap_or_default();
                let own = own_address(&interfaces, &self.routes);
                own.map(|own| SocketAddr::new(own, DNS_PORT))
            }
        };
        let fault = resolver.is_none().then(|| {
            let domain = &self.domain;
            format!(
                "{domain}: this machine has no address in its routes; name who knows the names, \
                 like {domain}=192.168.20.53"
            )
        });
        *self.fault.borrow_mut() = fault;
        let resolver = resolver.ok_or(OpenError::Refused(Status::Unreachable))?;
        relay.offer_domain(&self.domain, resolver).await
    }

    /// Why it is not to be had, and what to do, for whoever wants it.
    fn why(&self, status: Status) -> String {
        if let Some(fault) = &*self.fault.borrow() {
            return fault.clone();
        }
        let domain = &self.domain;
        match status {
            Status::Denied => format!(
                "{domain}: the relay's owner has not granted it; `tabane relay user set NAME \
                 --domains {domain}` there does, for the user whose client this is"
            ),
            Status::PortTaken => format!(
                "{domain}: another client of the group has names of it; it keeps them until it \
                 gives them up"
            ),
            Status::Malformed => {
                format!("{domain}: the relay is older than `--route-domain`: update tabane there")
            }
            // The route is asked for at the same time.
            Status::PortUnavailable => {
                format!("{domain}: no route that its resolver is in leads here yet")
            }
            Status::Limit => format!("{domain}: the relay has as many as it may already"),
            status => format!("{domain}: {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_that_nobody_could_ask_for_are_refused_in_a_line() {
        let routes = ["192.168.20.0/24", "fd00:20::/64"];
        let routes = routes.map(|text| Prefix::parse(text).unwrap());
        let check = |domains: &[(&str, Option<&str>)], routes: &[Prefix]| {
            let domains: Vec<_> = domains
                .iter()
                .map(|(domain, resolver)| {
                    let resolver = resolver.map(|text| text.parse().unwrap());
                    (domain.parse().unwrap(), resolver)
                })
                .collect();
            check_domains(&domains, routes).err()
        };
        let lan = "lan-b.example";
        for resolver in [None, Some("192.168.20.53:53"), Some("[fd00:20::53]:53")] {
            assert_eq!(check(&[(lan, resolver)], &routes), None);
        }
        for (domains, routes, word) in [
            (&[(lan, None)][..], &[][..], "needs a --route"),
            (&[(lan, Some("192.168.21.53:53"))], &routes, "in no --route"),
            (&[(lan, None), (lan, None)], &routes, "twice"),
            (&[("lan", None)], &routes, "each network's own"),
            (&[("20.168.192.in-addr.arpa", None)], &routes, "by routes"),
        ] {
            let said = check(domains, routes).unwrap();
            assert!(said.contains(word) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let offer = DomainOffer::new("lan-b.example".parse().unwrap(), None, Vec::new());
        for (status, word) in [
            (Status::Denied, "user set NAME --domains lan-b.example"),
            (Status::PortTaken, "another client of the group"),
            (Status::Malformed, "update tabane there"),
            (Status::PortUnavailable, "leads here yet"),
            (Status::Limit, "as many"),
        ] {
            let why = offer.why(status);
            assert!(why.contains(word) && !why.contains('\n'), "{why}");
        }
    }
}
