//! Foreign load: somebody else who wants every core, as a compiler does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A busy loop on every core that we may use, each kept there. Ended when dropped.
#[derive(Debug)]
pub(super) struct Load {
    is_over: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn on_every_core() -> Result<Self> {
        let ours = sched_getaffinity(None).context("which cores there are")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let cores = (0..CpuSet::MAX_CPU).filter(|core| ours.is_set(*core));
        let loops = cores.map(|core| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut own = CpuSet::new();
                own.set(core);
                // A core that is gone meanwhile leaves its loop to the others.
                let _ = sched_setaffinity(None, &own);
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::black_box(core);
                }
            })
        });
        Ok(Self {
            loops: loops.collect(),
            is_over,
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for each in self.loops.drain(..) {
            // A loop has nothing to say, and cannot fail.
            let _ = each.join();
        }
    }
}
