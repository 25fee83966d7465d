//! Several gateways behind one interface, told apart by a mark on packets: for each a rule, and a
//! table with the way to it.
//!
//! Owns the marks that are kept for it, and making rules and tables what they should be. A table
//! leads nowhere else: where its gateway's route has gone, with an address or an interface, packets
//! are refused and do not leave by another gateway. What outlives us concerns nobody, for no other
//! packet has these marks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{IpVersion, RouteMessageBuilder};
use tabane_base::Prefix;

use crate::route_message::{gateway, table};
use crate::routing::{Routing, RoutingError, failed};

pub use crate::route_message::MARKS;

/// The place of the rules among others: before the machine's own.
const PRIORITY: u32 = 10_630;
/// After every other route of the table.
const LAST: u32 = u32::MAX;

/// The way to a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRoute {
    /// What packets bear that are to go there, of [`MARKS`].
    pub mark: u32,
    /// The interface that it is behind.
    pub index: u32,
    /// The gateway's address of each family that it has, and ours towards it.
    pub hops: Vec<(IpAddr, Option<IpAddr>)>,
    /// What is on the interface's own wire, and needs no gateway.
    pub wires: Vec<Prefix>,
}

/// A route of one of these tables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    table: u32,
    destination: Prefix,
    to: To,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum To {
    Gateway {
        gateway: IpAddr,
        index: u32,
        source: Option<IpAddr>,
    },
    Wire {
        index: u32,
    },
    Nowhere,
}

impl Routing {
    /// Makes rules and tables of the marks in `range` what `wanted` says. What is so already is
    /// not touched, so that nobody is told of a change.
    ///
    /// # Errors
    /// As the kernel says.
    pub async fn set_gateways(
        &self,
        range: RangeInclusive<u32>,
        wanted: &[GatewayRoute],
    ) -> Result<(), RoutingError> {
        // Routes before the rules that lead to them, and the other way about.
        let marks: Vec<u32> = wanted.iter().map(|it| it.mark).collect();
        for version in [IpVersion::V4, IpVersion::V6] {
            for rule in self.rules(&version, &range).await? {
                if mark_of(&rule).is_none_or(|mark| !marks.contains(&mark)) {
                    let removed = self.handle.rule().del(rule).execute().await;
                    removed.map_err(failed("remove a routing rule"))?;
                }
            }
        }
        self.set_entries(&range, wanted.iter().flat_map(entries).collect())
            .await?;
        for version in [IpVersion::V4, IpVersion::V6] {
            let present = self.rules(&version, &range).await?;
            let present: Vec<u32> = present.iter().filter_map(mark_of).collect();
            for mark in marks.iter().filter(|mark| !present.contains(mark)) {
                let added = self.add_mark(&version, *mark).await;
                match (added, &version) {
                    (Err(error), IpVersion::V4) => {
                        return Err(failed("add a routing rule")(error));
                    }
                    // A machine without IPv6.
                    (Err(error), IpVersion::V6) => tracing::debug!(%error, "no rule for IPv6"),
                    (Ok(()), _) => {}
                }
            }
        }
        Ok(())
    }

    async fn set_entries(
        &self,
        range: &RangeInclusive<u32>,
        mut missing: Vec<Entry>,
    ) -> Result<(), RoutingError> {
        for message in self.tables(range).await? {
            let entry = Entry::of(&message);
            match missing.iter().position(|it| Some(it) == entry.as_ref()) {
                Some(place) => drop(missing.swap_remove(place)),
                None => {
                    let removed = self.handle.route().del(message).execute().await;
                    if let Err(error) = removed {
                        tracing::debug!(%error, "a route was gone already");
                    }
                }
            }
        }
        for entry in missing {
            let is_v4 = entry.destination.address.is_ipv4();
            let added = self.handle.route().add(entry.message()?).replace();
            match added.execute().await {
                Ok(()) => {}
                Err(error) if is_v4 => return Err(failed("add a route")(error)),
                // A machine without IPv6.
                Err(error) => tracing::debug!(%error, "no route for IPv6"),
            }
        }
        Ok(())
    }

    async fn rules(
        &self,
        version: &IpVersion,
        range: &RangeInclusive<u32>,
    ) -> Result<Vec<RuleMessage>, RoutingError> {
        let rules = self.handle.rule().get(version.clone()).execute();
        let mut rules: Vec<RuleMessage> = match rules.try_collect().await {
            Ok(rules) => rules,
            Err(_) if matches!(version, IpVersion::V6) => return Ok(Vec::new()),
            Err(error) => return Err(failed("list the routing rules")(error)),
        };
        rules.retain(|rule| {
            let is_ours = |mark| rule.attributes.contains(&RuleAttribute::Table(mark));
            mark_of(rule).is_some_and(|mark| range.contains(&mark) && is_ours(mark))
        });
        Ok(rules)
    }

    async fn add_mark(&self, version: &IpVersion, mark: u32) -> Result<(), rtnetlink::Error> {
        let rule = self.handle.rule().add().priority(PRIORITY);
        let rule = rule.fw_mark(mark).table_id(mark);
        let rule = rule.action(RuleAction::ToTable);
        match version {
            IpVersion::V4 => rule.v4().execute().await,
            IpVersion::V6 => rule.v6().execute().await,
        }
    }

    /// The routes of the tables in `range`.
    async fn tables(&self, range: &RangeInclusive<u32>) -> Result<Vec<RouteMessage>, RoutingError> {
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut all = Vec::new();
        for question in [v4, v6] {
            let routes = self.handle.route().get(question).execute();
            let routes: Vec<RouteMessage> = routes
                .try_collect()
                .await
                .map_err(failed("list the routes"))?;
            all.extend(routes.into_iter().filter(|it| range.contains(&table(it))));
        }
        Ok(all)
    }
}

/// Everything that a gateway's table has.
fn entries(route: &GatewayRoute) -> impl Iterator<Item = Entry> {
    let (table, index) = (route.mark, route.index);
    let everything = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    let all = |any| Prefix {
        address: any,
        bits: 0,
    };
    let hops = route.hops.iter().map(move |(gateway, source)| Entry {
        table,
        destination: all(everything[usize::from(gateway.is_ipv6())]),
        to: To::Gateway {
            gateway: *gateway,
            index,
            source: *source,
        },
    });
    let wires = route.wires.iter().map(move |wire| Entry {
        table,
        destination: *wire,
        to: To::Wire { index },
    });
    let ends = everything.into_iter().map(move |any| Entry {
        table,
        destination: all(any),
        to: To::Nowhere,
    });
    hops.chain(wires).chain(ends)
}

impl Entry {
    fn message(&self) -> Result<RouteMessage, RoutingError> {
        let malformed = failed("write a route");
        let Prefix { address, bits } = self.destination;
        let route = RouteMessageBuilder::<IpAddr>::new().table_id(self.table);
        let built = route.destination_prefix(address, bits);
        let built = built.and_then(|route| match self.to {
            To::Gateway {
                gateway,
                index,
                source,
            } => {
                // The gateway may be beyond what our address calls its network.
                let route = route.output_interface(index).gateway(gateway)?.onlink();
                match source {
                    Some(source) => route.pref_source(source),
                    None => Ok(route),
                }
            }
            To::Wire { index } => Ok(route.output_interface(index).scope(RouteScope::Link)),
            To::Nowhere => Ok(route.kind(RouteType::Unreachable).priority(LAST)),
        });
        Ok(built.map_err(malformed)?.build())
    }

    fn of(message: &RouteMessage) -> Option<Self> {
        let (mut destination, mut over, mut source) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => destination = ip(address),
                RouteAttribute::Oif(index) => over = Some(*index),
                RouteAttribute::PrefSource(address) => source = ip(address),
                _ => {}
            }
        }
        let any = match message.header.address_family {
            AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let gateway = gateway(&message.attributes);
        let to = match (message.header.kind, gateway, over) {
            (RouteType::Unreachable, _, _) => To::Nowhere,
            (RouteType::Unicast, Some(gateway), Some(index)) => To::Gateway {
                gateway,
                index,
                source,
            },
            (RouteType::Unicast, None, Some(index)) => To::Wire { index },
            _ => return None,
        };
        Some(Self {
            table: table(message),
            destination: Prefix {
                address: destination.unwrap_or(any),
                bits: message.header.destination_prefix_length,
            },
            to,
        })
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

fn mark_of(rule: &RuleMessage) -> Option<u32> {
    let mut attributes = rule.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        RuleAttribute::FwMark(mark) => Some(*mark),
        _ => None,
    })
}
