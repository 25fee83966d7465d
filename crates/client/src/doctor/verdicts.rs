//! From facts to findings. Pure.
//!
//! What is said of this machine is in `machine`, what of its links and relays in `network`.

mod machine;
mod network;
#[cfg(test)]
mod tests;

use super::Finding;
use super::machine::Machine;
use super::network::Network;

/// Everything there is to say.
#[must_use]
pub fn judge(machine: &Machine, network: &Network) -> Vec<Finding> {
    let mut findings = machine::privileges(machine);
    findings.extend(machine::resources(machine));
    findings.extend(network::links(network));
    findings.extend(network::settings(network));
    findings.extend(network::relays(network));
    findings
}
