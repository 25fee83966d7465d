//! Leads packets to the gateways of links, by marks of this process's own.
//!
//! Owns which marks those are, and that rules and tables go with the process: every process that
//! has gateways holds one of [`SLOTS`] lots of marks by the lock on a file, which the kernel takes
//! from it when it ends, however it does. What a lot has left whose file nobody locks is cleared
//! away before the next one begins.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};
use std::thread::JoinHandle;
use tabane_linux::gateways::{GatewayRoute, MARKS};
use tabane_linux::interfaces::Unusable;
use tabane_linux::routing::Routing;
use tabane_linux::threads;
use tabane_tunnel::may_mark;

use crate::gateways::{Marked, Planned};

/// Processes of one network namespace that may use several gateways; the next one uses one.
const SLOTS: u32 = 16;
/// Gateways a process.
const LOT: u32 = 16;
const DIRECTORY: &str = "/run/tabane";

/// One a process.
#[derive(Debug, Default)]
pub(crate) struct GatewayRouter {
    held: Option<Held>,
    marks: BTreeMap<(u32, Vec<IpAddr>), u32>,
}

/// A lot of marks.
#[derive(Debug)]
struct Held {
    lot: RangeInclusive<u32>,
    routing: Routing,
    /// Locked.
    _file: File,
}

impl GatewayRouter {
    /// Has the kernel lead packets to these gateways and no others, and tells by which marks.
    pub(crate) async fn lead(&mut self, plan: Vec<Planned>) -> Vec<Marked> {
        if plan.is_empty() && self.held.is_none() {
            return Vec::new();
        }
        let refused = |plan: Vec<Planned>, why: Unusable| {
            let refused = plan.into_iter().map(|planned| (planned, Err(why)));
            refused.collect()
        };
        if !may_mark() {
            tracing::info!(
                "there are several gateways behind one interface; the one that the routing table \
                 chooses is used. With root, or CAP_NET_ADMIN, all are"
            );
            return refused(plan, Unusable::NoRight);
        }
        match self.try_lead(&plan).await {
            Ok(marked) => marked,
            Err(error) => {
                tracing::warn!("gateways cannot be told apart: {error:#}");
                refused(plan, Unusable::NoRoute)
            }
        }
    }

    async fn try_lead(&mut self, plan: &[Planned]) -> Result<Vec<Marked>> {
        let held = match self.held.take() {
            Some(held) => self.held.insert(held),
            None => self.held.insert(Held::take().await?),
        };
        let key = |planned: &Planned| {
            let addresses = planned.hops.iter().map(|(gateway, _)| *gateway);
            (planned.index, addresses.collect::<Vec<_>>())
        };
        let wanted: Vec<_> = plan.iter().map(key).collect();
        self.marks.retain(|known, _| wanted.contains(known));
        for gateway in wanted {
            let mut free = held.lot.clone();
            let free = free.find(|mark| !self.marks.values().any(|it| it == mark));
            if let (Some(mark), false) = (free, self.marks.contains_key(&gateway)) {
                self.marks.insert(gateway, mark);
            }
        }
        let marked = plan.iter().map(|planned| {
            let mark = self.marks.get(&key(planned)).copied();
            (planned.clone(), mark.ok_or(Unusable::TooMany))
        });
        let marked: Vec<Marked> = marked.collect();
        let routes = marked.iter().filter_map(|(planned, mark)| {
            Some(GatewayRoute {
                mark: mark.ok()?,
                index: planned.index,
                hops: planned.hops.clone(),
                wires: planned.wires.clone(),
            })
        });
        let routes: Vec<GatewayRoute> = routes.collect();
        held.routing.set_gateways(held.lot.clone(), &routes).await?;
        Ok(marked)
    }
}

impl Drop for GatewayRouter {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let lot = held.lot.clone();
        // The event loop may have ended.
        let cleared = threads::begin("routes", move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build();
            let clearing = async { Ok(Routing::open()?.set_gateways(lot, &[]).await?) };
            runtime
                .map_err(anyhow::Error::from)
                .and_then(|it| it.block_on(clearing))
        });
        let cleared = cleared.map(JoinHandle::join).map_err(anyhow::Error::from);
        if let Err(error) | Ok(Ok(Err(error))) = cleared {
            tracing::warn!("routes to gateways stay behind until the next start: {error:#}");
        }
    }
}

impl Held {
    async fn take() -> Result<Self> {
        clear_gateways().await?;
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(DIRECTORY);
        made.with_context(|| format!("cannot make {DIRECTORY}"))?;
        for slot in 0..SLOTS {
            let path = lock(slot)?;
            let file = open(&path, true).with_context(|| format!("cannot open {path:?}"))?;
            if file.try_lock().is_ok() {
                return Ok(Self {
                    lot: lot(slot),
                    routing: Routing::open()?,
                    _file: file,
                });
            }
        }
        anyhow::bail!("{SLOTS} processes do so already")
    }
}

/// Takes away the rules and routes of processes of this network namespace that were killed.
///
/// # Errors
/// The kernel refuses.
pub async fn clear_gateways() -> Result<()> {
    for slot in 0..SLOTS {
        // Who may not look may not clear either.
        let Ok(file) = open(&lock(slot)?, false) else {
            continue;
        };
        if file.try_lock().is_ok() {
            let routing = Routing::open()?;
            let cleared = routing.set_gateways(lot(slot), &[]).await;
            cleared.context("cannot clear away routes to gateways")?;
        }
    }
    Ok(())
}

fn lot(slot: u32) -> RangeInclusive<u32> {
    let first = MARKS.start() + slot * LOT;
    first..=first + LOT - 1
}

/// The namespace's number is in the name: every one has rules of its own.
fn lock(slot: u32) -> Result<PathBuf> {
    let namespace = fs::metadata("/proc/self/ns/net")
        .context("cannot see the network namespace (`mount -t proc proc /proc`)")?;
    let name = format!("{DIRECTORY}/gateways-{}-{slot}.lock", namespace.ino());
    Ok(name.into())
}

/// Nobody else can open it: who can, can lock it.
fn open(path: &PathBuf, create: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(create);
    options.truncate(false).mode(0o600).open(path)
}
