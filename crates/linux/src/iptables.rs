//! Rules of our own for iptables and ip6tables, in a chain of our own.
//!
//! For what nftables of some kernels lacks, such as queues. The chain hangs in the forwarded
//! packets of the table `mangle`.

use std::io;
use std::process::{Command, Stdio};

/// Why rules could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program is missing, or could not be started.
    #[error("cannot run {program}: {source} (the package is called iptables)")]
    Start {
        /// The program.
        program: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It refused a rule.
    #[error("{program}: {complaint}")]
    Refused {
        /// The program.
        program: &'static str,
        /// The first line it said.
        complaint: String,
    },
}

/// Programs, and whether they are for IPv6.
const PROGRAMS: [(&str, bool); 2] = [("iptables", false), ("ip6tables", true)];

/// Sends forwarded packets through the chain `name`, in place of what it had; `rules` says which
/// it has for IPv6, and which for IPv4.
///
/// # Errors
/// See [`IptablesError`]; what was added before it is removed.
pub fn replace_chain(name: &str, rules: impl Fn(bool) -> Vec<String>) -> Result<(), IptablesError> {
    remove_chain(name)?;
    let add = || -> Result<(), IptablesError> {
        for (program, is_ipv6) in PROGRAMS {
            run(program, &format!("-N {name}"))?;
            for rule in rules(is_ipv6) {
                run(program, &format!("-A {name} {rule}"))?;
            }
            run(program, &format!("-A FORWARD -j {name}"))?;
        }
        Ok(())
    };
    add().inspect_err(|_| {
        // The first error is the one to tell.
        let _ = remove_chain(name);
    })
}

/// Removes the chain and what leads to it; that there is none is no error.
///
/// # Errors
/// The program is missing.
pub fn remove_chain(name: &str) -> Result<(), IptablesError> {
    for (program, _) in PROGRAMS {
        let steps = [
            format!("-D FORWARD -j {name}"),
            format!("-F {name}"),
            format!("-X {name}"),
        ];
        for step in steps {
            match run(program, &step) {
                Ok(()) | Err(IptablesError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn run(program: &'static str, arguments: &str) -> Result<(), IptablesError> {
    let output = Command::new(program)
        .args(["-w", "5", "-t", "mangle"])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .map_err(|source| IptablesError::Start { program, source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(IptablesError::Refused {
        program,
        complaint: said.lines().next().unwrap_or("failed").to_owned(),
    })
}
