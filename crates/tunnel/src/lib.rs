//! The shell around `core`: sockets, timers and tasks of a client and of a relay.
//!
//! Owns the event loop that joins the engine with the kernel, the tunnel's own little protocol
//! (what a stream asks of the relay), and the two ends built on them: [`Client`] and [`Relay`].
//! It moves values and decides nothing about paths, packets or time.
//!
//! An engine runs on one thread, in a `LocalSet` of a current-thread runtime ([`block_on`] makes
//! both): state is shared by `Rc<RefCell<…>>`, there is no lock and no channel between two packets.
//! A relay has an engine on each of its workers' threads (`relay/crew.rs`).

#![forbid(unsafe_code)]

mod access;
mod assignment;
pub mod carrier;
mod client;
mod connection;
mod domain;
mod echo;
mod engine;
mod fleet_loads;
mod flow;
mod headcount;
mod icmp_error;
mod inbox;
mod ip_packet;
mod journal;
mod label;
pub mod loopback;
mod mapping;
mod marks;
mod monitor;
mod pingers;
mod proxy_header;
mod range;
mod relay;
mod request;
mod resolve;
mod routes;
pub mod shown;
mod strangers;
mod stream;
mod target;
mod trace;
mod visitor;

use std::io;

pub use access::Access;
pub use assignment::{Assignment, Lodging};
pub use client::{
    CallProtocol, Carrier, CarrierKind, CarrierMemory, CarrierMemoryError, CarrierWish, Client,
    ClientConfig, ClientSnapshot, ClientState, ConnectError, Exposure, ExposureEvent, LinkBind,
    LinkError, LinkSnapshot, LinkWish, OpenError, PacketFlow, PacketsCarried, PolicedRates,
    RelayLoad, RelayMerit, RelayPeer, SessionNumbers, Silence, SitePacket, SitePackets, TcpFlow,
    TlsPeer, UDP_PORTS, UdpArrival, UdpFlow, UdpMapping, Visitor, in_order_of_merit,
};
pub use connection::{Carried, Ending};
pub use domain::Domain;
pub use engine::Volume;
pub use flow::{FlowError, MAX_FLOW_PAYLOAD};
pub use headcount::{Counted, Headcount};
pub use journal::{Entry, Happening, Journal};
pub use label::{Label, LinkClass, Tally, Treatment, WeakLabel};
pub use marks::{OWN_MARK, RELEASE_MARK, may_mark};
pub use monitor::HostMonitor;
pub use pingers::EchoSender;
pub use proxy_header::proxy_header;
pub use relay::{
    Admission, Applicant, Authorise, DestinationRule, Destinations, DomainGrant, ExitAddress,
    ExitAddressError, ExitConfig, ExitSnapshot, ExposureSnapshot, FleetList, FleetLoads,
    GrantError, Grants, GroupName, GuestSnapshot, HostGrant, Inheritance, InheritedGroup,
    InheritedPool, PacketsSnapshot, Parting, PoolPlace, PortGrant, Relay, RelayConfig, RelayError,
    RelayLimits, RelayMonitor, RelaySnapshot, RouteGrant, RouteSnapshot, RuleError, Seldom, User,
    UserLimits, UserUsage, WebDoor, fuzz_asked_name,
};
pub use request::{Measure, PortClaim, Request, RequestError, Status, Transport};
pub use resolve::system_resolvers;
pub use routes::{SiteDomain, SiteList, SiteRoute, fuzz_routes};
pub use strangers::{fuzz_answers, fuzz_site_packet};
pub use tabane_core::monitor::{LinkEstimate, PathEstimate};
pub use tabane_linux::interfaces::Families;
pub use target::{HostName, NameError, Target};
pub use trace::SessionTrace;
pub use visitor::fuzz_visitor;

/// Runs `future` with what clients and relays need around them: a runtime of this one thread, a
/// `LocalSet`, timers that end on time, and a thread that goes before ordinary ones.
///
/// # Errors
/// The kernel gave no descriptors for the runtime.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    // Late timers cost throughput only, so a kernel that refuses is no reason to stop.
    if let Err(error) = tabane_linux::minimize_timer_slack() {
        tracing::debug!(%error, "timers stay up to 50 µs late");
    }
    if let Err(error) = tabane_linux::prefer_this_thread() {
        tracing::debug!(%error, "packets wait while other programs run");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(engine::rest)
        .build()?;
    let local = tokio::task::LocalSet::new();
    let output = runtime.block_on(local.run_until(future));
    drop(local);
    // Not to wait for a name that nobody answers for.
    runtime.shutdown_background();
    Ok(output)
}
