//! What is done with captured traffic: through the session, to the relay's resolver, or plainly.
//!
//! Owns that choice for each connection and flow, and the loops that take them from the capture
//! sockets. What the session cannot serve goes the way it would have gone without us, by links that
//! the policy allows: no program gets an error from us that a bare machine would not give. While no
//! link leads to the relay, one command waits; the whole machine does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Once;

use crate::proxy::Refusal;
use tabane_base::Duration;
use tabane_linux::{
    caller::Caller,
    capture::{CaptureListener, CaptureSender, CaptureUdp, CapturedFlow},
    hooks::{self, FlowTable, Original},
    syn_hold::SynRefusal,
};
use tabane_policy::{FlowFacts, OnFailure, Protocol, Sender};
use tabane_tunnel::{Silence, Target, system_resolvers};

use crate::associations::{Answer, Associations, Beginning, Deliver, Stranger};
use crate::far_ends::FarEnds;
use crate::near_names::{DNS_PORT, asks_for_near};
use crate::open_connections::OpenConnections;
use crate::opening::{connect_plainly, open};
use crate::questions;
use crate::route::Route;
use crate::rule_book::RuleBook;
use crate::sites::{SiteQuestion, failure};

/// Addresses that a socket hears of without having asked, which are remembered.
const MAX_STRANGERS: usize = 256;
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Carries captured traffic. Copies do the same.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    far_ends: FarEnds,
    connections: OpenConnections,
    /// The resolvers of this host: a question to them is one to the relay's.
    resolvers: Rc<RefCell<Vec<IpAddr>>>,
    /// Of the one link that everything goes by, if it does.
    link_resolvers: Rc<[SocketAddr]>,
    rules: RuleBook,
    silence: Silence,
    /// What becomes without the relay of what no rule says so of.
    on_failure: Option<OnFailure>,
}

impl Dispatcher {
    /// For one command, which asked for the session: a silent one is waited for.
    pub(crate) fn for_command(
        far_ends: FarEnds,
        connections: OpenConnections,
        rules: RuleBook,
    ) -> Self {
        Self {
            link_resolvers: far_ends.link_resolvers().into(),
            far_ends,
            connections,
            resolvers: Rc::new(RefCell::new(resolver_addresses())),
            rules,
            silence: Silence::Waits,
            on_failure: None,
        }
    }

    /// For the whole machine, where nobody asked the programs. Where it is `strict`, what no rule
    /// sends elsewhere waits for the relay.
    pub(crate) fn for_machine(far_ends: FarEnds, rules: RuleBook, strict: bool) -> Self {
        Self {
            silence: Silence::GivesBack,
            on_failure: strict.then_some(OnFailure::Wait),
            ..Self::for_command(far_ends, OpenConnections::default(), rules)
        }
    }

    /// The resolvers of this host may have changed: these are they.
    pub(crate) fn renew_resolvers(&self, resolvers: Vec<IpAddr>) {
        *self.resolvers.borrow_mut() = resolvers;
    }

    /// The flows of one entrance.
    pub(crate) fn associations<K, S>(&self) -> Associations<K, S>
    where
        K: Ord + Clone + 'static,
        S: Ord + Clone + 'static,
    {
        Associations::new(self.far_ends.clone())
    }

    /// The way of a flow that a program began. A resolver of this host, or of the network a link
    /// is in, is often unreachable from the relay, and knows the way from here instead of from
    /// there.
    pub(crate) fn route(&self, original: Original) -> Route {
        let flow = self.describe(original);
        let mut route = self.route_of(original.dest, flow);
        if original.captured_dns {
            route.target = Target::Resolver;
            self.ask_link(original.dest, &mut route);
        }
        // The relay's own name is looked up while the relay does not answer.
        route.stays_here |= original.pid == Some(std::process::id());
        route
    }

    /// The resolver of another site that a datagram asks.
    pub(crate) fn site_question(&self, dest: SocketAddr, payload: &[u8]) -> Option<SiteQuestion> {
        let asks = dest.port() == DNS_PORT;
        let sites = self.far_ends.sites();
        asks.then(|| sites.question(payload)).flatten()
    }

    /// The way of a flow that begins with `payload`: questions for names that only the resolvers
    /// near here know stay here, and those for another site's names go there and nowhere else.
    pub(crate) fn route_datagram(
        &self,
        original: Original,
        question: Option<SiteQuestion>,
        payload: &[u8],
    ) -> Route {
        let mut route = self.route(original);
        if let Some(question) = question {
            return route.led_to(question.resolver);
        }
        route.stays_here |= route.target == Target::Resolver && asks_for_near(payload);
        route
    }

    /// The way to `dest` of what a host behind this machine begins.
    pub(crate) fn route_from(&self, sender: Sender, dest: SocketAddr, protocol: Protocol) -> Route {
        let flow = FlowFacts {
            address: Some(dest.ip()),
            port: dest.port(),
            protocol,
            sender: Some(sender),
            ..FlowFacts::default()
        };
        let route = self.route_of(dest, flow);
        let hosts = self.far_ends.lan_hosts();
        hosts.on_begin(sender, route.label.as_ref());
        route
    }

    /// What rules may ask for of a captured flow.
    fn describe(&self, original: Original) -> FlowFacts {
        let pid = original.pid.filter(|_| self.rules.asks_for_process());
        FlowFacts {
            domains: Vec::new(),
            address: Some(original.dest.ip()),
            port: original.dest.port(),
            protocol: match original.protocol {
                hooks::Protocol::Tcp => Protocol::Tcp,
                hooks::Protocol::Udp => Protocol::Udp,
            },
            process: pid.and_then(program_name),
            dscp: original.dscp,
            sender: None,
            inbound: false,
        }
    }

    /// The way to `dest` as the rules have it.
    fn route_of(&self, dest: SocketAddr, flow: FlowFacts) -> Route {
        let is_resolver = dest.port() == DNS_PORT && self.resolvers.borrow().contains(&dest.ip());
        let target = if is_resolver {
            Target::Resolver
        } else {
            Target::Address(dest)
        };
        let mut route = Route {
            plain: Some(dest),
            silence: self.silence,
            ..target.into()
        };
        if is_resolver {
            self.ask_link(dest, &mut route);
        }
        route.ruled(self.rules.admit(flow), self.on_failure)
    }

    /// What goes plainly to a resolver of this host goes to the link's own, where one was chosen:
    /// programs that ask the next one ask its next one.
    fn ask_link(&self, dest: SocketAddr, route: &mut Route) {
        let own = self.resolvers.borrow();
        let place = own.iter().position(|ip| *ip == dest.ip()).unwrap_or(0);
        let count = self.link_resolvers.len().max(1);
        if let Some(resolver) = self.link_resolvers.get(place % count) {
            route.plain = Some(*resolver);
        }
    }

    /// Answers to the questions of this flow tell the names of addresses.
    pub(crate) fn listen(
        &self,
        dest: SocketAddr,
        question: Option<SiteQuestion>,
        payload: &[u8],
        deliver: Deliver,
    ) -> Deliver {
        if question.is_some() {
            return self.listen_to_site(payload, deliver);
        }
        if dest.port() != DNS_PORT {
            return deliver;
        }
        let rules = self.rules.clone();
        Box::new(move |answer| {
            if let Answer::Datagram(payload) = answer {
                rules.see_answer(payload);
            }
            deliver(answer);
        })
    }

    /// The same for a question to another site: what is told there of other names than its own is
    /// not heeded, and where nobody can be asked the program hears that at once.
    fn listen_to_site(&self, payload: &[u8], deliver: Deliver) -> Deliver {
        let (rules, sites) = (self.rules.clone(), self.far_ends.sites().clone());
        let (asked, failure) = (sites.question(payload), failure(payload));
        Box::new(move |answer| match (answer, &failure) {
            (Answer::Refused, Some(failure)) => deliver(Answer::Datagram(failure)),
            (Answer::Refused, None) => deliver(answer),
            (Answer::Datagram(payload), _) => {
                let told = sites.question(payload);
                if told.map(|it| it.resolver) == asked.map(|it| it.resolver) {
                    rules.see_answer(payload);
                }
                deliver(answer);
            }
        })
    }

    /// Takes connections for ever.
    pub(crate) async fn serve_tcp(self, listener: CaptureListener, flows: FlowTable) {
        loop {
            match listener.accept(&flows).await {
                Ok(call) => {
                    let route = self.route(call.original);
                    self.carry(call.caller, route);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a captured connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Carries one connection, in a task of its own.
    pub(crate) fn carry(&self, caller: Caller, route: Route) {
        let (far_ends, connections) = (self.far_ends.clone(), self.connections.clone());
        tokio::task::spawn_local(async move {
            let asks = route.plain.is_some_and(|dest| dest.port() == DNS_PORT);
            match asks && far_ends.sites().have_names() {
                true => questions::serve(&far_ends, &connections, caller, route).await,
                false => serve(&far_ends, &connections, caller, &route).await,
            }
        });
    }

    /// Takes datagrams for ever.
    pub(crate) async fn serve_udp(self, mut capture: CaptureUdp, flows: FlowTable) {
        let sender = capture.sender();
        let associations = self.associations();
        loop {
            let received = capture.recv(&flows, |datagram| {
                let payload = &*datagram.payload;
                let question = self.site_question(datagram.original.dest, payload);
                associations.send(&(datagram.flow, question), payload, || {
                    let (original, flow) = (datagram.original, datagram.flow);
                    let deliver = deliver(sender.clone(), flow);
                    let is_shared = !original.is_connected;
                    let stranger = || stranger(sender.clone(), flows.clone(), flow);
                    Beginning {
                        route: self.route_datagram(original, question, payload),
                        deliver: self.listen(original.dest, question, payload, deliver),
                        socket: is_shared.then(|| (flow.socket, stranger())),
                        holder: None,
                    }
                });
            });
            if let Err(error) = received.await {
                tracing::warn!(%error, "cannot receive captured datagrams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Takes what comes for a captured flow to the program.
fn deliver(sender: CaptureSender, flow: CapturedFlow) -> Deliver {
    Box::new(move |answer| {
        // Lost like any datagram where the program's socket is full.
        let _ = match answer {
            Answer::Datagram(payload) => sender.try_send(flow, payload, None),
            Answer::Refused => sender.refuse(flow),
        };
    })
}

/// Takes to the socket of `flow` what comes from elsewhere.
fn stranger(sender: CaptureSender, flows: FlowTable, flow: CapturedFlow) -> Stranger {
    let known = RefCell::new(BTreeMap::new());
    Box::new(move |from, payload| {
        let mut known = known.borrow_mut();
        if known.len() >= MAX_STRANGERS {
            known.clear();
        }
        let flow = known
            .entry(from)
            .or_insert_with(|| sender.stranger(&flows, flow, from));
        if let Some(flow) = flow {
            let _ = sender.try_send(*flow, payload, None);
        }
    })
}

/// Opens the far half first: until then the program waits in `connect()`.
async fn serve(
    far_ends: &FarEnds,
    connections: &OpenConnections,
    mut caller: Caller,
    route: &Route,
) {
    let opened = tokio::select! {
        opened = open(far_ends, route, connect_plainly(far_ends, route)) => opened,
        () = caller.gone() => return,
    };
    match opened {
        Ok(far) => {
            if let Some(program) = caller.accept().await {
                // Not before: who has given up is not waited for.
                let connection = connections.begin();
                far.carry(program, Vec::new(), &route.target).await;
                drop(connection);
            }
        }
        Err(Refusal::Refused) => caller.refuse(SynRefusal::Refused),
        // The program's own patience ends it; until then each repetition asks again.
        Err(Refusal::TimedOut) => drop(caller),
        Err(Refusal::HostUnreachable) => caller.refuse(SynRefusal::HostUnreachable),
        Err(
            Refusal::NetworkUnreachable
            | Refusal::NameNotFound
            | Refusal::Denied
            | Refusal::Unsupported,
        ) => caller.refuse(SynRefusal::NetworkUnreachable),
    }
}

/// The name of the file that a process runs; that it may not be read is said once.
fn program_name(pid: u32) -> Option<String> {
    static SAID: Once = Once::new();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
    if matches!(&exe, Err(error) if error.kind() == io::ErrorKind::PermissionDenied) {
        SAID.call_once(|| {
            tracing::warn!(
                "rules that ask for the process fit none of others' programs: telling them takes \
                 CAP_SYS_PTRACE, which the unit of `tabane service install up` has"
            );
        });
    }
    let exe = exe.ok()?;
    let name = exe.file_name()?.to_string_lossy().into_owned();
    // What was replaced while it runs is marked so.
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// The resolvers of this host.
pub(crate) fn resolver_addresses() -> Vec<IpAddr> {
    system_resolvers().iter().map(SocketAddr::ip).collect()
}
