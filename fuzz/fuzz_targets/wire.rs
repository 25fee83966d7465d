//! Every decoder of the session protocol, on anything.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tabane_core::fuzz_decoders(data));
