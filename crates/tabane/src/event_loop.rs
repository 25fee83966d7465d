//! The event loop that a command has on its own thread.

use anyhow::{Context, Result};
use tokio::runtime::Builder;

const FAILED: &str = "cannot set up the event loop";

/// For what carries packets, or waits for what does: this thread is preferred to others.
pub(crate) fn carry<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tabane_tunnel::block_on(work).context(FAILED)?
}

/// For what only asks others.
pub(crate) fn ask<T>(question: impl Future<Output = T>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build();
    Ok(runtime.context(FAILED)?.block_on(question))
}
