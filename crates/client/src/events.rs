//! The user is told what happens to links and relay: by commands and web hooks of `policy.toml`.
//!
//! Owns the way from an instance's states to what is run: an [`Observer`] finds what happened,
//! [`Turns`] which entries act and how often, and a thread of its own ([`Messenger`]) runs
//! commands and posts. That thread may hang; the one that carries packets hands over a few words,
//! and drops them where nobody takes them.

mod messenger;
mod observer;
mod turns;

use std::rc::Rc;
use std::time::Instant;

use tabane_control::State;
use tabane_policy::Reaction;

pub use observer::Alert;

#[cfg(test)]
pub(crate) use observer::tests::example;

use messenger::Messenger;
use observer::Observer;
use turns::Turns;

/// Tells of one instance; the end of it waits a moment for what is under way.
#[derive(Debug, Default)]
pub struct Events {
    observer: Observer,
    turns: Turns,
    /// None until there is something to tell: most users want nothing of it.
    messenger: Option<Messenger>,
}

impl Events {
    /// The instance is like this `now`, and these are to be told what changed. Waits for nothing.
    pub fn look(&mut self, now: Instant, state: &State, reactions: &Rc<[Reaction]>) {
        let alerts = self.observer.observe(now, state);
        self.turns.renew(now, reactions);
        for alert in alerts {
            tracing::debug!("{}", alert.text);
            for message in self.turns.messages(now, &alert) {
                let messenger = match &self.messenger {
                    Some(messenger) => messenger,
                    None => match Messenger::start() {
                        Ok(messenger) => self.messenger.insert(messenger),
                        Err(error) => {
                            tracing::warn!(%error, "on-event: nobody is told");
                            return;
                        }
                    },
                };
                messenger.send(message);
            }
        }
    }
}
