//! Routing tables and rules of our own, beside those of the machine.
//!
//! Owns the netlink messages for them. Rules choose a table by the mark of a packet; a table
//! without routes passes everything on to the next rule, so rules that outlive us do nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RulePortRange};
use rtnetlink::{Handle, IpVersion, LinkUnspec, RouteMessageBuilder};
use tokio::task::JoinHandle;

/// `lo` is the first interface of every namespace.
const LOOPBACK: u32 = 1;

/// A routing table or rule could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct RoutingError {
    what: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Packets that carry `mark` are routed by `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// The rule's place among others; also its name for removal.
    pub priority: u32,
    /// `SO_MARK`, or nftables' `meta mark`.
    pub mark: u32,
    /// The table.
    pub table: u32,
}

/// A netlink socket for routes.
#[derive(Debug)]
pub struct Routing {
    pub(crate) handle: Handle,
    connection: JoinHandle<()>,
}

impl Routing {
    /// Opens the socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel gave none.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open() -> Result<Self, RoutingError> {
        let opened = rtnetlink::new_connection();
        let (connection, handle, _) = opened.map_err(failed("open a netlink socket"))?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
        })
    }

    /// Switches an interface on and returns its index. `mtu` in bytes.
    ///
    /// # Errors
    /// There is none of this name, or we may not.
    pub async fn bring_up(&self, name: &str, mtu: u32) -> Result<u32, RoutingError> {
        const WHAT: &str = "switch an interface on";
        let up = LinkUnspec::new_with_name(name).mtu(mtu).up().build();
        let set = self.handle.link().set(up).execute().await;
        set.map_err(failed(WHAT))?;
        let mut found = self
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .execute();
        let found = found.try_next().await.map_err(failed(WHAT))?;
        found
            .map(|link| link.header.index)
            .ok_or_else(|| failed(WHAT)("it is gone"))
    }

    /// As [`bring_up`](Self::bring_up), for a device on which many packets may wait.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn bring_up_queue(
        &self,
        name: &str,
        mtu: u32,
        packets: u32,
    ) -> Result<u32, RoutingError> {
        let queue = LinkUnspec::new_with_name(name).txqueuelen(packets).build();
        let set = self.handle.link().set(queue).execute().await;
        set.map_err(failed("lengthen an interface's queue"))?;
        self.bring_up(name, mtu).await
    }

    /// Has `table` route what goes to `port` of this machine's own loopback addresses, before the
    /// kernel looks among its own addresses.
    ///
    /// # Errors
    /// As the kernel says.
    pub(crate) async fn divert_loopback(&self, port: u16, table: u32) -> Result<(), RoutingError> {
        const WHAT: &str = "add a routing rule";
        /// The kernel's table of its own addresses.
        const LOCAL: u32 = 255;
        /// The kernel's first rule, for its own addresses, has priority 0.
        const OURS: u32 = 1;
        const THEIRS: u32 = 2;
        let rule = || self.handle.rule().add().action(RuleAction::ToTable);
        let own = rule().v4().priority(THEIRS).table_id(LOCAL);
        own.execute().await.map_err(failed(WHAT))?;
        for protocol in [IpProtocol::Tcp, IpProtocol::Udp] {
            let mut ours = rule().v4().priority(OURS).table_id(table);
            ours = ours.destination_prefix(Ipv4Addr::new(127, 0, 0, 0), 8);
            let ports = RulePortRange {
                start: port,
                end: port,
            };
            let attributes = &mut ours.message_mut().attributes;
            attributes.push(RuleAttribute::IpProtocol(protocol));
            attributes.push(RuleAttribute::DestinationPortRange(ports));
            ours.execute().await.map_err(failed(WHAT))?;
        }
        let rules = self.handle.rule().get(IpVersion::V4).execute();
        let rules: Vec<_> = rules.try_collect().await.map_err(failed(WHAT))?;
        for message in rules {
            let has_priority = |it: &RuleAttribute| matches!(it, RuleAttribute::Priority(1..));
            if !message.attributes.iter().any(has_priority) {
                let removed = self.handle.rule().del(message).execute().await;
                removed.map_err(failed(WHAT))?;
            }
        }
        Ok(())
    }

    /// Gives an interface an address; `bits` of it are shared by those who are reached by it.
    ///
    /// # Errors
    /// As the kernel says; one that is there already is none.
    pub async fn add_address(
        &self,
        index: u32,
        address: IpAddr,
        bits: u8,
    ) -> Result<(), RoutingError> {
        let mut request = self.handle.address().add(index, address, bits).replace();
        // Nobody else is asked about it, so it can be used as soon as it is there.
        let flags = &mut request.message_mut().header.flags;
        *flags |= AddressHeaderFlags::Nodad;
        request.execute().await.map_err(failed("add an address"))
    }

    /// Takes all addresses from an interface but those of the wire.
    ///
    /// # Errors
    /// As the kernel says.
    pub async fn remove_addresses(&self, index: u32) -> Result<(), RoutingError> {
        const WHAT: &str = "remove an address";
        let found = self.handle.address().get().set_link_index_filter(index);
        let found: Vec<_> = found.execute().try_collect().await.map_err(failed(WHAT))?;
        let of_wire = |message: &AddressMessage| message.header.scope == AddressScope::Link;
        for message in found.into_iter().filter(|message| !of_wire(message)) {
            let removed = self.handle.address().del(message).execute().await;
            removed.map_err(failed(WHAT))?;
        }
        Ok(())
    }

    /// Adds the rule for both families.
    ///
    /// # Errors
    /// As the kernel says; one that exists is an error.
    pub async fn add_rule(&self, rule: MarkRule) -> Result<(), RoutingError> {
        let request = || {
            let request = self.handle.rule().add().priority(rule.priority);
            let request = request.fw_mark(rule.mark).table_id(rule.table);
            request.action(RuleAction::ToTable)
        };
        let added = request().v4().execute().await;
        added.map_err(failed("add a routing rule"))?;
        if let Err(error) = request().v6().execute().await {
            // A machine without IPv6.
            tracing::debug!(%error, "no rule for IPv6");
        }
        Ok(())
    }

    /// Removes every rule that is exactly `rule`, whoever has added it.
    ///
    /// # Errors
    /// As the kernel says; that there is none is no error.
    pub async fn remove_rule(&self, rule: MarkRule) -> Result<(), RoutingError> {
        const WHAT: &str = "remove a routing rule";
        for version in [IpVersion::V4, IpVersion::V6] {
            let rules = self.handle.rule().get(version.clone()).execute();
            let rules: Vec<_> = match rules.try_collect().await {
                Ok(rules) => rules,
                Err(_) if matches!(version, IpVersion::V6) => continue,
                Err(error) => return Err(failed(WHAT)(error)),
            };
            let ours = rules.into_iter().filter(|message| {
                let has = |attribute| message.attributes.contains(&attribute);
                has(RuleAttribute::Priority(rule.priority))
                    && has(RuleAttribute::FwMark(rule.mark))
                    && has(RuleAttribute::Table(rule.table))
            });
            for message in ours.collect::<Vec<_>>() {
                let removed = self.handle.rule().del(message).execute().await;
                removed.map_err(failed(WHAT))?;
            }
        }
        Ok(())
    }

    /// Everything that is routed by `table` leaves by the interface `index`.
    ///
    /// # Errors
    /// As the kernel says.
    pub async fn add_default(&self, table: u32, index: u32) -> Result<(), RoutingError> {
        self.add(defaults(table, index, RouteType::Unicast)).await
    }

    /// Takes that back.
    ///
    /// # Errors
    /// As the kernel says; that it is gone already is none.
    pub async fn remove_default(&self, table: u32, index: u32) -> Result<(), RoutingError> {
        for route in defaults(table, index, RouteType::Unicast) {
            let removed = self.handle.route().del(route).execute().await;
            if let Err(error) = removed {
                tracing::debug!(%error, "a route was gone already");
            }
        }
        Ok(())
    }

    /// Everything that is routed by `table` is for this machine, whatever its address.
    ///
    /// # Errors
    /// As the kernel says.
    pub async fn add_local(&self, table: u32) -> Result<(), RoutingError> {
        self.add(defaults(table, LOOPBACK, RouteType::Local)).await
    }

    /// Takes that back.
    ///
    /// # Errors
    /// As the kernel says; that it is gone already is none.
    pub async fn remove_local(&self, table: u32) -> Result<(), RoutingError> {
        for route in defaults(table, LOOPBACK, RouteType::Local) {
            let removed = self.handle.route().del(route).execute().await;
            if let Err(error) = removed {
                tracing::debug!(%error, "a route was gone already");
            }
        }
        Ok(())
    }

    async fn add(&self, [v4, v6]: [RouteMessage; 2]) -> Result<(), RoutingError> {
        let added = self.handle.route().add(v4).replace().execute().await;
        added.map_err(failed("add a route"))?;
        if let Err(error) = self.handle.route().add(v6).replace().execute().await {
            // A machine without IPv6.
            tracing::debug!(%error, "no route for IPv6");
        }
        Ok(())
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn defaults(table: u32, index: u32, kind: RouteType) -> [RouteMessage; 2] {
    let scope = match kind {
        RouteType::Local => RouteScope::Host,
        _ => RouteScope::Link,
    };
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new();
    [
        v4.table_id(table)
            .output_interface(index)
            .kind(kind)
            .scope(scope)
            .build(),
        v6.table_id(table)
            .output_interface(index)
            .kind(kind)
            .build(),
    ]
}

pub(crate) fn failed<E>(what: &'static str) -> impl FnOnce(E) -> RoutingError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| RoutingError {
        what,
        source: source.into(),
    }
}
