//! When a session with a peer answers, and when it is given up: nobody answers, it is refused, or
//! nothing is under way for long.

use tabane_base::Duration;
use tabane_core::CloseReason;
use tabane_tunnel::Client;
use tokio::time::{Instant, sleep};

/// Who has not answered by then is not there.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// A session that carries nothing for so long is ended, for the sake of links that sleep.
const IDLE: Duration = Duration::from_secs(300);
/// How often it is looked whether it carries anything.
const IDLE_CHECK: Duration = Duration::from_secs(20);

/// What is watched of a session.
pub(super) trait Watched {
    /// Waits until it answers, or until it does not.
    async fn until_reachable(&self, reachable: bool);
    /// Waits until the peer refuses it.
    async fn refused(&self) -> CloseReason;
    /// Whether anything is under way.
    fn carries(&self) -> bool;
}

impl Watched for Client {
    async fn until_reachable(&self, reachable: bool) {
        Client::until_reachable(self, reachable).await;
    }

    async fn refused(&self) -> CloseReason {
        Client::refused(self).await
    }

    fn carries(&self) -> bool {
        let session = self.snapshot().session;
        session.is_some_and(|session| session.streams > 0)
    }
}

/// How a session came to its end.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    Idle,
    Silent,
    Refused(CloseReason),
}

/// What happens to a session.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Answers,
    FallsSilent,
    Over(End),
}

/// How a session stands, from its beginning on.
pub(super) struct Standing<'a, W> {
    session: &'a W,
    answers: bool,
    /// How long it may be silent before it is given up.
    patience: Duration,
    patience_later: Duration,
}

impl<'a, W: Watched> Standing<'a, W> {
    /// Once it has answered, it may be silent for `patience`.
    pub(super) fn new(session: &'a W, patience: Duration) -> Self {
        Self {
            session,
            answers: false,
            patience: ANSWER_WAIT,
            patience_later: patience,
        }
    }

    /// Waits for the next step; there is none after the session is over.
    pub(super) async fn next(&mut self) -> Step {
        let step = tokio::select! {
            () = self.session.until_reachable(!self.answers) => match self.answers {
                true => Step::FallsSilent,
                false => Step::Answers,
            },
            reason = self.session.refused() => Step::Over(End::Refused(reason)),
            () = self.tired() => Step::Over(match self.answers {
                true => End::Idle,
                false => End::Silent,
            }),
        };
        self.answers = step == Step::Answers;
        self.patience = self.patience_later;
        step
    }

    /// Waits until it has been silent, or idle, for too long.
    async fn tired(&self) {
        if !self.answers {
            return sleep(self.patience).await;
        }
        let mut idle_since = Instant::now();
        while idle_since.elapsed() < IDLE {
            sleep(IDLE_CHECK).await;
            if self.session.carries() {
                idle_since = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::sync::watch;

    /// A session that answers as it is told to.
    struct Fake {
        reachable: watch::Sender<bool>,
        carries_until: Cell<Option<Instant>>,
        refused_after: Option<Duration>,
    }

    impl Fake {
        fn new() -> Self {
            Self {
                reachable: watch::Sender::new(false),
                carries_until: Cell::new(None),
                refused_after: None,
            }
        }
    }

    impl Watched for Fake {
        async fn until_reachable(&self, reachable: bool) {
            let mut states = self.reachable.subscribe();
            let _ = states.wait_for(|it| *it == reachable).await;
        }

        async fn refused(&self) -> CloseReason {
            match self.refused_after {
                Some(after) => sleep(after).await,
                None => std::future::pending().await,
            }
            CloseReason::WrongPeerKey
        }

        fn carries(&self) -> bool {
            let until = self.carries_until.get();
            until.is_some_and(|until| Instant::now() < until)
        }
    }

    const PATIENCE: Duration = Duration::from_secs(40);

    #[tokio::test(start_paused = true)]
    async fn who_never_answers_is_given_up_after_five_seconds() {
        let (session, begun_at) = (Fake::new(), Instant::now());
        let step = Standing::new(&session, PATIENCE).next().await;
        assert_eq!(step, Step::Over(End::Silent));
        assert_eq!(begun_at.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_answered_may_be_silent_for_longer() {
        let session = Fake::new();
        let mut standing = Standing::new(&session, PATIENCE);
        session.reachable.send_replace(true);
        assert_eq!(standing.next().await, Step::Answers);
        session.reachable.send_replace(false);
        assert_eq!(standing.next().await, Step::FallsSilent);
        let silent_at = Instant::now();
        let returns = async {
            sleep(PATIENCE - Duration::from_secs(1)).await;
            session.reachable.send_replace(true);
        };
        let (step, ()) = tokio::join!(standing.next(), returns);
        assert_eq!(step, Step::Answers);
        session.reachable.send_replace(false);
        assert_eq!(standing.next().await, Step::FallsSilent);
        assert_eq!(standing.next().await, Step::Over(End::Silent));
        assert_eq!(silent_at.elapsed(), PATIENCE * 2 - Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_session_ends_five_minutes_after_its_last_stream() {
        let (session, begun_at) = (Fake::new(), Instant::now());
        session.reachable.send_replace(true);
        let carries_for = Duration::from_secs(1_000);
        session.carries_until.set(Some(begun_at + carries_for));
        let mut standing = Standing::new(&session, PATIENCE);
        assert_eq!(standing.next().await, Step::Answers);
        assert_eq!(standing.next().await, Step::Over(End::Idle));
        let idle_for = begun_at.elapsed() - carries_for;
        assert!(idle_for >= IDLE - IDLE_CHECK && idle_for <= IDLE + IDLE_CHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_at_once() {
        let session = Fake {
            refused_after: Some(Duration::from_millis(30)),
            ..Fake::new()
        };
        let begun_at = Instant::now();
        let step = Standing::new(&session, PATIENCE).next().await;
        assert_eq!(step, Step::Over(End::Refused(CloseReason::WrongPeerKey)));
        assert_eq!(begun_at.elapsed().as_millis(), 30);
    }
}
