//! What makes another table: the kernel, the settings' files, NetworkManager, the end of a
//! budget's period.
//!
//! One per process. What the news mean is [`Shared`]'s.

use std::rc::Weak;

use tabane_base::{Duration, Translator};
use tabane_linux::{
    advertised::{RouterListener, solicit},
    find_translators,
    interfaces::{self, Interface, InterfaceError, Watch},
};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, MissedTickBehavior, sleep, sleep_until};

use super::files::News;
use super::rounds::Rounds;
use super::watched::{Renewed, Watched};
use super::{COUNT_INTERVAL, Shared};
use crate::gateway_router::GatewayRouter;
use crate::network_manager::metered_links;
use tabane_store::Store;

/// Routers answer within half a second (RFC 4861 §10), resolvers sooner.
const FIRST_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Follower {
    kernel: Option<Watch>,
    watched: Watched,
    router: GatewayRouter,
    routers: Option<RouterListener>,
    /// The resolver's word.
    found: (
        mpsc::Sender<Vec<Translator>>,
        mpsc::Receiver<Vec<Translator>>,
    ),
    /// The links for which resolver and routers were asked last.
    asked_for: Vec<String>,
}

impl Follower {
    pub(super) fn new(kernel: Option<Watch>, store: &Store) -> Self {
        Self {
            kernel,
            watched: Watched::new(store),
            router: GatewayRouter::default(),
            routers: RouterListener::start().ok(),
            found: mpsc::channel(1),
            asked_for: Vec::new(),
        }
    }

    /// Has packets led to gateways as the links are now.
    pub(super) async fn settle(&mut self, links: &Shared, anew: bool) {
        links.settle(&mut self.router, anew).await;
    }

    /// Waits a moment for what leads to IPv4, where nothing else does, until somebody has said
    /// anything of it: what begins may have no other way.
    pub(super) async fn await_translators(&mut self, links: &Shared) {
        if links.without_v4().is_empty() {
            return;
        }
        self.look_for_translators(links);
        let deadline = sleep(FIRST_WAIT);
        tokio::pin!(deadline);
        while links.waits_for_v4() {
            tokio::select! {
                news = RouterListener::hear(&mut self.routers) => links.on_advertisement(news),
                Some(translators) = self.found.1.recv() => {
                    links.on_translators(translators);
                    return;
                }
                () = &mut deadline => return,
            }
        }
    }

    /// Follows until the links are dropped.
    pub(super) async fn run(mut self, links: Weak<Shared>, mut news: UnboundedReceiver<News>) {
        let (metered, mut answers) = mpsc::channel(1);
        let mut rounds = Rounds::new(Instant::now());
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some((has_budgets, is_unresolved, lists)) = links.upgrade().map(|links| {
                let (has_budgets, is_unresolved) = (links.has_budgets(), links.has_unresolved());
                (has_budgets, is_unresolved, links.lists())
            }) else {
                return;
            };
            let look_at = rounds.look_at().filter(|_| is_unresolved);
            tokio::select! {
                () = until(look_at) => {
                    rounds.on_look(Instant::now());
                    let interfaces = interfaces::list().await;
                    let Some(links) = links.upgrade() else { return };
                    if let Ok(interfaces) = interfaces {
                        links.on_second_look(interfaces);
                    }
                }
                () = changed(&mut self.kernel) => {
                    rounds.on_change(Instant::now());
                    let interfaces = interfaces::list().await;
                    let Some(links) = links.upgrade() else { return };
                    self.on_interfaces(&links, interfaces).await;
                }
                news = RouterListener::hear(&mut self.routers) => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_advertisement(news);
                }
                Some(translators) = self.found.1.recv() => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_translators(translators);
                }
                () = sleep_until(rounds.ask_at()) => {
                    rounds.on_ask(Instant::now());
                    let metered = metered.clone();
                    // An answer that nobody waits for any more is as well lost.
                    tokio::task::spawn_local(async move {
                        let _ = metered.try_send(metered_links().await);
                    });
                }
                Some(answer) = answers.recv() => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_metered(answer);
                }
                renewed = self.watched.renewed(&lists) => {
                    let Some(links) = links.upgrade() else { return };
                    match renewed {
                        Renewed::Policy => links.files.read_policy(),
                        Renewed::Usage => links.files.read_usage(),
                    }
                }
                Some(news) = news.recv() => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_news(news);
                    self.settle(&links, false).await;
                }
                _ = counting.tick(), if has_budgets => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_tick();
                }
            }
        }
    }

    async fn on_interfaces(
        &mut self,
        links: &Shared,
        interfaces: Result<Vec<Interface>, InterfaceError>,
    ) {
        // The directory may be there by now.
        if self.watched.begin() {
            links.files.read_policy();
            links.files.read_usage();
        }
        match interfaces {
            Ok(interfaces) => {
                links.on_interfaces(interfaces);
                self.settle(links, true).await;
                self.look_for_translators(links);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot list the interfaces; the links stay as they are");
            }
        }
    }

    /// Asks resolver and routers for translators, where a link that was not there before has no
    /// other way to IPv4: what routers answer changes addresses as well.
    fn look_for_translators(&mut self, links: &Shared) {
        let without = links.without_v4();
        if without == self.asked_for {
            return;
        }
        for interface in &without {
            if let Err(error) = solicit(interface) {
                tracing::debug!(%error, interface, "routers are not asked");
            }
        }
        let has_any = !without.is_empty();
        self.asked_for = without;
        if has_any && let Ok(found) = self.found.0.clone().try_reserve_owned() {
            tokio::task::spawn_local(async move {
                if let Some(translators) = find_translators().await {
                    found.send(translators);
                }
            });
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits until interfaces may have changed.
async fn changed(kernel: &mut Option<Watch>) {
    let news = match kernel {
        Some(watch) => watch.changed().await,
        None => None,
    };
    if news.is_none() {
        *kernel = None;
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
