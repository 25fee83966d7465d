//! `tabane service`: units for systemd, so that `up` or `relay` runs from boot on.
//!
//! Owns the units' text, with what each may not do, and putting them in place. Starting and
//! stopping is systemd's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use tabane_control::RELAY_SERVICE;
use tabane_store::{Store, atomic_file};

/// Where an administrator's units are (systemd.unit(5)).
const UNITS: &str = "/etc/systemd/system";
/// Key, relays and settings of services.
const CONFIG: &str = "/etc/tabane";
/// Whose relay it is, where the package (or the administrator) has made this user.
const RELAY_USER: &str = "_tabane";
/// What only root can do for the relay: make its device, read an administrator's key.
const NEED_ROOT: [&str; 2] = ["--pool", "--tls-key"];
/// What units hide from the program, and the program with it (ProtectHome, PrivateTmp).
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Run `tabane up` or `tabane relay` from boot on, by systemd
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// Put the unit in place, and start it now and at every boot
    Install(InstallArgs),
    /// Stop the service, and take its unit away; keys and settings stay
    Uninstall(UnitArgs),
    /// Tell which services are installed and running
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct UnitArgs {
    /// Which service
    #[arg(value_name = "SERVICE")]
    service: Service,
}

#[derive(Debug, Args)]
struct InstallArgs {
    /// Which service
    #[arg(value_name = "SERVICE")]
    service: Service,
    /// Print the unit and do nothing
    #[arg(long)]
    print: bool,
    /// Flags for the service, behind --, e.g. -- --lan eth1
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<String>,
}

/// What can run as a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Service {
    /// This machine's traffic over all links; relays are those of /etc/tabane
    Up,
    /// The far end of sessions
    Relay,
}

/// One service as it is.
#[derive(Debug, Serialize)]
struct Report {
    service: &'static str,
    unit: String,
    installed: bool,
    /// Whether another version wrote it.
    outdated: bool,
    /// systemd's word: active, inactive, failed …
    state: String,
}

pub(crate) fn run(args: &ServiceArgs) -> Result<ExitCode> {
    match &args.command {
        ServiceCommand::Install(args) => install(args),
        ServiceCommand::Uninstall(args) => uninstall(args.service),
        ServiceCommand::Status { json } => status(*json),
    }
}

fn install(args: &InstallArgs) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let user = nix::unistd::User::from_name(RELAY_USER);
    let has_user = user.is_ok_and(|user| user.is_some());
    let flags = args.service.flags(&args.flags, Path::new(CONFIG))?;
    let unit = args.service.unit(&program, &flags, has_user)?;
    if args.print {
        output::line(unit.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    require_systemd()?;
    if args.service == Service::Up && !Path::new(CONFIG).join("relays").exists() {
        return Err(Failure::usage(format!(
            "the service has no relay yet: `sudo tabane --config {CONFIG} join STRING` first"
        ))
        .into());
    }
    if HIDDEN.iter().any(|hidden| program.starts_with(hidden)) {
        return Err(Failure::usage(format!(
            "services do not see {}: `sudo install {0} /usr/local/bin/`, and do it again with \
             the program there",
            program.display()
        ))
        .into());
    }
    let (path, name) = (args.service.path(), args.service.unit_name());
    let former = fs::read(&path).ok();
    atomic_file::replace(&path, unit.as_bytes(), atomic_file::PUBLIC)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--quiet", name])?;
    if let Err(error) = systemctl(&["start", name]) {
        match &former {
            Some(former) => atomic_file::replace(&path, former, atomic_file::PUBLIC)?,
            None => {
                systemctl(&["disable", "--quiet", "--now", name])?;
                fs::remove_file(&path)?;
            }
        }
        systemctl(&["daemon-reload"])?;
        return Err(error.context(format!(
            "it does not start, and is taken back; `journalctl -u {name}` shows why"
        )));
    }
    // One that runs is not started.
    let restart = match former.is_some_and(|former| former != unit.as_bytes()) {
        true => {
            format!(" (one that ran before goes on with its flags: `systemctl restart {name}`)")
        }
        false => String::new(),
    };
    output::line(&format!(
        "{} is installed and runs{restart}; `journalctl -u {name}` shows what it says",
        path.display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn uninstall(service: Service) -> Result<ExitCode> {
    require_systemd()?;
    let path = service.path();
    if !path.exists() {
        bail!("{} is not installed", service.unit_name());
    }
    systemctl(&["disable", "--now", service.unit_name()])?;
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    systemctl(&["daemon-reload"])?;
    output::line(&format!("{} is gone", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn status(json: bool) -> Result<ExitCode> {
    let services = [Service::Up, Service::Relay];
    let reports: Vec<Report> = services.into_iter().map(Service::report).collect();
    if json {
        output::line(&serde_json::to_string_pretty(&reports)?)?;
    } else {
        let installed = |it: &Report| match (it.installed, it.outdated) {
            (false, _) => "no",
            (true, false) => "yes",
            (true, true) => "outdated",
        };
        output::line(&output::items(
            &reports,
            &[
                ("service", &|it| it.service.to_owned()),
                ("unit", &|it| it.unit.clone()),
                ("installed", &|it| installed(it).to_owned()),
                ("state", &|it| it.state.clone()),
            ],
        ))?;
    }
    for report in reports.iter().filter(|report| report.outdated) {
        output::note(format_args!(
            "tabane: another version wrote {}: `sudo tabane service install {} -- FLAGS` with the \
             flags of its ExecStart writes it anew, and a restart takes it",
            report.unit, report.service
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn require_systemd() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::usage("services are root's affair: use sudo").into());
    }
    // sd_booted(3).
    if !Path::new("/run/systemd/system").exists() {
        return Err(Failure::usage(
            "this machine was not booted by systemd; `install SERVICE --print` prints the unit",
        )
        .into());
    }
    Ok(())
}

fn systemctl(arguments: &[&str]) -> Result<()> {
    let output = Command::new("systemctl").args(arguments).output();
    let output = output.context("cannot run systemctl")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it failed");
        bail!("systemctl {}: {said}", arguments.join(" "));
    }
    Ok(())
}

impl Service {
    const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Relay => "relay",
        }
    }

    const fn unit_name(self) -> &'static str {
        match self {
            Self::Up => "tabane-up.service",
            Self::Relay => "tabane-relay.service",
        }
    }

    fn path(self) -> PathBuf {
        Path::new(UNITS).join(self.unit_name())
    }

    fn report(self) -> Report {
        let asked = Command::new("systemctl")
            .args(["is-active", self.unit_name()])
            .output();
        let state = asked.ok().map(|output| {
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().next().unwrap_or_default().to_owned()
        });
        let installed = fs::read_to_string(self.path()).ok();
        Report {
            service: self.name(),
            unit: self.path().display().to_string(),
            installed: self.path().exists(),
            outdated: installed.is_some_and(|unit| !self.would_write(&unit)),
            state: state
                .filter(|state| !state.is_empty())
                .unwrap_or_else(|| "unknown".to_owned()),
        }
    }

    /// Whether this version writes such a unit, with whatever flags.
    fn would_write(self, unit: &str) -> bool {
        let but_flags = |unit: &str| -> Vec<String> {
            let lines = unit.lines();
            let lines = lines.filter(|line| {
                !["ExecStart=", "ExecStopPost="]
                    .iter()
                    .any(|key| line.starts_with(key))
            });
            lines.map(str::to_owned).collect()
        };
        let decisive = [None, Some("--tls-key"), Some("--pool")];
        let variants = decisive.into_iter().flat_map(|flag| {
            let flags: Vec<String> = flag.map(str::to_owned).into_iter().collect();
            [true, false].map(|has_user| self.unit(Path::new("/"), &flags, has_user))
        });
        let wanted = but_flags(unit);
        variants.flatten().any(|unit| but_flags(&unit) == wanted)
    }

    /// The flags for the service: those given, and of the settings in `config` what the relay
    /// cannot read there under a name of its own.
    fn flags(self, given: &[String], config: &Path) -> Result<Vec<String>> {
        let mut flags = given.to_vec();
        let is_given = |name: &str| given.iter().any(|it| it.split('=').next() == Some(name));
        if self == Self::Relay && !is_given("--pool") && !is_given("--peer") {
            let settings = Store::locate(Some(config.to_owned()))?.settings()?;
            for range in settings.relay_pool {
                flags.extend(["--pool".to_owned(), range.0.to_string()]);
            }
        }
        Ok(flags)
    }

    /// The unit for `program`, started with `flags`; the relay's under its own name, where there is
    /// that user.
    fn unit(self, program: &Path, flags: &[String], has_user: bool) -> Result<String> {
        let needs_root = |flag: &String| NEED_ROOT.iter().any(|it| flag.starts_with(it));
        let as_user = has_user && !flags.iter().any(needs_root);
        let program = quote(&program.display().to_string())?;
        let flags: Vec<String> = flags
            .iter()
            .map(|flag| quote(flag))
            .collect::<Result<_>>()?;
        let flags = flags
            .iter()
            .fold(String::new(), |all, flag| all + " " + flag);
        Ok(match self {
            Self::Up => format!(
                "[Unit]\n\
                 Description=tabane: this machine's traffic over all its links\n\
                 Wants=network-online.target\n\
                 After=network-online.target nftables.service\n\n\
                 [Service]\n\
                 Type=notify\n\
                 ExecStart={program} --config {CONFIG} up{flags}\n\
                 ExecStopPost={program} down\n\
                 Restart=on-failure\nRestartSec=5\nWatchdogSec={WATCHDOG}\n\
                 LimitNOFILE=1048576\n\
                 # eBPF hooks, TUN, routes and packet filter rules, and which program a rule that\n\
                 # asks for it means; nothing else of root's.\n\
                 CapabilityBoundingSet=CAP_BPF CAP_PERFMON CAP_NET_ADMIN CAP_NET_RAW \
                 CAP_NET_BIND_SERVICE CAP_SYS_PTRACE\n\
                 RuntimeDirectory=tabane\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n\
                 ConfigurationDirectory=tabane\nConfigurationDirectoryMode=0700\n\
                 DeviceAllow=/dev/net/tun rw\n\
                 ProtectKernelModules=yes\n\
                 {HARDENING}\n\
                 [Install]\nWantedBy=multi-user.target\n"
            ),
            Self::Relay => {
                // A pool needs its TUN device, and nothing else of /dev.
                let devices = match flags.contains(" --pool") {
                    true => "DeviceAllow=/dev/net/tun rw",
                    false => "PrivateDevices=yes",
                };
                let who = relay_s_name(as_user);
                format!(
                    "[Unit]\n\
                 Description=tabane relay: the far end of sessions\n\
                 Wants=network-online.target\n\
                 After=network-online.target\n\n\
                 [Service]\n\
                 Type=notify\n\
                 ExecStart={program} relay --state /var/lib/tabane{flags}\n\
                 {RELAY_RELOAD}\
                 Restart=on-failure\nRestartSec=2\nWatchdogSec={WATCHDOG}\n\
                 LimitNOFILE=1048576\n\
                 StateDirectory=tabane\nStateDirectoryMode=0700\n\
                 {who}\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n\
                 # Low ports, pings, and the mark that a `tabane up` here spares.\n\
                 CapabilityBoundingSet={RELAY_MIGHT}\n\
                 AppArmorProfile=-tabane-relay\n\
                 DevicePolicy=closed\n{devices}\nProtectKernelTunables=yes\n\
                 ProtectKernelModules=yes\nProtectControlGroups=yes\n\
                 RestrictNamespaces=yes\n\
                 {HARDENING}\n\
                 [Install]\nWantedBy=multi-user.target\n"
                )
            }
        })
    }
}

/// A successor takes what is new, while what is under way goes on. Of the shell, which is
/// everywhere: a program `kill` is not (Debian's is in procps).
const RELAY_RELOAD: &str = "ExecReload=/bin/sh -c 'kill -HUP $$MAINPID'\n";

/// What the relay may do beside what everybody may.
const RELAY_MIGHT: &str = "CAP_NET_BIND_SERVICE CAP_NET_ADMIN CAP_NET_RAW";

/// Under which name the relay runs, and where root finds its socket.
fn relay_s_name(as_user: bool) -> String {
    match as_user {
        true => format!(
            "User={RELAY_USER}\nAmbientCapabilities={RELAY_MIGHT}\n\
             RuntimeDirectory=tabane-relay\nEnvironment=TABANE_RUNTIME={RELAY_SERVICE}"
        ),
        // Root's name without root's might.
        false => "RuntimeDirectory=tabane".to_owned(),
    }
}

/// A daemon whose thread has taken no turn for so long is ended and started anew.
const WATCHDOG: &str = "60s";

/// What neither service needs, and a turn before ordinary programs, as `tabane_linux` takes one
/// where nobody else gives it.
const HARDENING: &str = "Nice=-11\n\
     NoNewPrivileges=yes\n\
     ProtectSystem=strict\n\
     ProtectHome=yes\n\
     PrivateTmp=yes\n\
     ProtectClock=yes\n\
     ProtectHostname=yes\n\
     ProtectKernelLogs=yes\n\
     ProtectProc=invisible\n\
     LockPersonality=yes\n\
     MemoryDenyWriteExecute=yes\n\
     RestrictRealtime=yes\n\
     RestrictSUIDSGID=yes\n\
     RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
     SystemCallArchitectures=native\n\
     UMask=0077\n";

/// A word as systemd reads it (systemd.service(5), COMMAND LINES).
fn quote(word: &str) -> Result<String> {
    if word.chars().any(char::is_control) {
        return Err(Failure::usage(format!("{word:?} cannot stand in a unit")).into());
    }
    let escaped = word.replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@[]%$".contains(c);
    if !word.is_empty() && escaped.chars().all(is_plain) {
        return Ok(escaped);
    }
    let escaped = escaped.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!("\"{escaped}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    #[test]
    fn words_reach_the_program_as_they_were() {
        let quoted = |word: &str| quote(word).unwrap();
        assert_eq!(quoted("--lan"), "--lan");
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("100%$x\"\\"), "\"100%%$$x\\\"\\\\\"");
        assert!(quote("a\nExecStart=/bin/sh").is_err());
    }

    #[test]
    fn the_relay_has_a_name_of_its_own_unless_it_needs_root_s() {
        let unit = |flags: &[&str], has_user| {
            let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
            Service::Relay
                .unit(Path::new("/usr/bin/tabane"), &flags, has_user)
                .unwrap()
        };
        assert!(unit(&["--listen", "[::]:443"], true).contains("\nUser=_tabane\n"));
        // `systemctl try-reload-or-restart`, which upgrades of packages ask for, restarts where
        // the unit has no reload.
        for flags in [&[][..], &["--pool", "100.64.0.0/20"]] {
            let unit = unit(flags, true);
            // By what is on every machine.
            let reload = "\nExecReload=/bin/sh -c 'kill -HUP $$MAINPID'\n";
            assert!(unit.contains(reload), "{unit}");
        }
        for (flags, has_user) in [
            (&["--pool", "100.64.0.0/20"][..], true),
            (&["--tls-cert", "c", "--tls-key=k"], true),
            (&[], false),
        ] {
            let unit = unit(flags, has_user);
            assert!(!unit.contains("User="), "{unit}");
            assert!(unit.contains("\nRuntimeDirectory=tabane\n"), "{unit}");
        }
    }

    #[test]
    fn units_of_other_versions_are_told_from_our_own() {
        let program = Path::new("/usr/bin/tabane");
        for service in [Service::Up, Service::Relay] {
            for flags in [&[][..], &["--pool", "10.0.0.0/8"], &["--tls-key=k"]] {
                let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
                let unit = service.unit(program, &flags, true).unwrap();
                assert!(service.would_write(&unit), "{unit}");
                let older = unit.replace("LockPersonality=yes\n", "");
                assert!(!service.would_write(&older), "{older}");
            }
        }
    }

    #[test]
    fn systemd_finds_no_fault_in_the_units() {
        let scratch = Scratch::make();
        // The program must exist, or that is the fault.
        let program = std::env::current_exe().unwrap();
        let units = [
            (Service::Up, false),
            (Service::Relay, false),
            (Service::Relay, true),
        ];
        for (service, has_user) in units {
            let flags = ["--log".to_owned(), "a b".to_owned()];
            let path = scratch.path().join(service.unit_name());
            let unit = service.unit(&program, &flags, has_user).unwrap();
            // systemd makes it for everybody otherwise.
            assert!(unit.contains("\nRuntimeDirectoryMode=0700\n"), "{unit}");
            fs::write(&path, unit).unwrap();
            let verified = Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(&path)
                .output();
            let Ok(verified) = verified else {
                println!("skipped: no systemd-analyze");
                return;
            };
            let said = String::from_utf8_lossy(&verified.stderr).into_owned();
            let ours: Vec<&str> = said
                .lines()
                .filter(|line| line.contains(service.unit_name()))
                .collect();
            assert!(ours.is_empty(), "{ours:?}");
            assert!(
                verified.status.success() || !said.contains("tabane"),
                "{said}"
            );
        }
    }
}
