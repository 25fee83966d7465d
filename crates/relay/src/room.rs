//! How much of a machine's memory the sessions of a relay fill, all together.
//!
//! A relay must not end by its clients' paused downloads, be its machine or container small.

use tabane_base::Bytes;
use tabane_core::{MemoryPool, SessionConfig};
use tabane_linux::memory;

/// What is written and not acknowledged has this part of the memory, and what is received and not
/// read another one. The rest is the program's own, and the kernel's for its sockets.
const PART: u64 = 6;

/// Fits the pools of `session`, which are for larger machines, into what this process may have.
pub(crate) fn fitted(mut session: SessionConfig) -> SessionConfig {
    if let Some(bytes) = memory::limit() {
        fit(&mut session, Bytes::new(bytes));
    }
    session
}

fn fit(session: &mut SessionConfig, memory: Bytes) {
    let part = Bytes::new(memory.get() / PART);
    for pool in [&mut session.send_pool, &mut session.receive_pool] {
        if part < pool.size() {
            *pool = MemoryPool::new(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_machines_give_little_and_large_ones_no_more_than_usual() {
        let sizes = |memory| {
            let mut session = SessionConfig::default();
            fit(&mut session, memory);
            [session.send_pool.size(), session.receive_pool.size()]
        };
        assert_eq!(sizes(Bytes::mega(126)), [Bytes::mega(21); 2]);
        let usual = SessionConfig::default().send_pool.size();
        assert_eq!(sizes(Bytes::mega(64_000)), [usual; 2]);
    }
}
