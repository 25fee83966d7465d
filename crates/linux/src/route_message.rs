//! What the kernel says of a route, read.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};

/// The marks of gateways, each also the number of its table: apart from those of every other use,
/// here and elsewhere (container networks, Tailscale and Calico have higher bits).
pub const MARKS: RangeInclusive<u32> = 0x1100..=0x11ff;

/// Which table a route is in.
pub(crate) fn table(message: &RouteMessage) -> u32 {
    let mut attributes = message.attributes.iter();
    let large = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    large.unwrap_or_else(|| message.header.table.into())
}

/// The router that a route leads to.
pub(crate) fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(v4))
        | RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Gateway(RouteAddress::Inet6(v6))
        | RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}
