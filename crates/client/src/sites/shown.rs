//! Sites in the words of the control API.

use tabane_control::{ExposureState, SiteRoute};

use tabane_tunnel::SiteDomain;

use super::names::fault_of;
use super::offers::{DomainOffer, Offer};
use super::{Routes, Sites};
use crate::exposing::ExposureState as State;

impl Sites {
    /// The routes of this machine, then those of others.
    pub(crate) fn shown(&self) -> Vec<SiteRoute> {
        let own = self.0.offers.all().into_iter().map(|offer| offer.shown());
        let routes = self.0.routes.borrow();
        let other = |route: &tabane_tunnel::SiteRoute| {
            let is_near = !routes.captured().contains(&route.prefix);
            let problem = match (is_near, route.is_here) {
                (true, _) => Some("this machine is in such a network itself, which comes first"),
                (false, false) => Some("its client is away: what goes there is refused"),
                (false, true) => None,
            };
            let text = |problem| format!("{}: {problem}", route.prefix);
            SiteRoute {
                prefix: route.prefix.to_string(),
                is_own: false,
                user: Some(route.user.clone()),
                client: None,
                state: match route.is_here {
                    true => ExposureState::Open,
                    false => ExposureState::Away,
                },
                problem: problem.map(text),
                now: 0,
                so_far: 0,
                in_vain: 0,
            }
        };
        let others: Vec<_> = routes.others.iter().map(other).collect();
        let domains: Vec<_> = routes.domains.iter().map(|it| routes.shown(it)).collect();
        let own_domains = self.0.offers.domains().into_iter().map(|it| it.shown());
        own.chain(own_domains)
            .chain(others)
            .chain(domains)
            .collect()
    }
}

impl Routes {
    fn shown(&self, it: &SiteDomain) -> SiteRoute {
        let SiteDomain {
            domain, is_here, ..
        } = it;
        let away = "its client is away: questions are answered by SERVFAIL";
        let problem = fault_of(domain).or_else(|| (!is_here).then(|| away.to_owned()));
        SiteRoute {
            prefix: format!("{domain} ({})", it.resolver.ip()),
            is_own: false,
            user: Some(it.user.clone()),
            client: None,
            state: match is_here {
                true => ExposureState::Open,
                false => ExposureState::Away,
            },
            problem: problem.map(|problem| format!("{domain}: {problem}")),
            now: 0,
            so_far: 0,
            in_vain: 0,
        }
    }
}

impl DomainOffer {
    fn shown(&self) -> SiteRoute {
        let (state, problem) = shown_state(&self.state.borrow());
        SiteRoute {
            prefix: self.domain.to_string(),
            is_own: true,
            user: None,
            client: None,
            state,
            problem,
            now: 0,
            so_far: 0,
            in_vain: 0,
        }
    }
}

/// In the words of the API, and why it was refused.
fn shown_state(state: &State) -> (ExposureState, Option<String>) {
    match state {
        State::Asked => (ExposureState::Asked, None),
        State::Open => (ExposureState::Open, None),
        State::Refused(why) => (ExposureState::Refused, Some(why.clone())),
    }
}

impl Offer {
    fn shown(&self) -> SiteRoute {
        let (state, refusal) = shown_state(&self.state.borrow());
        let range = self.prefix;
        let also = || format!("{range}: another client of the group has asked for it, too");
        SiteRoute {
            prefix: range.to_string(),
            is_own: true,
            user: None,
            client: None,
            state,
            problem: refusal
                .or_else(|| self.is_also_wanted.get().then(also))
                .or_else(|| self.sites.0.sources.problem(|ip| range.contains(ip))),
            now: self.present.get() as u64,
            so_far: self.so_far.get(),
            in_vain: self.in_vain.get(),
        }
    }
}

/// Says what may be missing where this machine knows several `relays`, and nobody else's networks
/// are known at the one that it is at: relays do not tell one another.
pub(crate) fn tell_of_other_relays(routes: &mut [SiteRoute], relays: &[String]) {
    if relays.len() < 2 || routes.iter().any(|route| !route.is_own) {
        return;
    }
    let mut open = routes.iter_mut();
    let open = open.find(|it| it.state == ExposureState::Open && it.problem.is_none());
    // The same at every machine that knows the same.
    if let Some((route, first)) = open.zip(relays.iter().min()) {
        let many = relays.len();
        route.problem = Some(format!(
            "{}: this relay knows no other site; it would not hear of one at another relay, and \
             this machine knows {many} relays: clients of one group have to use the same (`relay = \
             \"{first}\"` in config.toml of each)",
            route.prefix
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(is_own: bool, state: ExposureState) -> SiteRoute {
        SiteRoute {
            prefix: "192.168.20.0/24".to_owned(),
            is_own,
            user: None,
            client: None,
            state,
            problem: None,
            now: 0,
            so_far: 0,
            in_vain: 0,
        }
    }

    #[test]
    fn who_is_alone_at_one_of_several_relays_is_told_why() {
        let told = |mut routes: Vec<SiteRoute>, relays: usize| {
            let names = ["home.rome", "home.oslo"].map(str::to_owned);
            tell_of_other_relays(&mut routes, &names[..relays]);
            routes.into_iter().find_map(|it| it.problem)
        };
        let own = route(true, ExposureState::Open);
        let said = told(vec![own.clone()], 2).unwrap();
        assert!(
            said.contains("knows 2 relays")
                && said.contains("\"home.oslo\"")
                && !said.contains('\n'),
            "{said}"
        );
        assert_eq!(told(vec![own.clone()], 1), None);
        assert_eq!(told(vec![route(true, ExposureState::Asked)], 2), None);
        let other = route(false, ExposureState::Away);
        assert_eq!(told(vec![own, other], 2), None);
    }
}
