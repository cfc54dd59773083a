//! Lists of ranks: golden bytes, written and read again, and damage of every kind seen.

use fuelrail_wire::ranks::{Flaw, RunRanks, decode, encode};

const DATA_SET: [u8; 16] = *b"0123456789abcdef";

fn runs() -> Vec<RunRanks> {
    vec![(7, vec![17, 1 << 63, 5]), (8, vec![2])]
}

#[test]
fn golden_bytes() {
    let written = encode(DATA_SET, &runs());
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "6675656c7261696c2072616e6b730000010000000000000030313233343536373839616263646566\
         00000000000000000000000000000000000000004a45311007000000000000000300000000000000\
         11000000000000000000000000000080050000000000000008000000000000000100000000000000\
         02000000000000005498e11a"
    );
    assert_eq!(decode(&written, DATA_SET), Ok(runs()));
    assert_eq!(decode(&encode(DATA_SET, &[]), DATA_SET), Ok(vec![]));
}

#[test]
fn damage_another_data_set_and_numbers_that_cannot_be_are_seen() {
    let written = encode(DATA_SET, &runs());
    assert_eq!(decode(&written, [0; 16]), Err(Flaw::Foreign));
    for bit in 0..8 * written.len() {
        let mut damaged = written.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged, DATA_SET).is_err(), "bit {bit}");
    }
    for len in 0..written.len() {
        assert!(decode(&written[..len], DATA_SET).is_err(), "{len} bytes");
    }
    // A checksum that fits proves nothing of what it is over.
    for numbers in [&[7][..], &[7, 0], &[7, 2, 1], &[7, u64::MAX, 1]] {
        let mut bytes = encode(DATA_SET, &[]);
        bytes.truncate(64);
        numbers.iter().for_each(|number: &u64| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        assert_eq!(decode(&bytes, DATA_SET), Err(Flaw::Absurd), "{numbers:?}");
    }
    let mut bytes = encode(DATA_SET, &runs());
    bytes.truncate(bytes.len() - 5);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(decode(&bytes, DATA_SET), Err(Flaw::Absurd), "an end that is no number");
}
