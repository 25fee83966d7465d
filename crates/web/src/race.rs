//! Connecting by whichever link gets there: the best one first, the next beside it when that takes
//! long or fails.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tabane_fetch::Link;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::balance::{Balance, Seat};
use crate::refusal::Refusal;

/// How long a link is alone with its try: more than a connection takes over any link that is well,
/// TLS included, so that nothing is connected twice for nothing.
const HEAD_START: Duration = Duration::from_secs(1);

/// Tries links in this order; gives the place on the link that came first. A place is taken with
/// the try, so that others who choose meanwhile know of it. A link that fails for a host which
/// another one reaches is tried last for a while.
pub(crate) async fn first<T, F>(
    balance: &Balance,
    links: Vec<Rc<Link>>,
    host: &str,
    connect: impl Fn(Rc<Link>) -> F,
) -> Result<(Rc<Link>, Seat, T), Refusal>
where
    T: 'static,
    F: Future<Output = Result<T, Refusal>> + 'static,
{
    let mut waiting = links.into_iter().peekable();
    let mut tried: Vec<Rc<Link>> = Vec::new();
    let mut tries = JoinSet::new();
    let mut next_at = Instant::now();
    let mut failure = None;
    loop {
        if tries.is_empty() || Instant::now() >= next_at {
            if let Some(link) = waiting.next() {
                let connecting = connect(link.clone());
                let seat = balance.sit(Instant::now(), &link);
                tried.push(link.clone());
                tries.spawn_local(async move { (link, seat, connecting.await) });
                next_at = Instant::now() + HEAD_START;
            } else if tries.is_empty() {
                return Err(failure.unwrap_or_else(Refusal::no_link));
            }
        }
        tokio::select! {
            Some(done) = tries.join_next() => match done {
                Ok((link, seat, Ok(connection))) => {
                    let now = Instant::now();
                    for slower in tried.iter().take_while(|other| other.id() != link.id()) {
                        balance.avoid(now, slower, host);
                    }
                    balance.reached(&link);
                    return Ok((link, seat, connection));
                }
                Ok((link, _, Err(refusal))) => {
                    tracing::debug!(link = link.name(), host, refusal.text, "not reached");
                    // The best link's words count.
                    failure.get_or_insert(refusal);
                }
                Err(error) => tracing::debug!(%error, "a try was lost"),
            },
            () = sleep_until(next_at), if waiting.peek().is_some() => {}
        }
    }
}
