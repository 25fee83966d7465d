//! Which destinations are captured, although they may be of ranges that are left alone: peers, and
//! networks behind other clients of the group.

use std::rc::Rc;

use tabane_base::Prefix;
use tabane_control::SiteRoute;
use tabane_tunnel::Client;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::FarEnds;
use crate::lan_hosts::LanHosts;
use crate::peers::Peer;
use crate::sites::{Behind, Sites, tell_of_other_relays};

/// The most ranges that are given to the hooks, which have room for so many.
const MAX_RANGES: usize = 200;

impl FarEnds {
    /// Whatever leads to peers and to sites; where there is too much, what others tell is left out
    /// before what the user has.
    pub(crate) fn captured(&self) -> Vec<Prefix> {
        let of = |peer: &Rc<Peer>| {
            let addrs = peer.addrs().into_iter();
            let addrs = addrs.map(|addr| Prefix::host(addr.ip().to_canonical()));
            let also = peer.entry().also.clone();
            addrs.chain(also).collect::<Vec<_>>()
        };
        let peers = self.peers();
        let peers = peers.iter().flat_map(of);
        let all = peers.chain(self.sites().captured());
        all.take(MAX_RANGES).collect()
    }

    /// The networks behind other clients of the group, and behind this one.
    pub(crate) fn sites(&self) -> &Sites {
        &self.0.sites
    }

    /// Hosts behind this machine that send through it.
    pub(crate) fn lan_hosts(&self) -> &LanHosts {
        &self.0.lan_hosts
    }

    /// The routes of this machine and of others.
    pub(crate) fn routes_shown(&self) -> Vec<SiteRoute> {
        let mut routes = self.0.sites.shown();
        let relays = self.relay().map(Client::relay_names);
        tell_of_other_relays(&mut routes, &relays.unwrap_or_default());
        routes
    }

    /// From now on the networks behind this machine are offered to others of its group. Must be
    /// called within a `LocalSet`.
    pub fn offer_routes(&self, behind: &Behind) {
        if let (Some(relay), Some(rules)) = (self.relay(), self.rules()) {
            self.0.sites.offer(relay, rules, behind);
        }
    }
}

/// Follows which networks are behind others, and tells `moved`.
pub(super) fn follow_sites(relay: &Client, sites: &Sites, moved: &Rc<Notify>) -> AbortHandle {
    let (relay, sites, moved) = (relay.clone(), sites.clone(), moved.clone());
    let following = async move { sites.follow(&relay, || moved.notify_one()).await };
    tokio::task::spawn_local(following).abort_handle()
}
