//! `policy.toml`, which the user writes, and `usage.toml`, which has what links have carried.
//!
//! Owns their names and how they are read; what they mean is the policy crate's.

use std::ffi::CStr;
use std::path::Path;

use anyhow::{Context, Result};
use tabane_policy::{Policy, Usage};

use crate::atomic_file;
use crate::wall_clock;

/// The policy file's name in the directory of settings.
pub const POLICY_FILE: &str = "policy.toml";
/// [`POLICY_FILE`], as the kernel's calls take it.
pub const POLICY_FILE_NAME: &CStr = c"policy.toml";
/// The accounts' name in the directory of settings.
pub const USAGE_FILE: &str = "usage.toml";
/// [`USAGE_FILE`], as the kernel's calls take it.
pub const USAGE_FILE_NAME: &CStr = c"usage.toml";

/// The policy in `directory`; nothing is wished where there is no file.
pub fn read_policy(directory: &Path) -> Result<Policy> {
    let path = directory.join(POLICY_FILE);
    let text = atomic_file::read(&path)?.unwrap_or_default();
    Policy::parse(&text).with_context(|| path.display().to_string())
}

/// The accounts in a file; none where there is no file.
pub fn read_usage(path: &Path) -> Result<Usage> {
    let text = atomic_file::read(path)?.unwrap_or_default();
    // Only an older form asks for it.
    let written = std::fs::metadata(path).and_then(|meta| meta.modified());
    let written = written.map_or_else(|_| wall_clock::today(), wall_clock::day);
    Usage::parse(&text, written).with_context(|| {
        let path = path.display();
        format!("{path} is damaged; remove it to begin the budgets' periods anew")
    })
}
