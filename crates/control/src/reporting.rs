//! An instance's own end: its thread looks at what it carries, publishes that, and carries out what
//! clients want.
//!
//! Owns how often the data path is looked at. It is on the thread that reports, the server on one
//! of its own: what clients ask for costs nothing here. An instance that is asked too much of by
//! looks that nobody wants ([`Pace::WhenAsked`]) is looked at when somebody wants to know, and for
//! a while after.

use std::future::pending;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::command::{Command, LinkChange, Pace, RuleAnswer, RuleQuestion};
use crate::server::Publisher;
use crate::state::{Instance, State};
use crate::trace::TraceBatch;

/// How often the data path is looked at: twice in the second that rates are taken over.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Who was asked goes on by itself for so long: whoever asks, asks again.
const WATCHED: Duration = Duration::from_secs(3);
/// Things that happen together are told together.
const NEWS_PAUSE: Duration = Duration::from_millis(20);

/// What an instance carries, as it is seen and steered on the thread that carries it.
pub trait InstanceView {
    /// When it is looked at.
    const PACE: Pace;

    /// Fills in what is known of it.
    fn look(&mut self, state: &mut State) -> impl Future<Output = ()>;

    /// Waits until something has happened that is told at once; for ever where nothing ever is.
    fn changed(&self) -> impl Future<Output = ()>;

    /// Has a link used in another way; `Err` says in words why not.
    fn change_link(&mut self, name: &str, change: LinkChange) -> Result<(), String>;

    /// Which rule a connection would fall under; `Err` says in words why that cannot be said.
    fn explain(&self, question: RuleQuestion) -> Result<RuleAnswer, String>;

    /// Has a session recorded, the only one where none is named; `Err` says in words why not.
    fn record(
        &self,
        session: Option<u64>,
    ) -> impl Future<Output = Result<mpsc::Receiver<TraceBatch>, String>>;
}

/// Reports on `view` without end; to `served`, a server's two channels, where there is one, and by
/// `told` to the instance itself.
pub async fn report<V: InstanceView>(
    instance: Instance,
    view: V,
    served: Option<(Publisher, mpsc::Receiver<Command>)>,
    told: impl FnMut(&V, &State),
) {
    let (publisher, commands) = served.unzip();
    let reporter = Reporter {
        instance,
        view,
        publisher,
        told,
        asked_at: None,
    };
    reporter.run(commands).await;
}

struct Reporter<V, T> {
    instance: Instance,
    view: V,
    /// None where nobody can look.
    publisher: Option<Publisher>,
    told: T,
    /// When somebody last wanted to know.
    asked_at: Option<Instant>,
}

impl<V: InstanceView, T: FnMut(&V, &State)> Reporter<V, T> {
    async fn run(mut self, mut commands: Option<mpsc::Receiver<Command>>) {
        let mut samples = interval(SAMPLE_INTERVAL);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_watched = self.is_watched();
            tokio::select! {
                _ = samples.tick(), if is_watched => {}
                () = self.view.changed(), if is_watched => sleep(NEWS_PAUSE).await,
                command = next(&mut commands) => {
                    match command {
                        Some(command) => self.carry_out(command).await,
                        // The server is gone.
                        None => commands = None,
                    }
                    continue;
                }
            }
            self.publish().await;
        }
    }

    /// Whether somebody may want to know what is new.
    fn is_watched(&self) -> bool {
        match V::PACE {
            Pace::ByItself => true,
            Pace::WhenAsked => self.asked_at.is_some_and(|at| at.elapsed() < WATCHED),
        }
    }

    async fn carry_out(&mut self, command: Command) {
        // Who asked may have gone meanwhile; then nobody hears the answer.
        match command {
            Command::Look { reply } => {
                self.asked_at = Some(Instant::now());
                self.publish().await;
                let _ = reply.send(Ok(()));
            }
            Command::ChangeLink {
                name,
                change,
                reply,
            } => {
                let done = self.view.change_link(&name, change);
                // Before the answer, so that whoever asked sees what came of it.
                self.publish().await;
                let _ = reply.send(done);
            }
            Command::Explain { question, reply } => {
                let _ = reply.send(self.view.explain(question));
            }
            Command::Trace { session, reply } => {
                let _ = reply.send(self.view.record(session).await);
            }
        }
    }

    async fn publish(&mut self) {
        let mut state = State::of(&self.instance);
        self.view.look(&mut state).await;
        (self.told)(&self.view, &state);
        if let Some(publisher) = &self.publisher {
            publisher.publish(state);
        }
    }
}

/// Waits for a client's command; for ever where there can be none.
async fn next(commands: &mut Option<mpsc::Receiver<Command>>) -> Option<Command> {
    match commands {
        Some(commands) => commands.recv().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;
    use crate::state::Kind;

    /// Has links and sessions to nobody; counts looks.
    #[derive(Default)]
    struct Idle {
        looks: Cell<u32>,
    }

    impl InstanceView for Idle {
        const PACE: Pace = Pace::WhenAsked;

        async fn look(&mut self, _: &mut State) {
            self.looks.set(self.looks.get() + 1);
        }

        async fn changed(&self) {
            pending().await
        }

        fn change_link(&mut self, name: &str, _: LinkChange) -> Result<(), String> {
            Err(format!("no link {name}"))
        }

        fn explain(&self, _: RuleQuestion) -> Result<RuleAnswer, String> {
            Err(self.looks.get().to_string())
        }

        async fn record(&self, _: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
            Err("nothing to record".to_owned())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_to_be_asked_is_not_looked_at_before() {
        let (commands, received) = mpsc::channel(1);
        let told = Cell::new(0);
        let reporter = Reporter {
            instance: Instance::new(Kind::Relay, "relay".to_owned(), String::new(), None),
            view: Idle::default(),
            publisher: None,
            told: |view: &Idle, state: &State| {
                assert_eq!(state.instance.name, "relay");
                told.set(view.looks.get());
            },
            asked_at: None,
        };
        let asking = async {
            for _ in 0..3 {
                // By itself it would be looked at meanwhile.
                sleep(SAMPLE_INTERVAL).await;
                let (reply, answer) = oneshot::channel();
                let question = RuleQuestion::default();
                let explain = Command::Explain { question, reply };
                commands.send(explain).await.unwrap();
                assert_eq!(answer.await.unwrap().unwrap_err(), "0");
            }
            let (reply, answer) = oneshot::channel();
            commands.send(Command::Look { reply }).await.unwrap();
            answer.await.unwrap().unwrap();
            let before = told.get();
            assert!(before > 0);
            let (reply, answer) = oneshot::channel();
            let (name, change) = ("usb0".to_owned(), LinkChange::default());
            let change = Command::ChangeLink {
                name,
                change,
                reply,
            };
            commands.send(change).await.unwrap();
            assert_eq!(answer.await.unwrap().unwrap_err(), "no link usb0");
            assert!(told.get() > before, "what came of it is told first");
        };
        tokio::select! {
            () = reporter.run(Some(received)) => {}
            () = asking => {}
        }
    }
}
