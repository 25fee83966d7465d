//! How much each relay of a fleet has to do, as it goes from a relay to a client [P-T.12].
//!
//! Owns the form: a relay's key and thousandths of what it is meant for, one after the other. What
//! is cut short or longer than a fleet can be is no answer.

use tabane_core::PublicKey;

/// Key, and a number.
const ENTRY: usize = 32 + 2;
/// A fleet has at most 1,000 relays.
pub(crate) const MAX_LOADS: usize = 1_000 * ENTRY;

pub(crate) fn emit(loads: &[(PublicKey, u16)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(loads.len() * ENTRY);
    for (key, thousandths) in loads.iter().take(MAX_LOADS / ENTRY) {
        out.extend(key.0);
        out.extend(thousandths.to_be_bytes());
    }
    out
}

pub(crate) fn parse(bytes: &[u8]) -> Option<Vec<(PublicKey, u16)>> {
    let is_whole = bytes.len() <= MAX_LOADS && bytes.len().is_multiple_of(ENTRY);
    let entries = bytes.chunks_exact(ENTRY).map(|entry| {
        let (key, load) = entry.split_first_chunk()?;
        Some((PublicKey(*key), u16::from_be_bytes(*load.first_chunk()?)))
    });
    entries.collect::<Option<_>>().filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_they_are_written_and_nothing_else_is() {
        let loads = [(PublicKey([1; 32]), 0), (PublicKey([2; 32]), u16::MAX)];
        let bytes = emit(&loads);
        assert_eq!(parse(&bytes), Some(loads.to_vec()));
        assert_eq!(parse(&[]), Some(Vec::new()));
        assert_eq!(parse(&bytes[1..]), None);
        assert_eq!(parse(&[0; MAX_LOADS + ENTRY]), None);
        let many = emit(&vec![loads[0]; 1_001]);
        assert_eq!(parse(&many).map(|it| it.len()), Some(1_000));
    }
}
