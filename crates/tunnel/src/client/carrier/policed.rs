//! UDP that was left because it is policed: in which direction, and what both carried.

use std::fmt;

use tabane_base::Rate;

use super::memory::PolicedRates;
use crate::client::comparison::Suspicion;

/// UDP that was left because it is policed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policed {
    pub(super) suspicion: Suspicion,
    /// What TLS carried, in bytes a second.
    pub(super) tls: u64,
}

impl From<PolicedRates> for Policed {
    fn from(rates: PolicedRates) -> Self {
        let suspicion = Suspicion {
            way: usize::from(rates.is_inbound),
            carried: rates.udp.as_bps() / 8,
        };
        Self {
            suspicion,
            tls: rates.tls.as_bps() / 8,
        }
    }
}

impl Policed {
    pub(super) fn rates(self) -> PolicedRates {
        let rate = |bytes: u64| Rate::from_bps(bytes.saturating_mul(8));
        PolicedRates {
            is_inbound: self.suspicion.way == 1,
            udp: rate(self.suspicion.carried),
            tls: rate(self.tls),
        }
    }
}

impl fmt::Display for Policed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicedRates { udp, tls, .. } = self.rates();
        write!(
            f,
            "UDP is policed here: it carried {udp} where TLS carried {tls}"
        )
    }
}
