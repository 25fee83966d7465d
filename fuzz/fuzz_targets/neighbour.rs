//! The target of this name, under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tabane_neighbour::fuzz_readers(data));
