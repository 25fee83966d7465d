//! A relay's address pool as the machine has it: a TUN device with the pool's route, and packet
//! filter rules that give what leaves from it the machine's own address (NAT).
//!
//! Owns the order of setting up. The device ends with the process, or with the one that it is left
//! to in an upgrade; the rules may outlive it and do nothing then, for nothing comes from the
//! pool's addresses any more. The next start removes them. Forwarding is the owner's to switch on:
//! it concerns every interface, and for IPv6 it takes away what routers announce.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tabane_base::Prefix;
use tabane_linux::{
    interfaces::{self, Interface},
    nft,
    routing::Routing,
    tun::Tun,
};
use tabane_tunnel::{ExitConfig, InheritedPool};

use tabane_store::{PoolRange, UsageError};

/// One pool per machine: another relay finds the name taken.
const TUN: &str = "tabane-pool";
const TABLE: &str = "tabane-relay";
/// In one piece over paths of 1,500 bytes, with what the session puts around it [P-T.5].
const MTU: u16 = 1_400;

/// What [`set_up`] has put in place beside the device.
#[derive(Debug)]
pub(crate) struct ExitRules {
    /// They go with this process, and are not another one's.
    is_ours: bool,
}

/// Makes the device and the rules for these ranges, if there are any, and clears away what a relay
/// that was killed has left. With what another process has left only the rules are made.
///
/// # Errors
/// Each says what to do about it.
pub(crate) async fn set_up(
    ranges: &[PoolRange],
    inherited: Option<InheritedPool>,
) -> Result<Option<(ExitConfig, ExitRules)>> {
    clear_leftovers();
    if ranges.is_empty() {
        return Ok(None);
    }
    let of_family = |is_v4| {
        let mut found = ranges.iter().filter(|it| it.0.address.is_ipv4() == is_v4);
        match (found.next(), found.next()) {
            (first, None) => Ok(first.map(|range| range.0)),
            (_, Some(_)) => Err(UsageError::new(
                "a pool has one range of each family at most",
            )),
        }
    };
    let (v4, v6) = (of_family(true)?, of_family(false)?);
    if !nix::unistd::geteuid().is_root() {
        return Err(UsageError::new("--pool needs root: it makes a TUN device").into());
    }
    let is_ours = inherited.is_none();
    let (tun, before) = match inherited {
        Some(pool) => {
            let tun = Tun::inherit(pool.device, TUN)?;
            (tun, Some(pool.answers.into()))
        }
        None => (make_device(v4, v6).await?, None),
    };
    nft::replace_table(TABLE, &rules(v4, v6)).context("cannot translate the pool's addresses")?;
    let config = ExitConfig {
        tun,
        v4,
        v6,
        mtu: MTU,
        before,
    };
    Ok(Some((config, ExitRules { is_ours })))
}

async fn make_device(v4: Option<Prefix>, v6: Option<Prefix>) -> Result<Tun> {
    let interfaces = interfaces::list().await;
    let interfaces = interfaces.context("cannot list the interfaces")?;
    for range in v4.iter().chain(&v6) {
        check(*range, &interfaces)?;
    }
    check_forwarding(v4.is_some(), v6.is_some())?;
    // First of all: where another relay has it, its rules stay.
    let tun = Tun::open(TUN).context(
        "is another relay with a pool running here, or an interface of this name? `ip link show \
         tabane-pool`",
    )?;
    let routing = Routing::open()?;
    let index = routing.bring_up(TUN, MTU.into()).await?;
    for range in v4.iter().chain(&v6) {
        let own = range.nth(1).context("a pool without addresses")?;
        routing.add_address(index, own, range.bits).await?;
    }
    Ok(tun)
}

impl ExitRules {
    /// Says whether they go with this process: another one may have the pool as well.
    pub(crate) fn own(&mut self, is_ours: bool) {
        self.is_ours = is_ours;
    }
}

/// Removes what a relay that was killed has left; nothing where one is running.
fn clear_leftovers() {
    if !nix::unistd::geteuid().is_root() || Path::new("/sys/class/net").join(TUN).exists() {
        return;
    }
    match nft::remove_table(TABLE) {
        // Without the program there are no rules of ours.
        Ok(()) | Err(nft::NftError::Missing) => {}
        Err(error) => tracing::debug!(%error, "no rules removed"),
    }
}

impl Drop for ExitRules {
    fn drop(&mut self) {
        if self.is_ours
            && let Err(error) = nft::remove_table(TABLE)
        {
            tracing::warn!("{error}; the next `tabane relay` tries again");
        }
    }
}

/// A pool that is part of a network here would cut that off.
fn check(range: Prefix, interfaces: &[Interface]) -> Result<()> {
    for interface in interfaces {
        for own in &interface.addresses {
            let network = Prefix {
                address: own.address,
                bits: own.prefix_bits,
            };
            if network.overlaps(&range) {
                return Err(UsageError::new(format!(
                    "the pool {range} overlaps {network}, the network of {}: choose another range",
                    interface.name
                ))
                .into());
            }
        }
    }
    Ok(())
}

fn check_forwarding(v4: bool, v6: bool) -> Result<()> {
    let is_on = |key: &str| {
        let value = fs::read_to_string(format!("/proc/sys/net/{key}"));
        value.is_ok_and(|value| value.trim() == "1")
    };
    if v4 && !is_on("ipv4/ip_forward") {
        bail!(
            "this machine passes no packets on, which a pool needs: `sysctl -w \
             net.ipv4.ip_forward=1` (a file in /etc/sysctl.d keeps it)"
        );
    }
    if v6 && !is_on("ipv6/conf/all/forwarding") {
        bail!(
            "this machine passes no IPv6 packets on, which a pool needs: `sysctl -w \
             net.ipv6.conf.all.forwarding=1`; where its own address comes from a router's \
             announcements, net.ipv6.conf.IF.accept_ra=2 first"
        );
    }
    Ok(())
}

fn rules(v4: Option<Prefix>, v6: Option<Prefix>) -> String {
    let mut rules = "chain out {\ntype nat hook postrouting priority srcnat\n".to_owned();
    for range in v4.iter().chain(&v6) {
        let family = match range.address {
            IpAddr::V4(_) => "ip",
            IpAddr::V6(_) => "ip6",
        };
        rules += &format!("{family} saddr {range} oifname != \"{TUN}\" masquerade\n");
    }
    // Only answers come back; between clients, the relay's access decides. What belongs to no
    // connection is not translated, and would leave with an address of the pool.
    rules += &format!(
        "}}\nchain back {{\ntype filter hook forward priority filter\n\
         iifname != \"{TUN}\" oifname \"{TUN}\" ct state {{ new, invalid }} drop\n\
         iifname \"{TUN}\" oifname != \"{TUN}\" ct state invalid drop\n}}\n"
    );
    rules
}
