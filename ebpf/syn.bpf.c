// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
//
// A filter on a listening TCP socket that holds back connection requests: the headers of every SYN
// go to the daemon, the SYN itself goes no further. The program that sent it stays in SYN_SENT, as
// it would towards the destination, until the daemon knows what the destination says. A SYN that is
// sent again with RELEASE_MARK passes, and the kernel's own handshake goes on from there.
//
// Needs Linux 5.8 (ring buffers).

#include "bpf.h"

#define INDEX_BITS 22
#define INDEX_MASK ((1u << INDEX_BITS) - 1)
#define FLOW_NET 0x7f800000u

#define ETH_P_IPV6 0x86dd
#define BPF_HDR_START_NET 1
#define KEEP_ALL 0xffffffffu

#define TCP_LENGTH 12 // where the header's length is, and its flags
#define TCP_FLAGS 13
#define TCP_HEADER 20
#define SYN 0x02
#define ACK 0x10

// Headers wait here until the daemon has read them: some 400. Beyond that a SYN is dropped without
// a word, as by a listener whose backlog is full; the sender repeats it.
#define RING_BYTES 65536

// Keep in step with `RawSyn` in crates/linux/src/syn_hold.rs.
struct held {
	u32 is_ipv6;
	u32 tcp_length;
	u8 ip[40];  // the fixed part
	u8 tcp[60]; // with options
};

// Set before loading.
const volatile u32 RELEASE_MARK = 0;
const volatile u8 FLOWS_ONLY = 0; // drop what is not addressed to a flow of the socket hooks

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, RING_BYTES);
} held_syns SEC(".maps");

SEC("socket") int hold_syn(struct __sk_buff *ctx)
{
	int is_ipv6 = ctx->protocol == net16(ETH_P_IPV6);
	u8 lengths[2];
	u32 dest;
	u32 length;
	struct held *held;

	if (FLOWS_ONLY &&
	    (bpf_skb_load_bytes_relative(ctx, 16, &dest, sizeof(dest), BPF_HDR_START_NET) ||
	     (net32(dest) & ~INDEX_MASK) != FLOW_NET))
		return 0;
	// The filter of a TCP socket sees packets from the TCP header on.
	if (bpf_skb_load_bytes(ctx, TCP_LENGTH, lengths, sizeof(lengths)))
		return 0;
	if ((lengths[1] & (SYN | ACK)) != SYN || ctx->mark == RELEASE_MARK)
		return KEEP_ALL;
	held = bpf_ringbuf_reserve(&held_syns, sizeof(*held), 0);
	if (!held)
		return 0;
	length = (lengths[0] >> 4) * 4;
	if (length < TCP_HEADER || length > sizeof(held->tcp))
		goto discard;
	held->is_ipv6 = is_ipv6;
	held->tcp_length = length;
	if (bpf_skb_load_bytes_relative(ctx, 0, held->ip, is_ipv6 ? 40 : 20, BPF_HDR_START_NET))
		goto discard;
	if (bpf_skb_load_bytes(ctx, 0, held->tcp, length))
		goto discard;
	bpf_ringbuf_submit(held, 0);
	return 0;
discard:
	bpf_ringbuf_discard(held, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
