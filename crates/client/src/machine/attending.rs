//! A machine that is kept as the relay, the rules and the network are: captured while the relay
//! answers, and what is left alone renewed.

use anyhow::{Result, bail};
use tabane_linux::{interfaces::Watch, notify};

use super::Machine;
use crate::far_ends::FarEnds;

/// What systemd is told of the way that new connections take: they are carried, or there are peers
/// alone, whose addresses are.
pub const CARRYING: &str = "over all links";
/// See [`CARRYING`].
pub const PEERS_ALONE: &str = "peers are reached straight; there is no relay for the rest";

impl Machine {
    /// Follows the session and the network until `told` to end, or until there can be no session.
    ///
    /// # Errors
    /// The session is over, or the kernel refuses.
    pub async fn attend(
        &mut self,
        far_ends: &FarEnds,
        mut watch: Watch,
        told: impl Future<Output = ()>,
    ) -> Result<()> {
        let closed = far_ends.closed();
        tokio::pin!(closed);
        tokio::pin!(told);
        let mut is_open = false;
        // What goes to peers needs no relay.
        self.set_open(is_open).await?;
        // What must not go without the relay does not from here on.
        notify::ready();
        if far_ends.relay().is_none() {
            notify::status(PEERS_ALONE);
        }
        loop {
            tokio::select! {
                () = &mut told => return Ok(()),
                reason = &mut closed => bail!("{reason}"),
                () = relay_is(far_ends, !is_open) => {
                    is_open = !is_open;
                    self.set_open(is_open).await?;
                    tell_reach(is_open, self.is_strict());
                }
                () = rules_change(far_ends) => self.set_open(is_open).await?,
                () = far_ends.moved() => self.try_to_follow().await,
                changed = watch.changed() => {
                    if changed.is_none() {
                        bail!("the kernel tells no more of the interfaces");
                    }
                    self.try_to_follow().await;
                }
            }
        }
    }

    /// The hooks stay as they are where this fails; the next change may do better.
    async fn try_to_follow(&mut self) {
        if let Err(error) = self.follow_network().await {
            tracing::warn!("{error:#}");
        }
    }
}

/// Waits until the relay is reachable, or given up; for ever where there is none.
async fn relay_is(far_ends: &FarEnds, reachable: bool) {
    match far_ends.relay() {
        Some(relay) if reachable => relay.until_reachable(true).await,
        Some(relay) => relay.until_given_up().await,
        None => std::future::pending().await,
    }
}

async fn rules_change(far_ends: &FarEnds) {
    match far_ends.rules() {
        Some(rules) => rules.renewed().await,
        None => std::future::pending().await,
    }
}

fn tell_reach(reachable: bool, is_strict: bool) {
    if reachable {
        tracing::info!("the relay answers: new connections go over all links");
        notify::status(CARRYING);
    } else if is_strict {
        tracing::warn!("the relay does not answer: new connections wait for it (--strict)");
        notify::status("the relay does not answer");
    } else {
        tracing::warn!("the relay does not answer: new connections go as without tabane");
        notify::status("the relay does not answer");
    }
}
