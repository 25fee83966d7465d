//! What others have, as the relay has told it.
//!
//! Owns what becomes of it over sessions. A relay that was started again, or another one, hears of
//! each site only when that site's client is there again; what it tells until then is not the
//! whole, and nothing goes by the bare internet for that.

use tabane_base::Duration;
use tabane_tunnel::SiteList;
use tokio::time::Instant;

use super::is_route;

/// How long a client may take that asks a relay again which did not answer.
const KEPT: Duration = Duration::from_secs(60);

/// The last word, and what was said before it.
#[derive(Default)]
pub(super) struct Heard {
    list: SiteList,
    /// By a session before this one, and by this one not yet.
    before: SiteList,
    kept_until: Option<Instant>,
}

impl Heard {
    /// Takes the relay's word, which may be its first one in a session.
    pub(super) fn hear(&mut self, mut told: SiteList, is_first: bool, now: Instant) {
        // A relay that refuses again and again, or knows of nobody, keeps nothing for longer.
        if is_first && self.list != SiteList::default() {
            self.before = self.known();
            self.kept_until = Some(now + KEPT);
        }
        told.routes.retain(|it| is_route(&it.prefix));
        let SiteList { routes, domains } = &mut self.before;
        routes.retain(|it| {
            !told
                .routes
                .iter()
                .any(|new| new.prefix.overlaps(&it.prefix))
        });
        domains.retain(|it| {
            !told
                .domains
                .iter()
                .any(|new| new.domain.overlaps(&it.domain))
        });
        self.list = told;
    }

    /// All that others have: what only a session before was told of is away.
    pub(super) fn known(&self) -> SiteList {
        let mut known = self.before.clone();
        known.routes.iter_mut().for_each(|it| it.is_here = false);
        known.domains.iter_mut().for_each(|it| it.is_here = false);
        known.routes.splice(0..0, self.list.routes.iter().cloned());
        known
            .domains
            .splice(0..0, self.list.domains.iter().cloned());
        known
    }

    /// Until when something is kept that only a session before was told of.
    pub(super) const fn kept_until(&self) -> Option<Instant> {
        self.kept_until
    }

    /// Forgets that.
    pub(super) fn forget(&mut self) {
        self.kept_until = None;
        self.before = SiteList::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Prefix;
    use tabane_tunnel::SiteRoute;

    fn list(routes: &[(&str, bool)]) -> SiteList {
        let route = |&(text, is_here): &(&str, bool)| SiteRoute {
            prefix: Prefix::parse(text).unwrap(),
            user: "ann".to_owned(),
            is_here,
        };
        let routes = routes.iter().map(route).collect();
        SiteList {
            routes,
            ..SiteList::default()
        }
    }

    #[test]
    fn what_a_new_session_was_not_told_yet_is_away_until_it_is_or_it_is_time() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        let [a, b] = ["192.168.20.0/24", "192.168.30.0/24"];
        heard.hear(list(&[(a, true), (b, true)]), true, now);
        assert_eq!(heard.known(), list(&[(a, true), (b, true)]));
        // Taken back in the same session: gone at once.
        heard.hear(list(&[(a, true)]), false, now);
        assert_eq!(heard.known(), list(&[(a, true)]));
        heard.hear(list(&[(a, true), (b, true)]), false, now);
        heard.hear(SiteList::default(), true, now);
        assert_eq!(heard.known(), list(&[(a, false), (b, false)]));
        heard.hear(list(&[("192.168.20.128/25", true)]), false, now);
        let half = "192.168.20.128/25";
        assert_eq!(heard.known(), list(&[(half, true), (b, false)]));
        heard.hear(SiteList::default(), false, now);
        assert_eq!(heard.known(), list(&[(b, false)]));
        // Nothing new was told: not for longer either.
        heard.hear(SiteList::default(), true, now + KEPT / 2);
        assert_eq!(heard.known(), list(&[(b, false)]));
        assert_eq!(heard.kept_until(), Some(now + KEPT));
        heard.forget();
        assert_eq!(heard.known(), SiteList::default());
        assert_eq!(heard.kept_until(), None);
    }
}
