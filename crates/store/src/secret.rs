//! Secrets from the kernel's random numbers, and the file a long-term key lives in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tabane_core::Identity;

use crate::atomic_file;

/// `N` bytes that nobody can guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the kernel has random numbers");
    bytes
}

/// A secret for a file or a header.
pub fn token() -> String {
    to_hex(random())
}

/// The key in `path`, made there if there is none yet. True if it was made.
pub fn load_or_create(path: &Path) -> Result<(Identity, bool)> {
    let mut created = false;
    let text = match atomic_file::read(path)? {
        Some(text) => text,
        None => {
            let fresh = to_hex(random()) + "\n";
            created = atomic_file::create(path, fresh.as_bytes(), atomic_file::SECRET)?;
            let text = atomic_file::read(path)?;
            text.with_context(|| format!("{} disappeared while being read", path.display()))?
        }
    };
    check_mode(path)?;
    let seed = from_hex(text.trim()).with_context(|| {
        format!(
            "{} is damaged; restore it, or delete it to get a new key",
            path.display()
        )
    })?;
    Ok((Identity::from_seed(seed), created))
}

/// Fails for a file that others can read.
pub fn check_mode(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!(
            "{} can be read by others; run `chmod 600 {0}`, or delete it to get a new key",
            path.display()
        );
    }
    Ok(())
}

fn to_hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let scratch = Scratch::make();
        let path = scratch.path().join("client.key");
        let (first, created) = load_or_create(&path).unwrap();
        let (second, again) = load_or_create(&path).unwrap();
        assert_eq!(first.public_key(), second.public_key());
        assert_eq!((created, again), (true, false));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn damaged_or_open_keys_are_refused_in_one_line() {
        let scratch = Scratch::make();
        let path = scratch.path().join("k");
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let message = format!("{:#}", load_or_create(&path).unwrap_err());
        assert!(
            message.contains("damaged") && !message.contains('\n'),
            "{message}"
        );
        load_or_create(&scratch.path().join("ok")).unwrap();
        fs::set_permissions(scratch.path().join("ok"), fs::Permissions::from_mode(0o644)).unwrap();
        let message = format!(
            "{:#}",
            load_or_create(&scratch.path().join("ok")).unwrap_err()
        );
        assert!(message.contains("chmod 600"), "{message}");
    }
}
