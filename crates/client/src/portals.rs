//! Which links stand behind a login page (a captive portal), and where that page is.
//!
//! Owns when a link is asked: one that fails, after a moment, and again from time to time until it
//! carries data; never one that works. What is asked, and what the answers mean, is [`Probe`]'s.

mod probe;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tabane_control::{Link, LinkState};
use tabane_linux::{Egress, advertised::solicit};

pub use probe::{Probe, fuzz_portals};

use probe::Finding;

/// For how long a link has to fail before anything is asked: handovers are over by then.
const PATIENCE: Duration = Duration::from_secs(2);
/// Before it is asked again: who has logged in does not want to wait longer.
const PAUSE: Duration = Duration::from_secs(15);

/// What is known of the links that fail. Must be used within a `LocalSet`.
#[derive(Debug)]
pub(crate) struct Portals {
    /// None: the user wants nothing asked.
    probe: Option<Probe>,
    failing: Rc<RefCell<BTreeMap<String, Failing>>>,
}

/// A link that carries nothing.
#[derive(Debug)]
struct Failing {
    since: Instant,
    asked_at: Option<Instant>,
    /// An answer is waited for.
    is_asking: bool,
    page: Option<String>,
}

impl Portals {
    pub(crate) fn new(probe: Option<Probe>) -> Self {
        Self {
            probe,
            failing: Rc::default(),
        }
    }

    /// Names the pages that are known on `links`, and has asked what is to be asked `now`.
    /// `way_out` says by where each leaves, and what its routers say of a portal.
    pub(crate) fn look(
        &self,
        now: Instant,
        links: &mut [Link],
        way_out: impl Fn(&str) -> Option<(Egress, Option<String>)>,
    ) {
        let Some(probe) = &self.probe else { return };
        let mut failing = self.failing.borrow_mut();
        let is_failing = |name: &String| links.iter().any(|link| link.name == *name && fails(link));
        failing.retain(|name, _| is_failing(name));
        for link in links.iter_mut().filter(fails_and_is_own) {
            let seen = failing
                .entry(link.name.clone())
                .or_insert_with(|| Failing::since(now));
            link.portal.clone_from(&seen.page);
            let way_out = way_out(&link.name).filter(|_| seen.is_due(now));
            if let Some((egress, advertised)) = way_out {
                (seen.is_asking, seen.asked_at) = (true, Some(now));
                let answer = self.failing.clone();
                let (probe, name) = (probe.clone(), link.name.clone());
                // What routers say counts from the next question on.
                if let Err(error) = solicit(&egress.interface) {
                    tracing::debug!(%error, link = name, "routers are not asked");
                }
                tokio::task::spawn_local(async move {
                    let finding = probe.ask(&egress).await;
                    let finding = probe.with_advertised(finding, advertised);
                    // A link that works by now is none of ours any more.
                    if let Some(seen) = answer.borrow_mut().get_mut(&name) {
                        seen.on_finding(&name, finding);
                    }
                });
            }
        }
    }
}

impl Failing {
    const fn since(since: Instant) -> Self {
        Self {
            since,
            asked_at: None,
            is_asking: false,
            page: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let for_long = |at: Instant, time| now.saturating_duration_since(at) >= time;
        let is_rested = self.asked_at.is_none_or(|at| for_long(at, PAUSE));
        !self.is_asking && for_long(self.since, PATIENCE) && is_rested
    }

    fn on_finding(&mut self, link: &str, finding: Finding) {
        self.is_asking = false;
        match finding {
            Finding::Portal { page } => {
                if self.page.as_ref() != Some(&page) {
                    tracing::warn!("{link} is behind a login page: {page}");
                }
                self.page = Some(page);
            }
            Finding::Open => self.page = None,
            // What says nothing takes nothing back.
            Finding::Silence => {}
        }
    }
}

fn fails(link: &Link) -> bool {
    let fails = match link.state {
        LinkState::Silent | LinkState::Opening | LinkState::Down => true,
        LinkState::Active | LinkState::Paused | LinkState::Unused => false,
    };
    fails && !link.paused
}

/// A neighbour's link is the neighbour's to log in.
fn fails_and_is_own(link: &&mut Link) -> bool {
    fails(link) && !link.is_lent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_asked_after_a_moment_and_then_from_time_to_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut seen = Failing::since(start);
        assert!(!seen.is_due(at(1_900)));
        assert!(seen.is_due(at(2_000)));
        (seen.is_asking, seen.asked_at) = (true, Some(at(2_000)));
        assert!(!seen.is_due(at(60_000)), "one question at a time");
        let page = "http://login.test/".to_owned();
        seen.on_finding("wlan0", Finding::Portal { page: page.clone() });
        assert!(!seen.is_due(at(16_900)));
        assert!(seen.is_due(at(17_000)));
        seen.on_finding("wlan0", Finding::Silence);
        assert_eq!(seen.page, Some(page));
        seen.on_finding("wlan0", Finding::Open);
        assert_eq!(seen.page, None);
    }

    #[test]
    fn only_own_links_that_fail_are_asked() {
        let mut state = crate::events::example();
        let mut asked = |state_of, paused, is_lent| {
            let link = &mut state.links[0];
            (link.state, link.paused, link.is_lent) = (state_of, paused, is_lent);
            fails_and_is_own(&link)
        };
        assert!(asked(LinkState::Silent, false, false));
        assert!(asked(LinkState::Opening, false, false));
        assert!(asked(LinkState::Down, false, false));
        assert!(!asked(LinkState::Down, true, false));
        assert!(!asked(LinkState::Down, false, true));
        assert!(!asked(LinkState::Active, false, false));
        assert!(!asked(LinkState::Unused, false, false));
    }
}
