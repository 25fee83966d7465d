//! How many socket hooks a cgroup has, by the kernel's own account.

use std::os::fd::{AsFd, AsRawFd};

/// `bpf(2)`, the `query` member of its argument.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    program_count: u32,
    pad: u32,
    more: [u64; 3],
}

const BPF_PROG_QUERY: libc::c_int = 16;

/// connect4/6, sendmsg4/6, recvmsg4/6, getpeername4/6 and getsockname4/6 in `enum bpf_attach_type`.
const HOOKS: [u32; 10] = [10, 11, 14, 15, 19, 20, 29, 30, 31, 32];

/// The number of programs attached, all hooks together.
pub(crate) fn attached(cgroup: &impl AsFd) -> usize {
    HOOKS
        .into_iter()
        .map(|hook| attached_to(cgroup, hook))
        .sum()
}

fn attached_to(cgroup: &impl AsFd, hook: u32) -> usize {
    let mut ids = [0_u32; 16];
    let mut query = Query {
        target_fd: cgroup.as_fd().as_raw_fd() as u32,
        attach_type: hook,
        program_ids: ids.as_mut_ptr() as u64,
        program_count: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: the argument and the array it points to are live, and their sizes are passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            &raw mut query,
            size_of::<Query>(),
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    query.program_count as usize
}
