//! What happened on the data path, as events of the API.

use tabane_control::{Event, EventKind, key_label};
use tabane_core::PublicKey;

use crate::journal::{Entry, Happening, Journal};

/// All that is kept, oldest first.
#[must_use]
pub fn happened(journal: &Journal) -> Vec<Event> {
    journal.since(0).iter().map(event).collect()
}

fn event(entry: &Entry) -> Event {
    let (kind, link, session, text) = match &entry.happening {
        Happening::SessionUp { session, client } => {
            let text = match client {
                Some(client) => format!("session of {} up", short(client)),
                None => "session up".to_owned(),
            };
            (EventKind::SessionUp, None, Some(*session), text)
        }
        Happening::SessionEnded {
            session,
            client,
            reason,
        } => {
            let text = match client {
                Some(client) => format!("session of {} ended: {reason}", short(client)),
                None => format!("session ended: {reason}"),
            };
            (EventKind::SessionEnded, None, Some(*session), text)
        }
        Happening::RelayChosen { relay } => {
            let text = format!("relay {relay} is used");
            (EventKind::SessionUp, None, None, text)
        }
        Happening::PeerUp { peer } => {
            let text = format!("peer {peer} is reached straight");
            (EventKind::SessionUp, None, None, text)
        }
        Happening::PeerDown { peer, why } => {
            let text = format!("peer {peer} is not reached straight: {why}");
            (EventKind::SessionEnded, None, None, text)
        }
        Happening::Refused { client } => {
            let text = format!("client {} refused", short(client));
            (EventKind::ClientRefused, None, None, text)
        }
        Happening::LinkAdded { link } => of_link(EventKind::LinkAdded, link, "link found"),
        Happening::LinkRemoved { link, why } => {
            of_link(EventKind::LinkRemoved, link, format!("not used: {why}"))
        }
        Happening::LinkUp { link } => of_link(EventKind::LinkUp, link, "carries data"),
        Happening::LinkDown { link, reason } => {
            of_link(EventKind::LinkDown, link, reason.to_string())
        }
        Happening::LinkPolicy {
            link,
            weight,
            paused,
        } => {
            let text = match paused {
                true => "paused".to_owned(),
                false => format!("used, weight {weight}"),
            };
            of_link(EventKind::LinkChanged, link, text)
        }
    };
    Event {
        number: entry.number,
        at_unix_ms: entry.at.unix_millis(),
        kind,
        link: link.cloned(),
        session,
        text,
    }
}

/// News of a link: kind, link, session, text.
fn of_link(
    kind: EventKind,
    link: &String,
    text: impl Into<String>,
) -> (EventKind, Option<&String>, Option<u64>, String) {
    (kind, Some(link), None, text.into())
}

fn short(client: &PublicKey) -> String {
    key_label(&client.to_string())
}
