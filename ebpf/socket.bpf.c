// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
//
// Socket hooks of a cgroup: they hand the TCP and UDP of its programs to the daemon on loopback,
// and show the programs the addresses they asked for.
//
// Every captured connection, and every (UDP socket, destination) pair, is a *flow* with an index.
// The destination is rewritten to 127.128.0.0 + index, port LISTEN_PORT, so that the daemon reads
// the index off the local address of what it accepts, and two destinations of one socket can never
// be mistaken for each other: nothing depends on the order of system calls. Answers come from that
// same address; recvmsg and getpeername translate it back.
//
// IPv6 sockets are sent to the v4-mapped form of the same address. sendmsg6 may not rewrite to
// that form (the kernel answers ENOTSUPP), so unconnected IPv6 datagrams go to [::1]:LISTEN_PORT,
// and the index travels in their source address, 100::7462:0:index (the discard-only prefix of
// RFC 6666, which nobody uses on a wire); the daemon answers from there.
//
// Left alone: everything while the gate is shut, sockets bound to a device, sockets carrying
// BYPASS_MARK, other network namespaces, loopback (save port 53, where local resolvers live),
// link-local, multicast, broadcast, this machine's own addresses (but for their port 53, as with
// loopback), prefixes in `excluded`, UDP to whoever has written to the socket first (a server's
// answers leave the way the questions came), datagrams with an interface named beside them, UDP of
// sockets whose hop limit is below FEW_HOPS (traceroute: it asks who is on this machine's own way),
// and connecting sockets that are IPV6_V6ONLY or bound to an IPv6 address, which can reach no
// v4-mapped address.
//
// Needs Linux 5.12 (fetching atomics; getpeername hooks are from 5.8).

#include "bpf.h"

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define TCP 6
#define UDP 17
#define MPTCP 262
#define DNS_PORT 53
#define AF_INET6 10
#define SOL_TCP 6
#define TCP_NOTSENT_LOWAT 25
#define IPPROTO_IP 0
#define IP_TOS 1
#define IPPROTO_IPV6 41
#define IPV6_TCLASS 67

#define INDEX_BITS 22
#define INDEX_MASK ((1u << INDEX_BITS) - 1)
// 127.128.0.0, in host order. 22 bits of index end at 127.191.255.255, clear of 127.255.255.255,
// which is a broadcast address.
#define FLOW_NET 0x7f800000u
// The words of 100::7462:0:index, in host order.
#define FLOW_NET6_0 0x01000000u
#define FLOW_NET6_2 0x00007462u
#define V4_MAPPED 0x0000ffffu

// Systems begin with 64 or more, and no destination is this far: who says less has packets end on
// the way.
#define FEW_HOPS 32

// How many flows are remembered; beyond that the least recently used are forgotten.
#define MAX_FLOWS 65536
#define MAX_EXCLUDED 1024
#define MAX_SOURCES 1024

// Keep in step with `RawFlow` in crates/linux/src/hooks/flows.rs.
enum {
	FLOW_LOCAL_DNS = 1, // port 53 of a loopback address: a local resolver
	FLOW_VIA_IPV6 = 2,  // reaches the daemon at [::1], index in the source address
	FLOW_CONNECTED = 4, // of a socket that speaks with this destination alone
	FLOW_MPTCP = 8,     // its connection is another socket's: that of its first subflow
};

struct flow {
	u64 cookie;
	u32 dest[4];  // the original destination, IPv4 in mapped form, network order
	u32 reply[4]; // FLOW_VIA_IPV6: the socket's own address, where answers must go; TCP: in its
		      // last word, where the connection comes from
	u16 port;     // network order
	u8 protocol;
	u8 flags;
	u32 pid;      // of the process that asked; 0 where the kernel does not tell
	u32 tos;      // the socket's IP_TOS or IPV6_TCLASS, plus one; 0 likewise
	u32 claimant; // the port that the TCP connection comes from, once it is on its way
};

struct udp_key {
	u64 cookie;
	u32 dest[4];
	u16 port;
	u8 flags;
	u8 pad[5];
};

// What `excluded` says of a range.
enum {
	LEAVE_ALL = 1,
	LEAVE_ALL_BUT_DNS = 2, // a resolver in an excluded range
	LEAVE_NOTHING = 3,     // a smaller range that is captured all the same
};

// What `udp_index` says of a peer that wrote first. No flow has this index.
#define LEFT_ALONE 0u

struct prefix {
	u32 bits;
	u32 address[4];
};

// Set before loading. Ports in network order.
const volatile u16 LISTEN_PORT = 0;
const volatile u8 CAPTURE_TCP = 0;
const volatile u8 CAPTURE_UDP = 0;
const volatile u8 IPV6_LISTENER = 0;   // the daemon listens on [::1] as well
const volatile u8 KERNEL_TYPES = 0;    // the kernel describes its structures (BTF)
const volatile u8 TELL_ASKER = 0;      // the kernel says who asked, and how it marks packets
const volatile u8 READS_SOCKETS = 0;   // the kernel lets us read its sockets; needs KERNEL_TYPES
const volatile u8 LEAVE_FEW_HOPS = 0;  // of both families; needs READS_SOCKETS
const volatile u32 BYPASS_MARK = 0;    // 0: none
const volatile u64 NETNS_COOKIE = 0;   // 0: any

struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, MAX_FLOWS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct flow);
} flows SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, MAX_FLOWS);
	MAP_TYPE(key, struct udp_key);
	MAP_TYPE(value, u32);
} udp_index SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} next_index SEC(".maps");

// One word: whether anything new is captured. What is captured already stays.
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} gate SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_LPM_TRIE);
	MAP_UINT(max_entries, MAX_EXCLUDED);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, struct prefix);
	MAP_TYPE(value, u32);
} excluded SEC(".maps");

struct address {
	u32 words[4];
};

// The own address of a socket connected to a destination in this range, IPv4 in mapped form; zero
// where it is this machine's own, or a broadcast address.
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LPM_TRIE);
	MAP_UINT(max_entries, MAX_SOURCES);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, struct prefix);
	MAP_TYPE(value, struct address);
} sources SEC(".maps");

// ---- Which sockets and destinations ----------------------------------------------------------

INLINE int is_gate_open(void)
{
	u32 zero = 0;
	u32 *open = bpf_map_lookup_elem(&gate, &zero);
	return open && *open;
}

INLINE int is_excluded(const u32 *dest, u16 port)
{
	struct prefix key = {128, {dest[0], dest[1], dest[2], dest[3]}};
	u32 *what = bpf_map_lookup_elem(&excluded, &key);
	if (!what || *what == LEAVE_NOTHING)
		return 0;
	return *what == LEAVE_ALL || port != DNS_PORT;
}

INLINE int is_mapped(const u32 *dest)
{
	return dest[0] == 0 && dest[1] == 0 && dest[2] == net32(V4_MAPPED);
}

// Decides by destination alone; sets FLOW_LOCAL_DNS.
INLINE int wants_destination(struct flow *flow)
{
	u16 port = net16(flow->port);
	u32 loopback;

	if (is_mapped(flow->dest)) {
		u32 ip = net32(flow->dest[3]);
		loopback = (ip >> 24) == 127;
		if ((ip >> 24) == 0 || (ip >> 16) == 0xa9fe || ip >= 0xe0000000)
			return 0; // this host, 169.254/16, multicast and above
		if ((ip & ~INDEX_MASK) == FLOW_NET)
			return 0;
	} else {
		u32 top = net32(flow->dest[0]);
		u32 low_only = (flow->dest[0] | flow->dest[1] | flow->dest[2]) == 0;
		loopback = low_only && flow->dest[3] == net32(1);
		if (low_only && !loopback)
			return 0; // unspecified, or the long dead v4-compatible form
		if ((top >> 22) == 0x3fa || (top >> 24) == 0xff)
			return 0; // fe80::/10, ff00::/8
		if (top == FLOW_NET6_0 && flow->dest[1] == 0)
			return 0;
	}
	if (loopback) {
		if (port != DNS_PORT)
			return 0;
		flow->flags |= FLOW_LOCAL_DNS;
	}
	return !is_excluded(flow->dest, port);
}

// For rules that ask for the program, or for how it marks its packets. A socket may be marked later;
// nobody looks again.
INLINE void describe_asker(struct bpf_sock_addr *ctx, struct flow *flow)
{
	int tos = 0;
	int is_v6 = ctx->family == AF_INET6;

	if (!TELL_ASKER)
		return;
	flow->pid = bpf_get_current_pid_tgid() >> 32;
	if (!bpf_getsockopt(ctx, is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_TCLASS : IP_TOS,
			    &tos, sizeof(tos)))
		flow->tos = ((u32)tos & 0xff) + 1;
}

// What we need of the kernel's own structures.
#define OF_KERNEL __attribute__((preserve_access_index))
struct sock_common {
	unsigned char skc_ipv6only : 1;
} OF_KERNEL;
struct inet_sock {
	short uc_ttl; // -1: the system's
	int uc_index; // IP_UNICAST_IF; 0: none
} OF_KERNEL;
struct ipv6_pinfo {
	short hop_limit; // likewise; of 9 bits on older kernels
	int ucast_oif;	 // IPV6_UNICAST_IF
} OF_KERNEL;
struct udp6_sock {
	struct ipv6_pinfo inet6;
} OF_KERNEL;
struct bpf_sock_addr_kern {
	void *t_ctx; // sendmsg: at the source address, in one of the next two
} OF_KERNEL;
struct ipcm_cookie {
	u32 addr;
	int oif;
} OF_KERNEL;
struct flowi_common {
	int flowic_oif;
} OF_KERNEL;
struct in6_addr {
	u32 words[4];
};
struct flowi6 {
	struct flowi_common __fl_common;
	struct in6_addr saddr;
} OF_KERNEL;

// Of the interface; the kernel's constant.
#define LOOPBACK_INDEX 1

enum { FIELD_BYTE_OFFSET = 0, FIELD_LSHIFT = 4, FIELD_RSHIFT = 5 };

// No helper makes a whole IPv4 socket of it. Read back from memory, the pointer is a number, which
// may be added to.
INLINE void read_socket4(struct bpf_sock_addr *ctx, void *value, u32 size, u64 offset)
{
	struct bpf_sock *volatile held = ctx->sk;
	u64 sk = 0;

	if (!bpf_probe_read_kernel(&sk, sizeof(sk), (const void *)&held))
		bpf_probe_read_kernel(value, size, (const void *)(sk + offset));
}

// The interface that the program has named for its datagrams without binding to it; 0: none.
INLINE int unicast_interface(struct bpf_sock_addr *ctx)
{
	int index = 0;

	if (ctx->family == AF_INET6) {
		struct udp6_sock *sk = bpf_skc_to_udp6_sock(ctx->sk);

		return sk ? sk->inet6.ucast_oif : 0;
	}
	read_socket4(ctx, &index, sizeof(index),
		     __builtin_preserve_field_info(((struct inet_sock *)0)->uc_index,
						   FIELD_BYTE_OFFSET));
	return index;
}

// The hop limit that the program has set for its datagrams; -1 where it has not.
INLINE int hop_limit(struct bpf_sock_addr *ctx)
{
	short hops = -1;

	if (ctx->family == AF_INET6) {
		struct udp6_sock *sk = bpf_skc_to_udp6_sock(ctx->sk);
		u64 bits;

		if (!sk)
			return -1;
		bits = *(u16 *)((u8 *)sk + __builtin_preserve_field_info(sk->inet6.hop_limit,
									FIELD_BYTE_OFFSET));
		bits <<= __builtin_preserve_field_info(sk->inet6.hop_limit, FIELD_LSHIFT);
		return (long long)bits >> __builtin_preserve_field_info(sk->inet6.hop_limit,
									FIELD_RSHIFT);
	}
	read_socket4(ctx, &hops, sizeof(hops),
		     __builtin_preserve_field_info(((struct inet_sock *)0)->uc_ttl,
						   FIELD_BYTE_OFFSET));
	return hops;
}

#define OFFSET(structure, field) \
	__builtin_preserve_field_info(((structure *)0)->field, FIELD_BYTE_OFFSET)

// Whether an interface is named beside the datagram (IP_PKTINFO). Loopback is none: our answers come
// by it, and there are programs that go on by the interface of an answer.
INLINE int names_interface(struct bpf_sock_addr *ctx, int is_v6)
{
	struct bpf_sock_addr *volatile held = ctx;
	u64 kernel = 0, source = 0;
	int index = 0;

	if (!READS_SOCKETS)
		return 0;
	// Read back from memory, it is the kernel's own context, of which programs see a part.
	if (bpf_probe_read_kernel(&kernel, sizeof(kernel), (const void *)&held))
		return 0;
	kernel += OFFSET(struct bpf_sock_addr_kern, t_ctx);
	if (bpf_probe_read_kernel(&source, sizeof(source), (const void *)kernel))
		return 0;
	// Steps back and forth: offsets have no sign.
	if (is_v6) {
		source -= OFFSET(struct flowi6, saddr);
		source += OFFSET(struct flowi6, __fl_common.flowic_oif);
	} else {
		source -= OFFSET(struct ipcm_cookie, addr);
		source += OFFSET(struct ipcm_cookie, oif);
	}
	if (bpf_probe_read_kernel(&index, sizeof(index), (const void *)source))
		return 0;
	return index > LOOPBACK_INDEX;
}

// Decides by socket, and fills in what the socket tells about the flow.
INLINE int wants_socket(struct bpf_sock_addr *ctx, struct flow *flow)
{
	u32 protocol = ctx->protocol;
	u32 type = ctx->type;

	if (CAPTURE_TCP && type == SOCK_STREAM && (protocol == TCP || protocol == MPTCP)) {
		flow->protocol = TCP;
		if (protocol == MPTCP)
			flow->flags |= FLOW_MPTCP;
	}
	else if (CAPTURE_UDP && type == SOCK_DGRAM && protocol == UDP)
		flow->protocol = UDP;
	else
		return 0;
	if (!is_gate_open())
		return 0;
	if (ctx->sk->bound_dev_if != 0)
		return 0;
	if (READS_SOCKETS && ctx->protocol == UDP && unicast_interface(ctx) != 0)
		return 0;
	if (BYPASS_MARK && ctx->sk->mark == BYPASS_MARK)
		return 0;
	if (NETNS_COOKIE && bpf_get_netns_cookie(ctx) != NETNS_COOKIE)
		return 0;
	if (LEAVE_FEW_HOPS && flow->protocol == UDP) {
		int hops = hop_limit(ctx);
		if (hops >= 0 && hops < FEW_HOPS)
			return 0;
	}
	flow->port = ctx->user_port;
	// Connecting a UDP socket to port 0 asks the routing table for a source address.
	if (flow->port == 0)
		return 0;
	flow->cookie = bpf_get_socket_cookie(ctx);
	return 1;
}

INLINE int is_ipv6_only(struct bpf_sock_addr *ctx, u8 protocol)
{
	struct sock_common *sk;
	u64 bits;

	if (!KERNEL_TYPES)
		return 0;
	if (protocol == TCP)
		sk = bpf_skc_to_tcp6_sock(ctx->sk);
	else
		sk = bpf_skc_to_udp6_sock(ctx->sk);
	if (!sk)
		return 0;
	bits = *((u8 *)sk + __builtin_preserve_field_info(sk->skc_ipv6only, FIELD_BYTE_OFFSET));
	bits <<= __builtin_preserve_field_info(sk->skc_ipv6only, FIELD_LSHIFT);
	bits >>= __builtin_preserve_field_info(sk->skc_ipv6only, FIELD_RSHIFT);
	return bits != 0;
}

INLINE int is_bound_to_ipv6(struct bpf_sock_addr *ctx)
{
	u32 own[4] = {ctx->sk->src_ip6[0], ctx->sk->src_ip6[1], ctx->sk->src_ip6[2],
		      ctx->sk->src_ip6[3]};
	return (own[0] | own[1] | own[2] | own[3]) != 0 && !is_mapped(own);
}

// ---- Flows and their indices ------------------------------------------------------------------

// A fresh index for `flow`, or 0 where the table refuses: the socket is then left alone.
INLINE u32 add_flow(const struct flow *flow)
{
	u32 zero = 0;
	u32 *next = bpf_map_lookup_elem(&next_index, &zero);
	if (!next)
		return 0;
	// Indices come round after two million flows; a few old ones may still be in use.
#pragma unroll
	for (int attempt = 0; attempt < 4; attempt++) {
		// The upper half is the daemon's.
		u32 index = __sync_fetch_and_add(next, 1) & (INDEX_MASK >> 1);
		if (index && !bpf_map_update_elem(&flows, &index, flow, BPF_NOEXIST))
			return index;
	}
	return 0;
}

INLINE struct address *source_for(const struct flow *flow)
{
	struct prefix key = {128, {flow->dest[0], flow->dest[1], flow->dest[2], flow->dest[3]}};

	return bpf_map_lookup_elem(&sources, &key);
}

INLINE int is_zero(const struct address *address)
{
	const u32 *words = address->words;

	return (words[0] | words[1] | words[2] | words[3]) == 0;
}

// Whether it is this machine itself that is asked, or all hosts of a wire, of whom those that answer
// have other addresses. A resolver here is asked like any other.
INLINE int stays_here(const struct flow *flow)
{
	struct address *source = source_for(flow);

	return source && is_zero(source) && net16(flow->port) != DNS_PORT;
}

// The index of this (socket, destination) pair, the same for all its datagrams.
INLINE u32 udp_flow(struct bpf_sock_addr *ctx, struct flow *flow)
{
	struct udp_key key = {
		.cookie = flow->cookie,
		.dest = {flow->dest[0], flow->dest[1], flow->dest[2], flow->dest[3]},
		.port = flow->port,
		.flags = flow->flags & ~FLOW_CONNECTED,
	};
	u32 *known = bpf_map_lookup_elem(&udp_index, &key);
	if (known) {
		u32 index = *known;
		if (index == LEFT_ALONE)
			return 0;
		struct flow *old = bpf_map_lookup_elem(&flows, &index);
		// The flow may be forgotten, or its index have passed to another.
		if (old && old->cookie == flow->cookie && old->port == flow->port &&
		    old->dest[3] == flow->dest[3] && old->dest[2] == flow->dest[2] &&
		    old->dest[1] == flow->dest[1] && old->dest[0] == flow->dest[0] &&
		    ((old->flags ^ flow->flags) & ~FLOW_CONNECTED) == 0)
			return index;
	}
	if (stays_here(flow))
		return 0;
	describe_asker(ctx, flow);
	u32 index = add_flow(flow);
	if (index)
		bpf_map_update_elem(&udp_index, &key, &index, BPF_ANY);
	return index;
}

// The socket has heard from `from` by itself: what it says there is an answer.
INLINE void leave_alone(struct bpf_sock_addr *ctx, const u32 *from)
{
	u32 left_alone = LEFT_ALONE;
	struct udp_key key = {
		.dest = {from[0], from[1], from[2], from[3]},
		.port = ctx->user_port,
		.flags = is_mapped(from) ? 0 : FLOW_VIA_IPV6,
	};

	if (!CAPTURE_UDP || (NETNS_COOKIE && bpf_get_netns_cookie(ctx) != NETNS_COOKIE))
		return;
	key.cookie = bpf_get_socket_cookie(ctx);
	if (!bpf_map_lookup_elem(&udp_index, &key))
		bpf_map_update_elem(&udp_index, &key, &left_alone, BPF_NOEXIST);
}

// The way to us is short and fast, so the kernel would take megabytes that no link has seen yet.
INLINE void write_no_further(struct bpf_sock_addr *ctx)
{
	int unsent = 16 * 1024;

	bpf_setsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
}

INLINE u32 index_of(struct bpf_sock_addr *ctx, struct flow *flow)
{
	if (flow->protocol != TCP)
		return udp_flow(ctx, flow);
	if (stays_here(flow))
		return 0;
	write_no_further(ctx);
	describe_asker(ctx, flow);
	return add_flow(flow);
}

// Whether a flow is this socket's. What a program has of multipath TCP is not the socket that was
// connected, but has its port.
INLINE int is_of(struct bpf_sock_addr *ctx, const struct flow *flow)
{
	if (ctx->protocol == MPTCP)
		return flow->claimant == ctx->sk->src_port;
	return flow->cookie == bpf_get_socket_cookie(ctx);
}

// The flow that an address of ours stands for, if it is this socket's.
INLINE struct flow *flow_of(struct bpf_sock_addr *ctx, u32 index)
{
	struct flow *flow;

	if ((u16)ctx->user_port != LISTEN_PORT)
		return 0;
	flow = bpf_map_lookup_elem(&flows, &index);
	return flow && is_of(ctx, flow) ? flow : 0;
}

// ---- Hooks: all return 1, "go on", but to who uses an address of another's flow ------------------

// Whether a socket sends to the address of a flow that another has. Indices are no secret.
INLINE int is_another_s(struct bpf_sock_addr *ctx, u32 dest)
{
	u32 ip = net32(dest);
	u32 index = ip & INDEX_MASK;
	struct flow *flow;

	if ((ip & ~INDEX_MASK) != FLOW_NET || (u16)ctx->user_port != LISTEN_PORT)
		return 0;
	flow = bpf_map_lookup_elem(&flows, &index);
	return flow && flow->cookie != bpf_get_socket_cookie(ctx);
}

INLINE int outgoing4(struct bpf_sock_addr *ctx, u8 flags)
{
	struct flow flow = {.dest = {0, 0, net32(V4_MAPPED), ctx->user_ip4}, .flags = flags};
	u32 index;

	if (is_another_s(ctx, ctx->user_ip4))
		return 0;
	if (!wants_socket(ctx, &flow) || !wants_destination(&flow))
		return 1;
	if (!(flags & FLOW_CONNECTED) && names_interface(ctx, 0))
		return 1;
	index = index_of(ctx, &flow);
	if (!index)
		return 1;
	ctx->user_ip4 = net32(FLOW_NET | index);
	ctx->user_port = LISTEN_PORT;
	return 1;
}

SEC("cgroup/connect4") int connect4(struct bpf_sock_addr *ctx) { return outgoing4(ctx, FLOW_CONNECTED); }

SEC("cgroup/sendmsg4") int sendmsg4(struct bpf_sock_addr *ctx) { return outgoing4(ctx, 0); }

SEC("cgroup/connect6") int connect6(struct bpf_sock_addr *ctx)
{
	struct flow flow = {.dest = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2],
				     ctx->user_ip6[3]},
			    .flags = FLOW_CONNECTED};
	u32 index;

	if (is_mapped(flow.dest) && is_another_s(ctx, flow.dest[3]))
		return 0;
	if (!wants_socket(ctx, &flow) || !wants_destination(&flow))
		return 1;
	if (is_ipv6_only(ctx, flow.protocol) || is_bound_to_ipv6(ctx))
		return 1;
	index = index_of(ctx, &flow);
	if (!index)
		return 1;
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = net32(V4_MAPPED);
	ctx->user_ip6[3] = net32(FLOW_NET | index);
	ctx->user_port = LISTEN_PORT;
	return 1;
}

SEC("cgroup/sendmsg6") int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct flow flow = {.dest = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2],
				     ctx->user_ip6[3]}};
	u32 index;

	if (!IPV6_LISTENER || is_mapped(flow.dest))
		return 1;
	if (!wants_socket(ctx, &flow) || !wants_destination(&flow) || names_interface(ctx, 1))
		return 1;
	flow.flags |= FLOW_VIA_IPV6;
	flow.reply[0] = ctx->sk->src_ip6[0];
	flow.reply[1] = ctx->sk->src_ip6[1];
	flow.reply[2] = ctx->sk->src_ip6[2];
	flow.reply[3] = ctx->sk->src_ip6[3];
	if ((flow.reply[0] | flow.reply[1] | flow.reply[2] | flow.reply[3]) == 0)
		flow.reply[3] = net32(1);
	index = udp_flow(ctx, &flow);
	if (!index)
		return 1;
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = 0;
	ctx->user_ip6[3] = net32(1);
	ctx->user_port = LISTEN_PORT;
	ctx->msg_src_ip6[0] = net32(FLOW_NET6_0);
	ctx->msg_src_ip6[1] = 0;
	ctx->msg_src_ip6[2] = net32(FLOW_NET6_2);
	ctx->msg_src_ip6[3] = net32(index);
	return 1;
}

// Before the request leaves: which connection is the flow's.
SEC("sockops") int connecting(struct bpf_sock_ops *ctx)
{
	u32 ip = net32(ctx->remote_ip4);
	u32 index = ip & INDEX_MASK;
	struct flow *flow;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB || (ip & ~INDEX_MASK) != FLOW_NET)
		return 1;
	if (net32(ctx->remote_port) != net16(LISTEN_PORT))
		return 1;
	flow = bpf_map_lookup_elem(&flows, &index);
	if (!flow || flow->protocol != TCP)
		return 1;
	if (!(flow->flags & FLOW_MPTCP) && flow->cookie != bpf_get_socket_cookie(ctx))
		return 1;
	flow->reply[3] = ctx->local_ip4;
	flow->claimant = ctx->local_port;
	return 1;
}

INLINE int incoming4(struct bpf_sock_addr *ctx, int is_message)
{
	u32 from[4] = {0, 0, net32(V4_MAPPED), ctx->user_ip4};
	u32 ip = net32(ctx->user_ip4);
	struct flow *flow;

	if ((ip & ~INDEX_MASK) != FLOW_NET) {
		if (is_message)
			leave_alone(ctx, from);
		return 1;
	}
	flow = flow_of(ctx, ip & INDEX_MASK);
	if (!flow)
		return 1;
	ctx->user_ip4 = flow->dest[3];
	ctx->user_port = flow->port;
	return 1;
}

INLINE int incoming6(struct bpf_sock_addr *ctx, int is_message)
{
	u32 from[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	u32 last = net32(from[3]);
	struct flow *flow;

	if (is_mapped(from) && (last & ~INDEX_MASK) == FLOW_NET)
		last &= INDEX_MASK;
	else if (from[0] != net32(FLOW_NET6_0) || from[1] != 0 || from[2] != net32(FLOW_NET6_2)) {
		if (is_message)
			leave_alone(ctx, from);
		return 1;
	}
	flow = flow_of(ctx, last);
	if (!flow)
		return 1;
	ctx->user_ip6[0] = flow->dest[0];
	ctx->user_ip6[1] = flow->dest[1];
	ctx->user_ip6[2] = flow->dest[2];
	ctx->user_ip6[3] = flow->dest[3];
	ctx->user_port = flow->port;
	return 1;
}

SEC("cgroup/recvmsg4") int recvmsg4(struct bpf_sock_addr *ctx) { return incoming4(ctx, 1); }

SEC("cgroup/recvmsg6") int recvmsg6(struct bpf_sock_addr *ctx) { return incoming6(ctx, 1); }

SEC("cgroup/getpeername4") int getpeername4(struct bpf_sock_addr *ctx) { return incoming4(ctx, 0); }

SEC("cgroup/getpeername6") int getpeername6(struct bpf_sock_addr *ctx) { return incoming6(ctx, 0); }

// Writes to `own` what the socket connected to `remote` would be called without us. 0: it is called
// what it is, because we did not connect it, or there is no route that would have named it.
INLINE int plain_name(struct bpf_sock_addr *ctx, u32 remote, struct address *own)
{
	u32 ip = net32(remote);
	u32 index = ip & INDEX_MASK;
	struct address *source;
	struct flow *flow;

	if ((ip & ~INDEX_MASK) != FLOW_NET)
		return 0;
	flow = bpf_map_lookup_elem(&flows, &index);
	if (!flow || !is_of(ctx, flow))
		return 0;
	if (flow->flags & FLOW_LOCAL_DNS) {
		// Loopback it would be; of which family, the destination says.
		struct address loopback = {{0, 0, 0, net32(1)}};
		if (is_mapped(flow->dest))
			return 0;
		*own = loopback;
		return 1;
	}
	source = source_for(flow);
	if (!source)
		return 0;
	*own = *source;
	// From itself to itself.
	if (is_zero(source))
		__builtin_memcpy(own->words, flow->dest, sizeof(own->words));
	return 1;
}

SEC("cgroup/getsockname4") int getsockname4(struct bpf_sock_addr *ctx)
{
	struct address own;

	// A program that has bound an address of its own keeps it.
	if (net32(ctx->user_ip4) >> 24 == 127 && plain_name(ctx, ctx->sk->dst_ip4, &own))
		ctx->user_ip4 = own.words[3];
	return 1;
}

SEC("cgroup/getsockname6") int getsockname6(struct bpf_sock_addr *ctx)
{
	u32 is[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	struct address own;

	if (!is_mapped(is) || net32(is[3]) >> 24 != 127)
		return 1;
	if (!plain_name(ctx, ctx->sk->dst_ip6[3], &own))
		return 1;
	ctx->user_ip6[0] = own.words[0];
	ctx->user_ip6[1] = own.words[1];
	ctx->user_ip6[2] = own.words[2];
	ctx->user_ip6[3] = own.words[3];
	return 1;
}

// MIT among the file's licences; the kernel reserves its own types to programs that it can also
// take under the GPL.
char LICENSE[] SEC("license") = "Dual MIT/GPL";
