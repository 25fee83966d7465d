//! Packet filter rules of our own, in a table of our own.
//!
//! Owns handing scripts to `nft`, which knows every kernel's dialect. A script is one transaction:
//! all of it or nothing.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Why rules could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// There is no such program.
    #[error("there is no nft (the package is called nftables)")]
    Missing,
    /// It could not be started: too many processes, no memory.
    #[error("cannot run nft: {0}")]
    Start(#[source] io::Error),
    /// It refused the script.
    #[error("nft: {complaint}")]
    Refused {
        /// The first line it said.
        complaint: String,
    },
}

/// Puts `rules`, the inside of a table, in the place of what the table `inet name` had.
///
/// # Errors
/// See [`NftError`]; the table is as it was.
pub fn replace_table(name: &str, rules: &str) -> Result<(), NftError> {
    // Adding what exists is no error, so deleting finds it in any case.
    run(&format!(
        "table inet {name} {{}}\ndelete table inet {name}\ntable inet {name} {{\n{rules}\n}}\n"
    ))
}

/// Rules to stand before those that hand the TCP that `matches` to sockets of ours: what they have
/// taken up goes on to them, marked by `also`, and connections that began without them are left
/// alone. A listener would reset those.
#[must_use]
pub fn leave_open_alone(matches: &str, also: &str) -> String {
    format!(
        "{matches} meta l4proto tcp socket transparent 1 {also} accept\n\
         {matches} tcp flags & (fin | syn | rst | ack) != syn return\n"
    )
}

/// Removes the table `inet name`; that there is none is no error.
///
/// # Errors
/// See [`NftError`].
pub fn remove_table(name: &str) -> Result<(), NftError> {
    run(&format!(
        "table inet {name} {{}}\ndelete table inet {name}\n"
    ))
}

fn run(script: &str) -> Result<(), NftError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    if let Some(mut input) = child.stdin.take() {
        // One that ended early says why below.
        let _ = input.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(NftError::Start)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(NftError::Refused {
        complaint: said.lines().next().unwrap_or("failed").to_owned(),
    })
}

fn not_started(error: io::Error) -> NftError {
    match error.kind() {
        io::ErrorKind::NotFound => NftError::Missing,
        _ => NftError::Start(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nft_is_told_of_no_package() {
        for (number, has_it) in [
            (libc::ENOENT, false),
            (libc::EAGAIN, true),
            (libc::EMFILE, true),
        ] {
            let said = not_started(io::Error::from_raw_os_error(number)).to_string();
            assert_eq!(said.contains("nftables"), !has_it, "{said}");
        }
    }
}
