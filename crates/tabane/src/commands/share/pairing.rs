//! `tabane share pair`: shows a code, or uses the one that a neighbour shows.
//!
//! Owns the flags and what is shown, the picture for a camera among it. Getting to know each other
//! is `tabane-uplinks`'.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use tabane_base::Destination;
use tabane_store::{RelayName, Store, TermsText};
use tabane_uplinks::{
    LENDING_PORT,
    pairing::{self, Invitation, PairingOffer},
};

use super::{budget, hours, own_name, rate};
use crate::event_loop;
use crate::output;
use crate::program;
use crate::signals;

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
        match &args.code {
            Some(invitation) => join(args, invitation, store).await,
            None => offer(args, store).await,
        }
    };
    event_loop::carry(done)
}

async fn join(args: &PairArgs, invitation: &Invitation, store: &Store) -> Result<ExitCode> {
    let own_name = own_name(args.name.as_ref());
    let neighbour = pairing::join(invitation, args.host.as_ref(), &own_name, store).await?;
    let name = &neighbour.name;
    if neighbour.is_renamed {
        output::line(&format!(
            "it calls itself {}, as an interface here is called: its link is {name}",
            neighbour.own_name
        ))?;
    }
    output::line(&format!(
        "paired with {name}; its link is used from now on, as `tabane links` and `tabane policy` \
         show"
    ))?;
    Ok(ExitCode::SUCCESS)
}

async fn offer(args: &PairArgs, store: &Store) -> Result<ExitCode> {
    let signals = signals::catch()?;
    let terms = TermsText {
        budget: args.budget.clone(),
        rate: args.rate.clone(),
        hours: args.hours.clone(),
    };
    let offer = PairingOffer::open(terms, store)?;
    let code = offer.code();
    output::line(&format!(
        "code: {code}\nwithin ten minutes, at the friend's: tabane share pair {code}\n\
         (in another network: tabane share pair {code} HOST, this machine's name or address)"
    ))?;
    let obeys_codes = output::obeys_codes(&io::stdout());
    if args.qr || obeys_codes {
        let invitation = offer.invitation().await?;
        if let Some(picture) = picture(&invitation, obeys_codes) {
            output::drawn(&format!(
                "or by a phone's camera, which shows this as text to copy or send: \
                 {}{invitation}\n{picture}",
                Invitation::COMMAND
            ))?;
        }
    }
    tokio::select! {
        name = offer.outcome() => {
            let name = name?;
            output::line(&format!("paired with {name}; it may borrow while `tabane share` runs"))?;
            Ok(ExitCode::SUCCESS)
        }
        arrived = signals.next() => Ok(program::signal_code(arrived?.signal)),
    }
}

/// The command that uses an invitation, as a picture of two rows of squares in each line; on a
/// terminal black on white, whatever its colours are.
fn picture(invitation: &Invitation, obeys_codes: bool) -> Option<String> {
    // A screen has no scratches: the least redundancy makes the squares largest.
    let text = format!("{}{invitation}", Invitation::COMMAND);
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    let picture = code.render::<Dense1x2>().build();
    if !obeys_codes {
        return Some(picture);
    }
    let lines = picture.lines();
    let lines = lines.map(|line| format!("\x1b[38;5;16;48;5;231m{line}\x1b[0m"));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_a_terminal() {
        let text = "123-456@192.168.100.200:4511,192.168.101.201:4511,10.111.112.113:4511";
        let invitation: Invitation = text.parse().unwrap();
        let plain = picture(&invitation, false).unwrap();
        assert!(plain.lines().count() <= 24, "{plain}");
        assert!(plain.lines().all(|line| line.chars().count() <= 80));
        // The colours change nothing else.
        let coloured = picture(&invitation, true).unwrap();
        assert_eq!(coloured.lines().count(), plain.lines().count());
    }
}
