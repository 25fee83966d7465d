//! What the kernel and this account allow: found out by trying, where trying leaves nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tabane_linux::{
    cgroup::Cgroup,
    hooks::{HookConfig, Hooks},
    mptcp::{self, Unusable},
    syn_hold,
};

use crate::private_network;

/// Any port but 0: nothing is ever sent to it.
const TRIAL_PORT: u16 = 9;

/// `CAP_NET_ADMIN` of capabilities(7).
const NET_ADMIN: u32 = 12;

/// Rules as `tabane up --lan` needs them, for a namespace that is thrown away.
const NFT_TRIAL: &str = "add table ip trial
add chain ip trial pre { type filter hook prerouting priority mangle; }
add rule ip trial pre meta l4proto tcp socket transparent 1 accept
add rule ip trial pre meta l4proto tcp tproxy to 127.0.0.1:9
";

/// What was found of the kernel and of this account.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) is_root: bool,
    pub(crate) has_net_admin: bool,
    pub(crate) kernel: String,
    /// Where version 2 is mounted.
    pub(crate) cgroup: Option<PathBuf>,
    /// Socket hooks, attached to a group of our own and detached again.
    pub(crate) hooks: Result<(), String>,
    /// Programs can be kept in `connect()` until their destination has answered.
    pub(crate) holds_requests: Result<(), String>,
    /// A network for one command, made and thrown away.
    pub(crate) private_network: Result<(), String>,
    /// `/dev/net/tun`, opened.
    pub(crate) tun: Result<(), String>,
    /// A TPROXY rule in a namespace of its own; by which program it went.
    pub(crate) tproxy: Result<&'static str, String>,
    /// Rules that hand forwarded packets to a queue and to a log, in a namespace of its own.
    pub(crate) queues: Result<(), String>,
    /// Whether packets of others are forwarded at all.
    pub(crate) forwards: bool,
    /// A network namespace, made and left.
    pub(crate) namespace: Result<(), String>,
    /// Several links for a plain connection.
    pub(crate) multipath: Result<(), Unusable>,
    pub(crate) receive_buffer_max: Option<u64>,
    pub(crate) send_buffer_max: Option<u64>,
    /// Descriptors we may have: as it is, and as far as we may raise it ourselves.
    pub(crate) descriptors: Option<(u64, u64)>,
    pub(crate) resolvers: usize,
    /// How far the clock is behind the moment that this program was installed.
    pub(crate) clock_behind: Duration,
    /// The relay's port is free, or who has it.
    pub(crate) relay_port: Result<(), String>,
    /// The same of the port that SCTP is received at.
    pub(crate) sctp_port: Result<(), String>,
    /// Programs of `tabane lab` that are not here.
    pub(crate) missing_programs: Vec<&'static str>,
}

impl Machine {
    /// Looks, for a second at most. The ports are those that a relay and SCTP would receive at; 0
    /// is any.
    #[must_use]
    pub fn look(relay_port: u16, sctp_port: u16) -> Self {
        Self {
            is_root: nix::unistd::geteuid().is_root(),
            has_net_admin: has_net_admin(),
            kernel: read("/proc/sys/kernel/osrelease"),
            cgroup: cgroup_mount(&read("/proc/self/mounts")),
            hooks: try_hooks(),
            holds_requests: syn_hold::try_out().map_err(|error| error.to_string()),
            private_network: private_network::try_out().map_err(|error| error.to_string()),
            tun: OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/net/tun")
                .map(drop)
                .map_err(|error| error.to_string()),
            tproxy: try_tproxy(),
            queues: try_queues(),
            forwards: ["ipv4/ip_forward", "ipv6/conf/all/forwarding"]
                .iter()
                .any(|key| read(&format!("/proc/sys/net/{key}")) == "1"),
            namespace: in_namespace("true", &[], ""),
            multipath: mptcp::available(),
            receive_buffer_max: read("/proc/sys/net/core/rmem_max").parse().ok(),
            send_buffer_max: read("/proc/sys/net/core/wmem_max").parse().ok(),
            descriptors: descriptors(&read("/proc/self/limits")),
            resolvers: tabane_tunnel::system_resolvers().len(),
            clock_behind: clock_behind(),
            relay_port: try_port(relay_port).map_err(|error| error.to_string()),
            sctp_port: try_port(sctp_port).map_err(|error| error.to_string()),
            missing_programs: missing(&["ip", "curl"]),
        }
    }
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Whether we may change addresses, routes and rules.
pub(crate) fn has_net_admin() -> bool {
    let status = read("/proc/self/status");
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.unwrap_or(0) & (1 << NET_ADMIN) != 0
}

fn cgroup_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (place, kind) = (words.nth(1)?, words.next()?);
        (kind == "cgroup2").then(|| place.into())
    })
}

fn try_hooks() -> Result<(), String> {
    let cgroup = Cgroup::create().map_err(|error| error.to_string())?;
    let config = HookConfig {
        port: TRIAL_PORT,
        capture_tcp: true,
        capture_udp: true,
        capture_udp6: true,
        exclude: Vec::new(),
        bypass_mark: None,
        leave_few_hops: true,
        // Nothing is caught while it is tried.
        open: false,
    };
    let hooks = Hooks::attach(&cgroup, &config);
    hooks.map(drop).map_err(|error| error.to_string())
}

fn try_tproxy() -> Result<&'static str, String> {
    let nft = match in_namespace("nft", &["-f", "-"], NFT_TRIAL) {
        Ok(()) => return Ok("nft"),
        Err(error) => error,
    };
    let rule = "-t mangle -A PREROUTING -p tcp -j TPROXY --on-port 9";
    let words: Vec<&str> = rule.split(' ').collect();
    match in_namespace("iptables", &words, "") {
        Ok(()) => Ok("iptables"),
        Err(_) => Err(nft),
    }
}

fn try_queues() -> Result<(), String> {
    let rules = [
        "-m length --length 0:53 -j NFQUEUE --queue-num 9 --queue-bypass",
        "-j NFLOG --nflog-group 9",
    ];
    rules.iter().try_for_each(|rule| {
        let rule = format!("-t mangle -A FORWARD -p tcp {rule}");
        let words: Vec<&str> = rule.split(' ').collect();
        in_namespace("iptables", &words, "")
    })
}

/// Runs a program in a network namespace that ends with it.
fn in_namespace(program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
    let run = || -> io::Result<std::process::Output> {
        let mut child = Command::new("unshare")
            .args(["--net", "--", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that is not there does not read; its status says so.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    };
    match run() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(text.lines().next().unwrap_or("it failed").to_owned())
        }
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// `Max open files`, soft and hard (proc_pid_limits(5)).
fn descriptors(limits: &str) -> Option<(u64, u64)> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(u64::MAX),
        word => word.parse().ok(),
    });
    Some((words.next()??, words.next()??))
}

/// The program was put here in the past, so an earlier time is wrong.
fn clock_behind() -> Duration {
    let program = fs::metadata("/proc/self/exe").and_then(|meta| meta.modified());
    let ahead = program.map(|at| at.duration_since(SystemTime::now()));
    ahead.ok().and_then(Result::ok).unwrap_or_default()
}

fn try_port(port: u16) -> io::Result<()> {
    match UdpSocket::bind(("::", port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        // IPv6 may be switched off.
        Err(_) => UdpSocket::bind(("0.0.0.0", port)).map(drop),
    }
}

fn missing(programs: &[&'static str]) -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = |program: &str| std::env::split_paths(&path).any(|at| at.join(program).is_file());
    programs.iter().copied().filter(|it| !is_here(it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max open files            1024                 unlimited            files\n";
        assert_eq!(descriptors(limits), Some((1_024, u64::MAX)));
        assert_eq!(descriptors(""), None);
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(cgroup_mount(mounts), Some("/sys/fs/cgroup".into()));
        assert_eq!(cgroup_mount("tmpfs /tmp tmpfs rw 0 0\n"), None);
    }

    #[test]
    fn looking_leaves_nothing() {
        let machine = Machine::look(0, 0);
        assert!(!machine.kernel.is_empty() && machine.descriptors.is_some());
        assert_eq!(machine.clock_behind, Duration::ZERO);
        assert_eq!(machine.hooks.is_ok(), Machine::look(0, 0).hooks.is_ok());
    }
}
