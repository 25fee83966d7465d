//! `tabane dashboard`: a running instance in a browser.
//!
//! Owns the door for the browser; the page is the control crate's, what it shows the instance's.

use std::fs;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use nix::sys::signal::Signal;
use tabane_control::{Bridge, Directory, write_private};
use tabane_linux::signals::Signals;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::status::InstanceArgs;
use crate::event_loop;
use crate::output;
use tabane_store::secret;

/// What ends it, where there is something to take away.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// A browser that has not started by then is led there no more.
const SHOWN_TIME: Duration = Duration::from_secs(60);

/// Watch and steer a running tabane in a browser: live charts, links, sessions, events, policy
///
/// Prints an address to open; it holds a token, so others on this machine get nothing. Serves
/// until stopped: when the instance has ended, the page goes over to the next one of its kind.
/// From elsewhere: `ssh -L PORT:127.0.0.1:PORT`.
/// An instance that was started with `--http` serves the same page itself.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// The loopback address to serve at [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Open it in this desktop's browser
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &DashboardArgs) -> Result<ExitCode> {
    let instance = args.instance.find()?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let token = secret::token();
    let bridge = Bridge::open(args.listen.unwrap_or(any), token.clone(), &instance.socket)?;
    let url = format!("http://{}/#{token}", bridge.address());
    output::line(&url)?;
    let opened = args.open.then(|| open(&url)).transpose();
    let signpost = opened.unwrap_or_else(|error| {
        tracing::warn!("cannot open a browser ({error}): open the address yourself");
        None
    });
    event_loop::ask(LocalSet::new().run_until(serve(bridge, signpost)))??;
    Ok(ExitCode::SUCCESS)
}

async fn serve(bridge: Bridge, signpost: Option<Signpost>) -> io::Result<()> {
    let Some(signpost) = signpost else {
        return bridge.serve().await;
    };
    let signals = Signals::catch(&ENDING)?;
    let taken_down = async move {
        sleep(SHOWN_TIME).await;
        drop(signpost);
        pending().await
    };
    tokio::select! {
        served = bridge.serve() => served,
        arrived = signals.next() => arrived.map(drop),
        () = taken_down => Ok(()),
    }
}

/// A file that leads a browser to an address, until it is dropped. The address holds the token, and
/// what a program is called with all users of a machine can read.
struct Signpost(PathBuf);

fn open(url: &str) -> io::Result<Signpost> {
    let signpost = Signpost::put_up(url)?;
    Command::new("xdg-open")
        .arg(&signpost.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(signpost)
}

impl Signpost {
    /// In the user's home, for browsers that are snaps see no other place of the user's alone; else
    /// beside the instances' sockets.
    fn put_up(url: &str) -> io::Result<Self> {
        let name = format!("tabane-dashboard-{}.html", std::process::id());
        let page = format!(
            "<!doctype html><meta charset=\"utf-8\"><title>tabane</title>\
             <meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0; url={url}\">\
             <a href=\"{url}\">tabane dashboard</a>\n"
        );
        let at_home = std::env::home_dir().filter(|home| home.is_absolute());
        let written = at_home.map(|home| Self::write(&home.join(&name), &page));
        match written {
            Some(Ok(signpost)) => Ok(signpost),
            Some(Err(_)) | None => Self::write(&Directory::of_user().path().join(&name), &page),
        }
    }

    fn write(path: &Path, page: &str) -> io::Result<Self> {
        write_private(path, page)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Signpost {
    fn drop(&mut self) {
        // Somebody may have tidied up; then there is nothing to do.
        let _ = fs::remove_file(&self.0);
    }
}
