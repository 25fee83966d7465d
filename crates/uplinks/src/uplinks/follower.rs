//! What makes another table: the kernel, the settings' files, NetworkManager, the end of a
//! budget's period.
//!
//! One per process. What the news mean is [`Shared`]'s.

use std::path::PathBuf;
use std::rc::{Rc, Weak};

use tabane_base::{Duration, Translator};
use tabane_linux::{
    DirectoryWatch,
    advertised::{RouterListener, solicit},
    find_translators,
    interfaces::{self, Watch},
};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use super::files::News;
use super::{COUNT_INTERVAL, Shared};
use crate::gateway_router::GatewayRouter;
use crate::network_manager::metered_links;
use tabane_store::{POLICY_FILE_NAME, Store, USAGE_FILE_NAME};

/// How often NetworkManager is asked which links are metered, beside whenever interfaces change.
const ASK_INTERVAL: Duration = Duration::from_secs(60);
/// It hears of changes a moment later itself.
const ASK_DELAY: Duration = Duration::from_millis(300);

pub(super) struct Follower {
    kernel: Option<Watch>,
    directory: PathBuf,
    policy: Option<DirectoryWatch>,
    usage: Option<DirectoryWatch>,
    router: GatewayRouter,
    routers: Option<RouterListener>,
}

impl Follower {
    pub(super) fn new(kernel: Option<Watch>, store: &Store) -> Self {
        let directory = store.root().to_owned();
        let mut follower = Self {
            kernel,
            directory,
            policy: None,
            usage: None,
            router: GatewayRouter::default(),
            routers: RouterListener::start().ok(),
        };
        follower.watch_files();
        follower
    }

    /// Has packets led to gateways as the links are now.
    pub(super) async fn settle(&mut self, links: &Shared, anew: bool) {
        links.settle(&mut self.router, anew).await;
    }

    /// Follows until the links are dropped.
    pub(super) async fn run(mut self, links: Weak<Shared>, mut news: UnboundedReceiver<News>) {
        let (metered, mut answers) = mpsc::channel(1);
        let (translators, mut found) = mpsc::channel(1);
        look_for_translators(&links, &translators);
        let mut ask_at = Instant::now() + ASK_INTERVAL;
        let mut counting = tokio::time::interval(COUNT_INTERVAL);
        counting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some(has_budgets) = links.upgrade().map(|links| links.has_budgets()) else {
                return;
            };
            tokio::select! {
                () = changed(&mut self.kernel) => {
                    ask_at = ask_at.min(Instant::now() + ASK_DELAY);
                    let interfaces = interfaces::list().await;
                    let Some(links) = links.upgrade() else { return };
                    // The directory may be there by now.
                    if self.watch_files() {
                        links.files.read_policy();
                        links.files.read_usage();
                    }
                    match interfaces {
                        Ok(interfaces) => {
                            links.on_interfaces(interfaces);
                            self.settle(&links, true).await;
                            look_for_translators(&Rc::downgrade(&links), &translators);
                        }
                        Err(error) => tracing::warn!(
                            %error,
                            "cannot list the interfaces; the links stay as they are"
                        ),
                    }
                }
                news = RouterListener::hear(&mut self.routers) => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_advertisement(news);
                }
                Some(translators) = found.recv() => {
                    let Some(links) = links.upgrade() else { return };
                    links.on_translators(translators);
                }
                () = sleep_until(ask_at) => {
                    ask_at = Instant::now() + ASK_INTERVAL;
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
                () = renewed(&mut self.policy, POLICY_FILE_NAME) => {
                    let Some(links) = links.upgrade() else { return };
                    links.files.read_policy();
                }
                () = renewed(&mut self.usage, USAGE_FILE_NAME) => {
                    let Some(links) = links.upgrade() else { return };
                    links.files.read_usage();
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

    /// Watches the files if they are not watched yet. `true` where that has begun.
    fn watch_files(&mut self) -> bool {
        if self.policy.is_some() {
            return false;
        }
        let watch = || {
            DirectoryWatch::start(&self.directory).inspect_err(|error| {
                let directory = self.directory.display();
                tracing::debug!("changes of the policy are not noticed: {directory}: {error}");
            })
        };
        (self.policy, self.usage) = (watch().ok(), watch().ok());
        self.policy.is_some()
    }
}

/// Asks resolver and routers for them, where a link has no other way to IPv4.
fn look_for_translators(links: &Weak<Shared>, found: &mpsc::Sender<Vec<Translator>>) {
    let links = links.upgrade().map(|links| links.without_v4());
    let links = links.unwrap_or_default();
    for (interface, index) in &links {
        if let Err(error) = solicit(interface, *index) {
            tracing::debug!(%error, interface, "routers are not asked");
        }
    }
    // A question is under way, or nobody has to ask.
    let Ok(found) = found.clone().try_reserve_owned() else {
        return;
    };
    if !links.is_empty() {
        tokio::task::spawn_local(async move {
            if let Some(translators) = find_translators().await {
                found.send(translators);
            }
        });
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

/// Waits for the next version of a file; for ever, where it cannot be watched.
async fn renewed(watch: &mut Option<DirectoryWatch>, file: &std::ffi::CStr) {
    let news = match watch {
        Some(watch) => watch.changed(file).await.is_ok(),
        None => false,
    };
    if !news {
        *watch = None;
        std::future::pending().await
    }
}
