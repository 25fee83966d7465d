//! One look at all interfaces: links, addresses and routes, put together.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::{Stream, TryStreamExt};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use tabane_base::Prefix;

use crate::advertised::Advertised;
use crate::route_message::{MARKS, gateway, table};

use super::{DefaultRoute, Interface, InterfaceAddress, InterfaceError, Kind, Scope};

/// All interfaces of this network namespace, by index.
///
/// # Errors
/// See [`InterfaceError`].
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub async fn list() -> Result<Vec<Interface>, InterfaceError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(InterfaceError::Open)?;
    let connection = tokio::spawn(connection);
    let listed = list_by(&handle).await;
    connection.abort();
    listed
}

async fn list_by(handle: &Handle) -> Result<Vec<Interface>, InterfaceError> {
    let mut by_index = BTreeMap::new();
    for link in collect("interfaces", handle.link().get().execute()).await? {
        let interface = interface(link);
        by_index.insert(interface.index, interface);
    }
    for message in collect("addresses", handle.address().get().execute()).await? {
        if let Some(interface) = by_index.get_mut(&message.header.index) {
            interface.addresses.extend(address(&message));
        }
    }
    for message in routes(handle).await? {
        for (index, route) in default_routes(&message) {
            if let Some(interface) = by_index.get_mut(&index) {
                interface.default_routes.push(route);
            }
        }
    }
    // Without them all else is as good.
    let neighbours = collect("neighbours", handle.neighbours().get().execute()).await;
    for message in neighbours.unwrap_or_default() {
        let interface = by_index.get_mut(&message.header.ifindex);
        if let Some((interface, entry)) = interface.zip(neighbour(&message)) {
            let mut routes = interface.default_routes.iter();
            if routes.any(|route| route.gateway == Some(entry.0)) {
                interface.gateways.push(entry);
            }
        }
    }
    let mut interfaces: Vec<Interface> = by_index.into_values().collect();
    for interface in &mut interfaces {
        interface
            .addresses
            .sort_by_key(|address| (address.scope, address.address));
        interface.default_routes.sort_unstable();
        // The same route in several tables, as policy routing has it.
        interface.default_routes.dedup();
    }
    Ok(interfaces)
}

/// What is next to this host, or is this host: the networks of all its addresses, and what its
/// routes reach on a wire, without a router. What leaves by tunnels and dial-up lines is left out:
/// that may be the way to the whole internet.
///
/// # Errors
/// See [`InterfaceError`].
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub async fn near() -> Result<Vec<Prefix>, InterfaceError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(InterfaceError::Open)?;
    let connection = tokio::spawn(connection);
    let interfaces = list_by(&handle).await;
    let routes = routes(&handle).await;
    connection.abort();
    let interfaces = interfaces?;
    let addresses = interfaces.iter().flat_map(|it| &it.addresses);
    let networks = addresses.map(|own| Prefix {
        address: own.address,
        bits: own.prefix_bits,
    });
    let is_wire = |index| {
        let is_wire = |it: &Interface| {
            it.index == index && !matches!(it.kind, Kind::Tunnel | Kind::Ppp | Kind::Cellular)
        };
        interfaces.iter().any(is_wire)
    };
    let routes = routes?;
    let routed = routes.iter().filter(|route| is_near(route, is_wire));
    let all = networks.chain(routed.filter_map(routed_range));
    // A default route without a router is one to everywhere.
    Ok(all.filter(|range| range.bits > 0).collect())
}

/// The ranges of addresses whose packets this host takes itself: its own addresses, and what a
/// route of type `local` leads here without one.
///
/// # Errors
/// See [`InterfaceError`].
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub async fn local() -> Result<Vec<Prefix>, InterfaceError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(InterfaceError::Open)?;
    let connection = tokio::spawn(connection);
    let routes = routes(&handle).await;
    connection.abort();
    let routes = routes?;
    let local = routes
        .iter()
        .filter(|route| route.header.kind == RouteType::Local);
    Ok(local.filter_map(routed_range).collect())
}

/// Whether a route ends on a wire, or in this host.
fn is_near(message: &RouteMessage, is_wire: impl Fn(u32) -> bool) -> bool {
    let attributes = &message.attributes;
    let over = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    match message.header.kind {
        RouteType::Local => true,
        _ => gateway(attributes).is_none() && over.is_some_and(is_wire),
    }
}

/// The ranges of destinations that the routing tables tell apart, whichever they are in: first
/// those elsewhere, then this host itself and the addresses of all hosts of a wire.
///
/// # Errors
/// See [`InterfaceError`].
///
/// # Panics
/// Outside a tokio runtime with its I/O driver enabled.
pub(crate) async fn routed_ranges() -> Result<(Vec<Prefix>, Vec<Prefix>), InterfaceError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(InterfaceError::Open)?;
    let connection = tokio::spawn(connection);
    let routes = routes(&handle).await;
    connection.abort();
    let (mut elsewhere, mut here) = (Vec::new(), Vec::new());
    for message in &routes? {
        // In other tables, what is local is what a proxy takes up (TPROXY): everything, mostly.
        let is_own = table(message) == u32::from(nix::libc::RT_TABLE_LOCAL);
        let ranges = match message.header.kind {
            RouteType::Local | RouteType::Broadcast if is_own => &mut here,
            RouteType::Unicast | RouteType::Local => &mut elsewhere,
            _ => continue,
        };
        ranges.extend(routed_range(message));
    }
    Ok((elsewhere, here))
}

async fn routes(handle: &Handle) -> Result<Vec<RouteMessage>, InterfaceError> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut all = Vec::new();
    for question in [v4, v6] {
        all.extend(collect("routes", handle.route().get(question).execute()).await?);
    }
    // Our own follow from the others.
    all.retain(|message| !MARKS.contains(&table(message)));
    Ok(all)
}

/// Where a socket may send to by this route.
fn routed_range(message: &RouteMessage) -> Option<Prefix> {
    let header = &message.header;
    let any = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let destination = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
            _ => None,
        });
    Some(Prefix {
        address: destination.unwrap_or(any),
        bits: header.destination_prefix_length,
    })
}

async fn collect<T>(
    what: &'static str,
    answers: impl Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, InterfaceError> {
    let failed = |source| InterfaceError::List {
        what,
        source: Box::new(source),
    };
    answers.try_collect().await.map_err(failed)
}

fn interface(link: LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        kind: Kind::Other,
        up: flags.contains(LinkFlags::Up),
        state: State::Unknown,
        carrier: flags.contains(LinkFlags::LowerUp),
        mtu: 0,
        controller: None,
        addresses: Vec::new(),
        default_routes: Vec::new(),
        gateways: Vec::new(),
        behind: None,
        advertised: Advertised::default(),
    };
    let mut info_kind = None;
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::OperState(state) => interface.state = state,
            LinkAttribute::Controller(index) => interface.controller = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                info_kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    interface.kind = Kind::of(
        &interface.name,
        link.header.link_layer_type,
        info_kind.as_ref(),
    );
    interface
}

fn address(message: &AddressMessage) -> Option<InterfaceAddress> {
    // On point-to-point links `Address` is the other end and `Local` ours.
    let mut own = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => own = Some(*local),
            AddressAttribute::Address(address) => own = own.or(Some(*address)),
            _ => {}
        }
    }
    let address = own?;
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let scope = match message.header.scope {
        _ if address.is_loopback() => Scope::Host,
        _ if is_link_local => Scope::Link,
        AddressScope::Universe | AddressScope::Site => Scope::Global,
        AddressScope::Link => Scope::Link,
        _ => Scope::Host,
    };
    let unready = AddressHeaderFlags::Tentative
        | AddressHeaderFlags::Dadfailed
        | AddressHeaderFlags::Deprecated;
    // Optimistic addresses may be used while they are being checked (RFC 4429).
    let flags = message.header.flags;
    let ready = !flags.intersects(unready) || flags.contains(AddressHeaderFlags::Optimistic);
    Some(InterfaceAddress {
        address,
        prefix_bits: message.header.prefix_len,
        scope,
        ready,
    })
}

/// An entry of the neighbour table that has an address of a card.
fn neighbour(message: &NeighbourMessage) -> Option<(IpAddr, [u8; 6])> {
    let (mut address, mut hardware) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                hardware = <[u8; 6]>::try_from(bytes.as_slice()).ok();
            }
            _ => {}
        }
    }
    address
        .zip(hardware)
        .filter(|(_, hardware)| *hardware != [0; 6])
}

/// The default routes that a message tells of, by interface: several where it has several hops.
fn default_routes(message: &RouteMessage) -> Vec<(u32, DefaultRoute)> {
    let header = &message.header;
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let is_v6 = header.address_family == AddressFamily::Inet6;
    let mut metric = 0;
    let mut hops: &[_] = &[];
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::MultiPath(several) => hops = several,
            _ => {}
        }
    }
    let route = |attributes| DefaultRoute {
        metric,
        is_v6,
        gateway: gateway(attributes),
    };
    let single = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some((*index, route(&message.attributes))),
            _ => None,
        });
    let several = hops
        .iter()
        .map(|hop| (hop.interface_index, route(&hop.attributes)));
    single.into_iter().chain(several).collect()
}
