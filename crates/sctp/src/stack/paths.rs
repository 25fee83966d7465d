//! Paths: which ways an association has, what is thought of each, and which are left alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tabane_base::{Bytes, Duration};

use super::{Endpoint, Stack};
use crate::association::{PathState, PathStatus, SctpError};
use crate::ffi;
use crate::identity::EndpointId;
use crate::library;
use crate::own::Own;
use crate::path::{LinkId, PathId, PathTuple};

impl Stack {
    /// Gives the association another path; the one that already leads there, if one does. `None`
    /// where it has as many as can be.
    pub fn add_way(&mut self, endpoint: EndpointId, way: PathTuple) -> Option<PathId> {
        let with = self.endpoints.get(&endpoint)?;
        let own = with.own.as_ref()?;
        if let Some(path) = self.paths.find(&own.paths, way.link, way.remote.ip()) {
            return Some(path);
        }
        // One that led elsewhere before would be taken for one that works.
        let has_worked =
            |path: &PathId| self.status(with, own, *path, way).state != PathState::Unconfirmed;
        let free = own.paths.iter().copied();
        let free = free.filter(|path| self.paths.way(*path).is_none());
        let path = free.min_by_key(has_worked)?;
        self.set_way(endpoint, path, Some(way));
        Some(path)
    }

    /// Leads a path another way, or nowhere. What was under way on it is sent again, by another.
    pub fn set_way(&mut self, endpoint: EndpointId, path: PathId, way: Option<PathTuple>) {
        self.paths.set(path, way);
        if let Some(own) = self
            .endpoints
            .get_mut(&endpoint)
            .and_then(|e| e.own.as_mut())
        {
            own.forget(path);
        }
        if way.is_some() {
            // Ask at once whether it works, rather than at the next probe.
            let _ = self.ask_path(endpoint, path);
        }
    }

    pub(super) fn ask_path(&self, endpoint: EndpointId, path: PathId) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get(&endpoint).ok_or(SctpError::Gone)?;
        let own = endpoint.own.as_ref().ok_or(SctpError::Gone)?;
        let demand = ffi::PaddrParams {
            spp_address: library::storage(SocketAddr::new(path.0, own.port)),
            spp_assoc_id: own.association,
            spp_flags: ffi::SPP_HB_DEMAND,
            ..library::zero()
        };
        let name = ffi::SCTP_PEER_ADDR_PARAMS;
        let what = "probe a path";
        Ok(self.library.set(&endpoint.socket, name, &demand, what)?)
    }

    /// The paths that lead somewhere, and what the stack thinks of them.
    #[must_use]
    pub fn paths(&self, endpoint: EndpointId) -> Vec<PathStatus> {
        let Some(endpoint) = self.endpoints.get(&endpoint) else {
            return Vec::new();
        };
        let Some(own) = &endpoint.own else {
            return Vec::new();
        };
        let ways = own.paths.iter();
        let ways = ways.filter_map(|path| Some((*path, self.paths.way(*path)?)));
        ways.map(|(path, way)| self.status(endpoint, own, path, way))
            .collect()
    }

    fn status(&self, endpoint: &Endpoint, own: &Own, path: PathId, way: PathTuple) -> PathStatus {
        let asked = ffi::PaddrInfo {
            spinfo_address: library::storage(SocketAddr::new(path.0, own.port)),
            spinfo_assoc_id: own.association,
            ..library::zero()
        };
        let name = ffi::SCTP_GET_PEER_ADDR_INFO;
        let info = self.library.ask(&endpoint.socket, name, asked);
        let info = info.unwrap_or(asked);
        let srtt = Duration::from_millis(info.spinfo_srtt.into());
        let is_silent = own.pulses.is_silent(self.clock, path, srtt);
        let state = match info.spinfo_state {
            state if state & ffi::SCTP_UNCONFIRMED != 0 => PathState::Unconfirmed,
            state if state & ffi::SCTP_ACTIVE != 0 && !is_silent => PathState::Active,
            _ => PathState::Inactive,
        };
        PathStatus {
            path,
            way,
            state,
            cwnd: Bytes::new(info.spinfo_cwnd.into()),
            srtt,
            rto: Duration::from_millis(info.spinfo_rto.into()),
            mtu: info.spinfo_mtu,
        }
    }

    /// User data that left by a path and of whose arrival nothing is known. The stack does not tell
    /// this by path; it is counted from the packets.
    #[must_use]
    pub fn outstanding(&self, endpoint: EndpointId, path: PathId) -> Bytes {
        let own = self.endpoints.get(&endpoint).and_then(|e| e.own.as_ref());
        own.map_or(Bytes::ZERO, |own| own.rescue.outstanding(path))
    }

    /// This host has another address, on a link: associations tell their peers (RFC 5061). Until
    /// the peer has agreed, ways over that link carry nothing; a peer that knows no changes of
    /// addresses never does.
    ///
    /// None is ever taken back. When an address is deleted under a running association, usrsctp
    /// 0.9.5 sends by a pointer to what it has freed (in `sctp_med_chunk_output`, one time in ten).
    /// A path without a way carries nothing, and the peer finds by itself that it is silent.
    ///
    /// # Errors
    /// What the library says.
    pub fn add_local(
        &mut self,
        endpoint: EndpointId,
        link: LinkId,
        local: IpAddr,
    ) -> Result<(), SctpError> {
        let endpoint = self.endpoints.get_mut(&endpoint).ok_or(SctpError::Gone)?;
        let is_known = endpoint.locals.contains(&local);
        match &mut endpoint.own {
            Some(own) if is_known => own.told.come_again(link, local),
            Some(own) => own.told.wait_for(link, local),
            None => {}
        }
        if is_known {
            return Ok(());
        }
        self.library.know_address(local);
        let address = SocketAddr::new(local, endpoint.port);
        self.library.add_address(&endpoint.socket, address)?;
        endpoint.locals.push(local);
        Ok(())
    }

    /// A path that leads nowhere, and one by which nothing has come back of late, is left alone
    /// from its next timeout on, until it answers (RFC 7829). Others are not: after such a timeout
    /// usrsctp 0.9.5 waits on that path for the arrival of a packet that it has moved to another
    /// one, and until chance frees it (CUC's find_pseudo_cumack, in `sctp_t3rxt_timer`) the window
    /// stays at one packet.
    pub(super) fn leave_quiet_paths_alone(&mut self) {
        let ids: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for id in ids {
            for path in self.change_of_heart(id) {
                let Some(endpoint) = self.endpoints.get(&id) else {
                    continue;
                };
                let Some(own) = &endpoint.own else {
                    continue;
                };
                let is_left = own.left_alone.contains(&path);
                let thresholds = ffi::PaddrThresholds {
                    spt_address: library::storage(SocketAddr::new(path.0, own.port)),
                    spt_assoc_id: own.association,
                    spt_pathmaxrxt: u16::MAX,
                    spt_pathpfthld: if is_left { 0 } else { u16::MAX },
                    spt_pathcpthld: u16::MAX,
                };
                let name = ffi::SCTP_PEER_ADDR_THLDS;
                let what = "say when a path is left alone";
                // An association that has just ended has no paths.
                let _ = self.library.set(&endpoint.socket, name, &thresholds, what);
            }
        }
    }

    /// Decides which paths of an association are left alone; gives those of which it was otherwise.
    fn change_of_heart(&mut self, id: EndpointId) -> Vec<PathId> {
        let leading = self.paths(id);
        let own = self.endpoints.get_mut(&id).and_then(|e| e.own.as_mut());
        // The stack knows them from the INIT ACK on.
        let Some(own) = own.filter(|own| own.listed.is_some()) else {
            return Vec::new();
        };
        let (pulses, clock) = (&own.pulses, self.clock);
        let is_quiet = |path: &PathId| {
            let status = leading.iter().find(|status| status.path == *path);
            status.is_none_or(|status| pulses.is_quiet(clock, *path, status.srtt))
        };
        let quiet: BTreeSet<PathId> = own.paths.iter().copied().filter(is_quiet).collect();
        let before = std::mem::replace(&mut own.left_alone, quiet);
        before
            .symmetric_difference(&own.left_alone)
            .copied()
            .collect()
    }
}
