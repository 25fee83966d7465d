//! Every decoder of core, fed with bytes of strangers.

use crate::datagrams::Label;
use crate::parameters::Parameters;
use crate::wire::{Cursor, LongHeader, ShortHeader, parse_frame};

/// Feeds `data` to every decoder, for fuzzing.
pub fn fuzz_decoders(data: &[u8]) {
    let _ = LongHeader::parse(data);
    let _ = ShortHeader::parse(data);
    let _ = Parameters::parse(data);
    let _ = Label::parse(&mut bytes::Bytes::copy_from_slice(data));
    let mut cursor = Cursor::new(data);
    while !cursor.is_empty() {
        if parse_frame(&mut cursor).is_err() {
            break;
        }
    }
}
