//! Proofs that need no memory: address-validation tokens and stateless resets [P-3.4] [P-9.4].

use std::net::IpAddr;

use aws_lc_rs::hmac;
use tabane_base::{Duration, Instant};

use crate::id::{AttemptId, ConnectionId};
use crate::identity::Identity;

/// How long a Retry token is good for: long enough for the slowest link's round trip and one
/// repetition, short enough that a collected one is soon worthless.
const TOKEN_LIFETIME: Duration = Duration::from_secs(15);
const MAC_LEN: usize = 16;
/// A stateless reset has so many bytes before its token, so that it looks like a packet.
pub(crate) const RESET_PREFIX: usize = 21;
/// Bytes of a stateless reset's token.
pub(crate) const RESET_TOKEN_LEN: usize = 16;

/// Makes and checks the proofs of one server.
pub(crate) struct Proofs {
    token_key: hmac::Key,
    reset_key: hmac::Key,
}

impl Proofs {
    /// The reset key outlives restarts; the token key may as well.
    pub(crate) fn new(identity: &Identity) -> Self {
        Self {
            token_key: identity.derive("tabane retry token"),
            reset_key: identity.derive("tabane stateless reset"),
        }
    }

    /// A token that shows that `ip` received it at `now`.
    pub(crate) fn token(&self, now: Instant, ip: IpAddr, attempt: AttemptId) -> Vec<u8> {
        let mut token = now.as_nanos().to_be_bytes().to_vec();
        let mac = self.mac(&token, ip, attempt);
        token.extend_from_slice(&mac.as_ref()[..MAC_LEN]);
        token
    }

    /// Whether `token` was made here for this address and attempt, a short while ago.
    pub(crate) fn verify(
        &self,
        now: Instant,
        ip: IpAddr,
        attempt: AttemptId,
        token: &[u8],
    ) -> bool {
        let Some((time, mac)) = token.split_first_chunk::<8>() else {
            return false;
        };
        let expected = self.mac(time, ip, attempt);
        let made_at = Instant::from_nanos(u64::from_be_bytes(*time));
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected.as_ref()[..MAC_LEN], mac)
            .is_ok()
            && made_at <= now
            && now - made_at <= TOKEN_LIFETIME
    }

    fn mac(&self, time: &[u8], ip: IpAddr, attempt: AttemptId) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.token_key);
        context.update(time);
        context.update(&attempt.0.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => context.update(&ip.octets()),
            IpAddr::V6(ip) => context.update(&ip.octets()),
        }
        context.sign()
    }

    /// What ends the session that calls us `id`, even when we have forgotten it.
    pub(crate) fn reset_token(&self, id: ConnectionId) -> [u8; RESET_TOKEN_LEN] {
        let tag = hmac::sign(&self.reset_key, &id.0.to_be_bytes());
        let mut token = [0; RESET_TOKEN_LEN];
        token.copy_from_slice(&tag.as_ref()[..RESET_TOKEN_LEN]);
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_address_attempt_and_time_only() {
        let proofs = Proofs::new(&Identity::from_seed([1; 32]));
        let (here, there): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let now = Instant::from_millis(5_000);
        let token = proofs.token(now, here, AttemptId(1));
        assert!(proofs.verify(now, here, AttemptId(1), &token));
        assert!(!proofs.verify(now, there, AttemptId(1), &token));
        assert!(!proofs.verify(now, here, AttemptId(2), &token));
        assert!(!proofs.verify(now + Duration::from_secs(16), here, AttemptId(1), &token));
        assert!(!proofs.verify(now, here, AttemptId(1), &token[..20]));
        assert!(!proofs.verify(now, here, AttemptId(1), &[]));
    }
}
