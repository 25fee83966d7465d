//! Where the screen's values come from: a thread that follows the instance, also past its end and
//! the start of the next one, carries out changes, and hears signals.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tabane_control::{Client, ClientError, LinkChange, State};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use crate::commands::status::InstanceArgs;

/// Between looks whether the instance is back.
const RETRY: Duration = Duration::from_millis(500);

/// News for the screen.
pub(super) enum Update {
    /// What is true now.
    State(Box<State>),
    /// The instance does not answer; why.
    Lost(String),
    /// What became of a change.
    Answer(Result<(), String>),
    /// Somebody wants us to end.
    Quit,
}

type Change = (String, LinkChange);

/// The screen's end of the thread.
pub(super) struct Feed {
    updates: Receiver<Update>,
    changes: UnboundedSender<Change>,
}

impl Feed {
    pub(super) fn start(instance: InstanceArgs) -> io::Result<Self> {
        let (sender, updates) = channel();
        let (changes, wanted) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let quit = {
            let _guard = runtime.enter();
            Quit::new()?
        };
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || runtime.block_on(run(&instance, &sender, wanted, quit)))?;
        Ok(Self { updates, changes })
    }

    /// The next update, if there is one.
    pub(super) fn poll(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }

    /// Has a link used in another way; an [`Update::Answer`] follows.
    pub(super) fn change(&self, link: String, change: LinkChange) {
        // A thread that is gone has said so before.
        let _ = self.changes.send((link, change));
    }
}

/// The signals that end us.
struct Quit([tokio::signal::unix::Signal; 3]);

impl Quit {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::interrupt())?,
        ]))
    }

    async fn wait(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.recv() => {}
            _ = b.recv() => {}
            _ = c.recv() => {}
        }
    }
}

async fn run(
    instance: &InstanceArgs,
    updates: &Sender<Update>,
    mut wanted: UnboundedReceiver<Change>,
    mut quit: Quit,
) {
    let following = async {
        loop {
            let why = match instance.find() {
                Ok(running) => {
                    match follow(&Client::new(&running.socket), updates, &mut wanted).await {
                        Ok(()) => "the instance has ended".to_owned(),
                        Err(error) => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            // Nobody looks any more.
            if updates.send(Update::Lost(why)).is_err() {
                return;
            }
            sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = quit.wait() => {
            let _ = updates.send(Update::Quit);
        }
    }
}

/// Tells updates and carries out changes until the instance ends.
async fn follow(
    client: &Client,
    updates: &Sender<Update>,
    wanted: &mut UnboundedReceiver<Change>,
) -> Result<(), ClientError> {
    let mut states = client.updates().await?;
    loop {
        tokio::select! {
            state = states.next() => match state? {
                Some(state) => {
                    let _ = updates.send(Update::State(Box::new(state)));
                }
                None => return Ok(()),
            },
            change = wanted.recv() => {
                let Some((link, change)) = change else {
                    return Ok(());
                };
                let changed = client.change_link(&link, change).await;
                let answer = changed.map(|_| ()).map_err(|error| error.to_string());
                let _ = updates.send(Update::Answer(answer));
            }
        }
    }
}
