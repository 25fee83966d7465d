//! A running lab.

use std::process::Command;

use nix::unistd::geteuid;
use tabane_base::Seed;
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use crate::control::{Control, Snapshot};
use crate::emulator::Emulator;
use crate::error::LabError;
use crate::keeper::{Keeper, fresh_names, remove_stale};
use crate::topology::{self, Hosts, LabLink, feed};

/// The most subflows the kernel's multipath TCP takes on (`MPTCP_PM_ADDR_MAX`).
const SUBFLOWS_MAX: usize = 8;

/// What may differ between two labs of one scenario.
#[derive(Clone, Copy, Debug)]
pub struct LabOptions {
    /// Where loss and jitter come from.
    pub seed: Seed,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self { seed: Seed(1) }
    }
}

/// Two hosts, the links between them, and the emulator that plays the links. All of it is gone
/// when this value is dropped, and also when the process is killed.
#[derive(Debug)]
pub struct Lab {
    // Fields are dropped in this order: sockets first, then what they are bound to.
    /// None if all links are wires.
    emulator: Option<Emulator>,
    hosts: Hosts,
    links: Vec<LabLink>,
    scenario: Scenario,
    _keeper: Keeper,
}

impl Lab {
    /// Builds the network of `scenario`. Its schedule starts at once, and anew with
    /// [`restart_schedule`](Self::restart_schedule).
    ///
    /// # Errors
    /// No privilege, no `ip`, or a kernel that lacks something; nothing is left behind.
    pub fn up(scenario: &Scenario, options: &LabOptions) -> Result<Self, LabError> {
        if !geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        remove_stale();
        topology::prepare_host();
        let names = fresh_names();
        let keeper = Keeper::watch(&names)?;
        let [client, emulator, server] = &names;
        let hosts = Hosts {
            client: Netns::create(client)?,
            emulator: Netns::create(emulator)?,
            server: Netns::create(server)?,
        };
        topology::build(&hosts, scenario)?;
        let all_wires = scenario.links.iter().all(tabane_netem::LinkSpec::is_wire);
        let emulator = if all_wires {
            None
        } else {
            Some(Emulator::start(&hosts.emulator, scenario, options.seed)?)
        };
        Ok(Self {
            emulator,
            links: topology::links(scenario),
            scenario: scenario.clone(),
            hosts,
            _keeper: keeper,
        })
    }

    /// The host that has one interface per link.
    #[must_use]
    pub fn client(&self) -> &Netns {
        &self.hosts.client
    }

    /// The host that is reached at [`SERVICE`](crate::SERVICE) over every link.
    #[must_use]
    pub fn server(&self) -> &Netns {
        &self.hosts.server
    }

    /// The links, in the order of the scenario.
    #[must_use]
    pub fn links(&self) -> &[LabLink] {
        &self.links
    }

    /// The handle on the emulator, to be kept by other threads too; none if all links are wires.
    #[must_use]
    pub fn control(&self) -> Option<&Control> {
        self.emulator.as_ref().map(Emulator::control)
    }

    /// All counters; empty if all links are wires.
    ///
    /// # Errors
    /// The emulator has ended.
    pub fn snapshot(&self) -> Result<Snapshot, LabError> {
        self.control()
            .map_or_else(|| Ok(Snapshot::default()), Control::snapshot)
    }

    /// Makes all packets of link `link` (from 0) vanish, or ends that; the carrier stays up. A
    /// wire cannot be cut this way.
    pub fn set_outage(&self, link: usize, out: bool) {
        if let Some(control) = self.control() {
            control.set_outage(link, out);
        }
    }

    /// Starts the scenario's changes, outages and traces anew at this moment.
    pub fn restart_schedule(&self) {
        if let Some(control) = self.control() {
            control.restart_schedule();
        }
    }

    /// Takes link `link` (from 0) down or up at the client, as one pulls a cable: addresses and
    /// routes of it go and come back.
    ///
    /// # Errors
    /// There is no such link, or `ip` refuses.
    pub fn set_carrier(&self, link: usize, up: bool) -> Result<(), LabError> {
        // At the far side of the client's cable: the client sees the carrier go.
        let (netns, interface) = match self.scenario.links.get(link) {
            Some(spec) if spec.is_wire() => (&self.hosts.server, format!("link{}", link + 1)),
            _ => (&self.hosts.emulator, topology::client_port(link)),
        };
        let state = if up { "up" } else { "down" };
        let mut ip = netns.command("ip");
        feed(ip.args(["link", "set", &interface, state]), "")
    }

    /// Sets multipath TCP up at both ends: a subflow over every link, 8 at most. Programs use it
    /// when started by `mptcpize run`.
    ///
    /// # Errors
    /// The kernel or `ip` lacks multipath TCP.
    pub fn enable_mptcp(&self) -> Result<(), LabError> {
        let limit = SUBFLOWS_MAX.to_string();
        for netns in [self.client(), self.server()] {
            feed(&mut mptcp(netns, &["endpoint", "flush"]), "")?;
            let limits = [
                "limits",
                "set",
                "subflow",
                &limit,
                "add_addr_accepted",
                &limit,
            ];
            feed(&mut mptcp(netns, &limits), "")?;
        }
        for link in self.links.iter().take(SUBFLOWS_MAX) {
            let address = link.client.to_string();
            let endpoint = [
                "endpoint",
                "add",
                &address,
                "dev",
                &link.interface,
                "subflow",
            ];
            feed(&mut mptcp(self.client(), &endpoint), "")?;
        }
        Ok(())
    }
}

fn mptcp(netns: &Netns, arguments: &[&str]) -> Command {
    let mut command = netns.command("ip");
    command.arg("mptcp").args(arguments);
    command
}
