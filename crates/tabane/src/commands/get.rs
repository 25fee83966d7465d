//! `tabane get URL…`: a file from any web server, over all links at once.
//!
//! Owns the flags, where the file goes, and what is said at the end. Fetching it, and what is kept
//! for another try, is `tabane-fetch`'s, what is shown meanwhile `meter`'s.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use tabane_base::{Bytes, Duration, Rate};
use tabane_control::Kind;
use tabane_fetch::{
    Client, FileDigest, HeaderMap, HeaderName, HeaderValue, Job, Links, Outcome, Patience,
    Progress, Proxies, Url, fetch_into_file, fetch_into_stream,
};
use tabane_ranges::{Order, Rule};
use tokio::time::sleep;

use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{Description, Instance};
use crate::output;
use crate::program;
use crate::signals;
use tabane_store::{RelayName, Span, Store, atomic_file};
use tabane_uplinks::{Asker, LinksView, PolicyTextFile, Uplinks, WebLinks};

mod meter;

use meter::Meter;

/// A file that is here by then was not looked at.
const SEEN_AFTER: Duration = Duration::from_millis(300);

/// Fetch a file over all links, from any web server, with nothing of ours on the other side
///
/// The best link begins with the whole file; the others take parts of it as long as that makes it
/// faster, so a small file takes no longer than alone. A part is used only if the server proves
/// that it is of the same version. After an interruption the same command goes on where it was:
/// what there is so far is in FILE.part, what is known of it in FILE.part.json.
///
/// Several URLs are mirrors of one file: with --sha256 all are used at once, without it the next
/// one only when one fails. http_proxy, https_proxy, all_proxy and no_proxy are obeyed.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Where the file is; more than one: mirrors
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,
    /// Where to put it; - is stdout, a device or a pipe is written into [default: the URL's last
    /// part]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Call it as the URL does: the default, for fingers that are used to curl
    #[arg(short = 'O', long, conflicts_with = "output")]
    remote_name: bool,
    /// What the file's SHA-256 must be
    #[arg(long, value_name = "HEX")]
    sha256: Option<FileDigest>,
    /// Send this header, to the URLs' own servers only; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Log in with these, to the URLs' own servers only
    #[arg(short, long, value_name = "NAME:PASSWORD")]
    user: Option<String>,
    /// Use only this interface; repeat for several [default: every usable one, see `tabane links`]
    #[arg(long = "link", value_name = "IF")]
    links: Vec<String>,
    /// Borrow this neighbour's link as well; repeat for several [default: all that were paired by
    /// `tabane share pair`, unless --link is given]
    #[arg(long = "neighbour", value_name = "NAME")]
    neighbours: Vec<RelayName>,
    /// How it is divided among links: tabane, or as the Web SHAKE paper did it: f-h, f-p, f-p:10kB
    #[arg(long, value_name = "RULE", default_value = "tabane")]
    rule: Rule,
    /// Begin anew, whatever there is of it
    #[arg(long)]
    restart: bool,
    /// Give up after so long without one byte
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: Span,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// At the end, print what was fetched and what each link carried, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: GetArgs, store: &Store) -> Result<ExitCode> {
    let urls = args.urls.iter().map(|text| Url::parse(text));
    let urls: Vec<Url> = urls
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::usage(error.to_string()))?;
    let job = Job {
        headers: headers(&args)?,
        rule: args.rule,
        order: Order::Any,
        by_digest: args.sha256.is_some(),
        begun: None,
        urls,
    };
    let proxies = Proxies::from_environment(|name| std::env::var(name).ok());
    let proxies = proxies.map_err(|error| Failure::usage(error.to_string()))?;
    let patience = Patience {
        silence: args.patience.0,
        ..Patience::default()
    };
    let client = Client::new(proxies, patience);
    event_loop::carry(get(&args, job, &client, store))
}

async fn get(args: &GetArgs, job: Job, client: &Rc<Client>, store: &Store) -> Result<ExitCode> {
    // Before signals are ours: a pipe is opened when its reader is there.
    let streamed = streamed(args)?;
    let signals = signals::catch()?;
    let mut web = WebLinks::find(args.links.clone(), &args.neighbours, Asker::User, store).await?;
    let links = web.links();
    let is_shown = !args.quiet && !args.json && output::obeys_codes(&std::io::stderr());
    let began_at = Instant::now();
    let mut meter = Meter::new(is_shown);
    let about: Vec<_> = job.urls.iter().map(ToString::to_string).collect();
    let about = format!("tabane get {}", about.join(" "));
    let uplinks = web.uplinks();
    let fetched = async {
        let digest = args.sha256.as_ref();
        let watch = move |progress: &Progress| meter.show(progress);
        match streamed {
            Some((out, name)) => {
                let fetched = fetch_into_stream(client, &links, job, out, &name, digest, watch);
                Ok::<_, anyhow::Error>((fetched.await?, None))
            }
            None => {
                let path = place(args, &job.urls)?;
                let restart = args.restart;
                let fetched = fetch_into_file(client, &links, job, &path, restart, digest, watch);
                Ok((fetched.await?, Some(path)))
            }
        }
    };
    let (outcome, path) = tokio::select! {
        never = seen(about, &links, uplinks, store) => never?,
        fetched = fetched => fetched?,
        () = web.follow() => bail!("the kernel tells no more of interfaces"),
        arrived = signals.next() => {
            // What there is so far was noted as its keeper was dropped.
            return Ok(program::signal_code(arrived?.signal));
        }
    };
    tell(args, &outcome, path.as_deref(), began_at.elapsed())?;
    Ok(ExitCode::SUCCESS)
}

/// Has `tabane status` see this while it is polled, once it is known to take its time.
async fn seen<T>(about: String, links: &Links, uplinks: Uplinks, store: &Store) -> Result<T> {
    sleep(SEEN_AFTER).await;
    let _visible = Instance::of_links(
        &Description {
            kind: Kind::Get,
            name: format!("get-{}", std::process::id()),
            about,
            relays: Vec::new(),
            policy: Some(PolicyTextFile::of(store)),
        },
        LinksView::of_web(links.clone(), uplinks, || 1),
    )?;
    std::future::pending().await
}

fn headers(args: &GetArgs) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for text in &args.headers {
        let wrong = || {
            Failure::usage(format!(
                "'{text}' is no header; write it like 'Name: value'"
            ))
        };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        if ["range", "if-range", "host", "content-length"].contains(&name.as_str()) {
            let text = format!("{name} is ours to say: a file is fetched whole");
            return Err(Failure::usage(text).into());
        }
        headers.append(name, value);
    }
    if let Some(user) = &args.user {
        let value = HeaderValue::from_str(&tabane_fetch::basic(user));
        headers.insert("authorization", value.context("--user")?);
    }
    Ok(headers)
}

/// What the file is written into as it comes, and its name: stdout, or what is there and no file.
fn streamed(args: &GetArgs) -> Result<Option<(Box<dyn Write>, String)>> {
    Ok(match args.output.as_deref() {
        Some(path) if path == Path::new("-") => {
            Some((Box::new(std::io::stdout()), "standard output".to_owned()))
        }
        Some(path) if atomic_file::is_special(path) => {
            let file = atomic_file::open_special(path)?;
            Some((Box::new(file), path.display().to_string()))
        }
        _ => None,
    })
}

/// Where the file goes.
fn place(args: &GetArgs, urls: &[Url]) -> Result<PathBuf> {
    Ok(match &args.output {
        Some(path) if path.is_dir() => path.join(remote_name(&urls[0])?),
        Some(path) => path.clone(),
        None => PathBuf::from(remote_name(&urls[0])?),
    })
}

fn remote_name(url: &Url) -> Result<String> {
    url.file_name().ok_or_else(|| {
        Failure::usage(format!(
            "{url} ends without a file's name; give one with -o FILE"
        ))
        .into()
    })
}

fn tell(args: &GetArgs, outcome: &Outcome, path: Option<&Path>, took: Duration) -> Result<()> {
    let progress = &outcome.progress;
    if args.json {
        let links = progress.links.iter().map(|link| {
            json!({
                "name": link.name,
                "carried_bytes": link.carried,
                "rate_bps": link.rate.map(Rate::as_bps),
            })
        });
        return output::json(&json!({
            "file": path,
            "bytes": progress.received,
            "seconds": took.as_secs_f64(),
            "etag": outcome.version.tag.as_ref().map(|tag| tag.as_str()),
            "restarts": progress.restarts,
            "links": links.collect::<Vec<_>>(),
        }));
    }
    if !args.quiet {
        output::note(summary(progress, path, took));
    }
    Ok(())
}

/// `big.iso: 8.0 MB in 6.2 s, 10.3 Mbit/s: wlan0 73 %, usb0 27 %`
fn summary(progress: &Progress, path: Option<&Path>, took: Duration) -> String {
    let carried: u64 = progress.links.iter().map(|link| link.carried).sum();
    let links = progress.links.iter();
    let shares = output::shares(links.map(|link| (link.name.as_str(), link.carried)));
    let name = path.map(|path| format!("{}: ", path.display()));
    let rate = Rate::of(Bytes::new(carried), took).as_mbps_f64();
    format!(
        "{}{} in {:.1} s, {} Mbit/s: {shares}",
        name.unwrap_or_default(),
        Bytes::new(progress.received),
        took.as_secs_f64(),
        output::short(rate),
    )
}
