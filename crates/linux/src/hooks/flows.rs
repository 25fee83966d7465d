//! The table of captured flows, shared with the eBPF programs.
//!
//! Owns the layout of its entries and the addresses that stand for an index: 127.128.0.0 + index,
//! and 100::7462:0:index as source of IPv6 datagrams. Entries are written by the programs,
//! which note where a TCP flow's connection comes from before it does, so that nobody else can
//! claim it; we make those of datagrams that nobody asked for, with indices of a half that is ours
//! alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{HashMap, MapData};
use aya::{Ebpf, Pod};

use super::HookError;

const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// The range of addresses that stand for flows, and its length in bits.
pub(crate) const FLOW_NET: (Ipv4Addr, u32) = (Ipv4Addr::new(127, 128, 0, 0), 32 - INDEX_BITS);

/// The leading words of 100::7462:0:index.
const FLOW_NET6: [u16; 6] = [0x100, 0, 0, 0, 0, 0x7462];

const FLAG_LOCAL_DNS: u8 = 1;
const FLAG_VIA_IPV6: u8 = 2;
const FLAG_CONNECTED: u8 = 4;
/// An entry, as `struct flow` in `ebpf/socket.bpf.c` has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawFlow {
    cookie: u64,
    dest: [u8; 16],
    reply: [u8; 16],
    port_be: u16,
    protocol: u8,
    flags: u8,
    pid: u32,
    /// Plus one; 0: not known.
    tos: u32,
    /// The port that the TCP connection comes from, once it is on its way; its address is in
    /// `reply`.
    claimant: u32,
}

// SAFETY: plain integers, `repr(C)`, 56 bytes without padding.
unsafe impl Pod for RawFlow {}
const _: () = assert!(size_of::<RawFlow>() == 56);

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// One connection.
    Tcp,
    /// The datagrams of one socket to one destination.
    Udp,
}

/// What a program asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Original {
    /// The address it connected or sent to.
    pub dest: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The destination is port 53 of a loopback address: a resolver of this host, which only
    /// answers here. The question should be put to a resolver beyond the relay.
    pub captured_dns: bool,
    /// The socket speaks with this destination alone.
    pub is_connected: bool,
    /// The process that asked, where the kernel tells.
    pub pid: Option<u32>,
    /// The service class that its socket was marked with, where the kernel tells.
    pub dscp: Option<u8>,
}

/// The flows captured by one [`Hooks`](super::Hooks). Copies share the table, which outlives the
/// hooks.
#[derive(Clone, Debug)]
pub struct FlowTable {
    /// Locked for a system call at a time: once per TCP connection and new UDP flow.
    map: Arc<Mutex<HashMap<MapData, u32, RawFlow>>>,
    /// How many flows we have made ourselves.
    next: Arc<AtomicU32>,
}

impl FlowTable {
    pub(super) fn take_from(ebpf: &mut Ebpf) -> Result<Self, HookError> {
        let map = ebpf.take_map("flows").expect("the object defines `flows`");
        let map = HashMap::try_from(map).map_err(HookError::from_map)?;
        Ok(Self {
            map: Arc::new(Mutex::new(map)),
            next: Arc::default(),
        })
    }

    /// What the flow of this index asked for.
    pub(crate) fn original(&self, index: u32) -> Option<Original> {
        Some(self.get(index)?.original())
    }

    /// What the TCP flow of this index asked for, told to the connection that its socket has begun.
    /// Others are strangers who connected to the address themselves.
    pub(crate) fn claim(&self, index: u32, from: SocketAddr) -> Option<Original> {
        let flow = self.get(index)?;
        let [.., a, b, c, d] = flow.reply;
        let is_its = flow.claimant == from.port().into()
            && from.ip().to_canonical() == IpAddr::V4(Ipv4Addr::new(a, b, c, d));
        let original = flow.original();
        (is_its && original.protocol == Protocol::Tcp).then_some(original)
    }

    /// What the UDP flow of this index asked for, the number of its socket, and the address of that
    /// where the index travelled in its place.
    pub(crate) fn udp(&self, index: u32) -> Option<(Original, u64, Ipv6Addr)> {
        let flow = self.get(index)?;
        Some((flow.original(), flow.cookie, Ipv6Addr::from(flow.reply)))
    }

    /// Makes a flow by which the UDP socket `cookie` hears of `from`, and gives its index; `None`
    /// where the table refuses. `reply` is the socket's own address where the index travels in its
    /// place.
    pub(crate) fn add(
        &self,
        cookie: u64,
        from: SocketAddr,
        reply: Option<Ipv6Addr>,
    ) -> Option<u32> {
        const OURS: u32 = INDEX_MASK / 2 + 1;
        let dest = match from.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let flow = RawFlow {
            cookie,
            dest: dest.octets(),
            reply: reply.map_or([0; 16], |address| address.octets()),
            port_be: from.port().to_be(),
            protocol: libc::IPPROTO_UDP as u8,
            flags: if reply.is_some() { FLAG_VIA_IPV6 } else { 0 },
            pid: 0,
            tos: 0,
            claimant: 0,
        };
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        // A few old ones may still be in use when indices come round.
        (0..4).find_map(|_| {
            let index = OURS | self.next.fetch_add(1, Ordering::Relaxed) & (OURS - 1);
            map.insert(index, flow, BPF_NOEXIST).ok().map(|()| index)
        })
    }

    fn get(&self, index: u32) -> Option<RawFlow> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(&index, 0).ok()
    }
}

/// `bpf(2)`: make an entry, change none.
const BPF_NOEXIST: u64 = 1;

impl RawFlow {
    fn original(&self) -> Original {
        let ip = IpAddr::V6(Ipv6Addr::from(self.dest)).to_canonical();
        Original {
            dest: SocketAddr::new(ip, u16::from_be(self.port_be)),
            protocol: match i32::from(self.protocol) {
                libc::IPPROTO_TCP => Protocol::Tcp,
                _ => Protocol::Udp,
            },
            captured_dns: self.flags & FLAG_LOCAL_DNS != 0,
            is_connected: self.flags & FLAG_CONNECTED != 0,
            pid: (self.pid != 0).then_some(self.pid),
            // The two low bits are for congestion (RFC 3168).
            dscp: self.tos.checked_sub(1).map(|tos| (tos >> 2) as u8 & 0x3f),
        }
    }
}

/// The index that an address of ours stands for.
pub(crate) fn index_of_v4(local: Ipv4Addr) -> Option<u32> {
    let bits = local.to_bits();
    (bits & !INDEX_MASK == FLOW_NET.0.to_bits()).then_some(bits & INDEX_MASK)
}

/// The index that a source address made by `sendmsg6` stands for.
pub(crate) fn index_of_v6(remote: Ipv6Addr) -> Option<u32> {
    let words = remote.segments();
    (words[..6] == FLOW_NET6).then_some(u32::from(words[6]) << 16 | u32::from(words[7]))
}

/// The address that answers of the IPv6 flow `index` come from.
pub(crate) fn source_v6(index: u32) -> Ipv6Addr {
    let [a, b, c, d, e, f] = FLOW_NET6;
    Ipv6Addr::new(a, b, c, d, e, f, (index >> 16) as u16, index as u16)
}

/// The address that answers of the flow `index` come from.
pub(crate) fn source_v4(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FLOW_NET.0.to_bits() | index & INDEX_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_for_indices_and_back() {
        for index in [1, 255, 65_536, INDEX_MASK] {
            assert_eq!(index_of_v4(source_v4(index)), Some(index));
            assert_eq!(index_of_v6(source_v6(index)), Some(index));
        }
        assert_eq!(index_of_v4(Ipv4Addr::LOCALHOST), None);
        assert_eq!(index_of_v4(Ipv4Addr::new(127, 192, 0, 0)), None);
        assert_eq!(index_of_v6(Ipv6Addr::LOCALHOST), None);
        // 127.255.255.255 is a broadcast address.
        assert!(!source_v4(u32::MAX).to_bits().eq(&0x7fff_ffff));
    }

    #[test]
    fn an_entry_tells_what_was_asked_for() {
        let flow = RawFlow {
            cookie: 7,
            dest: Ipv4Addr::new(127, 0, 0, 53).to_ipv6_mapped().octets(),
            reply: [0; 16],
            port_be: 53_u16.to_be(),
            protocol: 17,
            flags: FLAG_LOCAL_DNS,
            pid: 0,
            tos: 0xb8 + 1,
            claimant: 0,
        };
        let original = flow.original();
        assert_eq!(original.dest, "127.0.0.53:53".parse().unwrap());
        assert_eq!(original.protocol, Protocol::Udp);
        assert!(original.captured_dns);
        assert_eq!((original.pid, original.dscp), (None, Some(46)));
    }
}
