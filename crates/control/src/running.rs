//! What all instances of a user say of themselves, asked one after the other.

use std::time::Duration;

use tokio::time::timeout;

use crate::client::Client;
use crate::directory::Directory;
use crate::state::{Kind, State};

/// Who does not say by then what it does is left out.
const PATIENCE: Duration = Duration::from_millis(500);

/// What this user's instances say of themselves. One that ends just now, or is of another version,
/// is left out.
pub async fn running() -> Vec<State> {
    let mut states = Vec::new();
    for instance in Directory::of_user().running() {
        let client = Client::new(&instance.socket);
        if let Ok(Ok(state)) = timeout(PATIENCE, client.state()).await {
            states.push(state);
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
