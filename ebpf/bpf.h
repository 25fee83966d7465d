// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
//
// The part of the kernel's BPF interface that our programs use, so that building them needs clang
// and nothing else: no libbpf, no kernel headers. All of it is stable kernel ABI.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// Map definitions are read from the types of these members (BTF), never from their values.
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1 };

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;    // network order
	u32 src_ip6[4]; // network order
	u32 src_port;   // host order
	u16 dst_port;   // network order
	u16 : 16;
	u32 dst_ip4;    // network order
	u32 dst_ip6[4]; // network order
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;    // network order
	u32 user_ip6[4]; // network order
	u32 user_port;   // network order, in the lower 16 bits
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4]; // network order
	union {
		struct bpf_sock *sk;
		u64 sk_as_u64;
	};
};

// The beginning of what a program hears of the life of a TCP socket.
struct bpf_sock_ops {
	u32 op;
	u32 args[4];
	u32 family;
	u32 remote_ip4;    // network order
	u32 local_ip4;     // network order
	u32 remote_ip6[4]; // network order
	u32 local_ip6[4];  // network order
	u32 remote_port;   // network order, all 32 bits
	u32 local_port;    // host order
};

enum { BPF_SOCK_OPS_TCP_CONNECT_CB = 3 };

// The beginning of what a socket filter sees of a packet.
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol; // network order, in the lower 16 bits
};

static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*const bpf_get_socket_cookie)(void *ctx) = (void *)46;
static long (*const bpf_skb_load_bytes)(const void *skb, u32 offset, void *to, u32 length) = (void *)26;
static long (*const bpf_skb_load_bytes_relative)(const void *skb, u32 offset, void *to, u32 length,
						 u32 start_header) = (void *)68;
static long (*const bpf_setsockopt)(void *ctx, int level, int option, void *value,
				   int length) = (void *)49;
static long (*const bpf_getsockopt)(void *ctx, int level, int option, void *value,
				   int length) = (void *)57;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void (*const bpf_ringbuf_discard)(void *data, u64 flags) = (void *)133;
static void *(*const bpf_skc_to_tcp6_sock)(void *sk) = (void *)136;
static void *(*const bpf_skc_to_udp6_sock)(void *sk) = (void *)140;

INLINE u16 swap16(u16 x) { return __builtin_bswap16(x); }
INLINE u32 swap32(u32 x) { return __builtin_bswap32(x); }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define net16(x) swap16(x)
#define net32(x) swap32(x)
#else
#define net16(x) (x)
#define net32(x) (x)
#endif
