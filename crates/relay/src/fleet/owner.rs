//! What a fleet's owner does: founds it, lets relays in, drains and removes them, and looks at it.
//!
//! Every change of the list is signed here, with the fleet's secret key, which no relay needs and
//! etcd never has.

use anyhow::{Context, Result, bail};
use tabane_base::Destination;
use tabane_control::Fleet;
use tabane_core::{Identity, PublicKey};
use tabane_fleet::{Certificate, ListEntry, RelayList};
use tabane_store::wall_clock::unix_seconds;

use super::book::{self, FleetBook, look};
use super::file::FleetFile;
use super::records::{ASKS, Asking, FORM, FOUNDING, Founding, LIST, Records};
use super::report::report;
use crate::etcd::{Change, FleetAddress};
use crate::state::RelayState;

/// A fleet, for its owner.
#[derive(Debug)]
pub struct FleetOwner {
    state: RelayState,
    file: FleetFile,
}

impl FleetOwner {
    /// Founds a fleet in `etcd`, with a key made in the directory of `state`.
    ///
    /// # Errors
    /// There is one of another key already, the directory is another fleet's, or etcd does not
    /// answer.
    pub fn found(state: &RelayState, etcd: FleetAddress) -> Result<(Self, bool)> {
        if let Some(known) = state.fleet()?
            && known.etcd.prefix != etcd.prefix
        {
            bail!(
                "{} belongs to the fleet in {}: give the fleet that name behind the slash, or make \
                 another fleet in a directory of its own (--state DIRECTORY)",
                state.root().display(),
                known.etcd
            );
        }
        let secret = FleetFile::make_key(state.root())?;
        let file = FleetFile {
            etcd,
            key: secret.public_key(),
        };
        let at = file.etcd.to_string();
        let key = file.key;
        let is_new = FleetBook::new(file.clone()).ask(async |etcd| {
            etcd.check_version().await?;
            let founding = Founding {
                form: FORM,
                key: key.to_string(),
            };
            let list = RelayList::sign(&secret, 1, Vec::new()).context("cannot sign a list")?;
            let place = format!("{}{FOUNDING}", etcd.prefix());
            let value = serde_json::to_vec(&founding).context("cannot write JSON")?;
            let changes = [
                Change::put(place.clone(), value),
                Change::put(format!("{}{LIST}", etcd.prefix()), list.emit()),
            ];
            if etcd
                .change(&[(place.clone(), 0)], &changes)
                .await?
                .is_some()
            {
                return Ok(true);
            }
            let found = etcd.get(&place).await?.map(|entry| entry.value);
            let found: Option<Founding> =
                found.and_then(|value| serde_json::from_slice(&value).ok());
            match found {
                Some(found) if found.key == key.to_string() => Ok(false),
                Some(found) => bail!(
                    "there is a fleet in {at} already, of key {}: give this one a name of its own \
                     (etcd://HOST/NAME), or run this where that fleet's key is",
                    found.key
                ),
                None => bail!("something that is no fleet stands in {at}"),
            }
        })?;
        file.write(state.root())?;
        let state = state.clone();
        Ok((Self { state, file }, is_new))
    }

    /// The fleet that the directory of `state` belongs to.
    ///
    /// # Errors
    /// It belongs to none.
    pub fn open(state: &RelayState) -> Result<Self> {
        let file = state.fleet()?.with_context(|| {
            format!(
                "{} belongs to no fleet: run `tabane fleet init ETCD`, or start `tabane relay \
                 --fleet ETCD` there, or name the directory with --state",
                state.root().display()
            )
        })?;
        let state = state.clone();
        Ok(Self { state, file })
    }

    /// The fleet's key.
    #[must_use]
    pub const fn key(&self) -> PublicKey {
        self.file.key
    }

    /// Lets a relay in that asks for it under this name, or changes where one stands and what it
    /// is meant for; gives its addresses.
    ///
    /// # Errors
    /// None asks, or several do, or the fleet's secret key is not here.
    pub fn add(
        &self,
        name: &str,
        key: Option<PublicKey>,
        region: Option<String>,
        capacity: Option<u32>,
    ) -> Result<Vec<Destination>> {
        self.change_list(|records, secret, entries| {
            let asking: Vec<Asking> = records.all(ASKS).into_iter().map(|(_, it)| it).collect();
            let is_meant =
                |it: &&Asking| it.name == name && key.is_none_or(|key| key.to_string() == it.key);
            let meant: Vec<&Asking> = asking.iter().filter(is_meant).collect();
            let known = entries.iter_mut().find(|it| it.certificate.name == name);
            match (&meant[..], known) {
                ([], Some(known)) => {
                    known.region = region.clone().unwrap_or_else(|| known.region.clone());
                    known.capacity = capacity.unwrap_or(known.capacity);
                    Ok(known.addresses.clone())
                }
                ([], None) => bail!(
                    "no relay asks to be let in as {name}: start `tabane relay --fleet {} --name \
                     {name}` there, and let it run",
                    self.file.etcd
                ),
                ([asking], known) => {
                    let entry = entry_of(asking, secret, region.clone(), capacity)?;
                    let addresses = entry.addresses.clone();
                    match known {
                        Some(known) if known.certificate.key != entry.certificate.key => bail!(
                            "another relay is called {name}: start this one under another name, \
                             or `tabane fleet remove {name}` first"
                        ),
                        Some(known) => *known = entry,
                        None => entries.push(entry),
                    }
                    Ok(addresses)
                }
                (several, _) => {
                    let keys: Vec<&str> = several.iter().map(|it| it.key.as_str()).collect();
                    bail!(
                        "several relays ask as {name}; choose by --key: {}",
                        keys.join(", ")
                    )
                }
            }
        })
    }

    /// Takes a relay off the list: it ends, and clients forget it.
    ///
    /// # Errors
    /// There is none of this name, or the fleet's secret key is not here.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.change_list(|_, _, entries| {
            let before = entries.len();
            entries.retain(|it| it.certificate.name != name);
            anyhow::ensure!(entries.len() < before, unknown(name));
            Ok(())
        })
    }

    /// Has a relay take nobody new, finish what it carries, and end; or lets it serve again.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn drain(&self, name: &str, draining: bool) -> Result<()> {
        self.change_list(|_, _, entries| {
            let found = entries.iter_mut().find(|it| it.certificate.name == name);
            found.with_context(|| unknown(name))?.draining = draining;
            Ok(())
        })
    }

    /// How the fleet is.
    ///
    /// # Errors
    /// Etcd does not answer.
    pub fn report(&self) -> Result<Fleet> {
        let key = self.file.key;
        self.book().ask(async |etcd| {
            let version = etcd.check_version().await?;
            let records = look(&etcd, key).await?;
            Ok(report(&records, key, book::now(&etcd), &version))
        })
    }

    fn book(&self) -> FleetBook {
        FleetBook::new(self.file.clone())
    }

    /// Signs a list that `change` has changed, and puts it in the place of the present one.
    fn change_list<T: Send>(
        &self,
        change: impl Fn(&Records, &Identity, &mut Vec<ListEntry>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let secret = self.file.secret_key(self.state.root())?;
        self.book().ask(async |etcd| {
            loop {
                let records = look(&etcd, self.file.key).await?;
                let place = format!("{}{LIST}", etcd.prefix());
                let bytes = records.bytes(LIST).context("etcd has no list of relays")?;
                let list = RelayList::parse(bytes, self.file.key)?;
                let mut entries = list.entries().to_vec();
                let outcome = change(&records, &secret, &mut entries)?;
                if entries == list.entries() {
                    return Ok(outcome);
                }
                let signed = RelayList::sign(&secret, list.epoch() + 1, entries)?;
                let unchanged = [(place.clone(), records.changed_at(LIST))];
                let put = Change::put(place, signed.emit());
                if etcd.change(&unchanged, &[put]).await?.is_some() {
                    return Ok(outcome);
                }
            }
        })
    }
}

fn unknown(name: &str) -> String {
    format!("no relay of the fleet is called {name}; `tabane fleet status` lists them")
}

fn entry_of(
    asking: &Asking,
    secret: &Identity,
    region: Option<String>,
    capacity: Option<u32>,
) -> Result<ListEntry> {
    let key: PublicKey = asking.key.parse().context("the relay's key is none")?;
    let address = |text: &String| {
        Destination::parse(text, None).with_context(|| format!("the relay's address '{text}'"))
    };
    Ok(ListEntry {
        certificate: Certificate::sign(secret, &asking.name, key, unix_seconds())?,
        addresses: asking
            .addresses
            .iter()
            .map(address)
            .collect::<Result<_>>()?,
        region: region.unwrap_or_else(|| asking.region.clone()),
        capacity: capacity.unwrap_or(0),
        draining: false,
    })
}
