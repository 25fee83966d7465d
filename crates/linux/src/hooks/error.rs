//! Why socket hooks could not be attached, and what to do about it.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::sys::SyscallError;

use tabane_base::Prefix;

use super::MAX_EXCLUDED;

/// Why socket hooks could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// We may not load or attach eBPF programs.
    #[error(
        "not allowed to attach socket hooks: \
         run as root (or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN), or use `tabane proxy`"
    )]
    NotPermitted,
    /// The kernel predates what the programs need.
    #[error("socket hooks need Linux 5.12 or later; use `tabane proxy`")]
    KernelTooOld,
    /// The kernel was built without any eBPF.
    #[error("this kernel has no eBPF (CONFIG_BPF_SYSCALL); use `tabane proxy`")]
    NoBpf,
    /// The kernel was built without this hook.
    #[error("this kernel has no {hook} hook (CONFIG_CGROUP_BPF, CONFIG_IPV6); use `tabane proxy`")]
    MissingHook {
        /// The hook's name.
        hook: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's verifier refused a program: a fault of ours, or of that kernel.
    #[error("the kernel refused the {hook} hook: {last_line} ({source})")]
    Verifier {
        /// The hook's name.
        hook: &'static str,
        /// The last line of the verifier's log that says something.
        last_line: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// More prefixes than the table holds.
    #[error("{count} excluded prefixes, but at most {MAX_EXCLUDED} are possible: merge some")]
    TooManyExclusions {
        /// How many were asked for.
        count: usize,
    },
    /// A prefix longer than its address.
    #[error("{}/{} is no prefix: more bits than the address has", prefix.address, prefix.bits)]
    InvalidPrefix {
        /// The prefix.
        prefix: Prefix,
    },
    /// No socket for whole IP packets.
    #[error("cannot answer connection requests ({0}): that needs root or CAP_NET_RAW")]
    Raw(#[source] io::Error),
    /// A table could not be made or filled.
    #[error("cannot set up the tables of the socket hooks: {0}")]
    Map(#[source] Box<MapError>),
    /// The object could not be loaded for a reason of its own.
    #[error("cannot load the socket hooks: {0}")]
    Load(#[source] Box<EbpfError>),
    /// A program could not be loaded or attached for a reason of its own.
    #[error("cannot attach the {hook} hook: {source}")]
    Attach {
        /// The hook's name.
        hook: &'static str,
        /// What aya said.
        source: Box<ProgramError>,
    },
}

impl HookError {
    pub(crate) fn from_load(error: EbpfError) -> Self {
        match error {
            EbpfError::MapError(error) => Self::from_map(error),
            error => Self::Load(Box::new(error)),
        }
    }

    pub(crate) fn from_map(error: MapError) -> Self {
        match &error {
            MapError::CreateError { io_error, .. }
            | MapError::SyscallError(SyscallError { io_error, .. })
                if is_denied(io_error) =>
            {
                Self::NotPermitted
            }
            MapError::CreateError { io_error, .. }
                if io_error.raw_os_error() == Some(libc::ENOSYS) =>
            {
                Self::NoBpf
            }
            _ => Self::Map(Box::new(error)),
        }
    }

    pub(crate) fn from_program(hook: &'static str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => Self::from_refusal(hook, io_error, &verifier_log.to_string()),
            ProgramError::SyscallError(SyscallError { io_error, .. }) if is_denied(&io_error) => {
                Self::NotPermitted
            }
            ProgramError::SyscallError(SyscallError { io_error, .. })
                if io_error.raw_os_error() == Some(libc::EINVAL) =>
            {
                Self::MissingHook {
                    hook,
                    source: io_error,
                }
            }
            error => Self::Attach {
                hook,
                source: Box::new(error),
            },
        }
    }

    fn from_refusal(hook: &'static str, source: io::Error, log: &str) -> Self {
        // The verifier ends with statistics, which explain nothing.
        let telling = |line: &&str| !line.is_empty() && !line.starts_with("processed ");
        match log.lines().map(str::trim).rev().find(telling) {
            Some(last_line) => Self::Verifier {
                hook,
                last_line: last_line.to_owned(),
                source,
            },
            None if is_denied(&source) => Self::NotPermitted,
            None => Self::MissingHook { hook, source },
        }
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_ebpf_is_named_as_such() {
        let made = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let name = "flows".to_owned();
            HookError::from_map(MapError::CreateError { name, io_error }).to_string()
        };
        assert!(made(libc::ENOSYS).contains("CONFIG_BPF_SYSCALL"));
        assert!(made(libc::EPERM).starts_with("not allowed"));
        assert!(made(libc::EINVAL).contains("flows"));
    }

    #[test]
    fn a_refusal_is_told_by_the_last_line_that_explains_it() {
        let refused = |errno, log| {
            let source = io::Error::from_raw_os_error(errno);
            HookError::from_refusal("connect4", source, log).to_string()
        };
        let log = "0: r1 = 2\nR1 invalid mem access 'scalar'\nprocessed 7 insns\n\n";
        assert_eq!(
            refused(libc::EACCES, log),
            "the kernel refused the connect4 hook: R1 invalid mem access 'scalar' \
             (Permission denied (os error 13))"
        );
        assert!(refused(libc::EPERM, "").starts_with("not allowed"));
        assert!(refused(libc::EINVAL, "").contains("no connect4 hook"));
    }
}
