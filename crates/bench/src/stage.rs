//! The lab with what measuring needs: rest between measurements, and what each link carried.

use std::net::Ipv4Addr;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tabane_base::Rate;
use tabane_lab::{Health, Lab, LabLink, LabOptions};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use super::process::ip;
use super::record::{Carried, EmulatorHealth};

/// The network is at rest when nothing has crossed it for so long: twice the longest round trip of
/// the scenarios, so that no answer is still on its way.
const REST: Duration = Duration::from_millis(600);

/// What a program may take to fall silent: the deepest queue of the scenarios, several times.
const REST_WITHIN: Duration = Duration::from_secs(20);

/// How often it is looked at.
const REST_STEP: Duration = Duration::from_millis(50);

/// Two hosts and the links between them.
#[derive(Debug)]
pub(super) struct Stage {
    lab: Lab,
    /// Links whose near end is at another host than the client.
    moved: Vec<(usize, Netns)>,
}

/// The counters at the beginning of a measurement.
#[derive(Debug)]
pub(super) struct Mark {
    link_bytes: Vec<u64>,
    health: Health,
}

impl Stage {
    pub(super) fn up(scenario: &Scenario) -> Result<Self> {
        let lab = Lab::up(scenario, &LabOptions::default())?;
        let moved = Vec::new();
        Ok(Self { lab, moved })
    }

    /// Lets multipath TCP use all links.
    pub(super) fn enable_mptcp(&self) -> Result<()> {
        Ok(self.lab.enable_mptcp()?)
    }

    pub(super) fn links(&self) -> &[LabLink] {
        self.lab.links()
    }

    pub(super) fn at_client(&self, program: &str) -> Command {
        self.lab.client().command(program)
    }

    pub(super) fn at_server(&self, program: &str) -> Command {
        self.lab.server().command(program)
    }

    /// The machine with the links.
    pub(super) fn client(&self) -> &Netns {
        self.lab.client()
    }

    /// The other end of them.
    pub(super) fn server(&self) -> &Netns {
        self.lab.server()
    }

    /// The server's own address, reached over every link.
    pub(super) fn service(&self) -> Ipv4Addr {
        tabane_lab::SERVICE
    }

    /// Gives the server an address of the internet's besides, which a neighbour lends the way to.
    pub(super) fn add_service(&self, address: Ipv4Addr) -> Result<()> {
        ip(&format!(
            "-n {} addr add {address}/32 dev lo",
            self.server().name()
        ))
    }

    /// Moves the near end of a link to another host, as a way of its to the server; the first that
    /// is moved there comes first.
    pub(super) fn move_link(&mut self, index: usize, to: &Netns) -> Result<()> {
        let (client, there) = (self.lab.client().name(), to.name());
        let LabLink {
            interface,
            client: own,
            server,
            ..
        } = &self.lab.links()[index];
        ip(&format!("-n {client} link set {interface} netns {there}"))?;
        ip(&format!("-n {there} addr add {own}/24 dev {interface}"))?;
        ip(&format!("-n {there} link set {interface} up"))?;
        ip(&format!(
            "-n {there} route add default via {server} metric {}",
            index + 1
        ))?;
        self.moved.push((index, to.clone()));
        Ok(())
    }

    /// What TCP connections made from now on use, at both ends.
    pub(super) fn set_congestion(&self, name: &str) -> Result<()> {
        for netns in [self.lab.client(), self.lab.server()] {
            let path = "/proc/sys/net/ipv4/tcp_congestion_control";
            let written = netns.run(|| std::fs::write(path, name))?;
            written.with_context(|| format!("the kernel has no TCP {name}"))?;
        }
        Ok(())
    }

    /// Lets a link swallow everything, while its carrier stays up, or ends that.
    pub(super) fn silence(&self, link: usize, is_silent: bool) {
        self.lab.set_outage(link, is_silent);
    }

    /// Changes a link's rate, both ways, in bits per second. A wire has none.
    pub(super) fn set_rate(&self, link: usize, bps: u64) {
        if let Some(control) = self.lab.control() {
            control.set_rate(link, None, Rate::from_bps(bps));
        }
    }

    /// Plugs a link in, or pulls it out.
    pub(super) fn plug(&self, link: usize, is_in: bool) -> Result<()> {
        Ok(self.lab.set_carrier(link, is_in)?)
    }

    /// Waits until the links are empty and nothing is sent.
    pub(super) fn rest(&self) -> Result<()> {
        let deadline = Instant::now() + REST_WITHIN;
        let mut seen = self.link_bytes()?;
        let mut since = Instant::now();
        while since.elapsed() < REST {
            ensure!(
                Instant::now() < deadline,
                "the links do not come to rest: something of the last measurement still sends"
            );
            sleep(REST_STEP);
            let now = self.link_bytes()?;
            if now != seen || !self.is_empty()? {
                seen = now;
                since = Instant::now();
            }
        }
        Ok(())
    }

    /// Starts the scenario's schedule anew.
    pub(super) fn begin(&self) -> Result<Mark> {
        self.lab.restart_schedule();
        Ok(Mark {
            link_bytes: self.link_bytes()?,
            health: self.lab.snapshot()?.health,
        })
    }

    /// What has happened since.
    pub(super) fn carried(&self, mark: &Mark) -> Result<Carried> {
        let health = self.lab.snapshot()?.health;
        let now = self.link_bytes()?;
        let since = |(now, before): (&u64, &u64)| now.saturating_sub(*before);
        Ok(Carried {
            link_bytes: now.iter().zip(&mark.link_bytes).map(since).collect(),
            emulator: EmulatorHealth {
                late: health.late,
                late_us_max: health.late_max.as_micros() as u64,
                receive_drops: health.receive_drops - mark.health.receive_drops,
                send_drops: health.send_drops - mark.health.send_drops,
            },
        })
    }

    fn is_empty(&self) -> Result<bool> {
        let links = self.lab.snapshot()?.links;
        let inside =
            |link: &tabane_lab::LinkSnapshot| link.up.inside.packets + link.down.inside.packets;
        Ok(links.iter().map(inside).sum::<u64>() == 0)
    }

    /// Bytes in both directions per link, as the near ends' interfaces count.
    fn link_bytes(&self) -> Result<Vec<u64>> {
        let table_at = |netns: &Netns| -> Result<String> {
            Ok(netns.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??)
        };
        let at_client = table_at(self.lab.client())?;
        let bytes = |(index, link): (usize, &LabLink)| {
            let moved = self.moved.iter().find(|(moved, _)| *moved == index);
            let found = match moved {
                Some((_, netns)) => interface_bytes(&table_at(netns)?, &link.interface),
                None => interface_bytes(&at_client, &link.interface),
            };
            found.with_context(|| format!("{} is gone", link.interface))
        };
        self.lab.links().iter().enumerate().map(bytes).collect()
    }
}

/// Received and sent bytes together; fields 1 and 9 of a line of `/proc/net/dev`.
fn interface_bytes(table: &str, interface: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, counters) = lines.find(|(name, _)| name.trim() == interface)?;
    let number = |index| counters.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some(number(0)? + number(8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_apart() {
        let table = "Inter-|   Receive                  |  Transmit\n \
            face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n  \
            link1: 1000 10 0 0 0 0 0 0 200 4 0 0 0 0 0 0\n \
            link10: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n";
        assert_eq!(interface_bytes(table, "link1"), Some(1200));
        assert_eq!(interface_bytes(table, "link10"), Some(11));
        assert_eq!(interface_bytes(table, "link2"), None);
    }
}
