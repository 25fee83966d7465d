//! Which network a link is in, and what that has taught of carriers before.
//!
//! Pure; the file is the store's, and when it is written the links' affair.

use tabane_linux::interfaces::Interface;
use tabane_policy::UnixDay;
use tabane_store::{Network, NetworkMemory};
use tabane_tunnel::CarrierMemory;

/// The network that an interface is in; none where its gateway is not known by its card, as on
/// cellular links, or not yet.
pub(crate) fn network(interface: &Interface) -> Option<Network> {
    let (gateway, hardware) = interface.gateway()?;
    let hardware = hardware?;
    Some(Network { gateway, hardware })
}

/// Whether that may be known in a moment: the kernel asks when the first packet goes there.
pub(crate) fn is_unresolved(interface: &Interface) -> bool {
    interface.usable().is_ok() && matches!(interface.gateway(), Some((_, None)))
}

/// What carried links in the network that an interface is in.
pub(crate) fn recall(
    memory: &NetworkMemory,
    interface: &Interface,
    today: UnixDay,
) -> Option<CarrierMemory> {
    let word = memory.recall(network(interface)?, today)?;
    // Written by a later version, maybe.
    word.parse().ok()
}

/// Keeps what carries links there now. Gives what the file is to say, where that is news: a network
/// where nothing is unusual is not in it.
pub(crate) fn note(
    memory: &mut NetworkMemory,
    interface: &Interface,
    carrier: CarrierMemory,
    today: UnixDay,
) -> Option<(Network, Option<String>)> {
    let network = network(interface)?;
    let word = (carrier != CarrierMemory::Usual).then(|| carrier.to_string());
    let is_news = memory.note(network, word.as_deref(), today);
    is_news.then_some((network, word))
}
