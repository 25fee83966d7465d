//! What all instances of a user say of themselves.

use std::time::Duration;

use tokio::time::timeout;

use crate::client::Client;
use crate::directory::{Directory, Running};
use crate::state::{Kind, State};

/// Who does not say by then what it does is left out.
const PATIENCE: Duration = Duration::from_millis(500);

/// What this user's instances say of themselves. One that ends just now, or is of another version,
/// is left out; of one that says nothing, that is told.
pub async fn running() -> Vec<State> {
    ask(Directory::of_user().running()).await
}

async fn ask(instances: Vec<Running>) -> Vec<State> {
    let begin = |Running { name, socket }| {
        let asked = async move { timeout(PATIENCE, Client::new(&socket).state()).await };
        (name, tokio::spawn(asked))
    };
    // All at once, so that those who say nothing cost no more time together than one.
    let asked: Vec<_> = instances.into_iter().map(begin).collect();
    let mut states = Vec::new();
    for (name, answer) in asked {
        match answer.await {
            Ok(Ok(Ok(state))) => states.push(state),
            Ok(Err(_)) => tracing::warn!("{name} does not say what it does"),
            Ok(Ok(Err(error))) => tracing::debug!(%error, name, "an instance is left out"),
            Err(error) => tracing::debug!(%error, name, "an instance is left out"),
        }
    }
    states
}

/// The same of clients, those that have sessions.
pub async fn running_clients() -> Vec<State> {
    let mut running = running().await;
    running.retain(|state| {
        let kind = state.instance.kind;
        !matches!(kind, Kind::Relay | Kind::Gateway) && !kind.has_links_alone()
    });
    running
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn those_who_say_nothing_hold_nobody_up_together() {
        let name = format!("tabane-silent-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let silent = (0..8).map(|n| {
            let (name, socket) = (format!("relay-{n}"), directory.join(format!("{n}.sock")));
            let listener = UnixListener::bind(&socket).unwrap();
            (Running { name, socket }, listener)
        });
        let (silent, _listeners): (Vec<_>, Vec<_>) = silent.unzip();
        let begun = Instant::now();
        assert_eq!(ask(silent).await.len(), 0);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(begun.elapsed() < PATIENCE * 4, "{:?}", begun.elapsed());
    }
}
