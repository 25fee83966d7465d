//! Memory that a start needs and nothing after it.

/// Gives the kernel back what was freed. glibc keeps pages between others: the kernel's types,
/// which every load of eBPF programs reads (aya), leave some 20 MB.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer; glibc locks what it looks through.
    unsafe {
        libc::malloc_trim(0);
    }
}
