//! Socket hooks of a cgroup: what its programs send to the world arrives at us on loopback.
//!
//! Owns the eBPF programs (`ebpf/socket.bpf.c`, which explains the scheme), their attachment and
//! the tables they share with us. The attachment lives in file descriptors alone, so the kernel
//! removes it with the process that holds it, however that process ends; nothing is pinned and
//! nothing has to be cleaned up. What is done with captured traffic is left to
//! [`capture`](crate::capture) and its users.

mod error;
mod exclusions;
mod flows;
mod netns_cookie;
mod sources;

use std::fmt;
use std::net::{IpAddr, SocketAddrV4};

use aya::maps::{Array, MapData};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, SockOps};
use aya::util::KernelVersion;
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};

use tabane_base::Prefix;

use crate::cgroup::Cgroup;
use crate::heap;
use crate::interfaces::InterfaceError;

pub use error::HookError;
use exclusions::Exclusions;
pub(crate) use flows::{FLOW_NET, index_of_v4, index_of_v6, source_v4, source_v6};
pub use flows::{FlowTable, Original, Protocol};
use sources::Sources;
use tokio::task::JoinSet;

/// The most prefixes that can be excluded (`MAX_EXCLUDED` in `ebpf/socket.bpf.c`).
pub const MAX_EXCLUDED: usize = 1024;

/// The oldest kernel whose verifier takes our programs: fetching atomics came with 5.12.
const MIN_KERNEL: KernelVersion = KernelVersion::new(5, 12, 0);

/// The programs, by function name in `ebpf/socket.bpf.c`. Those that translate answers come
/// first: a program must never see an answer from an address it did not ask for.
const INCOMING: [&str; 6] = [
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "getsockname4",
    "getsockname6",
];
/// Before those that make flows: it says whose the connection of one is.
const CONNECTING: &str = "connecting";
const OUTGOING: [&str; 4] = ["connect4", "connect6", "sendmsg4", "sendmsg6"];

/// What to capture.
#[derive(Clone, Debug)]
pub struct HookConfig {
    /// The port of [`CaptureListener`](crate::capture::CaptureListener) and
    /// [`CaptureUdp`](crate::capture::CaptureUdp), which must be open first.
    pub port: u16,
    /// Capture TCP connections.
    pub capture_tcp: bool,
    /// Capture UDP datagrams.
    pub capture_udp: bool,
    /// Capture datagrams of unconnected IPv6 sockets: needs our listener on `[::1]`.
    pub capture_udp6: bool,
    /// Destinations left alone, at most [`MAX_EXCLUDED`]. Loopback (port 53 excepted),
    /// link-local, multicast and broadcast always are.
    pub exclude: Vec<Prefix>,
    /// Sockets with this `SO_MARK` are left alone: our own, where we live in the same cgroup.
    pub bypass_mark: Option<u32>,
    /// Leave alone the datagrams of sockets with a hop limit below 32, where the kernel tells it:
    /// they ask who is on the way (`traceroute`).
    pub leave_few_hops: bool,
    /// Whether to capture from the beginning; see [`Hooks::set_open`].
    pub open: bool,
}

/// Hooks on a cgroup, until dropped.
pub struct Hooks {
    flows: FlowTable,
    exclusions: Exclusions,
    gate: Array<MapData, u32>,
    /// Until they are followed.
    sources: Option<Sources>,
    /// Follows them.
    tasks: JoinSet<()>,
    /// Holds the programs and links; dropping it detaches them.
    _ebpf: Ebpf,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl Hooks {
    /// Captures what sockets of `cgroup` send from here on, in the network namespace of the
    /// calling thread. Connections that exist already stay as they are.
    ///
    /// # Errors
    /// See [`HookError`]; on error nothing stays attached.
    pub fn attach(cgroup: &Cgroup, config: &HookConfig) -> Result<Self, HookError> {
        if KernelVersion::current().is_ok_and(|running| running < MIN_KERNEL) {
            return Err(HookError::KernelTooOld);
        }
        // Kernels that do not tell who asks refuse programs that want to know.
        let attached = Self::attach_telling(cgroup, config, true)
            .or_else(|_| Self::attach_telling(cgroup, config, false));
        heap::trim();
        attached
    }

    fn attach_telling(
        cgroup: &Cgroup,
        config: &HookConfig,
        tells_asker: bool,
    ) -> Result<Self, HookError> {
        let mut ebpf = load(config, tells_asker)?;
        let mut exclusions = Exclusions::take_from(&mut ebpf)?;
        exclusions.replace(&config.exclude, &[], &[])?;
        let flows = FlowTable::take_from(&mut ebpf)?;
        let sources = Sources::take_from(&mut ebpf)?;
        let gate = ebpf.take_map("gate").expect("the object defines `gate`");
        let mut gate = Array::try_from(gate).map_err(HookError::from_map)?;
        let open = u32::from(config.open);
        gate.set(0, open, 0).map_err(HookError::from_map)?;
        for hook in INCOMING {
            attach_one(&mut ebpf, hook, cgroup)?;
        }
        attach_connecting(&mut ebpf, cgroup)?;
        for hook in OUTGOING {
            attach_one(&mut ebpf, hook, cgroup)?;
        }
        Ok(Self {
            flows,
            exclusions,
            gate,
            sources: Some(sources),
            tasks: JoinSet::new(),
            _ebpf: ebpf,
        })
    }

    /// Captures new connections and datagrams from here on, or leaves them alone as if there were
    /// no hooks. What is captured already goes on.
    ///
    /// # Errors
    /// [`HookError::Map`], which does not happen to a table that exists.
    pub fn set_open(&mut self, open: bool) -> Result<(), HookError> {
        self.gate
            .set(0, u32::from(open), 0)
            .map_err(HookError::from_map)
    }

    /// Shows programs whose sockets are connected the addresses that these would have without us,
    /// by the routing table of the calling thread's network namespace, and follows its changes.
    /// Until then, `getsockname(2)` gives loopback.
    ///
    /// # Errors
    /// The kernel tells of no routes.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub async fn follow_routes(&mut self) -> Result<(), InterfaceError> {
        if let Some(sources) = self.sources.take() {
            self.tasks.spawn(sources.follow().await?);
        }
        Ok(())
    }

    /// Leaves these destinations alone from here on, and no others. Of `resolvers`, addresses in
    /// those ranges, port 53 is captured all the same, and so is everything to `captured`, smaller
    /// ranges within them.
    ///
    /// # Errors
    /// [`HookError::TooManyExclusions`] and [`HookError::InvalidPrefix`], with everything as it
    /// was.
    pub fn exclude(
        &mut self,
        prefixes: &[Prefix],
        resolvers: &[IpAddr],
        captured: &[Prefix],
    ) -> Result<(), HookError> {
        self.exclusions.replace(prefixes, resolvers, captured)
    }

    /// The table of captured flows, to look them up from other tasks.
    #[must_use]
    pub fn flows(&self) -> FlowTable {
        self.flows.clone()
    }

    /// What the program asked for whose packet reached us at `local`. `None` where that is no
    /// address of a flow, or the flow is long forgotten.
    #[must_use]
    pub fn original(&self, local: SocketAddrV4) -> Option<Original> {
        self.flows.original(index_of_v4(*local.ip())?)
    }
}

fn load(config: &HookConfig, tells_asker: bool) -> Result<Ebpf, HookError> {
    // A loader begins with the kernel's types, some 17 MB of memory, and does not show whether
    // there are any. Let go of before ours are read, so that they are there once.
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    // Without the kernel's own type information the one program that wants it does without.
    let kernel_types = Btf::from_sys_fs().ok();
    let port_be = config.port.to_be();
    let capture_tcp = u8::from(config.capture_tcp);
    let capture_udp = u8::from(config.capture_udp);
    let ipv6_listener = u8::from(config.capture_udp6);
    let has_types = u8::from(kernel_types.is_some());
    let tell_asker = u8::from(tells_asker);
    let reads_sockets = tells_asker && kernel_types.is_some();
    let leave_few_hops = u8::from(config.leave_few_hops && reads_sockets);
    let reads_sockets = u8::from(reads_sockets);
    let bypass_mark = config.bypass_mark.unwrap_or(0);
    let netns_cookie = netns_cookie::of_this_thread().unwrap_or(0);
    loader
        .btf(kernel_types.as_ref())
        .override_global("LISTEN_PORT", &port_be, true)
        .override_global("CAPTURE_TCP", &capture_tcp, true)
        .override_global("CAPTURE_UDP", &capture_udp, true)
        .override_global("IPV6_LISTENER", &ipv6_listener, true)
        .override_global("KERNEL_TYPES", &has_types, true)
        .override_global("TELL_ASKER", &tell_asker, true)
        .override_global("READS_SOCKETS", &reads_sockets, true)
        .override_global("LEAVE_FEW_HOPS", &leave_few_hops, true)
        .override_global("BYPASS_MARK", &bypass_mark, true)
        .override_global("NETNS_COOKIE", &netns_cookie, true)
        .load(include_bytes_aligned!(concat!(
            env!("OUT_DIR"),
            "/socket.bpf.o"
        )))
        .map_err(HookError::from_load)
}

fn attach_one(ebpf: &mut Ebpf, hook: &'static str, cgroup: &Cgroup) -> Result<(), HookError> {
    let program = ebpf
        .program_mut(hook)
        .expect("the object defines every hook");
    let program: &mut CgroupSockAddr = program
        .try_into()
        .expect("every hook is a cgroup socket address program");
    program
        .load()
        .map_err(|error| HookError::from_program(hook, error))?;
    // Linux has attached by link, which ends with its descriptor, since 5.7: always, for us.
    // Links coexist with other programs whatever the mode, and take no other than this.
    program
        .attach(cgroup, CgroupAttachMode::Single)
        .map_err(|error| HookError::from_program(hook, error))?;
    Ok(())
}

fn attach_connecting(ebpf: &mut Ebpf, cgroup: &Cgroup) -> Result<(), HookError> {
    let failed = |error| HookError::from_program(CONNECTING, error);
    let program = ebpf.program_mut(CONNECTING);
    let program = program.expect("the object defines every hook");
    let program: &mut SockOps = program
        .try_into()
        .expect("this hook is a socket operations program");
    program.load().map_err(failed)?;
    program
        .attach(cgroup, CgroupAttachMode::Single)
        .map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    /// The same bytes whoever builds: what is in the programs is in the package.
    #[test]
    fn programs_name_no_directory_of_whoever_builds_them() {
        let hooks = include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o"));
        let syn = include_bytes!(concat!(env!("OUT_DIR"), "/syn.bpf.o"));
        for object in [&hooks[..], &syn[..]] {
            let text = String::from_utf8_lossy(object);
            assert!(text.contains("ebpf/"), "lines are told by file");
            assert!(!text.contains("crates/linux"), "{text}");
        }
    }
}
