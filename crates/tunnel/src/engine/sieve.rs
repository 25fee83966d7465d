//! What a worker takes of the packets that come by a connection.
//!
//! The kernel steers UDP datagrams; a TCP connection comes to one worker with all that is in it. A
//! packet for a session of another worker's, or of a process that finishes its own, would be
//! answered by a stateless reset, which ends that session [P-9.4]: it is left out instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tabane_core::{Addressee, Steering};

/// Lets through what is for this worker.
#[derive(Clone, Default)]
pub(crate) struct Sieve {
    steering: Steering,
    /// Another process has sessions of the other generation yet.
    is_shared: Arc<AtomicBool>,
}

impl Sieve {
    pub(crate) fn new(steering: Steering, is_shared: Arc<AtomicBool>) -> Self {
        Self {
            steering,
            is_shared,
        }
    }

    pub(super) fn passes(&self, packet: &[u8]) -> bool {
        match self.steering.addressee(packet) {
            // Whoever has the connection may as well have the session.
            Some(Addressee::Newcomers(_)) | None => true,
            Some(Addressee::Session { worker, is_odd }) => {
                let is_others = is_odd != self.steering.is_odd();
                worker == self.steering.worker()
                    && !(is_others && self.is_shared.load(Ordering::Relaxed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_for_others_is_left_out() {
        let shared = Arc::new(AtomicBool::new(false));
        let sieve = Sieve::new(Steering::new(2, 1, true), shared.clone());
        let short = |first| [0x40, first, 1, 2, 3, 0, 0];
        assert!(sieve.passes(&short(0x81)));
        assert!(!sieve.passes(&short(0x80)), "another worker");
        assert!(sieve.passes(&short(0x01)), "of a process that is gone");
        shared.store(true, Ordering::Relaxed);
        assert!(!sieve.passes(&short(0x01)), "of a process that is there");
        assert!(sieve.passes(&[0xc0, 0, 0, 0, 1, 2]), "a handshake");
        // A client has no steering: its ids are whatever they are.
        assert!(Sieve::default().passes(&short(0xff)));
    }
}
