//! How a command waits for its session: over the own links, and by neighbours' links where the own
//! ones do not lead to the relay, or there are none.

use std::net::IpAddr;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use tabane_base::{Destination, Duration, Host};
use tabane_tunnel::{Client, ClientConfig, ConnectError, LinkBind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::SessionPlan;
use crate::lent_paths::Answers;
use tabane_store::Store;
use tabane_uplinks::{
    Table, Uplinks,
    links::{self, Links},
};

/// The own links may take so long before neighbours are asked for the first session as well: most
/// round trips, several times.
const OWN_LINKS_TIME: Duration = Duration::from_secs(2);
/// How long the relay may then take to answer by whichever link: a neighbour has to be found and
/// to let us in first.
const LENT_TIME: Duration = Duration::from_secs(12);
/// Routers are asked as links are looked at, and answer within half a second (RFC 4861 §10).
const TRANSLATOR_TIME: Duration = Duration::from_secs(1);
/// How long neighbours may take to say whether they lend their links.
const ANSWERS_TIME: Duration = Duration::from_secs(6);

impl SessionPlan {
    /// Sets up the session over all links, and goes on to follow interfaces that come and go. Must
    /// be called within a `LocalSet`.
    pub async fn connect(&self, store: &Store) -> Result<Client> {
        Ok(self.set_up(store).await?.0)
    }

    /// The same, and waits until every neighbour has said whether it lends its link. The second
    /// are those that do: links that are there in a moment, if the policy lets them.
    pub async fn connect_by_all(&self, store: &Store) -> Result<(Client, Vec<String>)> {
        let (client, mut answers) = self.set_up(store).await?;
        let all = answers.wait_for(|answers| answers.len() == self.lenders.len());
        // Those that have said nothing by then do not lend now.
        let _ = timeout(ANSWERS_TIME, all).await;
        let lent = answers.borrow();
        let lent = lent.iter().filter(|(_, answer)| answer.is_ok());
        let lent = lent.map(|(name, _)| name.to_string()).collect();
        Ok((client, lent))
    }

    async fn set_up(&self, store: &Store) -> Result<(Client, watch::Receiver<Answers>)> {
        let uplinks = self.uplinks(store).await?;
        self.await_v4(&uplinks).await;
        let table = uplinks.table();
        let chosen = links::choose(&table.interfaces, &table.wanted, &table.policy);
        let (links, no_link) = match chosen {
            Ok(_) => (table.links(), None),
            // Whoever names links means these.
            Err(error) if self.lenders.is_empty() || !self.links.is_empty() => return Err(error),
            Err(error) => (Links::new(), Some(error)),
        };
        let (peers, fault) = self.resolve().await;
        if let Some(fault) = fault {
            if peers.iter().all(|peer| peer.addrs.is_empty()) {
                return Err(fault);
            }
            tracing::warn!("{fault:#}");
        }
        let known = peers.iter().map(|peer| peer.addrs.clone()).collect();
        let every: Vec<LinkBind> = links.values().cloned().collect();
        let config = ClientConfig {
            merits: self.first_merits(&every).await,
            ..self.config(store, peers, &links)?
        };
        let connected = match no_link {
            Some(no_link) => Err(no_link),
            None => self.by_own_links(config.clone()).await?,
        };
        let (client, fault) = match connected {
            Ok(client) => (client, None),
            Err(fault) => {
                let client = Client::start(config).with_context(|| self.subject())?;
                (client, Some(fault))
            }
        };
        self.follow_names(&client, known)?;
        self.follow_fleets(&client, store);
        let lent = self.lent_paths(&client, store, None)?;
        let answers = lent.answers();
        let has_own = !links.is_empty();
        let follower = self.follower(&client, uplinks, table, links, lent);
        tokio::task::spawn_local(follower.run());
        if let Some(fault) = fault {
            self.by_any_link(&client, answers.clone(), fault, has_own)
                .await?;
        }
        Ok((client, answers))
    }

    /// Waits a moment for a translator, where no link has IPv4 and the relay nothing else.
    async fn await_v4(&self, uplinks: &Uplinks) {
        let is_v4 = |at: &Destination| matches!(at.host, Host::Ip(IpAddr::V4(_)));
        let mut addresses = self.relays.iter().flat_map(|(_, relay)| &relay.addresses);
        if !addresses.all(is_v4) {
            return;
        }
        let mut tables = uplinks.subscribe();
        let leads = |table: &Rc<Table>| {
            let links = table.links();
            let mut links = links.values();
            links.len() == 0 || links.any(|it| it.v4.is_some() || !it.translators.is_empty())
        };
        // Without one, what is said is that there is no way.
        let _ = timeout(TRANSLATOR_TIME, tables.wait_for(leads)).await;
    }

    /// A session over the own links; `Err` within, where neighbours' links may help.
    async fn by_own_links(&self, config: ClientConfig) -> Result<Result<Client>> {
        let limit = match self.lenders.is_empty() {
            true => Duration::MAX,
            false => OWN_LINKS_TIME,
        };
        let Ok(connected) = timeout(limit, Client::connect(config)).await else {
            return Ok(Err(anyhow!(
                "the relay does not answer over this machine's links"
            )));
        };
        match connected {
            Ok(client) => Ok(Ok(client)),
            Err(error) if self.lenders.is_empty() || !is_for_want_of_links(&error) => {
                Err(error).with_context(|| self.subject())
            }
            Err(error) => Ok(Err(error.into())),
        }
    }

    /// Waits until the relay answers by any link. `fault` is what the own ones came to.
    async fn by_any_link(
        &self,
        client: &Client,
        mut answers: watch::Receiver<Answers>,
        fault: anyhow::Error,
        has_own: bool,
    ) -> Result<()> {
        let count = self.lenders.len();
        let nobody = async {
            let is_nobody =
                |answers: &Answers| answers.len() == count && answers.values().all(Result::is_err);
            let _ = answers.wait_for(is_nobody).await;
        };
        tokio::select! {
            () = client.until_reachable(true) => return Ok(()),
            reason = client.closed() => bail!("{}: {reason}", self.subject()),
            // What is slow may still answer, where there is anything at all.
            () = nobody, if !has_own => {}
            () = sleep(LENT_TIME) => {}
        }
        let answers = answers.borrow();
        let neighbours = self.lenders.iter().map(|lender| {
            let why = match answers.get(&lender.name) {
                Some(Ok(())) => "the relay does not answer by its link",
                Some(Err(why)) => why,
                None => "no answer",
            };
            format!("neighbour {}: {why}", lender.name)
        });
        let neighbours: Vec<_> = neighbours.collect();
        bail!("{}: {fault:#}; {}", self.subject(), neighbours.join("; "))
    }
}

/// Whether another link could mend it.
fn is_for_want_of_links(error: &ConnectError) -> bool {
    match error {
        ConnectError::NoAnswer { .. }
        | ConnectError::NoRelay(_)
        | ConnectError::NoUsableLink { .. }
        | ConnectError::Link(_) => true,
        ConnectError::Refused(_)
        | ConnectError::Config(_)
        | ConnectError::Endpoint(_)
        | ConnectError::Runtime(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::tests::{client_of_nobody, config};
    use tabane_core::Identity;
    use tabane_store::{NeighbourEntry, Scratch};
    use tabane_uplinks::lent_links;
    use tokio::net::UdpSocket;
    use tokio::task::LocalSet;
    use tokio::time::Instant;

    /// A plan with this neighbour, and its name.
    fn with_neighbour() -> (Scratch, SessionPlan) {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
        let entry = NeighbourEntry {
            address: "192.0.2.1:1".to_owned(),
            key: Identity::from_seed([1; 32]).public_key().to_string(),
        };
        store.put_neighbour("phone", &entry, &[]).unwrap();
        let lenders = lent_links::find(&[], &store).unwrap();
        let plan = SessionPlan {
            lenders,
            ..SessionPlan::default()
        };
        (scratch, plan)
    }

    #[tokio::test(start_paused = true)]
    async fn own_links_have_two_seconds_where_a_neighbour_may_help() {
        let there = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addrs = vec![there.local_addr().unwrap()];
        let config = config(addrs, vec![LinkBind::unbound()]);
        let (_scratch, plan) = with_neighbour();
        let body = async {
            let begin = Instant::now();
            let connected = plan.by_own_links(config.clone()).await.unwrap();
            assert!(connected.is_err());
            assert_eq!(begin.elapsed().as_millis(), 2_000);
            let alone = SessionPlan::default();
            let waits = timeout(OWN_LINKS_TIME * 2, alone.by_own_links(config));
            assert!(waits.await.is_err(), "there is nobody else to ask");
        };
        LocalSet::new().run_until(body).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_has_twelve_seconds_by_any_link_and_none_where_there_is_no_link() {
        let (_scratch, plan) = with_neighbour();
        let body = async {
            let client = client_of_nobody();
            for (has_own, answer, expected) in [
                (true, None, 12_000),
                (false, None, 12_000),
                (true, Some(Err("it is full")), 12_000),
                (false, Some(Ok(())), 12_000),
                (false, Some(Err("it is full")), 3_000),
            ] {
                let answers = watch::Sender::new(Answers::new());
                let heard = answers.subscribe();
                let telling = async {
                    sleep(Duration::from_secs(3)).await;
                    if let Some(answer) = answer {
                        let name = plan.lenders[0].name.clone();
                        let answer = answer.map_err(str::to_owned);
                        answers.send_replace([(name, answer)].into());
                    }
                };
                let begin = Instant::now();
                let waiting = plan.by_any_link(&client, heard, anyhow!("no link"), has_own);
                let (waited, ()) = tokio::join!(waiting, telling);
                assert_eq!(
                    begin.elapsed().as_millis(),
                    expected,
                    "{has_own} {answer:?}"
                );
                let fault = waited.unwrap_err().to_string();
                assert!(fault.contains("no link; neighbour phone: "), "{fault}");
            }
        };
        LocalSet::new().run_until(body).await;
    }
}
