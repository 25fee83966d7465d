//! The process that makes the namespaces, and what it hands over.
//!
//! A process with several threads cannot move into a user namespace, so a short-lived one of our
//! own does it, sets everything up, and passes the descriptors on (`SCM_RIGHTS`). They keep the
//! namespaces alive after its end.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    recvmsg, sendmsg, socketpair,
};
use nix::unistd::{getegid, geteuid};
use socket2::{Domain, Protocol, Socket, Type};

use super::PrivateNetError;
use crate::buffers::allow_small_buffers;
use crate::routing::Routing;
use crate::tun::{self, Offloads};

/// The widest there is, so that no datagram comes in fragments.
const MTU: u32 = 65_535;
/// Packets that may wait for us: thousands of connections that all begin at once.
const QUEUE: u32 = 10_000;
/// The kernel's table of routes, where nothing says otherwise.
const MAIN: u32 = 254;
/// Our own, for questions to resolvers of this host.
const RESOLVERS: u32 = 53;
const DNS_PORT: u16 = 53;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4_096;
/// What is handed over at most: the device, two namespaces, two listeners.
const MOST: usize = 5;
/// Why nothing is handed over: a line.
const MAX_REASON: usize = 1_024;

/// What the process hands over.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) tun: OwnedFd,
    pub(super) user: OwnedFd,
    pub(super) net: OwnedFd,
    /// IPv4, and IPv6 where there is any.
    pub(super) listeners: Vec<OwnedFd>,
}

/// Has `helper` do it.
pub(super) fn ask(mut helper: Command) -> Result<Made, PrivateNetError> {
    let ours = {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        );
        let (ours, theirs) = pair.map_err(|errno| PrivateNetError::Helper(errno.into()))?;
        helper.stdin(theirs).stdout(Stdio::null());
        ours
    };
    let mut child = helper.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if !Path::new("/proc/self").exists() => PrivateNetError::NoProc,
        _ => PrivateNetError::Helper(error),
    })?;
    // Its end of the pair is with the child alone from here on, so that its end shows.
    drop(helper);
    let made = receive(&ours);
    // How it ended says less than what it said.
    let _ = child.wait();
    made
}

fn receive(ours: &OwnedFd) -> Result<Made, PrivateNetError> {
    let failed = |errno: nix::errno::Errno| PrivateNetError::Helper(errno.into());
    let mut reason = [0; MAX_REASON];
    let mut pieces = [IoSliceMut::new(&mut reason)];
    let mut control = nix::cmsg_space!([RawFd; MOST]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(ours.as_raw_fd(), &mut pieces, Some(&mut control), flags);
    let message = message.map_err(failed)?;
    let length = message.bytes;
    let mut descriptors = Vec::new();
    for control in message.cmsgs().map_err(failed)? {
        if let ControlMessageOwned::ScmRights(given) = control {
            // SAFETY: the kernel has just made these for us, and nobody else knows them.
            let owned = given
                .into_iter()
                .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            descriptors.extend(owned);
        }
    }
    let mut descriptors = descriptors.into_iter();
    let (Some(tun), Some(user), Some(net)) =
        (descriptors.next(), descriptors.next(), descriptors.next())
    else {
        let reason = String::from_utf8_lossy(&reason[..length]).into_owned();
        return Err(PrivateNetError::Refused(match reason.as_str() {
            "" => "the process that makes it has ended".to_owned(),
            _ => reason,
        }));
    };
    let listeners = descriptors.collect();
    Ok(Made {
        tun,
        user,
        net,
        listeners,
    })
}

/// Makes the namespaces, with a TUN device of that name and addresses, the first of a wire of so
/// many bits, and hands them over on standard input, a socket. For the helper's process, which must
/// have one thread only.
///
/// # Errors
/// The other end is gone; any other failure is told there.
pub fn make_for_parent(device: &str, v4: Ipv4Addr, bits: u8, v6: Ipv6Addr) -> io::Result<()> {
    let parent = io::stdin();
    let parent = parent.as_raw_fd();
    match make(device, v4, bits, v6) {
        Ok(made) => {
            let first = [&made.tun, &made.user, &made.net];
            let descriptors: Vec<_> = first
                .into_iter()
                .chain(&made.listeners)
                .map(AsRawFd::as_raw_fd)
                .collect();
            send(parent, b"made", &[ControlMessage::ScmRights(&descriptors)])
        }
        Err(reason) => send(parent, reason.as_bytes(), &[]),
    }
}

fn send(parent: RawFd, text: &[u8], control: &[ControlMessage<'_>]) -> io::Result<()> {
    let text = [IoSlice::new(&text[..text.len().min(MAX_REASON)])];
    sendmsg::<UnixAddr>(parent, &text, control, MsgFlags::empty(), None)?;
    Ok(())
}

fn make(device: &str, v4: Ipv4Addr, bits: u8, v6: Ipv6Addr) -> Result<Made, String> {
    enter()?;
    let (tun, name) =
        tun::make_device(device, Offloads::Noted).map_err(|error| error.to_string())?;
    settle(&name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let runtime = runtime.map_err(|error| format!("no event loop: {error}"))?;
    let has_v6 = runtime
        .block_on(connect(&name, v4, bits, v6))
        .map_err(|error| error.to_string())?;
    let mut own = vec![IpAddr::V4(v4)];
    own.extend(has_v6.then_some(IpAddr::V6(v6)));
    let listeners: io::Result<Vec<_>> = own.into_iter().map(listen).collect();
    let namespace = |kind: &str| File::open(format!("/proc/self/ns/{kind}"));
    let opened = || Ok((namespace("user")?, namespace("net")?, listeners?));
    let opened: io::Result<_> = opened();
    let (user, net, listeners) = opened.map_err(|error| format!("cannot set it up: {error}"))?;
    Ok(Made {
        tun,
        user: user.into(),
        net: net.into(),
        listeners,
    })
}

/// Into a user namespace where we are who we were, and a network namespace that belongs to it.
fn enter() -> Result<(), String> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(|errno| {
        format!(
            "this kernel lets no ordinary user make namespaces ({errno}{})",
            why_not()
        )
    })?;
    let put = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| format!("cannot write /proc/self/{file}: {error}{}", why_not()))
    };
    // Without that, a group could be left that takes rights away (user_namespaces(7)).
    put("setgroups", "deny".to_owned())?;
    put("uid_map", format!("{user} {user} 1"))?;
    put("gid_map", format!("{group} {group} 1"))
}

/// What is known to stand in the way.
fn why_not() -> &'static str {
    let is = |path: &str, value: &str| {
        fs::read_to_string(format!("/proc/sys/{path}")).is_ok_and(|text| text.trim() == value)
    };
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "; AppArmor restricts them: kernel.apparmor_restrict_unprivileged_userns=1"
    } else if is("kernel/unprivileged_userns_clone", "0") {
        "; kernel.unprivileged_userns_clone=0"
    } else if is("user/max_user_namespaces", "0") {
        "; user.max_user_namespaces=0"
    } else {
        ""
    }
}

/// What the kernel is to know of the device; where it does not take it, less is carried.
fn settle(device: &str) {
    let device_settings = [
        // Answers of resolvers that have a loopback address.
        ("ipv4/conf", "route_localnet", "1"),
        ("ipv4/conf", "accept_local", "1"),
        ("ipv4/conf", "rp_filter", "0"),
        // Nobody lives on this wire: no address of its own, no questions.
        ("ipv6/conf", "addr_gen_mode", "1"),
        ("ipv6/conf", "accept_ra", "0"),
        ("ipv6/conf", "disable_ipv6", "0"),
    ];
    for (family, name, value) in device_settings {
        set(&format!("{family}/{device}/{name}"), value);
    }
    set("ipv4/conf/all/rp_filter", "0");
    // Pings by datagram sockets, for the one group there is.
    let group = getegid();
    set("ipv4/ping_group_range", &format!("{group} {group}"));
}

fn set(name: &str, value: &str) {
    let path = format!("/proc/sys/net/{name}");
    if let Err(error) = fs::write(&path, value) {
        tracing::debug!(%error, path, "not set");
    }
}

/// Everything goes to the device. Says whether IPv6 does.
async fn connect(
    device: &str,
    v4: Ipv4Addr,
    bits: u8,
    v6: Ipv6Addr,
) -> Result<bool, crate::routing::RoutingError> {
    let routing = Routing::open()?;
    routing.bring_up("lo", 65_536).await?;
    let index = routing.bring_up_queue(device, MTU, QUEUE).await?;
    // The wire's own broadcast address is none for programs that have not asked for such (EACCES).
    routing.add_address(index, v4.into(), bits).await?;
    let has_v6 = routing.add_address(index, v6.into(), 128).await.is_ok();
    routing.add_default(MAIN, index).await?;
    // Without that, a resolver on this host does not answer; others do.
    let diverted = async {
        routing.add_default(RESOLVERS, index).await?;
        routing.divert_loopback(DNS_PORT, RESOLVERS).await
    };
    if let Err(error) = diverted.await {
        tracing::debug!(%error, "a resolver on loopback cannot be asked");
    }
    Ok(has_v6)
}

fn listen(own: IpAddr) -> io::Result<OwnedFd> {
    let domain = if own.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    allow_small_buffers(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket).into())
}

/// The processes whose main thread lives in the network namespace `net`.
pub(super) fn processes(net: BorrowedFd<'_>) -> io::Result<usize> {
    let own = File::from(net.try_clone_to_owned()?).metadata()?;
    let is_there = |name: &str| {
        // A process may end while we look: then it is not there.
        let other = fs::metadata(format!("/proc/{name}/ns/net"));
        other.is_ok_and(|other| (other.dev(), other.ino()) == (own.dev(), own.ino()))
    };
    let names =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(pids.filter(|name| is_there(name)).count())
}
