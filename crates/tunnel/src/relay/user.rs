//! Users: the people a relay serves, each with any number of devices, and what they may have.
//!
//! Owns a user's limits, what it has at present and what has passed. All its sessions share them.
//! Whose a key is, and when a volume begins anew, is decided by whoever owns the relay.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use tabane_base::{Bytes, Rate};

use super::grants::Grants;
use super::rules::Destinations;
use super::shaper::{Allowance, Shaper};
use crate::request::PortClaim;
use crate::target::HostName;

/// What a user may have. `None` is no limit, or the relay's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Towards the user's devices, all together.
    pub rate_down: Option<Rate>,
    /// From them.
    pub rate_up: Option<Rate>,
    /// Bytes of both directions until the owner begins to count anew; then nothing passes.
    pub volume: Option<Bytes>,
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
pub struct User(Rc<Inner>);

struct Inner {
    name: String,
    limits: RefCell<UserLimits>,
    usage: Cell<UserUsage>,
    down: Rc<Shaper>,
    up: Rc<Shaper>,
}

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
    user: Option<User>,
    session: u64,
    down: Allowance,
    up: Allowance,
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
        let user = Self(Rc::new(Inner {
            name: name.to_owned(),
            limits: RefCell::default(),
            usage: Cell::default(),
            down: Rc::default(),
            up: Rc::default(),
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
        self.0.down.set_rate(limits.rate_down);
        self.0.up.set_rate(limits.rate_up);
        *self.0.limits.borrow_mut() = limits;
    }

    /// Sets what counts towards the volume, as at the beginning of a month.
    pub fn set_volume_used(&self, used: Bytes) {
        self.change(|usage| usage.volume = used);
    }

    /// What it has and had.
    #[must_use]
    pub fn usage(&self) -> UserUsage {
        self.0.usage.get()
    }

    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn may_have_another_session(&self) -> bool {
        let limit = self.0.limits.borrow().sessions;
        limit.is_none_or(|limit| self.usage().sessions < limit)
    }

    fn change(&self, change: impl FnOnce(&mut UserUsage)) {
        let mut usage = self.0.usage.get();
        change(&mut usage);
        self.0.usage.set(usage);
    }

    pub(super) fn is_used_up(&self) -> bool {
        let limit = self.0.limits.borrow().volume;
        limit.is_some_and(|limit| self.usage().volume >= limit)
    }

    /// Whether private addresses, and the relay's own, are open to it.
    pub(super) fn may_reach_private(&self) -> bool {
        self.0.limits.borrow().destinations.private
    }

    /// Whether a rule allows `address` by name.
    pub(super) fn is_allowed_by_rule(&self, address: SocketAddr) -> bool {
        self.0.limits.borrow().destinations.names(address)
    }

    /// Whether a rule refuses `address`.
    pub(super) fn is_denied_by_rule(&self, address: SocketAddr) -> bool {
        self.0.limits.borrow().destinations.denies(address)
    }

    pub(super) fn may_reach(&self, address: SocketAddr) -> bool {
        self.0.limits.borrow().destinations.allow(address)
    }

    /// Whether these ports, or this name at them, may lead to its devices.
    pub(super) fn is_granted(&self, claim: PortClaim, name: Option<&HostName>) -> bool {
        self.0.limits.borrow().grants.allow(claim, name)
    }

    /// Counts one more, where the limit allows.
    pub(super) fn count(&self, what: What) -> Option<Counted> {
        let usage = self.usage();
        let limits = self.0.limits.borrow();
        let (has, limit) = match what {
            What::Session => (usage.sessions, limits.sessions),
            What::Stream => (usage.streams, limits.streams),
        };
        if limit.is_some_and(|limit| has >= limit) {
            return None;
        }
        self.change(|usage| *what.of(usage) += 1);
        let user = self.clone();
        Some(Counted { user, what })
    }
}

impl What {
    fn of(self, usage: &mut UserUsage) -> &mut usize {
        match self {
            Self::Session => &mut usage.sessions,
            Self::Stream => &mut usage.streams,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.user
            .change(|usage| *self.what.of(usage) = self.what.of(usage).saturating_sub(1));
    }
}

impl Meter {
    pub(super) fn new(user: Option<User>, session: u64) -> Self {
        Self {
            user,
            session,
            ..Self::default()
        }
    }

    /// Ready with how many bytes may pass now.
    pub(crate) fn poll(&mut self, way: Direction, cx: &Context<'_>) -> Poll<usize> {
        let Some(User(user)) = &self.user else {
            return Poll::Ready(usize::MAX);
        };
        match way {
            Direction::Down => user.down.poll(&mut self.down, self.session, cx),
            Direction::Up => user.up.poll(&mut self.up, self.session, cx),
        }
    }

    /// `n` bytes have passed.
    pub(crate) fn spend(&mut self, way: Direction, n: usize) {
        let Some(user) = &self.user else {
            return;
        };
        let bytes = Bytes::from(n);
        user.change(|usage| {
            usage.volume += bytes;
            match way {
                Direction::Down => usage.down += bytes,
                Direction::Up => usage.up += bytes,
            }
        });
        match way {
            Direction::Down => self.down.spend(n),
            Direction::Up => self.up.spend(n),
        }
    }

    /// The user's volume is used up: nothing passes any more.
    pub(crate) fn is_used_up(&self) -> bool {
        self.user.as_ref().is_some_and(User::is_used_up)
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

        let mut meter = Meter::new(Some(user.clone()), 1);
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
