//! The format of lists of ranks: which ranks the last runs of a job had, as each keeps it on disk and as one tells another.
//!
//! After a header come numbers of 64 bits, of each run its seed, how many ranks it had, and hashes of their names in their order; at the end the
//! CRC-32C of all before it. All numbers are little-endian. Owns nothing: bytes in, meaning out.

pub use crate::sealed::Flaw;
use crate::sealed::{SEALED_BYTES, checked_header, header, sealed, u64_at};

const VERSION: u32 = 1;
const MAGIC: &[u8; 16] = b"fuelrail ranks\0\0";

/// The seed of a run, and hashes of its ranks' names in their order.
pub type RunRanks = (u64, Vec<u64>);

/// The bytes of the lists of these runs over a data set.
pub fn encode(data_set: [u8; 16], runs: &[RunRanks]) -> Vec<u8> {
    let mut head = header(MAGIC, VERSION);
    head[24..40].copy_from_slice(&data_set);
    let mut bytes = sealed(head).to_vec();
    for (seed, names) in runs {
        for number in [*seed, names.len() as u64].iter().chain(names) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Reads the lists of runs over this data set.
///
/// # Errors
/// Why they are none.
pub fn decode(bytes: &[u8], data_set: [u8; 16]) -> Result<Vec<RunRanks>, Flaw> {
    if checked_header(bytes, MAGIC, VERSION)?[24..40] != data_set {
        return Err(Flaw::Foreign);
    }
    let (before, sum) = bytes.split_last_chunk::<4>().ok_or(Flaw::Short)?;
    let lists = before.get(SEALED_BYTES..).ok_or(Flaw::Short)?;
    if crc32c::crc32c(before) != u32::from_le_bytes(*sum) {
        return Err(Flaw::Damaged);
    }
    let (mut numbers, mut runs) = (lists.chunks_exact(8), Vec::new());
    let number = |bytes| u64_at(bytes, 0);
    while let Some(seed) = numbers.next().map(number) {
        let ranks = numbers.next().map_or(0, number);
        if !(1..=numbers.len() as u64).contains(&ranks) {
            return Err(Flaw::Absurd);
        }
        runs.push((seed, numbers.by_ref().take(ranks as usize).map(number).collect()));
    }
    if numbers.remainder().is_empty() { Ok(runs) } else { Err(Flaw::Absurd) }
}
