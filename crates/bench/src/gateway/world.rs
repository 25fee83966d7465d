//! A mobile host, a router with the gateway on it, and the server behind.
//!
//! ```text
//!  mobile ── radio: the lab's link ── router ── wire ── origin 10.79.0.2
//!  (lab's client)                     (lab's server)    (ours)
//! ```

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tabane_lab::{Lab, LabOptions, host_name};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use super::super::process::{Running, ip};
use super::{Mode, Sender};

/// The router's interface towards the mobile host.
pub(super) const RADIO: &str = "link1";
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const ORIGIN: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
/// Where the origin listens.
pub(super) const SERVICE: SocketAddrV4 = SocketAddrV4::new(ORIGIN, 8_080);
/// How long the gateway may take to be in place.
const START_WITHIN: Duration = Duration::from_secs(20);
const START_STEP: Duration = Duration::from_millis(50);
/// What a host lacks that cannot undo a spurious timeout.
const BARE: [&str; 6] = [
    "tcp_frto",
    "tcp_timestamps",
    "tcp_sack",
    "tcp_dsack",
    "tcp_early_retrans",
    "tcp_recovery",
];
/// As the lab sets its own hosts.
const LIKE_THE_LAB: [(&str, &str); 3] = [
    ("tcp_rmem", "4096 131072 16777216"),
    ("tcp_wmem", "4096 16384 16777216"),
    ("tcp_no_metrics_save", "1"),
];

/// The three hosts, and the gateway where there is one. All gone when dropped.
#[derive(Debug)]
pub(super) struct World {
    // The gateway ends before its host does.
    gateway: Option<Running>,
    binary: String,
    origin: Origin,
    lab: Lab,
}

#[derive(Debug)]
struct Origin(Netns);

impl Drop for Origin {
    fn drop(&mut self) {
        // Its cable goes with it.
        let _ = Netns::remove(self.0.name());
        let _ = std::fs::remove_dir_all(self.runtime());
    }
}

impl Origin {
    /// Where the gateway has its socket: the interface has the same name in all worlds.
    fn runtime(&self) -> PathBuf {
        std::env::temp_dir().join(self.0.name())
    }
}

impl World {
    pub(super) fn up(scenario: &Scenario, sender: Sender, congestion: &str) -> Result<Self> {
        let lab = Lab::up(scenario, &LabOptions::default())?;
        let origin = Origin(Netns::create(&host_name("origin"))?);
        let world = Self {
            gateway: None,
            binary: String::new(),
            origin,
            lab,
        };
        world.connect()?;
        for (key, value) in LIKE_THE_LAB {
            set(world.origin(), key, value)?;
        }
        if sender == Sender::Bare {
            for host in [world.origin(), world.mobile()] {
                BARE.iter().try_for_each(|key| set(host, key, "0"))?;
            }
        }
        set(world.origin(), "tcp_congestion_control", congestion)
            .with_context(|| format!("the kernel has no TCP {congestion}"))?;
        Ok(world)
    }

    fn connect(&self) -> Result<()> {
        let (router, origin) = (self.router().name(), self.origin().name());
        for command in [
            format!("-n {router} link add s0 type veth peer name e0 netns {origin}"),
            format!("-n {router} addr add {ROUTER}/24 dev s0"),
            format!("-n {router} link set s0 up"),
            format!("-n {origin} addr add {ORIGIN}/24 dev e0"),
            format!("-n {origin} link set e0 up"),
            format!("-n {origin} link set lo up"),
            format!("-n {origin} route add default via {ROUTER}"),
        ] {
            ip(&command)?;
        }
        set(self.router(), "ip_forward", "1")
    }

    /// Puts the gateway in place.
    pub(super) fn start(&mut self, binary: &Path, mode: Mode, flags: &[&str]) -> Result<()> {
        let Some(word) = mode.word() else {
            return Ok(());
        };
        self.binary = binary.to_string_lossy().into_owned();
        let mut command = self.tabane();
        command.args(["gateway", "--radio", RADIO, "--mode", word, "--drain", "1s"]);
        command.args(flags);
        let gateway = Running::start("tabane gateway", &mut command)?;
        let deadline = Instant::now() + START_WITHIN;
        while self.report().is_err() {
            ensure!(Instant::now() < deadline, "the gateway does not start");
            std::thread::sleep(START_STEP);
        }
        self.gateway = Some(gateway);
        Ok(())
    }

    fn tabane(&self) -> Command {
        let mut command = self.router().command(&self.binary);
        command.env("TABANE_RUNTIME", self.origin.runtime());
        command
    }

    /// What the gateway says of itself.
    pub(super) fn report(&self) -> Result<Value> {
        let output = self
            .tabane()
            .args(["gateway", "status", "--json", "--radio", RADIO])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim());
        serde_json::from_slice(&output.stdout).context("the gateway's report")
    }

    /// The gateway's process, where there is one.
    pub(super) fn gateway(&self) -> Option<&Running> {
        self.gateway.as_ref()
    }

    pub(super) fn mobile(&self) -> &Netns {
        self.lab.client()
    }

    pub(super) fn router(&self) -> &Netns {
        self.lab.server()
    }

    pub(super) fn origin(&self) -> &Netns {
        &self.origin.0
    }

    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }
}

fn set(host: &Netns, key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/ipv4/{key}");
    let written = host.run(|| std::fs::write(&path, value))?;
    written.context(path)
}
