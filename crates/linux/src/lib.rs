//! Everything tabane asks of the kernel, behind safe types.
//!
//! Owns sockets bound to interfaces, precise timers, the list of interfaces, the cgroups that
//! commands run in, the socket hooks that capture their traffic, and the word to whoever started
//! us. `unsafe` is here and in the bindings of `tabane-sctp`. Knows neither our protocol nor any
//! policy: it moves values, others decide.

pub mod abortive;
pub mod advertised;
pub mod answering;
pub mod buffers;
pub mod caller;
pub mod capture;
pub mod cgroup;
pub mod child;
pub mod conntrack;
pub mod descriptors;
mod directory_watch;
mod egress;
pub mod foreign;
pub mod gateways;
mod heap;
pub mod hooks;
mod inherited;
pub mod interfaces;
pub mod iptables;
pub mod join;
pub mod lookups;
pub mod memory;
pub mod mptcp;
pub mod neighbours;
mod netlink;
pub mod netns;
pub mod nflog;
pub mod nfqueue;
pub mod nft;
pub mod notify;
pub mod packet_socket;
mod priority;
pub mod private_net;
pub mod process;
pub mod raw_ip;
mod reactor;
pub mod read_ahead;
mod route_message;
pub mod routing;
pub mod signals;
pub mod source_address;
pub mod standard_output;
pub mod syn_hold;
pub mod tcp_info;
pub mod terminal;
pub mod threads;
pub mod timer;
mod translators;
pub mod transparent;
pub mod tun;
pub mod udp;
pub mod undelivered;

pub use directory_watch::{DirectoryWatch, FileEvent};
pub use egress::Egress;
pub use priority::{Preemption, prefer_this_thread, raise_priority};
pub use timer::{HostClock, Timer, minimize_timer_slack};
pub use translators::{find_translators, follow_translators};
pub use udp::{Datagram, Meta, RecvBatch, SendFault, Transmit, UdpBind, UdpError, UdpSocket};
