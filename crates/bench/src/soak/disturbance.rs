//! What is done to the links, one thing a round. At least one link is left alone by all of it.

use std::net::Ipv4Addr;

use anyhow::Result;
use tabane_base::{Rng, Seed};
use tabane_lab::LabLink;

use super::super::process::ip;
use super::super::stage::Stage;

/// Addresses that a roaming link goes round; its first is the second of its network.
const ADDRESSES: u64 = 200;
/// Link rates in Mbit/s.
const RATES: [u64; 4] = [1, 5, 20, 60];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Pulled,
    Silent,
    Slower,
    Roams,
}

/// The network's moods.
pub(super) struct Disturbances {
    rng: Rng,
    addresses: Vec<Ipv4Addr>,
    /// What is to be undone.
    present: Vec<(usize, Kind)>,
}

impl Disturbances {
    pub(super) fn new(seed: Seed, links: &[LabLink]) -> Self {
        Self {
            rng: seed.rng("disturbances"),
            addresses: links.iter().map(|link| link.client).collect(),
            present: Vec::new(),
        }
    }

    /// Does something to some links, and says what.
    pub(super) fn begin(&mut self, stage: &Stage) -> Result<String> {
        let links = stage.links();
        let spared = self.below(links.len());
        let mut said = Vec::new();
        for (index, link) in links.iter().enumerate() {
            if index == spared || self.rng.chance(0.3) {
                continue;
            }
            let all = [Kind::Pulled, Kind::Silent, Kind::Slower, Kind::Roams];
            let kind = all[self.below(all.len())];
            match kind {
                Kind::Pulled => stage.plug(index, false)?,
                Kind::Silent => stage.silence(index, true),
                Kind::Slower => {
                    let rate = RATES[self.below(RATES.len())];
                    stage.set_rate(index, rate * 1_000_000);
                }
                Kind::Roams => self.roam(stage, index, link)?,
            }
            self.present.push((index, kind));
            said.push(format!("{} {kind:?}", link.name).to_lowercase());
        }
        Ok(match said.is_empty() {
            true => "quiet".to_owned(),
            false => said.join(", "),
        })
    }

    pub(super) fn end(&mut self, stage: &Stage) -> Result<()> {
        for (index, kind) in std::mem::take(&mut self.present) {
            match kind {
                Kind::Pulled => stage.plug(index, true)?,
                Kind::Silent => stage.silence(index, false),
                Kind::Slower | Kind::Roams => {}
            }
        }
        Ok(())
    }

    /// A new lease: the old address goes, another comes, with the ways that it needs.
    fn roam(&mut self, stage: &Stage, index: usize, link: &LabLink) -> Result<()> {
        let own = stage.client().name();
        let old = self.addresses[index];
        let [a, b, c, d] = old.octets();
        let host = 2 + (u64::from(d) - 2 + 1 + self.rng.below(ADDRESSES - 1)) % ADDRESSES;
        let new = Ipv4Addr::new(a, b, c, u8::try_from(host)?);
        let LabLink {
            interface, server, ..
        } = link;
        let rank = 101 + index;
        for command in [
            format!("addr del {old}/24 dev {interface}"),
            format!("addr add {new}/24 dev {interface}"),
            format!("route replace default via {server} dev {interface} metric {rank}"),
            format!("route replace default via {server} dev {interface} table {rank}"),
            format!("rule del from {old} table {rank}"),
            format!("rule add from {new} table {rank}"),
        ] {
            ip(&format!("-n {own} {command}"))?;
        }
        self.addresses[index] = new;
        Ok(())
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }
}
