//! What this process uses, as the kernel counts it.

use std::fs;

use crate::state::Process;

/// Zeros where `/proc` is not to be read.
pub(crate) fn look() -> Process {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
    let millis = u64::try_from(cpu.tv_nsec / 1_000_000).unwrap_or(0);
    Process {
        // The kernel's kB are 1,024 bytes (proc(5)).
        memory_bytes: kilobytes.unwrap_or(0).saturating_mul(1_024),
        cpu_ms: seconds.saturating_mul(1_000).saturating_add(millis),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_uses_something() {
        let process = super::look();
        assert!(process.memory_bytes > 100_000, "{process:?}");
    }
}
