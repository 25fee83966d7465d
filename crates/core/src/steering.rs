//! Which worker of a server a packet is for, by its own header [P-2.8].
//!
//! A server on several threads has a socket for each in one group of the kernel's, and every path
//! of a session must lead to the thread that has the session. So a server's connection ids say it,
//! in their first byte: seven bits whose remainder by the number of workers is the worker's number,
//! and one bit for the generation, which changes when a new process takes over and the one before
//! finishes its sessions. A handshake has no id of ours yet: the first byte of its attempt says it,
//! which the client draws. Pure; that the kernel steers by the same rule is the driver's affair.

use crate::id::ConnectionId;
use crate::wire::is_long;

/// Workers of one server at most: beyond, some would get a tenth more sessions than others.
pub const MAX_WORKERS: u8 = 64;

/// Set in the first byte of ids of the odd generation.
const GENERATION: u8 = 0x80;
/// Where a short header has its connection id, and a long one its attempt.
const ID_AT: usize = 1;
const ATTEMPT_AT: usize = 5;

/// How a server's packets find their worker, and which of them is this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    workers: u8,
    worker: u8,
    is_odd: bool,
}

/// Whom a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// A worker that takes handshakes.
    Newcomers(u8),
    /// A worker of one generation: that with the odd ids, or the other.
    Session {
        /// Its number, from 0.
        worker: u8,
        /// Whether it has the odd ids.
        is_odd: bool,
    },
}

impl Default for Steering {
    /// The one worker of a server.
    fn default() -> Self {
        Self {
            workers: 1,
            worker: 0,
            is_odd: false,
        }
    }
}

impl Steering {
    /// The worker of this number, from 0, of so many.
    ///
    /// # Panics
    /// There is no such worker, or there are more than [`MAX_WORKERS`].
    #[must_use]
    pub fn new(workers: u8, worker: u8, is_odd: bool) -> Self {
        assert!(worker < workers && workers <= MAX_WORKERS);
        Self {
            workers,
            worker,
            is_odd,
        }
    }

    /// How many workers there are.
    #[must_use]
    pub const fn workers(self) -> u8 {
        self.workers
    }

    /// Which this one is.
    #[must_use]
    pub const fn worker(self) -> u8 {
        self.worker
    }

    /// Whether its ids are the odd ones.
    #[must_use]
    pub const fn is_odd(self) -> bool {
        self.is_odd
    }

    /// Whom a packet is for; `None` for what is too short to say it.
    #[must_use]
    pub fn addressee(self, packet: &[u8]) -> Option<Addressee> {
        if is_long(packet) {
            let byte = packet.get(ATTEMPT_AT)?;
            return Some(Addressee::Newcomers(byte % self.workers));
        }
        let byte = packet.get(ID_AT)?;
        Some(Addressee::Session {
            worker: (byte & !GENERATION) % self.workers,
            is_odd: byte & GENERATION != 0,
        })
    }

    /// A connection id of this worker's, made of a random number.
    pub(crate) fn id(self, random: u32) -> ConnectionId {
        let [byte, rest @ ..] = random.to_be_bytes();
        // As many numbers below 128 have the worker's remainder.
        let choices = (GENERATION - self.worker).div_ceil(self.workers);
        let number = self.worker + self.workers * (byte % choices);
        let generation = if self.is_odd { GENERATION } else { 0 };
        let [a, b, c] = rest;
        ConnectionId(u32::from_be_bytes([number | generation, a, b, c]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret_rng::SecretRng;

    #[test]
    fn an_id_leads_back_to_the_worker_that_chose_it_and_all_are_used() {
        let mut rng = SecretRng::new([3; 32]);
        for workers in 1..=MAX_WORKERS {
            for worker in [0, workers / 2, workers - 1] {
                for is_odd in [false, true] {
                    let steering = Steering::new(workers, worker, is_odd);
                    let mut firsts = std::collections::BTreeSet::new();
                    for _ in 0..2_000 {
                        let id = steering.id(rng.next_u64() as u32).0.to_be_bytes();
                        let packet = [0x43, id[0], id[1], id[2], id[3], 0];
                        let expected = Addressee::Session { worker, is_odd };
                        assert_eq!(steering.addressee(&packet), Some(expected));
                        firsts.insert(id[0]);
                    }
                    assert!(firsts.len() >= usize::from(128 / workers), "{firsts:?}");
                }
            }
        }
    }

    #[test]
    fn handshakes_go_by_their_attempt_and_what_is_too_short_to_nobody() {
        let steering = Steering::new(3, 0, true);
        let long = |first| [0xc3, 0, 0, 0, 1, first, 9, 9];
        for first in 0..=255 {
            let found = steering.addressee(&long(first));
            assert_eq!(found, Some(Addressee::Newcomers(first % 3)));
        }
        assert_eq!(steering.addressee(&long(1)[..5]), None);
        assert_eq!(steering.addressee(&[0x43]), None);
        assert_eq!(steering.addressee(&[]), None);
    }
}
