//! usrsctp as its header declares it, and the few functions behind it that let packets in and
//! addresses come and go.
//!
//! Owns layouts and names, nothing else. `ffi/tests.rs` has a C compiler print the layouts from
//! the header that is installed and compares them.

#![allow(
    missing_docs,
    reason = "the library's own names; its header tells what they mean"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    sa_family_t, size_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, ssize_t,
};

pub(crate) type SctpAssoc = u32;

/// A socket of the library.
#[repr(C)]
pub(crate) struct Socket {
    _opaque: [u8; 0],
}

/// The beginning of a buffer of the library, of which only the length is touched.
#[repr(C)]
pub(crate) struct Mbuf {
    pub(crate) next: *mut Mbuf,
    pub(crate) next_packet: *mut Mbuf,
    pub(crate) data: *mut c_char,
    pub(crate) len: c_int,
}

pub(crate) const IPPROTO_SCTP: c_int = 132;
pub(crate) const MSG_NOTIFICATION: c_int = 0x2000;
pub(crate) const MSG_EOR: c_int = 0x80;
pub(crate) const SCTP_BINDX_ADD_ADDR: c_int = 0x8001;
pub(crate) const SCTP_SENDV_SNDINFO: c_uint = 1;
pub(crate) const SCTP_RECVV_RCVINFO: c_uint = 1;
pub(crate) const SCTP_FUTURE_ASSOC: SctpAssoc = 0;

pub(crate) const SCTP_NODELAY: c_int = 0x04;
pub(crate) const SCTP_ADAPTATION_LAYER: c_int = 0x08;
pub(crate) const SCTP_PEER_ADDR_PARAMS: c_int = 0x0a;
pub(crate) const SCTP_EVENT: c_int = 0x1e;
pub(crate) const SCTP_RECVRCVINFO: c_int = 0x1f;
/// Not in the header; the kernel that the library comes from has it (`sctp_uio.h`).
pub(crate) const SCTP_PEER_ADDR_THLDS: c_int = 0x23;
pub(crate) const SCTP_STATUS: c_int = 0x100;
pub(crate) const SCTP_GET_ASSOC_NUMBER: c_int = 0x104;
pub(crate) const SCTP_GET_PEER_ADDR_INFO: c_int = 0x101;
pub(crate) const SCTP_SS_FIRST_COME: u32 = 5;

pub(crate) const SCTP_EOF: u16 = 0x0100;
pub(crate) const SCTP_ABORT: u16 = 0x0200;
pub(crate) const SCTP_ADDR_OVER: u16 = 0x0800;

pub(crate) const SPP_HB_DEMAND: u32 = 0x04;
pub(crate) const SPP_PMTUD_DISABLE: u32 = 0x10;

pub(crate) const SCTP_ASSOC_CHANGE: u16 = 0x01;
pub(crate) const SCTP_SHUTDOWN_EVENT: u16 = 0x05;
pub(crate) const SCTP_ADAPTATION_INDICATION: u16 = 0x06;

pub(crate) const SCTP_COMM_UP: u16 = 1;
pub(crate) const SCTP_COMM_LOST: u16 = 2;
pub(crate) const SCTP_RESTART: u16 = 3;
pub(crate) const SCTP_SHUTDOWN_COMP: u16 = 4;
pub(crate) const SCTP_CANT_STR_ASSOC: u16 = 5;

pub(crate) const SCTP_ACTIVE: i32 = 0x0001;
pub(crate) const SCTP_UNCONFIRMED: i32 = 0x0200;

pub(crate) const M_NOWAIT: c_int = 0x01;
pub(crate) const MT_DATA: c_int = 1;
/// What a buffer in one piece holds.
pub(crate) const MCLBYTES: usize = 2048;

/// A plain structure that the library writes or reads, of which every bit pattern is a value.
///
/// # Safety
/// Only integers, and arrays and structures of them.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}

macro_rules! plain {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        // SAFETY: the fields are integers, or arrays and structures of integers.
        unsafe impl Plain for $name {}

        impl $name {
            /// What `ffi/tests.rs` compares: the size, and where each field lies.
            #[cfg(test)]
            fn layout() -> String {
                use std::mem::offset_of;
                let mut text = format!("{} {}", stringify!($name), size_of::<Self>());
                $(text += &format!(" {}:{}", stringify!($field), offset_of!(Self, $field));)*
                text
            }
        }
    )*};
}

plain! {
    SndInfo {
        snd_sid: u16, snd_flags: u16, snd_ppid: u32, snd_context: u32, snd_assoc_id: SctpAssoc,
    }
    RcvInfo {
        rcv_sid: u16, rcv_ssn: u16, rcv_flags: u16, rcv_ppid: u32, rcv_tsn: u32, rcv_cumtsn: u32,
        rcv_context: u32, rcv_assoc_id: SctpAssoc,
    }
    EventOn { se_assoc_id: SctpAssoc, se_type: u16, se_on: u8, }
    SetAdaptation { ssb_adaptation_ind: u32, }
    PaddrParams {
        spp_address: sockaddr_storage, spp_assoc_id: SctpAssoc, spp_hbinterval: u32,
        spp_pathmtu: u32, spp_flags: u32, spp_ipv6_flowlabel: u32, spp_pathmaxrxt: u16,
        spp_dscp: u8,
    }
    /// Not in the header either.
    PaddrThresholds {
        spt_address: sockaddr_storage, spt_assoc_id: SctpAssoc, spt_pathmaxrxt: u16,
        spt_pathpfthld: u16, spt_pathcpthld: u16,
    }
    PaddrInfo {
        spinfo_address: sockaddr_storage, spinfo_assoc_id: SctpAssoc, spinfo_state: i32,
        spinfo_cwnd: u32, spinfo_srtt: u32, spinfo_rto: u32, spinfo_mtu: u32,
    }
    Status {
        sstat_assoc_id: SctpAssoc, sstat_state: i32, sstat_rwnd: u32, sstat_unackdata: u16,
        sstat_penddata: u16, sstat_instrms: u16, sstat_outstrms: u16,
        sstat_fragmentation_point: u32, sstat_primary: PaddrInfo,
    }
    AssocChange {
        sac_type: u16, sac_flags: u16, sac_length: u32, sac_state: u16, sac_error: u16,
        sac_outbound_streams: u16, sac_inbound_streams: u16, sac_assoc_id: SctpAssoc,
    }
    ShutdownEvent { sse_type: u16, sse_flags: u16, sse_length: u32, sse_assoc_id: SctpAssoc, }
    AdaptationEvent {
        sai_type: u16, sai_flags: u16, sai_length: u32, sai_adaptation_ind: u32,
        sai_assoc_id: SctpAssoc,
    }
}

pub(crate) type OutputFn = extern "C" fn(*mut c_void, *mut c_void, size_t, u8, u8) -> c_int;

unsafe extern "C" {
    pub(crate) fn usrsctp_init_nothreads(
        port: u16,
        output: Option<OutputFn>,
        debug: Option<unsafe extern "C" fn(*const c_char, ...)>,
    );
    pub(crate) fn usrsctp_socket(
        domain: c_int,
        kind: c_int,
        protocol: c_int,
        receive: *const c_void,
        send: *const c_void,
        threshold: u32,
        info: *mut c_void,
    ) -> *mut Socket;
    pub(crate) fn usrsctp_setsockopt(
        socket: *mut Socket,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    pub(crate) fn usrsctp_getsockopt(
        socket: *mut Socket,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    pub(crate) fn usrsctp_sendv(
        socket: *mut Socket,
        data: *const c_void,
        len: size_t,
        to: *mut sockaddr,
        count: c_int,
        info: *mut c_void,
        info_len: socklen_t,
        info_kind: c_uint,
        flags: c_int,
    ) -> ssize_t;
    pub(crate) fn usrsctp_recvv(
        socket: *mut Socket,
        data: *mut c_void,
        len: size_t,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
        info: *mut c_void,
        info_len: *mut socklen_t,
        info_kind: *mut c_uint,
        flags: *mut c_int,
    ) -> ssize_t;
    pub(crate) fn usrsctp_bind(socket: *mut Socket, name: *mut sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn usrsctp_bindx(
        socket: *mut Socket,
        addresses: *mut sockaddr,
        count: c_int,
        flags: c_int,
    ) -> c_int;
    pub(crate) fn usrsctp_listen(socket: *mut Socket, backlog: c_int) -> c_int;
    pub(crate) fn usrsctp_connectx(
        socket: *mut Socket,
        addresses: *const sockaddr,
        count: c_int,
        id: *mut SctpAssoc,
    ) -> c_int;
    pub(crate) fn usrsctp_getladdrs(
        socket: *mut Socket,
        id: SctpAssoc,
        addresses: *mut *mut sockaddr,
    ) -> c_int;
    pub(crate) fn usrsctp_freeladdrs(addresses: *mut sockaddr);
    pub(crate) fn usrsctp_getpaddrs(
        socket: *mut Socket,
        id: SctpAssoc,
        addresses: *mut *mut sockaddr,
    ) -> c_int;
    pub(crate) fn usrsctp_freepaddrs(addresses: *mut sockaddr);
    pub(crate) fn usrsctp_peeloff(socket: *mut Socket, id: SctpAssoc) -> *mut Socket;
    pub(crate) fn usrsctp_close(socket: *mut Socket);
    pub(crate) fn usrsctp_set_non_blocking(socket: *mut Socket, on: c_int) -> c_int;
    pub(crate) fn usrsctp_handle_timers(elapsed_ms: u32);
    pub(crate) fn usrsctp_crc32c(buffer: *mut c_void, len: size_t) -> u32;

    // Not in the header, but what its own receiving threads and `usrsctp_register_address` call.
    pub(crate) fn sctp_common_input_processing(
        packet: *mut *mut Mbuf,
        ip_header_len: c_int,
        offset: c_int,
        len: c_int,
        source: *mut sockaddr,
        destination: *mut sockaddr,
        header: *mut c_void,
        chunk: *mut c_void,
        compute_crc: u8,
        ecn_bits: u8,
        vrf: u32,
        udp_port: u16,
    );
    pub(crate) fn sctp_get_mbuf_for_msg(
        space: c_uint,
        want_header: c_int,
        how: c_int,
        all_in_one: c_int,
        kind: c_int,
    ) -> *mut Mbuf;
    pub(crate) fn m_copyback(packet: *mut Mbuf, offset: c_int, len: c_int, data: *const c_char);
    pub(crate) fn m_copydata(packet: *const Mbuf, offset: c_int, len: c_int, data: *mut c_char);
    pub(crate) fn m_length(packet: *mut Mbuf, last: *mut *mut Mbuf) -> c_uint;
    pub(crate) fn m_freem(packet: *mut Mbuf);
    pub(crate) fn sctp_add_addr_to_vrf(
        vrf: u32,
        interface: *mut c_void,
        interface_index: u32,
        interface_type: u32,
        interface_name: *const c_char,
        address_handle: *mut c_void,
        address: *mut sockaddr,
        flags: u32,
        dynamic: c_int,
    ) -> *mut c_void;
}

macro_rules! tunables {
    ($($name:ident)*) => {
        unsafe extern "C" { $(pub(crate) fn $name(value: u32) -> c_int;)* }
    };
}

tunables! {
    usrsctp_sysctl_set_sctp_sendspace
    usrsctp_sysctl_set_sctp_recvspace
    usrsctp_sysctl_set_sctp_auto_asconf
    usrsctp_sysctl_set_sctp_asconf_enable
    usrsctp_sysctl_set_sctp_no_csum_on_loopback
    usrsctp_sysctl_set_sctp_max_chunks_on_queue
    usrsctp_sysctl_set_sctp_delayed_sack_time_default
    usrsctp_sysctl_set_sctp_heartbeat_interval_default
    usrsctp_sysctl_set_sctp_rto_max_default
    usrsctp_sysctl_set_sctp_rto_min_default
    usrsctp_sysctl_set_sctp_rto_initial_default
    usrsctp_sysctl_set_sctp_init_rto_max_default
    usrsctp_sysctl_set_sctp_init_rtx_max_default
    usrsctp_sysctl_set_sctp_assoc_rtx_max_default
    usrsctp_sysctl_set_sctp_path_pf_threshold
    usrsctp_sysctl_set_sctp_cmt_on_off
    usrsctp_sysctl_set_sctp_default_ss_module
}

/// An IPv4 address as the library takes it.
pub(crate) fn sockaddr_in(address: std::net::SocketAddrV4) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// An IPv6 address as the library takes it; of a scope it knows nothing.
pub(crate) fn sockaddr_in6(address: std::net::SocketAddrV6) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: libc::AF_INET6 as sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: address.ip().octets(),
        },
        sin6_scope_id: 0,
    }
}

#[cfg(test)]
mod tests;
