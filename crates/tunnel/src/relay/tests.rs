//! What tests of several parts of a relay begin with.

use std::net::Ipv4Addr;
use std::num::NonZeroU8;

use super::*;

/// A relay of one worker that nobody runs, at 192.0.2.1.
pub(super) fn shared(access: Access) -> Shared {
    Shared {
        access,
        own: OwnAddresses::new(vec!["192.0.2.1".parse().unwrap()]),
        limits: RelayLimits::default(),
        lookups: Lookups::default(),
        resolvers: Vec::new(),
        mark: None,
        crew: Crew::new(NonZeroU8::MIN).0,
        served: AtomicU64::new(0),
        is_draining: AtomicBool::new(false),
        serials: Arc::default(),
        is_odd: false,
        groups: Mutex::default(),
        has_neighbour: Arc::default(),
        headcount: Headcount::default(),
        pinging: Headcount::default(),
        members: Members::default(),
        journal: Journal::default(),
        exit: None,
        measuring: Measuring::default(),
        fleet_list: None,
        fleet_loads: None,
        front_doors: FrontDoors::new(Ipv4Addr::LOCALHOST.into(), Vec::new()),
        sites: Arc::default(),
        lines: Seldom::default(),
        refusals: Seldom::default(),
    }
}
