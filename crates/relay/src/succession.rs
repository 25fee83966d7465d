//! The process that a relay leaves its sockets to, so that an upgrade costs nobody a connection.
//!
//! ```text
//!  old ── starts, with its sockets as descriptors ──► new: opens everything, reads the list
//!  old ◄──────────────── "ready" ──────────────────── new: steers what is new to itself
//!  old ── "lodged KEY 7", "pool", "fleet" ──────────► new: has pool and place in the fleet
//!  old ◄── "used ann 1500" ── one link, both ways ──► new, until the old one has ended
//! ```
//!
//! Owns how the descriptors are named, and the order of things. The old process finishes its
//! sessions and ends; until then each adds what the other has passed on for its users, and the new
//! one alone writes it down. A new process that says nothing, or ends, changes nothing.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tabane_base::Duration;
use tabane_linux::descriptors::{heritable, inherited};
use tabane_linux::threads::aside;
use tabane_tunnel::{Inheritance, InheritedGroup, InheritedPool, RelayMonitor};
use tokio::time::{interval, timeout};

use crate::gatekeeper::Gatekeeper;
use crate::partner::{Partner, Word, Words};

/// The variable that says which descriptors are what.
const VARIABLE: &str = "TABANE_RELAY_INHERITANCE";
/// A new process reads some files and makes a certificate until it is ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often both processes tell each other what users have passed: by so much a volume may be
/// exceeded. A fleet lends small parts, which last no second at high rates.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// What the variable says, as TOML.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Will {
    is_odd: bool,
    link: i32,
    doors: Vec<i32>,
    /// The process that leaves all this.
    #[serde(default)]
    process: u32,
    pool: Option<NamedPool>,
    #[serde(default)]
    groups: Vec<NamedGroup>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NamedPool {
    device: i32,
    answers: i32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NamedGroup {
    asked: SocketAddr,
    has_second_half: bool,
    sockets: Vec<i32>,
}

/// What a process has from the one before it.
#[derive(Debug)]
pub struct Estate {
    pub(crate) sockets: Inheritance,
    pub(crate) doors: Vec<TcpListener>,
    pub(crate) pool: Option<InheritedPool>,
    /// The process that has left all this.
    pub(crate) process: u32,
    pub(crate) link: UnixStream,
}

/// The way from a running relay to the next process.
#[derive(Clone)]
pub struct Upgrade {
    monitor: RelayMonitor,
    gatekeeper: Rc<Gatekeeper>,
    /// Where TLS is taken in.
    doors: Rc<Vec<OwnedFd>>,
    partner: Rc<RefCell<Option<Partner>>>,
}

impl Estate {
    /// What the process that started this one has left, if it is one that is being upgraded.
    ///
    /// # Errors
    /// The variable is not what a relay says.
    pub fn find() -> Result<Option<Self>> {
        let Ok(text) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        let read = || Self::take(toml::from_str(&text)?);
        read()
            .with_context(|| format!("{VARIABLE}={text}"))
            .map(Some)
    }

    fn take(will: Will) -> Result<Self> {
        let take = |numbers: Vec<i32>| numbers.into_iter().map(inherited);
        let groups = will.groups.into_iter().map(|group| {
            Ok(InheritedGroup {
                asked: group.asked,
                has_second_half: group.has_second_half,
                sockets: take(group.sockets).collect::<io::Result<_>>()?,
            })
        });
        let groups = groups.collect::<io::Result<_>>()?;
        let doors = take(will.doors).map(|door| door.map(TcpListener::from));
        let pool = will.pool.map(|pool| {
            Ok::<_, io::Error>(InheritedPool {
                device: inherited(pool.device)?,
                answers: inherited(pool.answers)?,
            })
        });
        let is_odd = will.is_odd;
        Ok(Self {
            sockets: Inheritance { is_odd, groups },
            doors: doors.collect::<io::Result<_>>()?,
            pool: pool.transpose()?,
            process: will.process,
            link: inherited(will.link)?.into(),
        })
    }
}

impl Upgrade {
    pub(crate) fn new(
        monitor: RelayMonitor,
        gatekeeper: Rc<Gatekeeper>,
        doors: Vec<OwnedFd>,
    ) -> Self {
        Self {
            monitor,
            gatekeeper,
            doors: Rc::new(doors),
            partner: Rc::default(),
        }
    }

    /// Starts the process that goes on here, by this command; gives its number once it serves what
    /// is new.
    ///
    /// # Errors
    /// It does not: all is as it was, and the error says why.
    pub async fn start(&self, command: &mut Command) -> Result<u32> {
        let (ours, theirs) = UnixStream::pair().context("cannot open a link")?;
        let (will, kept) = self
            .will(theirs.into())
            .context("cannot hand sockets over")?;
        let (mut partner, words) = Partner::new(ours)?;
        // Before it is written down: what passes meanwhile is told, not lost.
        partner.skip(&self.gatekeeper.users());
        self.gatekeeper.put_down().await?;
        let started = self
            .start_with(command, &will, kept, (partner, words))
            .await;
        if started.is_err() {
            self.gatekeeper.take_up();
            // It may have led packets to itself before it ended.
            if let Err(error) = self.monitor.take_all() {
                tracing::error!(%error, "what is new may go astray");
            }
        }
        started
    }

    async fn start_with(
        &self,
        command: &mut Command,
        will: &Will,
        kept: Vec<OwnedFd>,
        (partner, mut words): (Partner, Words),
    ) -> Result<u32> {
        let child = command
            .env(VARIABLE, toml::to_string(will)?)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        drop(kept);
        let heard = timeout(PATIENCE, words.next_line()).await;
        let is_late = heard.is_err();
        let line = heard.ok().and_then(Result::ok).flatten();
        if line.as_deref().and_then(Word::parse) != Some(Word::Ready) {
            bail!("{}", why_not(child, is_late).await);
        }
        if let Err(error) = self.hand_over(&partner).await {
            // What is seen next is that it has ended.
            tracing::error!("what is shared was not handed over whole: {error:#}");
        }
        *self.partner.borrow_mut() = Some(partner);
        let this = self.clone();
        tokio::task::spawn_local(async move {
            this.keep_company(words).await;
            tracing::error!("the process that took over has ended: nobody new is served");
        });
        Ok(child.id())
    }

    /// Leaves to the next process what one alone can have.
    async fn hand_over(&self, partner: &Partner) -> Result<()> {
        if let Some(places) = self.monitor.leave_pool() {
            partner.say_pool(&places).await?;
        }
        let told = self.gatekeeper.leave_place().await;
        partner.say_fleet().await?;
        told
    }

    /// The descriptors by their numbers, and what keeps them open until they are handed over.
    fn will(&self, link: OwnedFd) -> io::Result<(Will, Vec<OwnedFd>)> {
        let sockets = self.monitor.bequeath()?;
        let mut kept = Vec::new();
        let mut name = |fd: &OwnedFd| -> io::Result<i32> {
            let heir = heritable(fd.as_fd())?;
            let number = heir.as_raw_fd();
            kept.push(heir);
            Ok(number)
        };
        let mut groups = Vec::new();
        for group in &sockets.groups {
            groups.push(NamedGroup {
                asked: group.asked,
                has_second_half: group.has_second_half,
                sockets: group
                    .sockets
                    .iter()
                    .map(&mut name)
                    .collect::<io::Result<_>>()?,
            });
        }
        let pool = self.monitor.bequeath_pool()?.map(|pool| {
            Ok::<_, io::Error>(NamedPool {
                device: name(&pool.device)?,
                answers: name(&pool.answers)?,
            })
        });
        let will = Will {
            is_odd: sockets.is_odd,
            process: std::process::id(),
            pool: pool.transpose()?,
            doors: self
                .doors
                .iter()
                .map(&mut name)
                .collect::<io::Result<_>>()?,
            link: name(&link)?,
            groups,
        };
        Ok((will, kept))
    }

    /// Takes what is new from here on, and all once the process before this one has ended.
    ///
    /// # Errors
    /// The kernel refuses, or that process has ended already.
    pub(crate) fn take_over(&self, estate: UnixStream) -> Result<()> {
        let (mut partner, words) = Partner::new(estate)?;
        partner.skip(&self.gatekeeper.users());
        self.monitor
            .take_over()
            .context("packets cannot be led here")?;
        partner
            .say_ready()
            .context("the process before this one has ended")?;
        *self.partner.borrow_mut() = Some(partner);
        let this = self.clone();
        tokio::task::spawn_local(async move {
            this.keep_company(words).await;
            match this.monitor.take_all() {
                Ok(()) => tracing::info!("the process before this one has ended"),
                Err(error) => tracing::error!(%error, "packets of its sessions go astray"),
            }
        });
        Ok(())
    }

    /// Until the other process has ended.
    async fn keep_company(&self, mut words: Words) {
        let mut ticks = interval(TELL_INTERVAL);
        let mut lodged = Vec::new();
        loop {
            tokio::select! {
                line = words.next_line() => match line.ok().flatten() {
                    Some(line) => match Word::parse(&line) {
                        Some(Word::Used(name, bytes)) => self.gatekeeper.add_used(name, bytes),
                        Some(Word::Lodged(place)) => lodged.push(place),
                        Some(Word::Pool) => self.monitor.take_pool(&std::mem::take(&mut lodged)),
                        Some(Word::Fleet) => self.gatekeeper.take_place(),
                        Some(Word::Ready) | None => {}
                    },
                    None => break,
                },
                _ = ticks.tick() => self.tell(),
            }
        }
        *self.partner.borrow_mut() = None;
        self.monitor.take_all_of_pool();
        self.gatekeeper.take_up();
    }

    /// Whether another process has sessions at the same addresses.
    pub(crate) fn has_partner(&self) -> bool {
        self.partner.borrow().is_some()
    }

    /// Tells the other process what users have passed here.
    pub(crate) fn tell(&self) {
        if let Some(partner) = self.partner.borrow_mut().as_mut()
            && let Err(error) = partner.tell(&self.gatekeeper.users())
        {
            tracing::debug!(%error, "the other process hears nothing");
        }
    }
}

/// Why the new process does not serve. It is gone then: one that is late, or says something else
/// and does not end, is killed.
async fn why_not(mut child: Child, is_late: bool) -> String {
    let number = child.id();
    let mut ended = pin!(aside(move || child.wait()));
    let limit = if is_late { Duration::ZERO } else { PATIENCE };
    let status = match timeout(limit, &mut ended).await {
        Ok(ended) => ended,
        Err(_) => {
            // It is ours until it was waited for, so the number is no other process's.
            let _ = kill(Pid::from_raw(number.cast_signed()), Signal::SIGKILL);
            ended.await
        }
    };
    match status.flatten() {
        Ok(_) if is_late => format!(
            "the new process was not ready within {} s",
            PATIENCE.as_secs()
        ),
        Ok(status) => format!("the new process ended at once ({status}); its reason is above"),
        Err(error) => format!("the new process: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_says_something_else_holds_nobody_up() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let why = tabane_tunnel::block_on(async {
                // It ends once something else has had its turn here.
                let something_else = async {
                    drop(input);
                    std::future::pending().await
                };
                tokio::select! {
                    biased;
                    why = why_not(child, false) => why,
                    why = something_else => why,
                }
            });
            tell.send(why.unwrap()).unwrap();
        });
        let why = told.recv_timeout(Duration::from_secs(10)).expect("held up");
        assert!(why.contains("ended at once"), "{why}");
    }
}
