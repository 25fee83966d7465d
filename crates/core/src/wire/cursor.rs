//! Reading and writing fields: big-endian integers and RFC 9000 §16 variable-length integers.

/// Bytes that are no field of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The largest variable-length integer (RFC 9000 §16).
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// A reader that never runs past its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(Malformed)?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Goes past all that are `byte`.
    pub(crate) fn skip(&mut self, byte: u8) {
        /// Compared at once: first packets have a thousand bytes of padding.
        const MANY: usize = 32;
        while let Some((many, rest)) = self.rest.split_first_chunk()
            && *many == [byte; MANY]
        {
            self.rest = rest;
        }
        let run = self.rest.iter().take_while(|&&b| b == byte).count();
        self.rest = &self.rest[run..];
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A big-endian integer of `n` ≤ 8 bytes.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u64, Malformed> {
        let bytes = self.take(n)?;
        Ok(bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let first = *self.rest.first().ok_or(Malformed)?;
        let len = 1 << (first >> 6);
        let value = self.uint(len)?;
        Ok(value & (u64::MAX >> (64 - 8 * len + 2)))
    }

    pub(crate) fn varint_u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed)
    }

    /// A length and that many bytes.
    pub(crate) fn prefixed(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        self.take(len)
    }
}

/// How many bytes `value` takes as a variable-length integer.
pub(crate) const fn varint_len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends `value` (at most [`VARINT_MAX`], else that) as a variable-length integer.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    // Most are small, and an acknowledgement has dozens.
    match value {
        0..0x40 => out.push(value as u8),
        _ => put_long_varint(out, value.min(VARINT_MAX)),
    }
}

fn put_long_varint(out: &mut Vec<u8>, value: u64) {
    match varint_len(value) {
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_9000_appendix_a1_examples() {
        let bytes = [
            0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c, 0x9d, 0x7f, 0x3e, 0x7d, 0x7b, 0xbd,
            0x25,
        ];
        let mut cursor = Cursor::new(&bytes);
        for value in [151_288_809_941_952_652, 494_878_333, 15_293, 37] {
            assert_eq!(cursor.varint(), Ok(value));
        }
        assert_eq!(cursor.varint(), Err(Malformed));
        let mut out = Vec::new();
        for value in [151_288_809_941_952_652, 494_878_333, 15_293, 37] {
            put_varint(&mut out, value);
        }
        assert_eq!(out, bytes);
    }
}
