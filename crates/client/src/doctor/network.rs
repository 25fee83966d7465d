//! The links of this machine and the relays it knows, asked over every one of them.

use anyhow::Result;
use tabane_base::Duration;
use tabane_policy::Policy;
use tabane_store::Store;
use tabane_tunnel::Lodging;
use tabane_uplinks::{LinkPolicy, gateways};
use tokio::time::timeout;

use crate::reach::measure;
use crate::{SessionOrder, SessionPlan};

/// Relays asked; each that does not answer takes ten seconds.
const MAX_RELAYS: usize = 4;
/// A relay that has answered over some link says this within a round trip.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// What was found of the links and the relays.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Interfaces that are links.
    pub(crate) links: Vec<InterfaceFacts>,
    /// Others, with why they are none.
    pub(crate) unusable: Vec<(String, String)>,
    /// Why the interfaces cannot be listed.
    pub(crate) failure: Option<String>,
    /// Files of ours that cannot be read: why, and what mends it.
    pub(crate) faults: Vec<(String, String)>,
    pub(crate) relays: Vec<RelayFacts>,
    /// Relays known beyond those.
    pub(crate) relays_omitted: usize,
    /// The relays were not asked.
    pub(crate) offline: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct InterfaceFacts {
    pub(crate) name: String,
    pub(crate) mtu_bytes: u32,
    pub(crate) has_v4: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct RelayFacts {
    pub(crate) name: String,
    /// Over every link; or why there is no session at all.
    pub(crate) reached: Result<Vec<Reached>, String>,
    /// Whether it has addresses for what is neither TCP nor UDP, where it says so.
    pub(crate) lodging: Option<Lodging>,
}

/// A link's name with the relay's answer over it, or what is wrong.
pub(crate) type Reached = (String, Result<AnswerFacts, String>);

#[derive(Clone, Debug)]
pub(crate) struct AnswerFacts {
    pub(crate) rtt_ms: f64,
    /// What carries packets there, and why that, where it is not as usual.
    pub(crate) carrier: String,
    pub(crate) carrier_why: Option<String>,
}

impl Network {
    /// Looks, and without `offline` sets up a session that carries nothing to every relay.
    pub async fn look(store: &Store, offline: bool) -> Self {
        let mut network = Self {
            offline,
            ..Self::default()
        };
        let policy = LinkPolicy::load(store);
        let policy = policy.map_or_else(|_| Policy::default(), |it| it.policy().clone());
        match gateways::list(&policy).await {
            Ok(list) => {
                for interface in list {
                    let has_v4 = interface.global_addresses().any(|ip| ip.is_ipv4());
                    match interface.usable() {
                        Ok(()) => network.links.push(InterfaceFacts {
                            name: interface.name,
                            mtu_bytes: interface.mtu,
                            has_v4,
                        }),
                        Err(why) => network.unusable.push((interface.name, why.to_string())),
                    }
                }
            }
            Err(error) => network.failure = Some(error.to_string()),
        }
        network.faults = faults(store);
        if !network.faults.is_empty() {
            // Every command with a session would say the same.
            return network;
        }
        let relays = store.relays().unwrap_or_default();
        network.relays_omitted = relays.len().saturating_sub(MAX_RELAYS);
        for (name, _) in relays.iter().take(MAX_RELAYS) {
            let reached = match offline {
                true => Ok((Vec::new(), None)),
                false => reach(SessionOrder::to_relay(name), store).await,
            };
            let (reached, lodging) = match reached {
                Ok((reached, lodging)) => (Ok(reached), lodging),
                Err(error) => (Err(format!("{error:#}")), None),
            };
            network.relays.push(RelayFacts {
                name: name.to_string(),
                reached,
                lodging,
            });
        }
        network
    }
}

/// What commands with a session read before anything else.
fn faults(store: &Store) -> Vec<(String, String)> {
    let mend = "correct that line; or move the file away, and its settings with it".to_owned();
    let check = "correct that line; tabane policy check".to_owned();
    let leave = "tabane leave NAME, and tabane join STRING again".to_owned();
    let remove = "tabane peer remove NAME, and tabane peer add STRING again".to_owned();
    let read = [
        (store.settings().map(drop), mend),
        (LinkPolicy::load(store).map(drop), check),
        (store.relays().map(drop), leave),
        (store.peers().map(drop), remove),
    ];
    let faults = read.into_iter().filter_map(|(read, remedy)| {
        let error = read.err()?;
        Some((format!("{error:#}"), remedy))
    });
    faults.collect()
}

async fn reach(args: SessionOrder, store: &Store) -> Result<(Vec<Reached>, Option<Lodging>)> {
    let plan = SessionPlan::new(args, store)?;
    let (client, lent) = plan.connect_by_all(store).await?;
    let snapshot = measure(&client, &lent).await;
    let asked = timeout(ANSWER_WAIT, client.open_packets(true)).await;
    let lodging = asked.ok().and_then(Result::ok);
    let lodging = lodging.map(|flow| flow.assignment().lodging);
    client.close().await;
    let links = snapshot.links.into_iter().map(|link| {
        let answer = match link.round_trip() {
            Some(latest) => Ok(AnswerFacts {
                rtt_ms: latest.as_secs_f64() * 1e3,
                carrier: link.carried_by(),
                carrier_why: link.carrier_why,
            }),
            None => Err(link
                .problem
                .unwrap_or_else(|| "no answer from the relay".to_owned())),
        };
        (link.name, answer)
    });
    Ok((links.collect(), lodging))
}
