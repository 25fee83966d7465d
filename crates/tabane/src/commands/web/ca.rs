//! `tabane web ca`: the certificate authority by which `tabane web --intercept` answers for hosts.
//!
//! Owns the flags, the question before one is made, and what is told of the one there is. What it
//! can do, where it is kept and how programs are told to trust it is `tabane-web`'s.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tabane_web::{Authority, Hosts, Interception, KeptAuthority, WebCa, trust};

use crate::failure::Failure;
use crate::output;
use tabane_store::{secret, wall_clock::unix_seconds};

const DAY: u64 = 86_400;
/// A user is told that the authority ends, so many days before.
const WARNING_DAYS: u64 = 14;

/// The local certificate authority that --intercept needs: make, show and remove it
#[derive(Debug, Args)]
pub(super) struct CaArgs {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Debug, Subcommand)]
enum CaCommand {
    Create(CreateArgs),
    Show(ShowArgs),
    /// Remove the certificate authority with its key, and say where to take it out
    ///
    /// Programs that were told to trust it go on doing so, though nobody can use it any more
    /// without a copy of its key: take it out there as well. A `tabane web --intercept` that runs
    /// has it until it is stopped.
    Remove,
}

/// Make a certificate authority that is limited to some names, after telling what it risks
///
/// It is for the hosts and domains named here, each with all below it, and for nothing else: that
/// stands in its certificate, and programs hold to it. Its key is kept here, readable by you alone,
/// and it ends by itself. No program trusts it until you tell it to; `tabane web ca show` says how.
#[derive(Debug, Args)]
struct CreateArgs {
    /// A host, or a domain with all hosts below it
    #[arg(value_name = "HOST", required = true, value_delimiter = ',')]
    hosts: Vec<Hosts>,
    /// In how many days it ends
    #[arg(
        long,
        value_name = "N",
        default_value_t = 90,
        value_parser = clap::value_parser!(u64).range(1..=366)
    )]
    days: u64,
    /// Take the place of the one there is; programs have to be told anew
    #[arg(long)]
    replace: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Show the certificate authority, and how programs are told to trust it
#[derive(Debug, Args)]
struct ShowArgs {
    /// Print its certificate alone
    #[arg(long, conflicts_with = "json")]
    pem: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: CaArgs, home: &WebCa) -> Result<ExitCode> {
    match args.command {
        CaCommand::Create(args) => create(&args, home)?,
        CaCommand::Show(args) => show(&args, home)?,
        CaCommand::Remove => remove(home)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What `--intercept` needs, for these hosts.
pub(super) fn open(hosts: Vec<Hosts>, home: &WebCa) -> Result<(Interception, KeptAuthority)> {
    let domains = || hosts.iter().map(|hosts| hosts.domain().to_owned());
    let Some(kept) = home.kept()? else {
        bail!(
            "--intercept needs a certificate authority of this machine's own: `{}` tells what \
             that risks, and makes one",
            creation(domains(), false)
        );
    };
    let another = || creation(kept.domains.iter().cloned().chain(domains()), true);
    let left = kept.ends_at.saturating_sub(unix_seconds());
    if left == 0 {
        bail!(
            "{} has ended: `{}` makes another, which programs have to be told to trust anew",
            kept.title,
            another()
        );
    }
    if left < WARNING_DAYS * DAY {
        tracing::warn!(
            "{} ends {}: `{}` makes another, which programs have to be told to trust anew",
            kept.title,
            output::ahead(left),
            another()
        );
    }
    let interception = Interception::new(authority(&kept, home)?, hosts.clone());
    let interception = interception.map_err(|beyond| {
        anyhow!(
            "{beyond}: `{}` makes another, which programs have to be told to trust anew",
            another()
        )
    })?;
    home.publish(&kept)?;
    Ok((interception, kept))
}

fn authority(kept: &KeptAuthority, home: &WebCa) -> Result<Authority> {
    Authority::open(kept).with_context(|| {
        format!(
            "{} is damaged; restore it, or `tabane web ca remove`",
            home.path().display()
        )
    })
}

/// The command that makes an authority for these.
fn creation(domains: impl Iterator<Item = String>, is_other: bool) -> String {
    let mut named: Vec<String> = Vec::new();
    for domain in domains {
        if !named.contains(&domain) {
            named.push(domain);
        }
    }
    let replace = if is_other { " --replace" } else { "" };
    format!("tabane web ca create {}{replace}", named.join(" "))
}

fn create(args: &CreateArgs, home: &WebCa) -> Result<()> {
    let before = home.kept()?;
    if let Some(before) = before.as_ref().filter(|_| !args.replace) {
        bail!(
            "there is one already, {} for {}; --replace makes another in its place, which \
             programs have to be told to trust anew",
            before.title,
            before.domains.join(", ")
        );
    }
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        let text = "whether to make one is yours to say: on a terminal this command tells what it \
                    risks and asks; --yes says so without being asked";
        return Err(Failure::usage(text).into());
    }
    // Two of one name would be mistaken for each other where both are trusted.
    let number = u32::from_be_bytes(secret::random());
    let domains = args.hosts.iter().map(|hosts| hosts.domain().to_owned());
    let life = Duration::from_secs(args.days * DAY);
    let title = format!("tabane local CA {number:08x}");
    let made = KeptAuthority::make(&title, domains, SystemTime::now(), life)?;
    output::note(format_args!("{}\n", trust::risks(&made, &home.path())));
    if !args.yes && !is_confirmed()? {
        bail!("nothing was made");
    }
    home.put(&made)?;
    let hosts: Vec<_> = args.hosts.iter().map(ToString::to_string).collect();
    output::line(&trust::made(&made, &date(&made), &hosts))?;
    match before {
        Some(before) => output::line(&format!(
            "{} and its key are gone. {}",
            before.title,
            trust::how_not(&before)
        )),
        None => Ok(()),
    }
}

fn is_confirmed() -> Result<bool> {
    let _ = write!(io::stderr(), "Make it? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES"))
}

fn show(args: &ShowArgs, home: &WebCa) -> Result<()> {
    let kept = known(home)?;
    if args.pem {
        return output::line(kept.certificate.trim_end());
    }
    let digest = fingerprint(&authority(&kept, home)?);
    let paths = [home.certificate(), home.bundle()];
    // A copy from elsewhere, or a new list of the system's.
    home.publish(&kept)?;
    let [certificate, bundle] = paths.map(|path| path.display().to_string());
    if args.json {
        return output::json(&json!({
            "title": kept.title,
            "domains": kept.domains,
            "ends_at": ends_at(&kept).to_string(),
            "sha256": digest,
            "certificate": certificate,
            "bundle": bundle,
        }));
    }
    let left = kept.ends_at.saturating_sub(unix_seconds());
    let ends = match left {
        0 => format!("ended on {}", date(&kept)),
        left => format!("{}, {}", date(&kept), output::ahead(left)),
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = [
        row("for", format!("{} and all below", kept.domains.join(", "))),
        row("ends", ends),
        row("SHA-256", digest),
        row("certificate", certificate.clone()),
        row(
            "with others",
            format!("{bundle} (the system's and this one)"),
        ),
    ];
    output::line(&output::table(&["name", &kept.title], &rows))?;
    output::line(&format!("\n{}", trust::how(&kept, &certificate, &bundle)))
}

fn remove(home: &WebCa) -> Result<()> {
    let kept = match known(home) {
        Err(error) if home.path().exists() => {
            home.remove()?;
            return output::line(&format!("removed what was damaged: {error:#}"));
        }
        known => known?,
    };
    home.remove()?;
    output::line(&format!(
        "removed {} and its key; a `tabane web --intercept` that runs has it until it is \
         stopped\n\n{}",
        kept.title,
        trust::how_not(&kept)
    ))
}

fn known(home: &WebCa) -> Result<KeptAuthority> {
    let none = "there is no certificate authority; `tabane web ca create HOST` makes one";
    home.kept()?.context(none)
}

/// `5F:0C:…`, as browsers show it.
fn fingerprint(authority: &Authority) -> String {
    use aws_lc_rs::digest;
    let digest = digest::digest(&digest::SHA256, authority.certificate());
    let bytes: Vec<_> = digest
        .as_ref()
        .iter()
        .map(|it| format!("{it:02X}"))
        .collect();
    bytes.join(":")
}

fn ends_at(kept: &KeptAuthority) -> jiff::Timestamp {
    let seconds = kept.ends_at.try_into().unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX)
}

/// `2027-02-20`
fn date(kept: &KeptAuthority) -> String {
    let zone = jiff::tz::TimeZone::system();
    ends_at(kept).to_zoned(zone).date().to_string()
}
