//! `tabane share pair`: shows a code, or uses the one that a neighbour shows.

use std::ffi::CString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tabane_base::Destination;
use tabane_core::PublicKey;
use tabane_fetch::DeviceWay;
use tabane_linux::{DirectoryWatch, interfaces};
use tabane_neighbour::{ATTEMPTS, Code, PairError, Paired, pair};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::invitation::Invitation;
use super::{budget, hours, own_name, rate};
use crate::event_loop;
use crate::failure::Failure;
use crate::output;
use crate::program;
use crate::signals;
use tabane_store::{
    NeighbourEntry, OFFER_FILE, OfferEntry, RelayName, Store, TermsText, secret,
    wall_clock::unix_seconds,
};
use tabane_uplinks::{LENDING_PORT, lent_links::place, near_by};

/// How long a code is worth something: a walk to the other machine.
const OFFER_TIME: u64 = 600;
/// How long a neighbour on the local network may take to answer.
const NEAR_TIME: Duration = Duration::from_secs(1);
/// How long neighbours are looked for.
const SEARCH_TIME: Duration = Duration::from_secs(3);
/// What a try may take that has begun.
const LAST_TRY_TIME: Duration = Duration::from_secs(11);

/// Get to know a friend, once
///
/// Without CODE, here where the link is lent: shows a code that one friend can use within ten
/// minutes, while `tabane share` runs. With CODE, at the friend's: `tabane share pair CODE`.
/// Both then know each other's key, and nobody in between can have put in another.
///
/// On a terminal the code is shown as a QR code as well, with this machine's addresses: the whole
/// command as text, which a phone's camera shows and can copy or send to the other machine.
#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    /// The code that the neighbour shows, or what its QR code says: CODE@ADDRESS:PORT
    #[arg(value_name = "CODE")]
    code: Option<Invitation>,
    /// Where the neighbour is: a name or an address, with :PORT if it is not 4511 [default: looked
    /// for on the local networks]
    #[arg(value_name = "HOST", value_parser = destination)]
    host: Option<Destination>,
    /// What the friend may carry, both directions together [default: any amount]
    #[arg(long, value_name = "VOLUME", value_parser = budget, conflicts_with = "code")]
    budget: Option<String>,
    /// The most it may carry per second, e.g. 5Mbit/s [default: all there is]
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "code")]
    rate: Option<String>,
    /// When it may use the link, by this machine's clock, e.g. 22:00-06:00 [default: always]
    #[arg(long, value_name = "FROM-TO", value_parser = hours, conflicts_with = "code")]
    hours: Option<String>,
    /// What this machine is called there [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<RelayName>,
    /// Show the QR code even where the output is no terminal
    #[arg(long, conflicts_with = "code")]
    qr: bool,
}

fn destination(text: &str) -> Result<Destination, String> {
    Destination::parse(text, Some(LENDING_PORT)).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &PairArgs, store: &Store) -> Result<ExitCode> {
    let done = async {
        match (&args.code, &args.host) {
            (Some(invitation), host) => join(args, invitation, host.as_ref(), store).await,
            (None, _) => offer(args, store).await,
        }
    };
    event_loop::carry(done)
}

async fn join(
    args: &PairArgs,
    Invitation { code, places }: &Invitation,
    host: Option<&Destination>,
    store: &Store,
) -> Result<ExitCode> {
    let identity = store.neighbour_identity()?;
    let name = own_name(args.name.as_ref());
    let pair_at = async |at: &Destination| {
        let (host, port) = place(at);
        pair(&identity, &name, (&host, port), code, &DeviceWay::unbound()).await
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
    if taken.contains(&paired.name.as_str()) {
        output::line(&format!(
            "it calls itself {}, as an interface here is called: its link is {name}",
            paired.name
        ))?;
    }
    output::line(&format!(
        "paired with {name}; its link is used from now on, as `tabane links` and `tabane policy` \
         show"
    ))?;
    Ok(ExitCode::SUCCESS)
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

async fn offer(args: &PairArgs, store: &Store) -> Result<ExitCode> {
    let signals = signals::catch()?;
    store.neighbour_identity()?;
    let code = Code::from_random(secret::random());
    let offer = OfferEntry {
        code: code.to_string(),
        ends_at: unix_seconds() + OFFER_TIME,
        attempts_left: ATTEMPTS,
        paired: None,
        terms: TermsText {
            budget: args.budget.clone(),
            rate: args.rate.clone(),
            hours: args.hours.clone(),
        },
    };
    let _offered = Offered(store);
    store.put_offer(&offer)?;
    output::line(&format!(
        "code: {code}\nwithin ten minutes, at the friend's: tabane share pair {code}\n\
         (in another network: tabane share pair {code} HOST, this machine's name or address)"
    ))?;
    let is_terminal = io::stdout().is_terminal();
    if args.qr || is_terminal {
        let interfaces = interfaces::list().await;
        let interfaces = interfaces.context("cannot list the interfaces")?;
        let port = store.lending_port()?.unwrap_or(LENDING_PORT);
        let invitation = Invitation::here(code, &interfaces, port);
        if let Some(picture) = invitation.picture(is_terminal) {
            output::line(&format!(
                "or by a phone's camera, which shows this as text to copy or send: \
                 tabane share pair {invitation}\n{picture}"
            ))?;
        }
    }
    tokio::select! {
        name = outcome(store, &offer.code) => {
            let name = name?;
            output::line(&format!("paired with {name}; it may borrow while `tabane share` runs"))?;
            Ok(ExitCode::SUCCESS)
        }
        arrived = signals.next() => Ok(program::signal_code(arrived?.signal)),
        () = tokio::time::sleep(Duration::from_secs(OFFER_TIME)) => {
            bail!("nobody came within ten minutes (does `tabane share` run?)")
        }
    }
}

/// Waits until `tabane share` has written down how it went.
async fn outcome(store: &Store, code: &str) -> Result<String> {
    let watch = DirectoryWatch::start(store.root()).context("cannot watch the configuration")?;
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
                return Err(Failure::with_status(
                    1,
                    "the code was mistyped too often; run this again for a new one",
                )
                .into());
            }
            Some(offer) if offer.attempts_left == 0 => {}
            Some(_) => watch.changed(&file).await?,
            None => bail!("the code was withdrawn"),
        }
    }
}

/// A code is worth nothing once nobody shows it.
struct Offered<'a>(&'a Store);

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_offer() {
            tracing::warn!("the code stays valid: {error:#}");
        }
    }
}
