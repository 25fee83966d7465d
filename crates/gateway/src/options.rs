//! TCP's options: what the gateway reads of them, and those it writes.

use crate::seq::Seq;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const MD5: u8 = 19;
const AUTHENTICATION: u8 = 29;
const MULTIPATH: u8 = 30;
const FAST_OPEN: u8 = 34;
/// A larger shift counts as this (RFC 7323 §2.3).
const MAX_SHIFT: u8 = 14;
/// What fits into 40 bytes.
pub(crate) const MAX_BLOCKS: usize = 4;

/// A range of bytes that arrived beyond a hole (RFC 2018 §3): first, and one past the last.
pub type Block = (Seq, Seq);

/// Ranges of a SACK option, the most recent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    blocks: [Block; MAX_BLOCKS],
    count: usize,
}

impl Blocks {
    /// How many bytes of options they take, padding included.
    const fn size(self) -> usize {
        if self.count == 0 {
            0
        } else {
            4 + 8 * self.count
        }
    }

    /// Adds one, unless there is no room.
    pub fn push(&mut self, block: Block) {
        if let Some(place) = self.blocks.get_mut(self.count) {
            *place = block;
            self.count += 1;
        }
    }

    /// The ranges.
    #[must_use]
    pub fn as_slice(&self) -> &[Block] {
        &self.blocks[..self.count]
    }
}

/// What a segment's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment its sender takes (SYN only).
    pub mss: Option<u16>,
    /// By how many bits its sender shifts its windows (SYN only).
    pub window_shift: Option<u8>,
    /// Its sender understands SACK (SYN only).
    pub sack_permitted: bool,
    /// Value and echo (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// What arrived beyond holes.
    pub sack: Blocks,
    /// Multipath TCP (RFC 8684).
    pub multipath: bool,
    /// MD5 (RFC 2385) or the authentication option (RFC 5925): nobody may write in another's name.
    pub authenticated: bool,
    /// TCP fast open (RFC 7413).
    pub fast_open: bool,
}

impl Options {
    /// Whether every option ends within the header.
    pub(crate) fn check(bytes: &[u8]) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (_, _, next) = split(rest)?;
            rest = next;
        }
        Some(())
    }

    /// Reads what [`check`](Self::check) has passed; options of another length than theirs are
    /// skipped, as their receiver does.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        let mut rest = bytes;
        while let Some((kind, value, next)) = split(rest) {
            options.note(kind, value);
            rest = next;
        }
        options
    }

    fn note(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_shift = Some(shift.min(MAX_SHIFT)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let value = u32::from_be_bytes([a, b, c, d]);
                self.timestamps = Some((value, u32::from_be_bytes([e, f, g, h])));
            }
            (SACK, blocks) => {
                for block in blocks.chunks_exact(8) {
                    let edge = |at: usize| {
                        Seq(u32::from_be_bytes([
                            block[at],
                            block[at + 1],
                            block[at + 2],
                            block[at + 3],
                        ]))
                    };
                    self.sack.push((edge(0), edge(4)));
                }
            }
            (MULTIPATH, _) => self.multipath = true,
            (MD5 | AUTHENTICATION, _) => self.authenticated = true,
            (FAST_OPEN, _) => self.fast_open = true,
            _ => {}
        }
    }
}

/// Kind, value and what follows; `None` at the end, and where an option ends beyond the header.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    match *bytes {
        [] => None,
        [END, ..] => Some((END, &[], &[])),
        [NOP, ref rest @ ..] => Some((NOP, &[], rest)),
        [kind, length, ref rest @ ..] => {
            let value = usize::from(length).checked_sub(2)?;
            (value <= rest.len()).then(|| (kind, &rest[..value], &rest[value..]))
        }
        [_] => None,
    }
}

/// Writes timestamps and SACK blocks as everybody lays them out, padded to words of 4 bytes.
/// Blocks that no longer fit are left away.
pub(crate) fn write(out: &mut Vec<u8>, timestamps: Option<(u32, u32)>, mut sack: Blocks) {
    if let Some((value, echo)) = timestamps {
        out.extend([NOP, NOP, TIMESTAMPS, 10]);
        out.extend(value.to_be_bytes());
        out.extend(echo.to_be_bytes());
        sack.count = sack.count.min(3);
    }
    if sack.count > 0 {
        out.extend([NOP, NOP, SACK, (sack.size() - 2) as u8]);
        for (start, end) in sack.as_slice() {
            out.extend(start.0.to_be_bytes());
            out.extend(end.0.to_be_bytes());
        }
    }
}

/// Puts NOPs in the place of SACK blocks, and `echo` in the timestamps, within a header that
/// [`Options::check`] has passed.
pub(crate) fn rewrite(bytes: &mut [u8], echo: Option<u32>) {
    let mut at = 0;
    while at + 1 < bytes.len() && bytes[at] != END {
        if bytes[at] == NOP {
            at += 1;
            continue;
        }
        let (kind, length) = (bytes[at], usize::from(bytes[at + 1]));
        if length < 2 || at + length > bytes.len() {
            return;
        }
        match (kind, echo) {
            (SACK, _) => bytes[at..at + length].fill(NOP),
            (TIMESTAMPS, Some(echo)) if length == 10 => {
                bytes[at + 6..at + 10].copy_from_slice(&echo.to_be_bytes());
            }
            _ => {}
        }
        at += length;
    }
}
