//! Ports of the relay that lead here: asked for in every session, and whoever comes is led to the
//! target.
//!
//! Owns that what is wished for is asked for again whenever it is lost (another session, another
//! relay, a relay that was started again), and who is connected. Rules say how visitors are
//! carried; a target that is the relay itself is none, for it would lead everybody round for ever.

mod asking;
mod shown;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Destination, Duration, Host, Protocol};
use tabane_linux::DirectoryWatch;
use tabane_linux::threads::{aside, lookup_host};
use tabane_policy::FlowFacts;
use tabane_store::{EXPOSURES_FILE_NAME, ExposureEntry, Store, wall_clock::unix_seconds};
use tabane_tunnel::{
    Client, Exposure, ExposureEvent, HostName, Label, OpenError, PortClaim, Status, Visitor,
    proxy_header,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::plain::{self, PlainWay};
use crate::rule_book::{RuleBook, SplitTunnel};
use crate::sources::Sources;

pub use asking::ExposureState;
pub(crate) use asking::keep_asking;

/// How long a target may take; programs themselves wait longer, and the relay twice as long.
pub(crate) const TARGET_WAIT: Duration = Duration::from_secs(15);
/// Visitors of one exposure at once; one more is refused.
pub(crate) const MAX_VISITORS: usize = 2_048;
/// A datagram's most bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// What of the relay leads here. Copies are the same.
#[derive(Clone, Default)]
pub struct Exposures(Rc<RefCell<Vec<Exposed>>>, Rc<Sources>);

struct Exposed {
    entry: ExposureEntry,
    wish: Rc<Wish>,
    task: AbortHandle,
}

/// One wish, as its task and those who look at it see it.
struct Wish {
    entry: ExposureEntry,
    state: watch::Sender<ExposureState>,
    visitors: RefCell<Visitors>,
    /// For targets that see where visitors come from.
    sources: Rc<Sources>,
}

#[derive(Default)]
struct Visitors {
    present: BTreeMap<u64, VisitorReport>,
    so_far: u64,
    /// Those of them for whom the target was not there.
    in_vain: u64,
    next: u64,
    /// Another client has asked for the same.
    is_also_wanted: bool,
}

/// Somebody who is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitorReport {
    /// Where it comes from.
    pub from: SocketAddr,
    /// The relay's port.
    pub port: u16,
    /// Seconds since 1970.
    pub since: u64,
}

/// An exposure at one moment.
#[derive(Clone, Debug)]
pub struct ExposureReport {
    /// What is exposed.
    pub entry: ExposureEntry,
    /// Where it stands.
    pub state: ExposureState,
    /// Who is connected.
    pub visitors: Vec<VisitorReport>,
    /// Who was, those included.
    pub so_far: u64,
    /// Those of them for whom the target was not there.
    pub in_vain: u64,
    /// Another client of the relay has asked for the same, in vain.
    pub is_also_wanted: bool,
    /// Why visitors are not led to the target in their names, and what to do.
    pub problem: Option<String>,
}

/// Counts a visitor while it is here.
struct Presence(Rc<Wish>, u64);

impl Exposures {
    /// Has the relay lead visitors to these, and to nothing else, from now on. What is wished for
    /// already goes on.
    pub fn set(&self, relay: &Client, rules: &RuleBook, wanted: &[ExposureEntry]) {
        let mut exposed = self.0.borrow_mut();
        exposed.retain(|it| {
            let is_wanted = wanted.contains(&it.entry);
            if !is_wanted {
                it.task.abort();
            }
            is_wanted
        });
        for entry in wanted {
            if exposed.iter().any(|it| it.entry == *entry) {
                continue;
            }
            let wish = Rc::new(Wish {
                entry: entry.clone(),
                state: watch::Sender::new(ExposureState::Asked),
                visitors: RefCell::default(),
                sources: self.1.clone(),
            });
            let following = wish.clone().follow(relay.clone(), rules.clone());
            exposed.push(Exposed {
                entry: entry.clone(),
                wish,
                task: tokio::task::spawn_local(following).abort_handle(),
            });
        }
    }

    /// Has it be what the store keeps, now and whenever that changes. Returns where changes cannot
    /// be noticed.
    pub async fn follow_store(&self, relay: &Client, rules: &RuleBook, store: &Store) {
        let watch = DirectoryWatch::start(store.root());
        loop {
            let reading = store.clone();
            match aside(move || reading.exposures()).await {
                Ok(Ok(entries)) => self.set(relay, rules, &entries),
                // What was wished for before goes on.
                Ok(Err(error)) => tracing::error!("exposures stay as they were: {error:#}"),
                Err(error) => tracing::error!(%error, "exposures stay as they were"),
            }
            let changed = async { watch.as_ref().ok()?.changed(EXPOSURES_FILE_NAME).await.ok() };
            if changed.await.is_none() {
                tracing::warn!("what is exposed from now on shows after a restart");
                return;
            }
        }
    }

    /// What there is to know of each.
    #[must_use]
    pub fn report(&self) -> Vec<ExposureReport> {
        let exposed = self.0.borrow();
        exposed.iter().map(|it| it.wish.report()).collect()
    }

    /// How each stands, now and later.
    fn states(&self) -> Vec<watch::Receiver<ExposureState>> {
        let exposed = self.0.borrow();
        exposed.iter().map(|it| it.wish.state.subscribe()).collect()
    }

    /// Waits until none of them waits for the relay's first word.
    pub async fn answered(&self) {
        for mut state in self.states() {
            let _ = state.wait_for(|it| *it != ExposureState::Asked).await;
        }
    }

    /// Waits until the relay has refused one of them, and says why; for ever where it has not.
    pub async fn refused(&self) -> String {
        let mut waiting = tokio::task::JoinSet::new();
        for mut state in self.states() {
            waiting.spawn_local(async move {
                let refused = |it: &ExposureState| matches!(it, ExposureState::Refused(_));
                let found = state.wait_for(refused).await.ok().map(|it| it.clone());
                match found {
                    Some(ExposureState::Refused(why)) => why,
                    Some(_) | None => std::future::pending().await,
                }
            });
        }
        match waiting.join_next().await {
            Some(Ok(why)) => why,
            Some(Err(_)) | None => std::future::pending().await,
        }
    }

    /// Gives all of it up.
    pub(crate) fn stop(&self) {
        self.0.borrow_mut().drain(..).for_each(|it| it.task.abort());
    }
}

impl Wish {
    async fn follow(self: Rc<Self>, relay: Client, rules: RuleBook) {
        let reached = |it| relay.until_reachable(it);
        let ask = || self.ask(&relay, &rules);
        let serve = |exposure| {
            self.visitors.borrow_mut().is_also_wanted = false;
            self.clone().serve(exposure, &relay, &rules)
        };
        keep_asking(reached, &self.state, ask, |status| self.why(status), serve).await;
    }

    async fn ask(&self, relay: &Client, rules: &RuleBook) -> Result<Exposure, OpenError> {
        let entry = &self.entry;
        if self.leads_back(&entry.target, relay) {
            return Err(OpenError::Refused(Status::Unreachable));
        }
        let claim = PortClaim {
            protocol: entry.protocol,
            ports: entry.ports,
        };
        let name = entry.host.as_deref().map(HostName::new);
        let Ok(name) = name.transpose() else {
            return Err(OpenError::Refused(Status::Malformed));
        };
        // What comes begins in its class.
        let label = label(rules, self.facts(None, entry.ports.first()));
        relay.labelled(label).expose(claim, name).await
    }

    /// Whether visitors would be led to the relay, which leads them here.
    fn leads_back(&self, target: &Destination, relay: &Client) -> bool {
        let is_relay = |ip: IpAddr| {
            let ip = ip.to_canonical();
            let mut addrs = relay.relay_addrs().into_iter().flatten();
            addrs.any(|addr| addr.ip().to_canonical() == ip)
        };
        match target.host {
            Host::Ip(ip) => is_relay(ip),
            // Once it was looked up.
            Host::Name(_) => false,
        }
    }

    /// What rules may ask for of visitors.
    fn facts(&self, from: Option<SocketAddr>, port: u16) -> FlowFacts {
        FlowFacts {
            domains: self.entry.host.iter().cloned().collect(),
            address: from.map(|from| from.ip()),
            port,
            protocol: self.entry.protocol,
            inbound: true,
            ..FlowFacts::default()
        }
    }

    /// Why it is not to be had, and what to do, for whoever wants it.
    fn why(&self, status: Status) -> String {
        let place = self.entry.place();
        let (flag, what) = match &self.entry.host {
            Some(host) => (format!("--host {host}"), format!("{host} at {place}")),
            None => (format!("--port {}", self.entry.ports), place),
        };
        match status {
            Status::Denied => format!(
                "{what}: the relay's owner has not granted it; `tabane relay user set NAME {flag}` \
                 there does, for the user whose client this is"
            ),
            Status::PortTaken => format!(
                "{what}: another client of the relay has it; choose another port, or ask its owner"
            ),
            Status::PortUnavailable => format!(
                "{what}: the relay cannot listen there: something else on its host does, or ports \
                 below 1024 are not allowed to it"
            ),
            Status::Malformed => {
                format!("{what}: the relay is older than `tabane expose`: update tabane there")
            }
            Status::Limit => format!("{what}: the relay leads as many ports as it may already"),
            Status::Unreachable => format!(
                "{what}: {} is the relay itself, which would lead every visitor round for ever; \
                 name the server's own address",
                self.entry.target.host
            ),
            status => format!("{what}: {status}"),
        }
    }

    /// Leads whoever comes to the target, until nobody is led here any more.
    async fn serve(self: Rc<Self>, mut exposure: Exposure, relay: &Client, rules: &RuleBook) {
        loop {
            match exposure.next().await {
                ExposureEvent::Visitor(visitor) => {
                    let facts = self.facts(Some(visitor.from), visitor.at.port());
                    let visitor = visitor.labelled(label(rules, facts));
                    match self.admit(&visitor) {
                        Some(presence) => {
                            let relay = relay.clone();
                            tokio::task::spawn_local(presence.lead(visitor, relay));
                        }
                        None => drop(tokio::task::spawn_local(visitor.refuse(Status::Limit))),
                    }
                }
                ExposureEvent::AlsoWanted => {
                    let before = &mut self.visitors.borrow_mut().is_also_wanted;
                    if !std::mem::replace(before, true) {
                        let place = self.entry.place();
                        tracing::warn!("{place}: another client of the relay has asked for it too");
                    }
                }
                ExposureEvent::Over => return,
            }
        }
    }

    fn admit(self: &Rc<Self>, visitor: &Visitor) -> Option<Presence> {
        let mut visitors = self.visitors.borrow_mut();
        visitors.so_far += 1;
        if visitors.present.len() >= MAX_VISITORS {
            visitors.in_vain += 1;
            return None;
        }
        let number = visitors.next;
        visitors.next += 1;
        let report = VisitorReport {
            from: visitor.from,
            port: visitor.at.port(),
            since: unix_seconds(),
        };
        visitors.present.insert(number, report);
        Some(Presence(self.clone(), number))
    }

    fn report(&self) -> ExposureReport {
        let visitors = self.visitors.borrow();
        ExposureReport {
            entry: self.entry.clone(),
            state: self.state.borrow().clone(),
            visitors: visitors.present.values().copied().collect(),
            so_far: visitors.so_far,
            in_vain: visitors.in_vain,
            is_also_wanted: visitors.is_also_wanted,
            problem: self
                .sources
                .visitors_problem()
                .filter(|_| self.entry.transparent),
        }
    }

    /// Where the target is, the addresses of a name in their order.
    async fn addresses(&self, port: u16, relay: &Client) -> Result<Vec<SocketAddr>, Status> {
        let target = self.entry.target_of(port);
        let found = match target.host {
            Host::Ip(ip) => return Ok(vec![SocketAddr::new(ip, target.port)]),
            Host::Name(name) => lookup_host((&name, target.port)).await,
        };
        let found = found.map_err(|_| Status::NameNotFound)?.filter(|address| {
            let target = Destination::from(*address);
            !self.leads_back(&target, relay)
        });
        match found.collect::<Vec<_>>() {
            found if found.is_empty() => Err(Status::Unreachable),
            found => Ok(found),
        }
    }

    /// Those of the target's addresses that a visitor may be led to: in its own name, those of its
    /// family, where there are some.
    fn fitting(&self, mut addresses: Vec<SocketAddr>, from: SocketAddr) -> Vec<SocketAddr> {
        let family = |it: &SocketAddr| it.ip().to_canonical().is_ipv4();
        let fits = |it: &SocketAddr| family(it) == family(&from);
        if self.entry.transparent && addresses.iter().any(fits) {
            addresses.retain(fits);
        }
        addresses
    }

    async fn connect(
        &self,
        from: SocketAddr,
        port: u16,
        relay: &Client,
    ) -> Result<TcpStream, Status> {
        let mut failure = Status::Unreachable;
        for address in self.fitting(self.addresses(port, relay).await?, from) {
            let connected = match self.entry.transparent {
                true => self.sources.connect_for_visitor(address, from).await,
                false => plain::connect_tcp(address, &PlainWay::Routed).await,
            };
            match connected {
                Ok(tcp) => return Ok(tcp),
                Err(error) => failure = status_of(&error),
            }
        }
        Err(failure)
    }

    async fn bind(&self, from: SocketAddr, port: u16, relay: &Client) -> Result<UdpSocket, Status> {
        let addresses = self.fitting(self.addresses(port, relay).await?, from);
        let first = addresses.first().ok_or(Status::Unreachable)?;
        let bound = match self.entry.transparent {
            true => self.sources.bind_for_visitor(*first, from).await,
            false => plain::connect_udp(*first, &PlainWay::Routed).await,
        };
        bound.map_err(|error| status_of(&error))
    }
}

impl Presence {
    async fn lead(self, visitor: Visitor, relay: Client) {
        let (from, port) = (visitor.from, visitor.at.port());
        let led = match self.0.entry.protocol {
            Protocol::Tcp => self.lead_connection(visitor, &relay).await,
            Protocol::Udp => self.lead_datagrams(visitor, &relay).await,
        };
        if let Err(status) = led {
            // Whoever likes may have this said as often as it likes.
            tracing::debug!(%from, port, "nobody is there for a visitor: {status}");
            self.0.visitors.borrow_mut().in_vain += 1;
        }
    }

    async fn lead_connection(&self, visitor: Visitor, relay: &Client) -> Result<(), Status> {
        let (from, at) = (visitor.from, visitor.at);
        let connected = tokio::select! {
            connected = timeout(TARGET_WAIT, self.0.connect(from, at.port(), relay)) => connected,
            () = visitor.gone() => return Ok(()),
        };
        let mut tcp = match connected.unwrap_or(Err(Status::TimedOut)) {
            Ok(tcp) => tcp,
            Err(status) => {
                visitor.refuse(status).await;
                return Err(status);
            }
        };
        if self.0.entry.proxy_protocol {
            // Before anything of the visitor's, which may say anything of itself. What fails shows
            // when carrying.
            let _ = tcp.write_all(&proxy_header(from, at)).await;
        }
        if let Ok(flow) = visitor.connected().await {
            let carried = flow.carry(tcp).await;
            tracing::debug!(%from, %at, ?carried, "visitor gone");
        }
        Ok(())
    }

    async fn lead_datagrams(&self, visitor: Visitor, relay: &Client) -> Result<(), Status> {
        let (from, port) = (visitor.from, visitor.at.port());
        let flow = visitor.datagrams();
        let socket = self.0.bind(from, port, relay).await?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                received = flow.recv() => match received {
                    // What the target's host has said of an earlier one is no reason to end.
                    Ok(datagram) => {
                        let _ = socket.send(&datagram).await;
                    }
                    Err(_) => return Ok(()),
                },
                answered = socket.recv(&mut buffer) => if let Ok(len) = answered {
                    // What is too large for the tunnel is lost, as beyond any MTU.
                    let _ = flow.send(&buffer[..len]);
                },
            }
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.visitors.borrow_mut().present.remove(&self.1);
    }
}

pub(crate) fn label(rules: &RuleBook, facts: FlowFacts) -> Option<Label> {
    match rules.admit(facts) {
        SplitTunnel::Carried(label, _) => Some(label),
        SplitTunnel::Direct => None,
    }
}

pub(crate) fn status_of(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Status::Refused,
        io::ErrorKind::TimedOut => Status::TimedOut,
        io::ErrorKind::HostUnreachable => Status::HostUnreachable,
        _ => Status::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_is_led_in_its_name_to_an_address_of_its_family() {
        let both: Vec<SocketAddr> = ["[2001:db8::5]:80", "192.0.2.5:80"]
            .map(|it| it.parse().unwrap())
            .into();
        let mut wish = wish("tcp:80=server.example", None);
        let fitting = |wish: &Wish, from: &str| wish.fitting(both.clone(), from.parse().unwrap());
        assert_eq!(fitting(&wish, "203.0.113.9:1"), both);
        wish.entry = wish.entry.made_transparent(true).unwrap();
        assert_eq!(fitting(&wish, "203.0.113.9:1"), both[1..]);
        assert_eq!(fitting(&wish, "[::ffff:203.0.113.9]:1"), both[1..]);
        assert_eq!(fitting(&wish, "[2001:db8::9]:1"), both[..1]);
        // It is told what there is to do.
        let from = "[2001:db8::9]:1".parse().unwrap();
        assert_eq!(wish.fitting(both[1..].to_vec(), from), both[1..]);
    }

    fn wish(text: &str, host: Option<&str>) -> Wish {
        let entry: ExposureEntry = text.parse().unwrap();
        Wish {
            entry: entry.refined(host.map(str::to_owned), false).unwrap(),
            state: watch::Sender::new(ExposureState::Asked),
            visitors: RefCell::default(),
            sources: Rc::default(),
        }
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let whole = wish("8000-8100=192.168.1.5", None);
        let named = wish("443", Some("www.example.org"));
        for (wish, status, word) in [
            (&whole, Status::Denied, "user set NAME --port 8000-8100"),
            (
                &named,
                Status::Denied,
                "user set NAME --host www.example.org",
            ),
            (&whole, Status::PortTaken, "choose another port"),
            (
                &named,
                Status::PortUnavailable,
                "something else on its host",
            ),
            (&whole, Status::Malformed, "update tabane there"),
            (&whole, Status::Limit, "as many ports"),
            (
                &whole,
                Status::Unreachable,
                "192.168.1.5 is the relay itself",
            ),
        ] {
            let why = wish.why(status);
            assert!(why.contains(word) && !why.contains('\n'), "{why}");
        }
        assert!(
            named
                .why(Status::PortTaken)
                .starts_with("www.example.org at tcp:443:")
        );
    }

    #[test]
    fn what_visitors_are_for_rules() {
        let named = wish("443", Some("www.example.org"));
        let facts = named.facts(Some("192.0.2.1:50000".parse().unwrap()), 443);
        assert!(facts.inbound && facts.port == 443);
        assert_eq!(facts.domains, ["www.example.org"]);
        assert_eq!(facts.address, Some("192.0.2.1".parse().unwrap()));
    }
}
