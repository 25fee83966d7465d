//! Labs that outlive the command that builds them.
//!
//! One process per lab builds it, holds it and takes it down on SIGTERM; a file in
//! [`DIRECTORY`] says how to find it. The file's name is the lab's name.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use crate::change::LinkChange;
use crate::error::LabError;
use crate::lab::{Lab, LabOptions};
use crate::switchboard::{self, Switchboard};
use crate::topology::{LabLink, SERVICE, SERVICE6};

const DIRECTORY: &str = "/run/tabane-lab";
const STATE: &str = "json";
const SOCKET: &str = "sock";

/// How to find a lab in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabState {
    /// The lab's own name.
    pub name: String,
    /// The name of its scenario.
    pub scenario: String,
    /// The process that holds it.
    pub pid: u32,
    /// The namespace of the client.
    pub client: String,
    /// The namespace of the server.
    pub server: String,
    /// The server's own address.
    pub service: Ipv4Addr,
    /// The server's own IPv6 address.
    pub service6: Ipv6Addr,
    /// The links, in the order of the scenario.
    pub links: Vec<LabLink>,
}

/// A lab that another process holds.
#[derive(Clone, Debug)]
pub struct BackgroundLab {
    state: LabState,
    client: Netns,
    server: Netns,
}

/// Builds the lab, tells `ready` its [`LabState`] as one line of JSON, and holds it until SIGTERM,
/// SIGINT or SIGHUP. To be called on the main thread of a process of its own, before it has
/// others.
///
/// # Errors
/// The lab cannot be built, or its name is taken.
pub fn emulate(
    scenario: &Scenario,
    name: &str,
    options: &LabOptions,
    ready: &mut dyn Write,
) -> Result<(), LabError> {
    if !geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let path = path_of(name);
    if BackgroundLab::find(name).is_ok() {
        return Err(LabError::NameTaken {
            name: name.to_owned(),
        });
    }
    fs::create_dir_all(DIRECTORY).map_err(|source| file_error(&path, source))?;
    // Signals are blocked before there are threads, so that all of them leave them to it.
    let switchboard = Switchboard::open(&socket_of(name))?;
    let lab = Lab::up(scenario, options)?;
    let state = LabState {
        name: name.to_owned(),
        scenario: scenario.name.clone(),
        pid: std::process::id(),
        client: lab.client().name().to_owned(),
        server: lab.server().name().to_owned(),
        service: SERVICE,
        service6: SERVICE6,
        links: lab.links().to_vec(),
    };
    let line = serde_json::to_string(&state).map_err(|error| file_error(&path, error.into()))?;
    fs::write(&path, &line).map_err(|source| file_error(&path, source))?;
    // Whoever started us may be gone; the file tells the same.
    let _ = writeln!(ready, "{line}").and_then(|()| ready.flush());
    let served = switchboard.serve(&lab);
    let _ = fs::remove_file(&path);
    served
}

impl BackgroundLab {
    /// Runs `command`, which is to call [`emulate`] with its standard output, in the background,
    /// and waits until the lab is up.
    ///
    /// # Errors
    /// What the command printed to standard error, if it ended instead.
    pub fn start(command: &mut Command) -> Result<Self, LabError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let fail = |source| LabError::Program { program, source };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in this terminal is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // An error leaves the line empty, which is told below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        if let Ok(state) = serde_json::from_str(&line) {
            return Self::attach(state);
        }
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        // It has ended, or closed its output and is of no use.
        let _ = child.kill();
        let _ = child.wait();
        Err(LabError::NotUp {
            said: said.trim().to_owned(),
        })
    }

    /// The lab of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Self, LabError> {
        let all = Self::all();
        let found = all.iter().find(|lab| lab.state.name == name);
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|lab| lab.state.name.as_str()).collect();
            LabError::NoSuchLab {
                name: name.to_owned(),
                known: if names.is_empty() {
                    "none is".to_owned()
                } else {
                    format!("there is {}", names.join(", "))
                },
            }
        })
    }

    /// All labs in the background, by name. Files of dead ones are removed on the way.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut labs = Vec::new();
        for entry in fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
            if entry.path().extension().is_none_or(|kind| kind != STATE) {
                continue;
            }
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let state = serde_json::from_str::<LabState>(&text).ok();
            match state.and_then(|state| Self::attach(state).ok()) {
                Some(lab) if signal(lab.state.pid, None).is_ok() => labs.push(lab),
                // Removed by someone else in the same moment: as good.
                _ => {
                    let _ = fs::remove_file(entry.path());
                    let _ = fs::remove_file(entry.path().with_extension(SOCKET));
                }
            }
        }
        labs.sort_by(|a, b| a.state.name.cmp(&b.state.name));
        labs
    }

    /// What is known of it.
    #[must_use]
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// The host that has one interface per link.
    #[must_use]
    pub fn client(&self) -> &Netns {
        &self.client
    }

    /// The host that is reached at [`SERVICE`] over every link.
    #[must_use]
    pub fn server(&self) -> &Netns {
        &self.server
    }

    /// Changes the link that the scenario calls `link`, or whose interface is called so.
    ///
    /// # Errors
    /// There is no such link, or the lab's process cannot do it.
    pub fn change(&self, link: &str, change: &LinkChange) -> Result<(), LabError> {
        let links = &self.state.links;
        let named = links.iter().position(|it| it.name == link);
        let index = named.or_else(|| links.iter().position(|it| it.interface == link));
        let Some(index) = index else {
            let known: Vec<_> = links.iter().map(|it| it.name.as_str()).collect();
            return Err(LabError::NoSuchLink {
                name: link.to_owned(),
                known: known.join(", "),
            });
        };
        switchboard::ask(&socket_of(&self.state.name), index, change)
    }

    /// Takes it down and waits until its namespaces are gone.
    ///
    /// # Errors
    /// The process cannot be told.
    pub fn down(self) -> Result<(), LabError> {
        let operation = "end the lab's process";
        let fail = |source| LabError::System { operation, source };
        let pid = i32::try_from(self.state.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or_else(|| fail(io::ErrorKind::InvalidData.into()))?;
        let flags = rustix::process::PidfdFlags::empty();
        let process = rustix::process::pidfd_open(pid, flags).map_err(|e| fail(e.into()))?;
        signal(self.state.pid, Some(Signal::SIGTERM)).map_err(fail)?;
        // The process ends after its namespaces.
        let mut watched = [rustix::event::PollFd::new(
            &process,
            rustix::event::PollFlags::IN,
        )];
        while let Err(errno) = rustix::event::poll(&mut watched, None) {
            if errno != rustix::io::Errno::INTR {
                return Err(fail(errno.into()));
            }
        }
        Ok(())
    }

    fn attach(state: LabState) -> Result<Self, LabError> {
        Ok(Self {
            client: Netns::open(&state.client)?,
            server: Netns::open(&state.server)?,
            state,
        })
    }
}

/// Where a lab's [`LabState`] is.
fn path_of(name: &str) -> PathBuf {
    // Variants have a slash in their names.
    Path::new(DIRECTORY).join(format!("{}.{STATE}", name.replace('/', "_")))
}

/// Where it takes orders.
fn socket_of(name: &str) -> PathBuf {
    path_of(name).with_extension(SOCKET)
}

fn file_error(path: &Path, source: io::Error) -> LabError {
    LabError::File {
        path: path.to_owned(),
        source,
    }
}

fn signal(pid: u32, signal: Option<Signal>) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    kill(Pid::from_raw(pid), signal).map_err(io::Error::from)
}
