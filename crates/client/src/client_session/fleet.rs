//! The relays of a fleet that was joined: which there are, how far each is, and which of them the
//! session had better be with.
//!
//! Owns when they are asked for and measured. The list is believed by the store alone, what follows
//! from distances is the roster's to say (`tunnel/client/roster.rs`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use tabane_core::{Inquiry, PublicKey};
use tabane_linux::Egress;
use tabane_linux::threads::aside;
use tabane_store::{FleetMember, RelayEntry, RelayName, Store, secret};
use tabane_tunnel::{Client, LinkBind, RelayLoad, RelayMerit, in_order_of_merit};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{SessionPlan, peer_of, resolve};
use crate::plain;

/// How often distances are measured anew: a question of 1,200 bytes for each relay and link.
const MEASURE_INTERVAL: Duration = Duration::from_secs(300);
/// A relay that has not answered by then is far, or does not.
const ANSWER_WAIT: Duration = Duration::from_millis(1_000);
/// Before the first session no more is waited: what answers later is farther.
const FIRST_WAIT: Duration = Duration::from_millis(400);
/// Relays measured at a time; of a larger fleet those that come first in its list.
const MOST_MEASURED: usize = 64;

impl SessionPlan {
    /// What is known of the relays before there is a session: of a fleet's, how far each is.
    pub(super) async fn first_merits(&self, links: &[LinkBind]) -> Vec<RelayMerit> {
        merits_of(&self.members, links, FIRST_WAIT).await
    }

    /// Every relay that may be used, in the order in which a client would try them now, with how
    /// far each of a fleet's is. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// This host's links cannot be looked at.
    pub async fn weigh(&self, store: &Store) -> Result<Vec<(FleetMember, RelayMerit)>> {
        let uplinks = self.uplinks(store).await?;
        let links: Vec<LinkBind> = uplinks.table().links().into_values().collect();
        let merits = merits_of(&self.members, &links, ANSWER_WAIT).await;
        let order = in_order_of_merit(&merits).into_iter();
        Ok(order
            .map(|place| (self.members[place].clone(), merits[place]))
            .collect())
    }

    /// Follows the lists of fleets that were joined, and how far their relays are.
    pub(super) fn follow_fleets(&self, client: &Client, store: &Store) {
        let is_of_fleet = |(_, relay): &&(RelayName, RelayEntry)| relay.fleet.is_some();
        if !self.joined.iter().any(|joined| is_of_fleet(&joined)) {
            return;
        }
        let follower = Rc::new(Follower {
            plan: self.clone(),
            client: client.clone(),
            store: store.clone(),
            is_new: Notify::new(),
            epochs: RefCell::default(),
            members: RefCell::new(self.members.clone()),
            loads: RefCell::default(),
        });
        tokio::task::spawn_local(follower.clone().ask());
        tokio::task::spawn_local(follower.measure());
    }
}

struct Follower {
    plan: SessionPlan,
    client: Client,
    store: Store,
    is_new: Notify,
    /// Of the lists that are known, by the keys of their fleets.
    epochs: RefCell<BTreeMap<PublicKey, u64>>,
    /// By place; those that are gone stay.
    members: RefCell<Vec<FleetMember>>,
    /// What each has to do, of those of which that is told; `None` before the first word.
    loads: RefCell<Option<BTreeMap<PublicKey, RelayLoad>>>,
}

impl Follower {
    /// Asks for newer lists for ever.
    async fn ask(self: Rc<Self>) {
        let known = || {
            let fleet = self.fleet()?;
            self.epochs.borrow().get(&fleet).copied()
        };
        let tell = |bytes: Vec<u8>| {
            if let Some(fleet) = self.fleet() {
                let follower = self.clone();
                tokio::task::spawn_local(async move { follower.keep(fleet, bytes).await });
            }
        };
        self.client
            .follow_fleet_list(|| known().unwrap_or(0), tell, |loads| self.note(&loads))
            .await;
    }

    /// The fleet of the relay that is in use.
    fn fleet(&self) -> Option<PublicKey> {
        let (_, key) = self.client.snapshot().relay_named?;
        let members = self.members.borrow();
        let relay = members.iter().find(|member| member.entry.key == key)?;
        relay.entry.fleet
    }

    /// Has relays be liked by what they have to do; one of which nothing is told is idle.
    fn note(&self, told: &[(PublicKey, u16)]) {
        let before = self.loads.borrow().clone();
        let next = |(key, thousandths): &(PublicKey, u16)| {
            let lot = u16::from_be_bytes(secret::random()) % 1_000;
            let load = before.as_ref().map_or_else(
                || RelayLoad::at_first(*thousandths, lot),
                |known| {
                    let known = known.get(key).copied().unwrap_or_default();
                    known.next(*thousandths, lot)
                },
            );
            (*key, load)
        };
        let now: BTreeMap<_, _> = told.iter().map(next).collect();
        if before.as_ref() != Some(&now) {
            tracing::debug!(loads = ?now.values(), "what the fleet's relays have to do is another");
            self.loads.replace(Some(now));
            self.is_new.notify_one();
        }
    }

    /// Keeps a list where it is one of this fleet, and newer.
    async fn keep(&self, fleet: PublicKey, bytes: Vec<u8>) {
        let (store, joined) = (self.store.clone(), self.plan.joined.clone());
        let kept = aside(move || {
            let fleets = joined.iter();
            let fleets = fleets.filter(|(_, relay)| relay.fleet == Some(fleet));
            let puts = fleets.map(|(name, relay)| {
                let is_new = store.put_fleet_list(name, relay, &bytes)?;
                let list = store.fleet_list(name, relay)?;
                Ok::<_, anyhow::Error>((is_new, list.map_or(0, |list| list.epoch())))
            });
            puts.collect::<Vec<_>>()
        });
        for put in kept.await.unwrap_or_default() {
            match put {
                Ok((is_new, epoch)) => {
                    self.epochs.borrow_mut().insert(fleet, epoch);
                    if is_new {
                        self.is_new.notify_one();
                    }
                }
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
    }

    /// Tells the client of relays that come and go, and of distances, for ever.
    async fn measure(self: Rc<Self>) {
        self.client.until_reachable(true).await;
        loop {
            self.renew().await;
            let _ = timeout(MEASURE_INTERVAL, self.is_new.notified()).await;
        }
    }

    async fn renew(&self) {
        let (store, joined) = (self.store.clone(), self.plan.joined.clone());
        let Ok(now) = aside(move || store.members_of(&joined)).await else {
            return;
        };
        let is_gone = take_over(&mut self.members.borrow_mut(), now);
        let members = self.members.borrow().clone();
        let Ok(uplinks) = self.plan.uplinks(&self.store).await else {
            return;
        };
        let links: Vec<LinkBind> = uplinks.table().links().into_values().collect();
        let mut merits = merits_of(&members, &links, ANSWER_WAIT).await;
        let loads = self.loads.borrow().clone();
        let places = merits.iter_mut().zip(members.iter()).zip(is_gone);
        for ((merit, member), is_gone) in places {
            merit.is_gone = is_gone;
            let load = loads.as_ref().and_then(|it| it.get(&member.entry.key));
            merit.load = load.copied().unwrap_or_default();
        }
        let mut peers = Vec::new();
        for member in members.iter() {
            let addrs = resolve(&member.entry.addresses).await.unwrap_or_default();
            peers.push(peer_of(&member.name, &member.entry, addrs));
        }
        self.client
            .set_relays(peers.into_iter().zip(merits).collect());
    }
}

/// Has `members` be those of `now`, each at its place and new ones last; which are gone. One with
/// another key is another relay.
fn take_over(members: &mut Vec<FleetMember>, now: Vec<FleetMember>) -> Vec<bool> {
    let mut is_gone = vec![true; members.len()];
    for member in now {
        let place = members
            .iter()
            .position(|known| known.entry.key == member.entry.key);
        match place {
            Some(place) => {
                members[place] = member;
                is_gone[place] = false;
            }
            None => {
                members.push(member);
                is_gone.push(false);
            }
        }
    }
    is_gone
}

/// How far each relay is over the nearest link, where there are several to choose from, and what
/// its fleet says of it.
async fn merits_of(members: &[FleetMember], links: &[LinkBind], wait: Duration) -> Vec<RelayMerit> {
    let mut merits: Vec<RelayMerit> = members
        .iter()
        .map(|member| RelayMerit {
            preference: member.preference,
            distance: None,
            load: RelayLoad::Light,
            is_draining: member.is_draining,
            is_gone: false,
        })
        .collect();
    let has_choice = |place: usize| {
        let own = members[place].preference;
        members
            .iter()
            .filter(|member| member.preference == own)
            .nth(1)
            .is_some()
    };
    let mut asking = JoinSet::new();
    for place in (0..members.len())
        .filter(|place| has_choice(*place))
        .take(MOST_MEASURED)
    {
        let addresses = members[place].entry.addresses.clone();
        let links = links.to_vec();
        asking.spawn(async move { (place, distance(&addresses, &links, wait).await) });
    }
    while let Some(answered) = asking.join_next().await {
        if let Ok((place, distance)) = answered {
            merits[place].distance = distance;
        }
    }
    merits
}

/// The least round trip to any of `addresses` over any of `links` that may be used for it.
async fn distance(
    addresses: &[tabane_base::Destination],
    links: &[LinkBind],
    wait: Duration,
) -> Option<Duration> {
    let remotes = timeout(wait, resolve(addresses)).await.ok()?.ok()?;
    let mut asking = JoinSet::new();
    for remote in remotes {
        if remote.ip().is_loopback() || links.iter().all(|link| link.egress.is_none()) {
            asking.spawn(round_trip(None, None, remote, wait));
            continue;
        }
        for link in links
            .iter()
            .filter(|link| !link.policy.metered && !link.policy.backup)
        {
            let local: Option<IpAddr> = match remote {
                SocketAddr::V4(_) => link.v4.map(IpAddr::from),
                SocketAddr::V6(_) => link.v6.map(IpAddr::from),
            };
            if let Some(local) = local {
                asking.spawn(round_trip(link.egress.clone(), Some(local), remote, wait));
            }
        }
    }
    let mut least = None;
    while let Some(answered) = asking.join_next().await {
        if let Ok(Some(took)) = answered {
            least = Some(least.map_or(took, |least: Duration| least.min(took)));
        }
    }
    least
}

/// How long whoever speaks our protocol at `remote` takes to answer an inquiry [P-2.7]; the shorter
/// of two, for the first may find a link asleep.
async fn round_trip(
    egress: Option<Egress>,
    local: Option<IpAddr>,
    remote: SocketAddr,
    wait: Duration,
) -> Option<Duration> {
    let socket = match (&egress, local) {
        (Some(egress), Some(local)) => {
            plain::connect_udp_over(egress, SocketAddr::new(local, 0), remote)
                .await
                .ok()?
        }
        _ => {
            let any: IpAddr = match remote {
                SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0)).await.ok()?;
            socket.connect(remote).await.ok()?;
            socket
        }
    };
    let until = Instant::now() + wait;
    let mut least = None;
    for _ in 0..2 {
        let inquiry = Inquiry::new(u64::from_be_bytes(secret::random()));
        let begin = Instant::now();
        socket.send(&inquiry.datagram()).await.ok()?;
        let mut buffer = [0; 256];
        let answer = async {
            loop {
                let length = socket.recv(&mut buffer).await.ok()?;
                if inquiry.read_answer(&buffer[..length]).is_some() {
                    return Some(begin.elapsed());
                }
            }
        };
        match timeout(until.saturating_duration_since(begin), answer).await {
            Ok(Some(took)) => least = Some(least.map_or(took, |least: Duration| least.min(took))),
            _ => break,
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;
    use std::sync::Arc;

    use tabane_core::{Identity, ServerConfig, SessionConfig};
    use tabane_fleet::{Certificate, ListEntry, RelayList};
    use tabane_store::Scratch;
    use tabane_tunnel::{
        Access, Admission, ClientConfig, HostMonitor, Relay, RelayConfig, RelayLimits, block_on,
    };
    use tokio::sync::{oneshot, watch};

    use super::*;
    use crate::client_session::SessionOrder;

    fn member(name: &str, key: u8) -> FleetMember {
        FleetMember {
            name: name.parse().unwrap(),
            entry: RelayEntry {
                addresses: vec!["127.0.0.1:9".parse::<SocketAddr>().unwrap().into()],
                key: tabane_core::PublicKey([key; 32]),
                fleet: None,
                token: "A".repeat(22).parse().unwrap(),
            },
            preference: 0,
            is_draining: false,
            region: String::new(),
        }
    }

    #[test]
    fn relays_keep_their_places_and_one_with_another_key_is_another() {
        let mut members = vec![member("f.oslo", 1), member("f.rome", 2)];
        let now = vec![member("f.lima", 3), member("f.rome", 2)];
        assert_eq!(take_over(&mut members, now), [true, false, false]);
        assert_eq!(members[2].name.as_str(), "f.lima");
        let now = vec![member("f.oslo", 9), member("f.oslo-old", 1)];
        assert_eq!(take_over(&mut members, now), [false, true, true, false]);
        assert_eq!(members[0].name.as_str(), "f.oslo-old");
    }

    #[tokio::test]
    async fn a_relay_that_answers_has_a_distance_and_one_that_does_not_has_none() {
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut near = member("f.near", 1);
        near.entry.addresses = vec![far.local_addr().unwrap().into()];
        let dead = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut silent = member("f.silent", 2);
        silent.entry.addresses = vec![dead.local_addr().unwrap().into()];
        // As any relay does that lets no strangers in: the versions that it speaks [P-2.5].
        let answering = async {
            let mut buffer = [0; 2_000];
            loop {
                let (_, from) = far.recv_from(&mut buffer).await.unwrap();
                let mut answer = vec![buffer[0], 0, 0, 0, 0];
                answer.extend(&buffer[5..13]);
                answer.extend(1_u32.to_be_bytes());
                far.send_to(&answer, from).await.unwrap();
            }
        };
        let members = [silent, near];
        let wait = Duration::from_millis(300);
        let merits = tokio::select! {
            merits = merits_of(&members, &[], wait) => merits,
            () = answering => unreachable!("it goes on for ever"),
        };
        assert_eq!(merits[0].distance, None);
        assert!(merits[1].distance.is_some_and(|took| took < wait));
        assert_eq!(tabane_tunnel::in_order_of_merit(&merits), [1, 0]);
        let alone = merits_of(&members[1..], &[], wait).await;
        assert_eq!(alone[0].distance, None, "nobody to choose from");
    }
    /// The one relay of the fleet with this seed, whose list is of `epoch`, joined as `name`; until
    /// it is told to go down.
    fn joined(store: &Store, name: &str, fleet: u8, epoch: u64) -> oneshot::Sender<()> {
        let (identity, fleet) = (
            Identity::from_seed([!fleet; 32]),
            Identity::from_seed([fleet; 32]),
        );
        let (list, told) = watch::channel((0, Arc::default()));
        let relay = Relay::bind(RelayConfig {
            identity: identity.clone(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            access: Access::Private,
            own_addresses: Vec::new(),
            limits: RelayLimits::default(),
            server: ServerConfig::default(),
            session: SessionConfig::default(),
            authorise: Box::new(|applicant| applicant.answer(Admission::Admit(None))),
            resolvers: Vec::new(),
            monitor: HostMonitor::default(),
            seed: [2; 32],
            mark: None,
            exit: None,
            workers: NonZeroU8::MIN,
            inheritance: None,
            fleet_list: Some(told),
            fleet_loads: None,
            web_doors: Vec::new(),
        });
        let relay = relay.unwrap();
        let addresses = vec![relay.local_addrs()[0].into()];
        let entry = ListEntry {
            certificate: Certificate::sign(&fleet, "only", identity.public_key(), 0).unwrap(),
            addresses: addresses.clone(),
            region: String::new(),
            capacity: 0,
            draining: false,
        };
        let signed = RelayList::sign(&fleet, epoch, vec![entry]).unwrap();
        list.send_replace((epoch, signed.emit().into()));
        let entry = RelayEntry {
            addresses,
            key: identity.public_key(),
            fleet: Some(fleet.public_key()),
            token: "A".repeat(22).parse().unwrap(),
        };
        store
            .put_relay(&name.parse().unwrap(), &entry, false)
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        tokio::task::spawn_local(relay.run(stopped));
        stop
    }

    #[test]
    fn each_fleet_counts_its_lists_by_itself() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
        block_on(async {
            let first = joined(&store, "first", 1, 9);
            let _second = joined(&store, "second", 2, 3);
            let plan = SessionPlan::new(SessionOrder::default(), &store).unwrap();
            let (relays, _) = plan.resolve().await;
            let client = Client::connect(ClientConfig {
                links: vec![LinkBind::unbound()],
                ..plan.config(&store, relays, &BTreeMap::new()).unwrap()
            });
            let client = client.await.unwrap();
            plan.follow_fleets(&client, &store);
            let known = async |place: usize, epoch| {
                let (name, relay) = &plan.joined[place];
                let list = || store.fleet_list(name, relay).unwrap();
                while list().is_none_or(|list| list.epoch() != epoch) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let wait = Duration::from_secs(10);
            timeout(wait, known(0, 9)).await.expect("the first fleet's");
            first.send(()).unwrap();
            timeout(wait, known(1, 3)).await.expect("the second's");
        })
        .unwrap();
    }
}
