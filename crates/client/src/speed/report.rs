//! The speed of each link and of all together, one measurement after the other.
//!
//! Owns which links are measured, in which order and for how long, and what is told where one is
//! not. Each measurement has a session of its own.

use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use tabane_base::Duration;
use tabane_store::Store;
use tabane_tunnel::{OpenError, Status};

use super::{Speed, SpeedError, measure};
use crate::client_session::{SessionOrder, SessionPlan};
use crate::reach;

/// How long all of it takes, sessions and echoes included.
const ALL_TIME: Duration = Duration::from_secs(15);
/// What of a row's time goes by before it is measured.
const SETUP_TIME: Duration = Duration::from_millis(600);
/// The least for a row, both ways: less shows how senders begin, and not what a link carries.
const LEAST_TIME: Duration = Duration::from_secs(3);
/// What the row of all links together is called.
const ALL: &str = "all";

/// All that was measured.
#[derive(Serialize)]
pub struct Report {
    /// One by one, with those that were left out.
    pub links: Vec<Row>,
    /// All of `links` that were measured, as one; missing where it was one alone.
    pub together: Option<Row>,
}

/// A link, or all of them, as it was measured.
#[derive(Default, Serialize)]
pub struct Row {
    /// Its name.
    pub link: String,
    /// What arrived in the second half of the time.
    pub down_bps: Option<u64>,
    /// The same, the other way.
    pub up_bps: Option<u64>,
    /// What an echo took with nothing beside it; here and below the median.
    pub idle_ms: Option<f64>,
    /// While it was full towards us.
    pub down_loaded_ms: Option<f64>,
    /// While it was full from us.
    pub up_loaded_ms: Option<f64>,
    /// By what its packets went, where it is known: udp, tls.
    pub carrier: Option<String>,
    /// Why it was not measured.
    pub problem: Option<String>,
}

impl Row {
    /// Of one that was not measured.
    fn without(link: &str, problem: &anyhow::Error) -> Self {
        Self {
            link: link.to_owned(),
            problem: Some(format!("{problem:#}")),
            ..Self::default()
        }
    }
}

/// Measures every link that `order` has, then all at once. Before each, `shown` is told how many
/// are done, of how many, and which comes.
///
/// # Errors
/// No link can be measured.
pub async fn report(
    order: &SessionOrder,
    store: &Store,
    shown: impl Fn(usize, usize, &str),
) -> Result<Report> {
    let (names, left_out) = links(order, store).await?;
    // A neighbour's link, or none, of which the session says why.
    if names.is_empty() && left_out.is_empty() {
        let row = row(ALL, order, store, span(1)).await?;
        let links = vec![row];
        let together = None;
        return Ok(Report { links, together });
    }
    let rows = names.len() + usize::from(names.len() > 1);
    let mut links = Vec::new();
    for (place, name) in names.iter().enumerate() {
        shown(place, rows, name);
        let only = over(order, std::slice::from_ref(name));
        let measured = row(name, &only, store, span(rows)).await;
        match measured {
            // What the others have found is kept.
            Err(error) if place > 0 => links.push(Row::without(name, &error)),
            row => links.push(row?),
        }
    }
    let together = match names.len() {
        0 | 1 => None,
        _ => {
            shown(names.len(), rows, ALL);
            let row = row(ALL, &over(order, &names), store, span(rows)).await;
            Some(row.unwrap_or_else(|error| Row::without(ALL, &error)))
        }
    };
    links.extend(left_out);
    Ok(Report { links, together })
}

/// The links to measure, and rows of those that are left out.
async fn links(order: &SessionOrder, store: &Store) -> Result<(Vec<String>, Vec<Row>)> {
    let plan = SessionPlan::new(order.clone(), store)?;
    if !plan.has_relays() {
        bail!("no relay is known; `tabane join STRING` makes one known");
    }
    let links = plan.uplinks(store).await?.table().links();
    let (mut names, mut left_out) = (Vec::new(), Vec::new());
    for (name, link) in links {
        match link.policy.metered && !order.links.contains(&name) {
            true => left_out.push(Row {
                problem: Some(format!(
                    "left out, because it is metered; `--link {name}` measures it"
                )),
                link: name,
                ..Row::default()
            }),
            false => names.push(name),
        }
    }
    Ok((names, left_out))
}

/// The same, by these links of this machine alone.
fn over(order: &SessionOrder, links: &[String]) -> SessionOrder {
    SessionOrder {
        links: links.to_vec(),
        neighbours: Vec::new(),
        ..order.clone()
    }
}

/// For how long each of so many rows is measured.
fn span(rows: usize) -> Duration {
    let share = ALL_TIME / u32::try_from(rows).unwrap_or(u32::MAX);
    share.saturating_sub(SETUP_TIME).max(LEAST_TIME)
}

/// One row. `Err` where no other row could do better.
async fn row(name: &str, order: &SessionOrder, store: &Store, span: Duration) -> Result<Row> {
    let plan = SessionPlan::new(order.clone(), store)?;
    let client = match plan.connect(store).await {
        Ok(client) => client,
        Err(error) => return Ok(Row::without(name, &error)),
    };
    let up = reach::look(&client, &order.links).await;
    let measured = measure(&client, span).await;
    let snapshot = client.snapshot();
    client.close().await;
    let relay = snapshot.relay.or(up.relay);
    let relay = relay.and_then(|place| plan.relays().into_iter().nth(place));
    let relay = relay.map_or_else(String::new, |(name, _)| name);
    let carriers = snapshot.links.iter().map(|link| link.carrier.to_string());
    let mut carriers: Vec<_> = carriers.collect();
    carriers.sort_unstable();
    carriers.dedup();
    let row = Row {
        link: name.to_owned(),
        carrier: Some(carriers.join(", ")).filter(|it| !it.is_empty()),
        ..Row::default()
    };
    match measured {
        Ok(speed) => Ok(filled(row, speed)),
        Err(error) => match hopeless(&error, &relay) {
            Some(error) => Err(error),
            None => Ok(Row {
                problem: Some(error.to_string()),
                ..row
            }),
        },
    }
}

/// What any link would meet at this relay, in words that say what to do.
fn hopeless(error: &SpeedError, relay: &str) -> Option<anyhow::Error> {
    let SpeedError::Open(OpenError::Refused(status)) = error else {
        return None;
    };
    match status {
        Status::Malformed => Some(anyhow!(
            "relay {relay} is older than `tabane speed`: update tabane there; `tabane links \
             --measure` estimates without it"
        )),
        Status::Limit => Some(anyhow!(
            "relay {relay} measures no more for now: a client has 5 minutes of it in ten, and \
             others may be at it; try again later"
        )),
        _ => None,
    }
}

fn filled(row: Row, speed: Speed) -> Row {
    let millis = |span: Option<Duration>| span.map(|span| span.as_secs_f64() * 1e3);
    Row {
        down_bps: Some(speed.down.rate.as_bps()),
        up_bps: Some(speed.up.rate.as_bps()),
        idle_ms: millis(speed.idle),
        down_loaded_ms: millis(speed.down.latency),
        up_loaded_ms: millis(speed.up.latency),
        ..row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_links_share_the_time_and_many_have_enough_each() {
        assert_eq!(span(1), ALL_TIME - SETUP_TIME);
        assert!((span(3) + SETUP_TIME) * 3 <= ALL_TIME);
        assert_eq!(span(40), LEAST_TIME);
    }

    #[test]
    fn an_older_relay_and_one_that_has_enough_say_what_to_do() {
        let refused = |status| {
            let error = SpeedError::Open(OpenError::Refused(status));
            hopeless(&error, "home").map(|error| error.to_string())
        };
        let older = refused(Status::Malformed).unwrap();
        assert!(
            older.contains("home") && older.contains("update"),
            "{older}"
        );
        let enough = refused(Status::Limit).unwrap();
        assert!(
            enough.contains("home") && enough.contains("later"),
            "{enough}"
        );
        assert_eq!(refused(Status::VolumeUsedUp), None);
    }
}
