//! Which networks lead to which clients, whose resolvers are asked for which names, and by whom:
//! those of one group.
//!
//! Owns that no two routes, and no two clients' domains, of a group overlap, how many each user has
//! of what there may be, and how long one is remembered whose client has gone, so that what goes
//! there is refused rather than sent into the void. A table and nothing else; its holders are
//! values that cost nothing to copy, so that a lock around it is held for a look and no longer.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tabane_base::{Duration, Prefix};
use tabane_core::PublicKey;
use tokio::time::Instant;

use super::attending::Conflict;
use super::grants::Group;
use crate::domain::Domain;
use crate::routes::{MAX_ROUTES, SiteDomain, SiteList, SiteRoute};
use crate::target::HostName;

/// Routes of all groups.
const MAX_ROUTES_HERE: usize = 1_024;
/// How long a route is remembered after its client: what goes there by the bare internet would find
/// nobody, or somebody else.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// The table; bells are what leads to whoever serves a route.
pub(super) struct SiteRoutes<T> {
    routes: BTreeMap<u64, Routed<T>>,
    /// Where the ranges of each group begin, by number. They do not overlap, so that an address is
    /// in the last that begins before it, or in none.
    starts: BTreeMap<Group, BTreeMap<IpAddr, u64>>,
    next: u64,
}

/// Whose a route is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) group: Group,
    pub(super) user: String,
    pub(super) key: PublicKey,
}

/// What a client offers its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// Hosts at these addresses.
    Range(Prefix),
    /// Answers about these names, by this resolver at such an address.
    Domain(Domain, SocketAddr),
}

impl Offered {
    /// `None` for a name that is no domain.
    pub(super) fn domain(name: Option<&HostName>, resolver: SocketAddr) -> Option<Self> {
        let domain = Domain::try_from(name?).ok()?;
        let ip = resolver.ip().to_canonical();
        Some(Self::Domain(domain, SocketAddr::new(ip, resolver.port())))
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Range(own), Self::Range(other)) => own.overlaps(other),
            (Self::Domain(own, _), Self::Domain(other, _)) => own.overlaps(other),
            (Self::Range(_), Self::Domain(..)) | (Self::Domain(..), Self::Range(_)) => false,
        }
    }

    /// The first address of a range.
    fn start(&self) -> Option<IpAddr> {
        match self {
            Self::Range(prefix) => prefix.nth(0),
            Self::Domain(..) => None,
        }
    }

    fn has_host(&self, ip: IpAddr) -> bool {
        match self {
            Self::Range(prefix) => prefix.contains(ip),
            Self::Domain(..) => false,
        }
    }
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(prefix) => prefix.fmt(f),
            Self::Domain(domain, resolver) => write!(f, "{domain} ({})", resolver.ip()),
        }
    }
}

/// What is offered, and by whom.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) offered: Offered,
    pub(super) holder: Holder,
}

/// An offer as others of the group hear of it: whether its client is there. A copy costs nothing.
pub(super) type Told = (Arc<Offer>, bool);

/// One of them.
pub(super) struct Routed<T> {
    pub(super) offer: Arc<Offer>,
    /// What leads there, or did as long as its client was there.
    pub(super) last_bell: T,
    away_since: Option<Instant>,
}

/// Where an address leads a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// To the client behind this bell.
    Here(u64, T),
    /// To one that is away.
    Away,
    /// To no site.
    Nowhere,
}

impl<T> Default for SiteRoutes<T> {
    fn default() -> Self {
        Self {
            routes: BTreeMap::new(),
            starts: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T: Clone> SiteRoutes<T> {
    /// Leads these addresses to a client, and says by which number that is called here.
    ///
    /// # Errors
    /// Others of its group have some of them; then all is as before.
    pub(super) fn insert(
        &mut self,
        offered: Offered,
        holder: Holder,
        bell: T,
        now: Instant,
    ) -> Result<u64, Conflict> {
        self.forget_old(now);
        let meets = |it: &Routed<T>| {
            let it = &*it.offer;
            let is_own = it.holder.key == holder.key && matches!(offered, Offered::Domain(..));
            it.holder.group == holder.group
                && it.offered.overlaps(&offered)
                && (!is_own || it.offered == offered)
        };
        let met: Vec<u64> = self.numbers(|it| meets(it) && it.bell().is_some());
        if !met.is_empty() {
            return Err(Conflict::With(met));
        }
        self.remove_all(meets);
        if !self.has_room(&holder) {
            return Err(Conflict::Full);
        }
        self.make_room(MAX_ROUTES, |it| it.offer.holder.group == holder.group);
        self.make_room(MAX_ROUTES_HERE, |_| true);
        let number = self.next;
        self.next += 1;
        if let Some(start) = offered.start() {
            let starts = self.starts.entry(holder.group.clone()).or_default();
            starts.insert(start, number);
        }
        let routed = Routed {
            offer: Arc::new(Offer { offered, holder }),
            last_bell: bell,
            away_since: None,
        };
        self.routes.insert(number, routed);
        Ok(number)
    }

    /// Of those whose clients are there no user has more than are left to all others, in its group
    /// and in all; the devices of one user have a group of their own for themselves.
    fn has_room(&self, holder: &Holder) -> bool {
        let is_here = |it: &&Routed<T>| it.bell().is_some();
        let here = || {
            self.routes
                .values()
                .filter(is_here)
                .map(|it| &it.offer.holder)
        };
        let own = here().filter(|it| it.user == holder.user).count() + 1;
        let in_group = here().filter(|it| it.group == holder.group);
        let group_left = MAX_ROUTES.checked_sub(in_group.count() + 1);
        let left = MAX_ROUTES_HERE.checked_sub(here().count() + 1);
        let is_alone = matches!(holder.group, Group::OfUser(_));
        group_left.is_some_and(|left| is_alone || own <= left) && left.is_some_and(|it| own <= it)
    }

    /// Forgets routes of clients that are away until there is a place for one more: the oldest of
    /// the user who has most of those.
    fn make_room(&mut self, places: usize, is_meant: impl Fn(&Routed<T>) -> bool) {
        while self.numbers(&is_meant).len() >= places {
            let meant = self.routes.iter().filter(|(_, it)| is_meant(it));
            let away = meant.filter_map(|(number, it)| Some((it.away_since?, number, it)));
            let mut of_users = BTreeMap::<_, Vec<_>>::new();
            for (since, number, it) in away {
                let user = of_users.entry(&it.offer.holder.user).or_default();
                user.push((since, *number));
            }
            let most = of_users.into_values().max_by_key(Vec::len);
            let Some((_, oldest)) = most.and_then(|of_user| of_user.into_iter().min()) else {
                return;
            };
            self.remove(oldest);
        }
    }

    fn numbers(&self, is_meant: impl Fn(&Routed<T>) -> bool) -> Vec<u64> {
        let meant = self.routes.iter().filter(|(_, it)| is_meant(it));
        meant.map(|(number, _)| *number).collect()
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |since| now >= since + REMEMBERED;
        self.remove_all(|it| it.away_since.is_some_and(is_old));
    }

    /// Its client has gone.
    pub(super) fn leave(&mut self, number: u64, now: Instant) {
        if let Some(routed) = self.routes.get_mut(&number) {
            routed.away_since = Some(now);
        }
    }

    /// It is a route no longer.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(routed) = self.routes.remove(&number) else {
            return;
        };
        let Offer { offered, holder } = &*routed.offer;
        if let Some(start) = offered.start()
            && let Some(starts) = self.starts.get_mut(&holder.group)
        {
            starts.remove(&start);
            if starts.is_empty() {
                self.starts.remove(&holder.group);
            }
        }
    }

    fn remove_all(&mut self, is_meant: impl Fn(&Routed<T>) -> bool) {
        let numbers = self.numbers(is_meant);
        numbers.into_iter().for_each(|number| self.remove(number));
    }

    /// None is a route any longer. Their numbers are not given again.
    pub(super) fn clear(&mut self) {
        self.routes.clear();
        self.starts.clear();
    }

    /// The one of this number.
    pub(super) fn get(&self, number: u64) -> Option<&Routed<T>> {
        self.routes.get(&number)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Routed<T>> {
        self.routes.values()
    }

    /// Where an address leads somebody of this group; a client is not led to itself.
    pub(super) fn find(&self, group: &Group, asker: PublicKey, ip: IpAddr) -> Found<T> {
        match self.range_with(group, ip.to_canonical()) {
            Some((_, it)) if it.offer.holder.key == asker => Found::Nowhere,
            Some((number, it)) => match it.bell() {
                Some(bell) => Found::Here(number, bell.clone()),
                None => Found::Away,
            },
            None => Found::Nowhere,
        }
    }

    /// Whether an address is of a network that leads to this client.
    pub(super) fn is_of(&self, group: &Group, holder: PublicKey, ip: IpAddr) -> bool {
        let found = self.range_with(group, ip);
        found.is_some_and(|(_, it)| it.bell().is_some() && it.offer.holder.key == holder)
    }

    /// The range of a group that an address is in.
    fn range_with(&self, group: &Group, ip: IpAddr) -> Option<(u64, &Routed<T>)> {
        let mut before = self.starts.get(group)?.range(..=ip);
        let (_, number) = before.next_back()?;
        let found = self.routes.get(number)?;
        let has_host = found.offer.offered.has_host(ip);
        has_host.then_some((*number, found))
    }

    /// What a client of this group is told: what others have.
    pub(super) fn told(&self, group: &Group, asker: PublicKey) -> Vec<Told> {
        let is_other = |it: &Holder| it.group == *group && it.key != asker;
        let routes = self.routes.values();
        let others = routes.filter(|it| is_other(&it.offer.holder));
        let told = others.map(|it| (it.offer.clone(), it.bell().is_some()));
        told.collect()
    }
}

/// The same as it is said.
pub(super) fn site_list(told: &[Told]) -> SiteList {
    let mut list = SiteList::default();
    for (offer, is_here) in told {
        let (user, is_here) = (offer.holder.user.clone(), *is_here);
        match &offer.offered {
            Offered::Range(prefix) => list.routes.push(SiteRoute {
                prefix: *prefix,
                user,
                is_here,
            }),
            Offered::Domain(domain, resolver) => list.domains.push(SiteDomain {
                domain: domain.clone(),
                resolver: *resolver,
                user,
                is_here,
            }),
        }
    }
    list
}

impl<T> Routed<T> {
    /// What leads to its client, which is there.
    pub(super) fn bell(&self) -> Option<&T> {
        self.away_since.is_none().then_some(&self.last_bell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [PublicKey; 4] = [
        PublicKey([1; 32]),
        PublicKey([2; 32]),
        PublicKey([3; 32]),
        PublicKey([4; 32]),
    ];

    fn group(name: &str) -> Group {
        Group::Named(name.to_owned())
    }

    fn holder(group_name: &str, key: usize) -> Holder {
        Holder {
            group: group(group_name),
            user: format!("user {key}"),
            key: KEYS[key % KEYS.len()],
        }
    }

    fn prefix(text: &str) -> Offered {
        Offered::Range(Prefix::parse(text).unwrap())
    }

    fn domain(text: &str, resolver: &str) -> Offered {
        Offered::Domain(text.parse().unwrap(), resolver.parse().unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_of_a_group_keeps_a_route_and_other_groups_have_their_own() {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        let mut insert = |route: &str, group: &str, key, bell| {
            table.insert(prefix(route), holder(group, key), bell, now)
        };
        assert_eq!(insert("192.168.20.0/24", "a", 0, 'a'), Ok(0));
        for (route, group, key, expected) in [
            ("192.168.20.0/24", "a", 1, Err(Conflict::With(vec![0]))),
            ("192.168.20.128/25", "a", 1, Err(Conflict::With(vec![0]))),
            ("192.168.0.0/16", "a", 1, Err(Conflict::With(vec![0]))),
            ("192.168.21.0/24", "a", 1, Ok(1)),
            ("192.168.20.0/23", "a", 2, Err(Conflict::With(vec![0, 1]))),
            ("192.168.20.0/24", "b", 2, Ok(2)),
            ("2001:db8:20::/48", "a", 0, Ok(3)),
        ] {
            assert_eq!(insert(route, group, key, 'x'), expected, "{route} {group}");
        }
        for (group_name, asker, address, expected) in [
            ("a", 1, "192.168.20.9", Found::Here(0, 'a')),
            ("a", 1, "::ffff:192.168.20.9", Found::Here(0, 'a')),
            ("a", 0, "192.168.20.9", Found::Nowhere),
            ("a", 0, "192.168.21.9", Found::Here(1, 'x')),
            ("b", 0, "192.168.20.9", Found::Here(2, 'x')),
            ("b", 0, "192.168.21.9", Found::Nowhere),
            ("c", 1, "192.168.20.9", Found::Nowhere),
            ("a", 1, "2001:db8:20:7::1", Found::Here(3, 'x')),
            ("a", 1, "192.168.22.1", Found::Nowhere),
        ] {
            let found = table.find(&group(group_name), KEYS[asker], ip(address));
            assert_eq!(found, expected, "{group_name} {asker} {address}");
        }
        let own = Group::OfUser("a".to_owned());
        assert_eq!(
            table.find(&own, KEYS[1], ip("192.168.20.9")),
            Found::Nowhere
        );
        for (group_name, holder, address, expected) in [
            ("a", 0, "192.168.20.9", true),
            ("a", 0, "192.168.21.9", false),
            ("a", 1, "192.168.21.9", true),
            ("b", 0, "192.168.20.9", false),
            ("a", 0, "2001:db8:20:7::1", true),
        ] {
            let is_own = table.is_of(&group(group_name), KEYS[holder], ip(address));
            assert_eq!(is_own, expected, "{group_name} {holder} {address}");
        }
        let told = site_list(&table.told(&group("a"), KEYS[0]));
        let only = Prefix::parse("192.168.21.0/24").unwrap();
        assert!(told.routes.len() == 1 && told.routes[0].prefix == only && told.routes[0].is_here);
    }

    #[test]
    fn a_client_that_is_away_is_told_so_and_keeps_nobody_out() {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        let route = prefix("192.168.20.0/24");
        let first = table
            .insert(route.clone(), holder("a", 0), 'a', now)
            .unwrap();
        table.leave(first, now);
        assert!(!table.is_of(&group("a"), KEYS[0], ip("192.168.20.1")));
        let find = |table: &SiteRoutes<char>| table.find(&group("a"), KEYS[3], ip("192.168.20.1"));
        assert_eq!(find(&table), Found::Away);
        assert!(!table.told(&group("a"), KEYS[3])[0].1);
        // It returns with another key; only one of both is remembered.
        let second = table.insert(route, holder("a", 1), 'b', now).unwrap();
        assert_eq!(find(&table), Found::Here(second, 'b'));
        assert_eq!(table.told(&group("a"), KEYS[3]).len(), 1);
        table.leave(second, now);
        // Remembered for a while, not for ever.
        let later = now + REMEMBERED;
        let other = prefix("10.0.0.0/8");
        assert!(table.insert(other, holder("a", 2), 'c', later).is_ok());
        assert_eq!(find(&table), Found::Nowhere);
        table.remove(2);
        assert!(table.told(&group("a"), KEYS[3]).is_empty());
    }

    #[test]
    fn names_of_one_client_are_no_other_s() {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        let mut insert = |name: &str, group: &str, key| {
            let offered = domain(name, "192.168.20.1:53");
            table.insert(offered, holder(group, key), (), now)
        };
        for (name, group, key, expected) in [
            ("lan-b.example", "a", 0, Ok(0)),
            ("lan-b.example", "a", 1, Err(Conflict::With(vec![0]))),
            ("x.lan-b.example", "a", 1, Err(Conflict::With(vec![0]))),
            ("example", "a", 1, Err(Conflict::With(vec![0]))),
            ("x.lan-b.example", "a", 0, Ok(1)),
            ("lan-b.example", "a", 0, Err(Conflict::With(vec![0]))),
            ("lan-b.example", "b", 2, Ok(2)),
            ("lan-c.example", "a", 1, Ok(3)),
        ] {
            assert_eq!(insert(name, group, key), expected, "{name} {group} {key}");
        }
        // No host is reached by a name alone.
        let found = table.find(&group("a"), KEYS[1], ip("192.168.20.1"));
        assert_eq!(found, Found::Nowhere);
        table.leave(0, now);
        let told = site_list(&table.told(&group("a"), KEYS[1])).domains;
        let named: Vec<_> = told
            .iter()
            .map(|it| (it.domain.as_str(), it.is_here))
            .collect();
        assert_eq!(named, [("lan-b.example", false), ("x.lan-b.example", true)]);
    }

    /// Of each of these users its routes are offered, and those from `kept` on taken back.
    fn offer(
        table: &mut SiteRoutes<()>,
        holder: &Holder,
        (count, kept): (usize, usize),
        now: Instant,
    ) -> usize {
        let number = table.next;
        let offered = (0..count).map_while(|n| {
            let route = prefix(&format!("10.{}.{}.{n}/32", number >> 8, number & 0xff));
            let offered = table.insert(route, holder.clone(), (), now).ok()?;
            if n >= kept {
                table.leave(offered, now);
            }
            Some(())
        });
        offered.count()
    }

    fn alone(key: usize) -> Holder {
        Holder {
            group: Group::OfUser(format!("user {key}")),
            ..holder("", key)
        }
    }

    #[test]
    fn one_group_does_not_have_more_than_is_told() {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        let all = (MAX_ROUTES + 1, MAX_ROUTES + 1);
        assert_eq!(offer(&mut table, &alone(0), all, now), MAX_ROUTES);
        assert_eq!(offer(&mut table, &alone(1), all, now), MAX_ROUTES);
    }

    #[test]
    fn one_user_leaves_as_many_to_all_others_as_it_has() {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        let all = (MAX_ROUTES, MAX_ROUTES);
        assert_eq!(offer(&mut table, &holder("a", 0), all, now), MAX_ROUTES / 2);
        assert_eq!(offer(&mut table, &holder("a", 1), all, now), MAX_ROUTES / 4);
        assert_eq!(offer(&mut table, &holder("b", 2), all, now), MAX_ROUTES / 2);
        let last = (3..).find(|key| offer(&mut table, &alone(*key), all, now) < MAX_ROUTES);
        assert!(last.unwrap() > 6, "{last:?}");
        assert!(offer(&mut table, &alone(100), all, now) > 0);
    }

    #[test]
    fn routes_whose_clients_are_away_keep_nobody_out() {
        let (now, away) = (Instant::now(), (MAX_ROUTES, 0));
        let mut table = SiteRoutes::default();
        let other = table.insert(prefix("172.16.0.0/16"), holder("a", 1), (), now);
        table.leave(other.unwrap(), now);
        let later = now + Duration::from_secs(1);
        assert_eq!(offer(&mut table, &holder("a", 0), away, later), MAX_ROUTES);
        let mine = table.insert(prefix("192.168.0.0/16"), holder("a", 2), (), later);
        assert!(mine.is_ok(), "the group is full");
        // It is remembered: somebody else has far more.
        let found = table.find(&group("a"), KEYS[3], ip("172.16.0.1"));
        assert_eq!(found, Found::Away);
        for key in 10..30 {
            assert_eq!(offer(&mut table, &alone(key), away, later), MAX_ROUTES);
        }
        assert!(table.iter().count() <= MAX_ROUTES_HERE);
        let found = table.find(&group("a"), KEYS[3], ip("192.168.0.1"));
        assert!(matches!(found, Found::Here(..)), "{found:?}");
    }

    /// How long a thousand looks take, with so many routes of sixteen groups.
    fn found(routes: usize) -> std::time::Duration {
        let now = Instant::now();
        let mut table = SiteRoutes::default();
        for n in 0..routes {
            let group = format!("group {}", n % 16);
            let user = format!("user {n}");
            let holder = Holder {
                user,
                ..holder(&group, n)
            };
            let route = prefix(&format!("10.{}.{}.0/24", n / 250, n % 250));
            table.insert(route, holder, (), now).unwrap();
        }
        let group = group("group 0");
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            let found = table.find(&group, KEYS[3], ip("10.0.0.9"));
            assert_eq!(std::hint::black_box(found), Found::Here(0, ()));
            let found = table.find(&group, KEYS[3], ip("10.9.0.9"));
            assert_eq!(std::hint::black_box(found), Found::Nowhere);
        }
        since.elapsed()
    }

    /// Each packet and connection of a member asks, under a lock that all workers share.
    #[test]
    fn a_route_is_found_without_a_look_at_all() {
        let rounds = (0..20).map(|_| (found(1), found(1_000)));
        let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
        let (one, all) = least.expect("twenty");
        println!("1,000 looks: {one:?} with one route, {all:?} with 1,000");
        assert!(all < 10 * one, "{one:?} with one route, {all:?} with 1,000");
    }
}
