//! Users: the people a relay serves, each with any number of devices, and what they may have.
//!
//! Owns a user's limits, what it has at present and what has passed. All its sessions share them,
//! at whichever workers they are: what changes with bytes is atomic.
//! Whose a key is, and when a volume begins anew, is decided by whoever owns the relay.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, ready};

use tabane_base::{Bytes, Prefix, Rate};
use tabane_core::PublicKey;
use tokio::sync::Notify;

use super::exit_address::ExitAddress;
use super::grants::{Grants, Group};
use super::quota::{Quota, Waiter};
use super::rules::Destinations;
use super::seldom::Seldom;
use super::shaper::{Allowance, Bucket, Shaper};
use crate::domain::Domain;
use crate::request::PortClaim;
use crate::target::HostName;

/// Lines of the log about one user's sessions, in a minute.
const LINES: u32 = 300;

/// On whose behalf a destination is reached.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) key: PublicKey,
    pub(super) user: Option<&'a User>,
}

/// What a user may have. `None` is no limit, or the relay's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Towards the user's devices, all together.
    pub rate_down: Option<Rate>,
    /// From them.
    pub rate_up: Option<Rate>,
    /// Bytes of both directions until the owner begins to count anew; then nothing passes.
    pub volume: Option<Bytes>,
    /// The volume is only what has been lent until now: from so much used on, more is asked for,
    /// and whoever has used it up waits. `None`: nothing more comes.
    pub ask_from: Option<Bytes>,
    /// Sessions at once.
    pub sessions: Option<usize>,
    /// TCP connections and UDP flows at once, all sessions together.
    pub streams: Option<usize>,
    /// Where its streams may lead.
    pub destinations: Destinations,
    /// What of the relay may lead to its devices.
    pub grants: Grants,
}

/// A user at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserUsage {
    /// Sessions that are up.
    pub sessions: usize,
    /// TCP connections and UDP flows.
    pub streams: usize,
    /// Bytes towards it since the start of the relay.
    pub down: Bytes,
    /// Bytes from it since the start of the relay.
    pub up: Bytes,
    /// Bytes that count towards its volume.
    pub volume: Bytes,
}

/// A user of a running relay. Clones are the same user.
#[derive(Clone)]
pub struct User(Arc<Inner>);

struct Inner {
    name: String,
    /// Read when something begins, not when bytes pass.
    limits: RwLock<UserLimits>,
    quota: Quota,
    sessions: AtomicUsize,
    streams: AtomicUsize,
    down: AtomicU64,
    up: AtomicU64,
    rate_down: Arc<Bucket>,
    rate_up: Arc<Bucket>,
    /// What has found none of its exit addresses.
    exits_refused: AtomicU64,
    exits_refusal: Seldom,
    lines: Seldom,
}

/// Who waits for a user's rates at one worker.
pub(super) struct Rates {
    down: Rc<Shaper>,
    up: Rc<Shaper>,
}

/// The rates of all users with sessions at one worker.
#[derive(Default)]
pub(super) struct RatesHere(HashMap<*const Bucket, Weak<Rates>>);

/// Which way bytes pass at the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Towards the client.
    Down,
    /// From the client.
    Up,
}

/// One stream's part in its user's limits. Without a user, nothing is limited or counted.
#[derive(Default)]
pub(crate) struct Meter {
    user: Option<(User, Rc<Rates>)>,
    session: u64,
    down: Allowance,
    up: Allowance,
    /// Where it has waited for more of the volume.
    waiter: Option<Waiter>,
}

/// Counts a user's session or stream while it lives.
pub(super) struct Counted {
    user: User,
    what: What,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    Session,
    Stream,
}

impl User {
    /// A user of whose volume `used` is gone already.
    #[must_use]
    pub fn new(name: &str, limits: UserLimits, used: Bytes) -> Self {
        Self::asking(name, limits, used, Arc::default())
    }

    /// The same, for whoever lends its volume part by part: `asks` is told where more is wanted.
    #[must_use]
    pub fn asking(name: &str, limits: UserLimits, used: Bytes, asks: Arc<Notify>) -> Self {
        let user = Self(Arc::new(Inner {
            name: name.to_owned(),
            limits: RwLock::default(),
            quota: Quota::new(asks),
            sessions: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            down: AtomicU64::new(0),
            up: AtomicU64::new(0),
            rate_down: Arc::default(),
            rate_up: Arc::default(),
            exits_refused: AtomicU64::new(0),
            exits_refusal: Seldom::default(),
            lines: Seldom::of(
                LINES,
                "a user's sessions come and go, or what leads to them",
            ),
        }));
        user.set_limits(limits);
        user.set_volume_used(used);
        user
    }

    /// The user's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Changes the limits; running streams have them from their next byte on. Streams and sessions
    /// beyond a lower number stay.
    pub fn set_limits(&self, limits: UserLimits) {
        self.0.rate_down.set_rate(limits.rate_down);
        self.0.rate_up.set_rate(limits.rate_up);
        let (volume, ask_from) = (limits.volume, limits.ask_from);
        *self
            .0
            .limits
            .write()
            .unwrap_or_else(PoisonError::into_inner) = limits;
        self.0.quota.set_limit(volume, ask_from);
    }

    /// Sets what counts towards the volume, as at the beginning of a month.
    pub fn set_volume_used(&self, used: Bytes) {
        self.0.quota.set_used(used);
    }

    /// Counts what another process has passed on for it.
    pub fn add_volume_used(&self, bytes: Bytes) {
        self.0.quota.spend(bytes.get());
    }

    /// Little is left of what was lent, and more may come.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.0.quota.wants_more()
    }

    /// What it has and had.
    #[must_use]
    pub fn usage(&self) -> UserUsage {
        let Inner {
            sessions,
            streams,
            down,
            up,
            quota,
            ..
        } = &*self.0;
        let bytes = |count: &AtomicU64| Bytes::new(count.load(Ordering::Relaxed));
        UserUsage {
            sessions: sessions.load(Ordering::Relaxed),
            streams: streams.load(Ordering::Relaxed),
            down: bytes(down),
            up: bytes(up),
            volume: quota.used(),
        }
    }

    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn limits(&self) -> RwLockReadGuard<'_, UserLimits> {
        self.0.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.0.quota.is_used_up()
    }

    /// Whether private addresses, and the relay's own, are open to it.
    pub(super) fn may_reach_private(&self) -> bool {
        self.limits().destinations.private
    }

    /// Whether a rule allows `address` by name.
    pub(super) fn is_allowed_by_rule(&self, address: SocketAddr) -> bool {
        self.limits().destinations.names(address)
    }

    /// Whether a rule refuses `address`.
    pub(super) fn is_denied_by_rule(&self, address: SocketAddr) -> bool {
        self.limits().destinations.denies(address)
    }

    pub(super) fn may_reach(&self, address: SocketAddr) -> bool {
        self.limits().destinations.allow(address)
    }

    /// Whether these ports, or this name at them, may lead to its devices.
    pub(super) fn is_granted(&self, claim: PortClaim, name: Option<&HostName>) -> bool {
        self.limits().grants.allow(claim, name)
    }

    /// Whether these addresses may lead to its devices.
    pub(super) fn is_route_granted(&self, route: Prefix) -> bool {
        self.limits().grants.allow_route(route)
    }

    /// Whether names of this domain may be asked for at its devices.
    pub(super) fn is_domain_granted(&self, domain: &Domain) -> bool {
        self.limits().grants.allow_domain(domain)
    }

    /// Whose routes lead to it, and with whom it shares its own.
    pub(super) fn group(&self) -> Group {
        self.limits().grants.group_of(self.name())
    }

    /// The addresses that its connections leave by.
    pub(super) fn exits(&self) -> Vec<ExitAddress> {
        self.limits().grants.exits.clone()
    }

    /// Whether there are any.
    pub(super) fn has_exits(&self) -> bool {
        !self.limits().grants.exits.is_empty()
    }

    /// What was refused so far because the host has none of them.
    pub(super) fn exits_refused(&self) -> u64 {
        self.0.exits_refused.load(Ordering::Relaxed)
    }

    /// How often the log tells of its sessions, and of what leads to them.
    pub(super) fn lines(&self) -> &Seldom {
        &self.0.lines
    }

    /// Counts one more, and has the log tell the owner.
    pub(super) fn refuse_exit(&self, is_v4: bool) {
        self.0.exits_refused.fetch_add(1, Ordering::Relaxed);
        if !self.0.exits_refusal.is_due() {
            return;
        }
        let granted = self.exits().into_iter().filter(|it| it.is_ipv4() == is_v4);
        let granted: Vec<_> = granted.map(|it| it.to_string()).collect();
        tracing::warn!(
            user = self.name(),
            exit_addresses = granted.join(","),
            "this machine has none of the user's exit addresses of this family: what the user \
             sends by it is refused; add the address to an interface (a routed range: `ip -6 \
             route add local RANGE dev lo`), or name others with `tabane relay user set NAME \
             --exit-address`"
        );
    }

    /// Counts one more, where the limit allows.
    pub(super) fn count(&self, what: What) -> Option<Counted> {
        let limit = match what {
            What::Session => self.limits().sessions,
            What::Stream => self.limits().streams,
        };
        let limit = limit.unwrap_or(usize::MAX);
        let one_more = |has: usize| (has < limit).then_some(has + 1);
        let order = Ordering::Relaxed;
        what.of(&self.0).fetch_update(order, order, one_more).ok()?;
        let user = self.clone();
        Some(Counted { user, what })
    }
}

impl What {
    fn of(self, user: &Inner) -> &AtomicUsize {
        match self {
            Self::Session => &user.sessions,
            Self::Stream => &user.streams,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.what.of(&self.user.0).fetch_sub(1, Ordering::Relaxed);
    }
}

impl RatesHere {
    /// Where sessions of this user wait at this worker.
    pub(super) fn of(&mut self, user: &User) -> Rc<Rates> {
        let key = Arc::as_ptr(&user.0.rate_down);
        // While somebody has them, nobody else's bucket is there.
        if let Some(known) = self.0.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        self.0.retain(|_, rates| rates.strong_count() > 0);
        let rates = Rc::new(Rates::of(user));
        self.0.insert(key, Rc::downgrade(&rates));
        rates
    }
}

impl Rates {
    fn of(user: &User) -> Self {
        Self {
            down: Rc::new(Shaper::new(user.0.rate_down.clone())),
            up: Rc::new(Shaper::new(user.0.rate_up.clone())),
        }
    }
}

impl Meter {
    pub(super) fn new(user: Option<(User, Rc<Rates>)>, session: u64) -> Self {
        let (down, up) = Default::default();
        Self {
            user,
            session,
            down,
            up,
            waiter: None,
        }
    }

    /// Ready with how many bytes may pass now.
    pub(crate) fn poll(&mut self, way: Direction, cx: &Context<'_>) -> Poll<usize> {
        let Some((User(user), rates)) = &self.user else {
            return Poll::Ready(usize::MAX);
        };
        let waiter = *self.waiter.get_or_insert_with(|| user.quota.waiter());
        let left = ready!(user.quota.poll_left(waiter, cx));
        let allowed = ready!(match way {
            Direction::Down => rates.down.poll(&mut self.down, self.session, cx),
            Direction::Up => rates.up.poll(&mut self.up, self.session, cx),
        });
        Poll::Ready(allowed.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// `n` bytes have passed.
    pub(crate) fn spend(&mut self, way: Direction, n: usize) {
        let Some((User(user), _)) = &self.user else {
            return;
        };
        user.quota.spend(n as u64);
        let (passed, allowance) = match way {
            Direction::Down => (&user.down, &mut self.down),
            Direction::Up => (&user.up, &mut self.up),
        };
        passed.fetch_add(n as u64, Ordering::Relaxed);
        allowance.spend(n);
    }

    /// The user's volume is used up: nothing passes any more.
    pub(crate) fn is_used_up(&self) -> bool {
        self.user
            .as_ref()
            .is_some_and(|(user, _)| user.is_used_up())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let (Some((User(user), _)), Some(waiter)) = (&self.user, self.waiter) {
            user.quota.forget(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_given_back_and_the_limit_holds() {
        let limits = UserLimits {
            sessions: Some(1),
            volume: Some(Bytes::new(100)),
            ..UserLimits::default()
        };
        let user = User::new("ann", limits.clone(), Bytes::new(60));
        let session = user.count(What::Session);
        assert!(session.is_some() && user.count(What::Session).is_none());
        assert!(user.count(What::Stream).is_some(), "not limited");
        drop(session);
        assert_eq!(user.usage().sessions, 0);

        let rates = RatesHere::default().of(&user);
        let mut meter = Meter::new(Some((user.clone(), rates)), 1);
        assert!(!meter.is_used_up());
        meter.spend(Direction::Down, 30);
        meter.spend(Direction::Up, 10);
        assert!(meter.is_used_up());
        let usage = user.usage();
        assert_eq!((usage.down.get(), usage.up.get()), (30, 10));
        user.set_volume_used(Bytes::ZERO);
        assert!(!meter.is_used_up(), "a new month");
        user.set_limits(UserLimits {
            volume: None,
            ..limits
        });
        meter.spend(Direction::Up, 1_000);
        assert!(!meter.is_used_up());
    }
}
