//! `tabane web`: a web proxy on loopback that spreads what programs ask for over all links.
//!
//! Owns the flags, the command that may run beside it, and the lines about what was carried. What a
//! proxy does is `tabane-web`'s, which links there are `web_links`'s.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use serde_json::json;
use tabane_base::{Bytes, Rate};
use tabane_control::Kind;
use tabane_fetch::{Client, Patience, Proxies};
use tabane_linux::{child, descriptors, signals::Signals};
use tabane_web::{Carried, Hosts, Journal, Map, Record, Web, WebCa, trust};
use tokio::net::TcpListener;

use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{Description, Instance};
use crate::output;
use crate::program::Program;
use crate::signals;
use tabane_client::environment::web_variables;
use tabane_store::{RelayName, Store};
use tabane_uplinks::{Asker, LinksView, PolicyTextFile, WebLinks};

mod ca;

/// Where programs look for the proxy, unless they run below it.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4512);
/// What the command gets when tabane is killed, as with `tabane run`.
const FAREWELL: Signal = Signal::SIGHUP;

/// A web proxy for programs of this machine that uses all links, with nothing of ours elsewhere
///
/// Files that programs get over plain HTTP come over all links at once, if the server knows ranges.
/// Everything else is passed on as it is, each request or connection by one link; so a single
/// download over HTTPS is not faster, several at a time are. --map gives programs that can be told
/// another address (apt, npm, Go, …) a local one for an HTTPS server, so that its files are split.
/// --intercept opens the HTTPS of the hosts it names, by a local certificate authority that
/// programs have to be told to trust (`tabane web ca`), so that their files are split for any
/// program.
///
/// With a command, runs it with http_proxy and https_proxy set; without one, serves until stopped.
/// Proxies of the environment are not used.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WebArgs {
    #[command(subcommand)]
    command: Option<WebCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum WebCommand {
    Ca(ca::CaArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// A command to run with the proxy; put -- before it
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Where to listen: loopback only [default: 127.0.0.1:4512, with a command a free port]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Serve an HTTPS server's files at http://ADDR:PORT/PREFIX/, e.g.
    /// debian=https://deb.debian.org/debian; repeatable
    #[arg(long = "map", value_name = "PREFIX=URL")]
    maps: Vec<String>,
    /// End HTTPS to these hosts here and split their files, e.g. files.example.org, or
    /// '*.example.org' for all below it; other hosts' passes as it is. For programs that trust the
    /// authority of `tabane web ca create`, which tells the risks; a CMD is told to
    #[arg(long = "intercept", value_name = "HOST[,HOST…]", value_delimiter = ',')]
    intercepted: Vec<Hosts>,
    /// Use only this interface; repeat for several [default: every usable one, see `tabane links`]
    #[arg(long = "link", value_name = "IF")]
    links: Vec<String>,
    /// Borrow this neighbour's link as well; repeat for several [default: all that were paired by
    /// `tabane share pair`, unless --link is given]
    #[arg(long = "neighbour", value_name = "NAME")]
    neighbours: Vec<RelayName>,
    /// Print no line about each request
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print the lines as JSON, one object each
    #[arg(long, conflicts_with = "command")]
    json: bool,
    /// At the end, print to stderr what each link has carried
    #[arg(long)]
    stats: bool,
}

/// What all requests together came to.
#[derive(Debug, Default)]
struct Sums {
    links: BTreeMap<String, u64>,
    split: u32,
    whole: u32,
    tunnels: u32,
    refused: u32,
    intercepted: u32,
}

pub(crate) fn run(args: WebArgs, store: &Store) -> Result<ExitCode> {
    let args = match args.command {
        Some(WebCommand::Ca(args)) => return ca::run(args, &WebCa::of(store)),
        None => args.serve,
    };
    let maps = args.maps.iter().map(|text| text.parse::<Map>());
    let maps: Vec<Map> = maps
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::usage(format!("--map: {error}")))?;
    if let Some(listen) = args.listen.filter(|listen| !listen.ip().is_loopback()) {
        let text =
            format!("--listen {listen}: whoever can connect could use your links; loopback only");
        return Err(Failure::usage(text).into());
    }
    let program = match args.command.is_empty() {
        true => None,
        false => Some(Program::find(&args.command)?),
    };
    // What the command and its children have is left as it was.
    if program.is_none()
        && let Err(error) = descriptors::raise_limit()
    {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    event_loop::carry(serve(&args, maps, program.as_ref(), store))
}

async fn serve(
    args: &ServeArgs,
    maps: Vec<Map>,
    program: Option<&Program>,
    store: &Store,
) -> Result<ExitCode> {
    let signals = signals::catch()?;
    let intercepted = match args.intercepted.is_empty() {
        true => None,
        false => Some(ca::open(args.intercepted.clone(), &WebCa::of(store))?),
    };
    let mut found =
        WebLinks::find(args.links.clone(), &args.neighbours, Asker::Pages, store).await?;
    let links = found.links();
    let (listener, address) = listen(args, program.is_some()).await?;
    let sums = Rc::new(RefCell::new(Sums::default()));
    let lines = match program {
        Some(_) => Lines::None,
        None if args.quiet => Lines::None,
        None if args.json => Lines::Json,
        None => Lines::Text,
    };
    let journal: Journal = Rc::new({
        let sums = sums.clone();
        move |record: &Record| {
            sums.borrow_mut().add(record);
            lines.print(record);
        }
    });
    let client = Client::new(Proxies::default(), Patience::default());
    if program.is_none() && !args.json {
        announce(address, &maps, &links.names())?;
        if let Some((_, kept)) = &intercepted {
            let hosts = names(&args.intercepted);
            output::line(&format!(
                "HTTPS to {hosts} is opened here, by {}",
                kept.title
            ))?;
        }
    }
    let trusting = match (&intercepted, program) {
        (Some((_, kept)), Some(_)) => trust::variables(kept, &WebCa::of(store)),
        _ => Vec::new(),
    };
    let interception = intercepted.map(|(interception, _)| interception);
    let web = Web::new(client, links.clone(), maps, interception, journal, address);
    let _visible = Instance::of_links(
        &Description {
            kind: Kind::Web,
            name: format!("web-{}", std::process::id()),
            about: about(address, &args.intercepted),
            relays: Vec::new(),
            policy: Some(PolicyTextFile::of(store)),
        },
        LinksView::of_web(links, found.uplinks(), {
            let web = Rc::downgrade(&web);
            move || web.upgrade().map_or(0, |web| web.under_way())
        }),
    )?;
    let outcome = tokio::select! {
        code = supervise(program, address, trusting, &signals) => code,
        () = web.serve(listener) => bail!("the proxy has ended"),
        () = found.follow() => bail!("the kernel tells no more of interfaces"),
    };
    if args.stats {
        output::note(sums.borrow().table());
    }
    outcome
}

async fn listen(args: &ServeArgs, has_program: bool) -> Result<(TcpListener, SocketAddr)> {
    let mut wanted = args.listen.unwrap_or(LISTEN);
    if has_program && args.listen.is_none() {
        wanted.set_port(0);
    }
    let bind = async || {
        let listener = TcpListener::bind(wanted).await?;
        let address = listener.local_addr()?;
        std::io::Result::Ok((listener, address))
    };
    bind().await.with_context(|| {
        format!("cannot listen on {wanted} for the proxy; choose another with --listen")
    })
}

fn about(address: SocketAddr, intercepted: &[Hosts]) -> String {
    let intercepts = match intercepted {
        [] => String::new(),
        hosts => format!(", intercepts {}", names(hosts)),
    };
    format!("tabane web on http://{address}{intercepts}")
}

fn names(hosts: &[Hosts]) -> String {
    let names: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn announce(address: SocketAddr, maps: &[Map], links: &[String]) -> Result<()> {
    output::line(&format!(
        "web proxy on http://{address} over {}; Ctrl-C ends it",
        links.join(", ")
    ))?;
    for map in maps {
        output::line(&format!("http://{address}{}/ is {map}/", map.prefix()))?;
    }
    Ok(())
}

/// The command, or until somebody ends us.
async fn supervise(
    program: Option<&Program>,
    address: SocketAddr,
    trusting: Vec<(&'static str, PathBuf)>,
    signals: &Signals,
) -> Result<ExitCode> {
    let Some(program) = program else {
        return signals
            .next()
            .await
            .map(|_| ExitCode::SUCCESS)
            .context("signals");
    };
    let excepted = std::env::var("no_proxy").or_else(|_| std::env::var("NO_PROXY"));
    let mut command = program.command();
    command.envs(web_variables(address.port(), excepted.ok().as_deref()));
    command.envs(trusting);
    child::prepare(&mut command, FAREWELL, None);
    program.run_to_its_end(command, signals).await
}

/// How requests are told of.
#[derive(Clone, Copy)]
enum Lines {
    None,
    Text,
    Json,
}

impl Lines {
    fn print(self, record: &Record) {
        let printed = match self {
            Self::None => Ok(()),
            Self::Text => output::line(&text(record)),
            Self::Json => output::line(&in_json(record)),
        };
        // Who reads them may have gone; the proxy goes on.
        if let Err(error) = printed {
            tracing::debug!(%error, "a line got lost");
        }
    }
}

/// `200 GET http://a/big.iso 8.0 MB in 6.2 s, 10.3 Mbit/s: wlan0 73 %, usb0 27 %`
fn text(record: &Record) -> String {
    let carried: u64 = record.links.values().sum();
    let status = match record.status {
        0 => "---".to_owned(),
        status => status.to_string(),
    };
    let mut line = format!(
        "{status} {} {} {} in {:.1} s",
        record.method,
        record.target,
        Bytes::new(carried),
        record.took.as_secs_f64()
    );
    if carried > 0 {
        let rate = Rate::of(Bytes::new(carried), record.took).as_mbps_f64();
        let links = record.links.iter();
        let shares = output::shares(links.map(|(name, amount)| (name.as_str(), *amount)));
        line += &format!(", {} Mbit/s: {shares}", output::short(rate));
    }
    if let Some(trouble) = &record.trouble {
        line += &format!(" ({trouble})");
    }
    line.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn in_json(record: &Record) -> String {
    let links = record.links.iter();
    let links: Vec<_> = links
        .map(|(name, amount)| json!({"name": name, "carried_bytes": amount}))
        .collect();
    json!({
        "method": record.method,
        "target": record.target,
        "status": record.status,
        "carried": word(record.carried),
        "intercepted": record.intercepted,
        "seconds": record.took.as_secs_f64(),
        "links": links,
        "trouble": record.trouble,
    })
    .to_string()
}

const fn word(carried: Carried) -> &'static str {
    match carried {
        Carried::Whole => "whole",
        Carried::Split => "split",
        Carried::Tunnel => "tunnel",
        Carried::Not => "not",
    }
}

impl Sums {
    fn add(&mut self, record: &Record) {
        for (name, amount) in &record.links {
            *self.links.entry(name.clone()).or_default() += amount;
        }
        *match record.carried {
            Carried::Whole => &mut self.whole,
            Carried::Split => &mut self.split,
            Carried::Tunnel => &mut self.tunnels,
            Carried::Not => &mut self.refused,
        } += 1;
        self.intercepted += u32::from(record.intercepted);
    }

    fn table(&self) -> String {
        let all: u64 = self.links.values().sum();
        let rows = self.links.iter().map(|(name, amount)| {
            let percent = *amount as f64 * 100.0 / all.max(1) as f64;
            vec![
                name.clone(),
                Bytes::new(*amount).to_string(),
                format!("{percent:.0} %"),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let intercepted = match self.intercepted {
            0 => String::new(),
            count => format!(" ({count} of them intercepted)"),
        };
        format!(
            "{}\n{} split, {} whole, {} tunnels, {} refused{intercepted}",
            output::table(&["link", "carried", "share"], &rows),
            self.split,
            self.whole,
            self.tunnels,
            self.refused
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Duration;

    #[test]
    fn lines_say_what_was_carried_by_what() {
        let mut record = Record {
            method: "GET".to_owned(),
            target: "http://a/b".to_owned(),
            status: 200,
            carried: Carried::Split,
            intercepted: false,
            links: [("usb0".to_owned(), 250_000), ("wlan0".to_owned(), 750_000)].into(),
            took: Duration::from_secs(1),
            trouble: None,
        };
        let expected = "200 GET http://a/b 1.0 MB in 1.0 s, 8.0 Mbit/s: usb0 25 %, wlan0 75 %";
        assert_eq!(text(&record), expected);
        let mut sums = Sums::default();
        sums.add(&record);
        assert!(
            sums.table()
                .ends_with("1 split, 0 whole, 0 tunnels, 0 refused")
        );
        record.links.clear();
        record.status = 0;
        record.trouble = Some("the program hung up".to_owned());
        assert_eq!(
            text(&record),
            "--- GET http://a/b 0 B in 1.0 s (the program hung up)"
        );
    }
}
