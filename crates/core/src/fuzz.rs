//! Every decoder of core, fed with bytes of strangers.

use crate::datagrams::Label;
use crate::inquiry::Inquiry;
use crate::parameters::Parameters;
use crate::steering::{Addressee, Steering};
use crate::wire::{Cursor, LongHeader, ShortHeader, parse_frame};

/// Feeds `data` to every decoder, for fuzzing.
pub fn fuzz_decoders(data: &[u8]) {
    let _ = LongHeader::parse(data);
    let _ = ShortHeader::parse(data);
    let _ = Parameters::parse(data);
    let _ = Label::parse(&mut bytes::Bytes::copy_from_slice(data));
    // Whoever answers has seen the question; so has the fuzzer.
    let _ = Inquiry::new(0x0101_0101_0101_0101).read_answer(data);
    match Steering::new(3, 0, false).addressee(data) {
        Some(Addressee::Newcomers(worker) | Addressee::Session { worker, .. }) => {
            assert!(worker < 3, "no such worker");
        }
        None => assert!(data.len() < 6, "enough to say it"),
    }
    let mut cursor = Cursor::new(data);
    while !cursor.is_empty() {
        if parse_frame(&mut cursor).is_err() {
            break;
        }
    }
}
