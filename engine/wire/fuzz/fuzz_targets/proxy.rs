#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuelrail_wire::fuzz::proxy(bytes));
