//! Getting to know a neighbour, once: by the code that one machine shows and the other is told.
//!
//! Owns where the one who shows the code is looked for, how long a code is worth something, and
//! what both keep. The proof itself is `tabane-neighbour`'s; the code is answered for by who lends
//! ([`Lending`](crate::Lending)), maybe another process, which writes down how it went.

mod invitation;

use std::ffi::CString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tabane_base::Destination;
use tabane_core::PublicKey;
use tabane_fetch::DeviceWay;
use tabane_linux::{DirectoryWatch, interfaces};
use tabane_neighbour::{ATTEMPTS, Code, PairError, Paired, pair};
use tabane_store::{
    NeighbourEntry, OFFER_FILE, OfferEntry, RelayName, Store, TermsText, secret,
    wall_clock::unix_seconds,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::lending::LENDING_PORT;
use crate::lent_links::place;
use crate::near_by;

pub use invitation::Invitation;

/// How long a code is worth something: a walk to the other machine.
const OFFER_TIME: u64 = 600;
/// How long a neighbour on the local network may take to answer.
const NEAR_TIME: Duration = Duration::from_secs(1);
/// How long neighbours are looked for.
const SEARCH_TIME: Duration = Duration::from_secs(3);
/// What a try may take that has begun.
const LAST_TRY_TIME: Duration = Duration::from_secs(11);

/// A neighbour whose link is kept.
#[derive(Debug)]
pub struct KnownNeighbour {
    /// What its link is called here.
    pub name: RelayName,
    /// What it calls itself.
    pub own_name: String,
    /// An interface here is called as it calls itself, so its link is called otherwise.
    pub is_renamed: bool,
}

/// Pairs with the neighbour who shows the code of `invitation`, and keeps its link: at `host`, else
/// where the invitation says, else whoever on the local networks has the code. There this machine
/// is called `own_name`.
///
/// # Errors
/// Nobody was found, or the code is wrong.
pub async fn join(
    Invitation { code, places }: &Invitation,
    host: Option<&Destination>,
    own_name: &str,
    store: &Store,
) -> Result<KnownNeighbour> {
    let identity = store.neighbour_identity()?;
    let pair_at = async |at: &Destination| {
        let (host, port) = place(at);
        let way = DeviceWay::unbound();
        pair(&identity, own_name, (&host, port), code, &way).await
    };
    let invited = match (host, &places[..]) {
        (Some(host), _) => Some(host.clone()),
        (None, []) => None,
        (None, places) => {
            let at = first_that_answers(places).await;
            Some(at.with_context(|| nobody_at(places))?)
        }
    };
    let (at, paired) = match &invited {
        Some(at) => (
            at.clone(),
            pair_at(at)
                .await
                .with_context(|| format!("cannot pair with {at}"))?,
        ),
        None => search(identity.public_key(), pair_at).await?,
    };
    let entry = NeighbourEntry {
        address: at.to_string(),
        key: paired.key.to_string(),
    };
    let interfaces = interfaces::list().await;
    let interfaces = interfaces.context("cannot list the interfaces")?;
    let taken: Vec<&str> = interfaces.iter().map(|it| it.name.as_str()).collect();
    let name = store.put_neighbour(&paired.name, &entry, &taken)?;
    Ok(KnownNeighbour {
        name,
        is_renamed: taken.contains(&paired.name.as_str()),
        own_name: paired.name,
    })
}

fn nobody_at(places: &[Destination]) -> String {
    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
    format!(
        "nobody answers at {}: does `tabane share` run there, on the same network? Else say where \
         it is: tabane share pair CODE HOST",
        places.join(" or ")
    )
}

/// The first place where somebody listens.
async fn first_that_answers(places: &[Destination]) -> Option<Destination> {
    for at in places {
        let connected = timeout(NEAR_TIME, TcpStream::connect(place(at))).await;
        if matches!(connected, Ok(Ok(_))) {
            return Some(at.clone());
        }
    }
    None
}

/// Pairs with whoever on the local networks has the code. Somebody who has it not learns nothing
/// but a guess that was wrong.
async fn search(
    own: PublicKey,
    pair_at: impl AsyncFn(&Destination) -> Result<Paired, PairError>,
) -> Result<(Destination, Paired)> {
    let found = near_by::find(SEARCH_TIME, |_| false).await?;
    let mut failures = Vec::new();
    for neighbour in found.iter().filter(|found| found.key != own) {
        let Some(at) = first_that_answers(&neighbour.at).await else {
            continue;
        };
        match pair_at(&at).await {
            Ok(paired) => return Ok((at, paired)),
            Err(error) => failures.push(format!("{at}: {error}")),
        }
    }
    if failures.is_empty() {
        bail!(
            "found nobody near here who lends a link: does `tabane share` run there, on the same \
             network? Else say where it is: tabane share pair CODE HOST"
        );
    }
    bail!(
        "cannot pair with anybody near here ({})",
        failures.join("; ")
    )
}

/// A code that is shown. Worth nothing once it is dropped.
pub struct PairingOffer<'a> {
    code: Code,
    store: &'a Store,
}

impl<'a> PairingOffer<'a> {
    /// Lets the first friend who has a new code borrow on these terms.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn open(terms: TermsText, store: &'a Store) -> Result<Self> {
        store.neighbour_identity()?;
        let code = Code::from_random(secret::random());
        // Withdrawn where it cannot be kept.
        let offer = Self { code, store };
        store.put_offer(&OfferEntry {
            code: offer.code.to_string(),
            ends_at: unix_seconds() + OFFER_TIME,
            attempts_left: ATTEMPTS,
            paired: None,
            terms,
        })?;
        Ok(offer)
    }

    /// What is shown.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The code with the places of this machine.
    ///
    /// # Errors
    /// The interfaces cannot be listed, or the store cannot be read.
    pub async fn invitation(&self) -> Result<Invitation> {
        let interfaces = interfaces::list().await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        let port = self.store.lending_port()?.unwrap_or(LENDING_PORT);
        Ok(Invitation::here(self.code.clone(), &interfaces, port))
    }

    /// Waits for the friend, and says what it is called.
    ///
    /// # Errors
    /// Nobody came in time, or the code was mistyped too often.
    pub async fn outcome(&self) -> Result<String> {
        let within = Duration::from_secs(OFFER_TIME);
        match timeout(within, self.noted()).await {
            Ok(outcome) => outcome,
            Err(_) => bail!("nobody came within ten minutes (does `tabane share` run?)"),
        }
    }

    async fn noted(&self) -> Result<String> {
        let (store, code) = (self.store, self.code.to_string());
        let watch =
            DirectoryWatch::start(store.root()).context("cannot watch the configuration")?;
        let file = CString::new(OFFER_FILE).context("a constant")?;
        loop {
            match store.offer()? {
                Some(offer) if offer.code != code => bail!("another `tabane share pair` has begun"),
                Some(OfferEntry {
                    paired: Some(name), ..
                }) => return Ok(name),
                // The last try may be under way, and right.
                Some(offer)
                    if offer.attempts_left == 0
                        && timeout(LAST_TRY_TIME, watch.changed(&file)).await.is_err() =>
                {
                    bail!("the code was mistyped too often; run this again for a new one")
                }
                Some(offer) if offer.attempts_left == 0 => {}
                Some(_) => watch.changed(&file).await?,
                None => bail!("the code was withdrawn"),
            }
        }
    }
}

impl Drop for PairingOffer<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.store.remove_offer() {
            tracing::warn!("the code stays valid: {error:#}");
        }
    }
}
