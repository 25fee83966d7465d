//! Which link a connection gets that is carried whole.
//!
//! Owns who sits where, and what links have shown to be worth: a link is worth its rate times what
//! the policy lets be used of it, and shared by those who are busy on it. So connections spread in
//! proportion to rates, and a lone one gets the best link. Who failed lately is tried last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tabane_base::{Bytes, Rate};
use tabane_fetch::{Link, Links};
use tabane_ranges::{LinkId, LinkLimits};
use tokio::time::Instant;

/// A connection that has been silent for so long leaves its link to others.
const BUSY_TIME: Duration = Duration::from_secs(3);
/// A link by which a host was not reached is tried after the others for so long.
const AVOID_TIME: Duration = Duration::from_secs(60);
/// Hosts that are remembered so; those beyond cost a second each time.
const MOST_AVOIDED: usize = 1_024;
/// So many hosts lost in a row, and a link is tried last for all: each would cost a second.
const LOST_HOSTS: u32 = 3;
/// Rates are looked at so often: long enough for a round trip, short enough for a short download.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// What a link once reached counts half after so long.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// All connections of a process that are carried whole.
pub(crate) struct Balance {
    links: Links,
    seats: RefCell<Vec<Weak<Seated>>>,
    avoided: RefCell<BTreeMap<(LinkId, String), Instant>>,
    /// How often in a row a link was slower than another one, and when it was last.
    lost: RefCell<BTreeMap<LinkId, (u32, Instant)>>,
    gauges: RefCell<BTreeMap<LinkId, Gauge>>,
}

/// A connection's place on a link, until it is dropped.
#[derive(Clone)]
pub(crate) struct Seat(Rc<Seated>);

struct Seated {
    link: LinkId,
    moved_at: Cell<Instant>,
}

/// How fast a link has been seen to be. It was at least as fast as that.
#[derive(Clone, Copy)]
struct Gauge {
    at: Instant,
    carried: Bytes,
    peak: Rate,
}

/// A link as it stands in the choice.
struct Candidate {
    link: Rc<Link>,
    facts: LinkLimits,
    rate: Option<Rate>,
    busy: u32,
}

impl Balance {
    pub(crate) fn new(links: Links) -> Self {
        Self {
            links,
            seats: RefCell::default(),
            avoided: RefCell::default(),
            lost: RefCell::default(),
            gauges: RefCell::default(),
        }
    }

    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// Watches what links reach, until it is dropped.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            let links = self.links.all();
            let mut gauges = self.gauges.borrow_mut();
            gauges.retain(|id, _| links.iter().any(|link| link.id() == *id));
            for link in links {
                let fresh = Gauge::new(now, link.carried());
                let gauge = gauges.entry(link.id()).or_insert(fresh);
                gauge.look(now, link.carried());
            }
        }
    }

    /// The links to try for a host, in this order; empty where there is none.
    pub(crate) fn order(&self, now: Instant, host: &str) -> Vec<Rc<Link>> {
        let mut seats = self.seats.borrow_mut();
        seats.retain(|seat| seat.strong_count() > 0);
        let is_busy = |seat: &Rc<Seated>| now - seat.moved_at.get() < BUSY_TIME;
        let busy: Vec<LinkId> = seats
            .iter()
            .filter_map(Weak::upgrade)
            .filter(is_busy)
            .map(|seat| seat.link)
            .collect();
        let gauges = self.gauges.borrow();
        let candidates = self.links.all().into_iter().map(|link| {
            let facts = link.facts();
            let peak = gauges.get(&link.id()).map(|gauge| gauge.peak);
            let known = facts.rate_hint.max(peak.filter(|peak| *peak > Rate::ZERO));
            Candidate {
                rate: known.map(|rate| facts.cap.map_or(rate, |cap| cap.min(rate))),
                busy: busy.iter().filter(|id| **id == link.id()).count() as u32,
                link,
                facts,
            }
        });
        let mut avoided = self.avoided.borrow_mut();
        avoided.retain(|_, until| *until > now);
        let is_avoided = |link: &Link| avoided.contains_key(&(link.id(), host.to_owned()));
        let mut lost = self.lost.borrow_mut();
        lost.retain(|_, (_, at)| now - *at < AVOID_TIME);
        let hosts_lost = |link: &Link| lost.get(&link.id()).map_or(0, |(hosts, _)| *hosts);
        let is_lost = |link: &Link| hosts_lost(link) >= LOST_HOSTS;
        sorted(candidates.collect(), is_avoided, is_lost)
    }

    /// How many places are taken.
    pub(crate) fn taken(&self) -> usize {
        let seats = self.seats.borrow();
        seats.iter().filter(|seat| seat.strong_count() > 0).count()
    }

    /// Somebody takes a place.
    pub(crate) fn sit(&self, now: Instant, link: &Link) -> Seat {
        let seat = Rc::new(Seated {
            link: link.id(),
            moved_at: Cell::new(now),
        });
        self.seats.borrow_mut().push(Rc::downgrade(&seat));
        Seat(seat)
    }

    /// A host was reached by this link.
    pub(crate) fn reached(&self, link: &Link) {
        self.lost.borrow_mut().remove(&link.id());
    }

    /// A host was not reached by this link, while it was by another.
    pub(crate) fn avoid(&self, now: Instant, link: &Link, host: &str) {
        let mut lost = self.lost.borrow_mut();
        let (hosts, at) = lost.entry(link.id()).or_insert((0, now));
        (*hosts, *at) = (hosts.saturating_add(1), now);
        let mut avoided = self.avoided.borrow_mut();
        if avoided.len() < MOST_AVOIDED {
            avoided.insert((link.id(), host.to_owned()), now + AVOID_TIME);
        }
    }
}

impl Seat {
    /// Something passed.
    pub(crate) fn on_moved(&self, now: Instant) {
        self.0.moved_at.set(now);
    }
}

impl Gauge {
    const fn new(at: Instant, carried: Bytes) -> Self {
        Self {
            at,
            carried,
            peak: Rate::ZERO,
        }
    }

    fn look(&mut self, now: Instant, carried: Bytes) {
        let span = now - self.at;
        if span.is_zero() {
            return;
        }
        let kept = 0.5_f64.powf(span.as_secs_f64() / HALF_LIFE.as_secs_f64());
        let rate = Rate::of(carried - self.carried, span);
        self.peak = self.peak.scaled(kept).max(rate);
        (self.at, self.carried) = (now, carried);
    }
}

/// What policies prefer, then who would have most for one more, then who came first.
fn sorted(
    candidates: Vec<Candidate>,
    is_avoided: impl Fn(&Link) -> bool,
    is_lost: impl Fn(&Link) -> bool,
) -> Vec<Rc<Link>> {
    let known: Vec<Rate> = candidates.iter().filter_map(|it| it.rate).collect();
    // Of whom nothing is known, as much is expected as of the others.
    let sum: u64 = known.iter().map(|rate| rate.as_bps()).sum();
    let usual = Rate::from_bps(sum.checked_div(known.len() as u64).unwrap_or(1_000_000));
    let mut usable = candidates;
    usable.retain(|it| it.facts.allowance.is_none_or(|left| left > Bytes::ZERO));
    usable.sort_by_key(|it| {
        let facts = &it.facts;
        let is_reserve = facts.backup || facts.weight <= 0.0;
        let weight = if is_reserve { 1.0 } else { facts.weight };
        let rate = it.rate.unwrap_or(usual).scaled(weight);
        let share = Rate::from_bps(rate.as_bps() / u64::from(it.busy + 1));
        (
            is_avoided(&it.link),
            is_reserve,
            facts.tier,
            // Behind the policy: links may be slow to connect for a while, and others cost money.
            is_lost(&it.link),
            std::cmp::Reverse(share),
            it.link.id(),
        )
    });
    usable.into_iter().map(|it| it.link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_fetch::DeviceWay;

    /// Links with these rates in Mbit/s, as fetches have left them.
    fn balance(rates: &[(&str, u64)], change: impl Fn(&str, &mut LinkLimits)) -> Balance {
        let links = Links::default();
        for (name, mbps) in rates {
            let mut facts = LinkLimits {
                rate_hint: (*mbps > 0).then(|| Rate::from_mbps(*mbps)),
                ..LinkLimits::default()
            };
            change(name, &mut facts);
            links.add(name, Rc::new(DeviceWay::unbound()), facts);
        }
        Balance::new(links)
    }

    fn names(balance: &Balance, now: Instant) -> Vec<String> {
        let order = balance.order(now, "example.org");
        order.iter().map(|link| link.name().to_owned()).collect()
    }

    #[test]
    fn connections_spread_in_proportion_to_rates() {
        let (balance, now) = (
            balance(&[("slow", 3), ("fast", 9)], |_, _| {}),
            Instant::now(),
        );
        assert_eq!(names(&balance, now), ["fast", "slow"]);
        let mut counts = BTreeMap::new();
        let mut take = || {
            let first = balance.order(now, "example.org").remove(0);
            *counts.entry(first.name().to_owned()).or_insert(0) += 1;
            balance.sit(now, &first)
        };
        let seats: Vec<Seat> = (0..16).map(|_| take()).collect();
        assert_eq!((counts["fast"], counts["slow"]), (12, 4));
        drop(seats);
        assert_eq!(names(&balance, now)[0], "fast");
    }

    #[test]
    fn silent_connections_do_not_count() {
        let (balance, now) = (balance(&[("a", 5), ("b", 5)], |_, _| {}), Instant::now());
        let seat = balance.sit(now, &balance.links.all()[0]);
        assert_eq!(names(&balance, now), ["b", "a"]);
        let later = now + BUSY_TIME;
        assert_eq!(names(&balance, later), ["a", "b"]);
        seat.on_moved(later);
        assert_eq!(names(&balance, later), ["b", "a"]);
    }

    #[test]
    fn policies_and_failures_come_before_rates() {
        let rates = [
            ("metered", 99),
            ("spent", 99),
            ("spare", 99),
            ("own", 1),
            ("new", 0),
        ];
        let balance = balance(&rates, |name, facts| match name {
            "metered" => facts.tier = 1,
            "spent" => facts.allowance = Some(Bytes::ZERO),
            "spare" => facts.backup = true,
            "own" => facts.weight = 0.5,
            _ => {}
        });
        let now = Instant::now();
        assert_eq!(names(&balance, now), ["new", "own", "metered", "spare"]);
        balance.avoid(now, &balance.links.all()[4], "example.org");
        assert_eq!(names(&balance, now), ["own", "metered", "spare", "new"]);
        assert_eq!(balance.order(now, "example.net")[0].name(), "new");
        assert_eq!(names(&balance, now + AVOID_TIME)[0], "new");
    }

    #[test]
    fn a_link_that_reaches_no_host_is_tried_last_for_all() {
        let (balance, now) = (
            balance(&[("a", 5), ("b", 3), ("metered", 9)], |name, facts| {
                facts.tier = u8::from(name == "metered");
            }),
            Instant::now(),
        );
        let a = balance.links.all().remove(0);
        let lose = |host: &str| balance.avoid(now, &a, host);
        lose("one.example");
        lose("two.example");
        balance.reached(&a);
        lose("three.example");
        lose("four.example");
        assert_eq!(names(&balance, now), ["a", "b", "metered"]);
        lose("five.example");
        assert_eq!(names(&balance, now), ["b", "a", "metered"]);
        assert_eq!(names(&balance, now + AVOID_TIME)[0], "a");
    }

    #[test]
    fn a_gauge_keeps_the_peak_and_forgets_it_slowly() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut gauge = Gauge::new(start, Bytes::ZERO);
        gauge.look(at(1), Bytes::mega(1));
        assert_eq!(gauge.peak, Rate::from_mbps(8));
        gauge.look(at(61), Bytes::mega(1));
        assert_eq!(gauge.peak, Rate::from_mbps(4));
    }
}
