//! Sets of numbers, addressable at any byte. `volumes`: NumPy arrays with the sizes MLPerf Storage gives its unet3d cases
//! (mean 140 MiB, deviation 65 MiB), a 128-byte version 1.0 header and then one-dimensional `<u8` words. `tokens`: shards
//! of little-endian `u16` token ids, uniform below the vocabulary size.

use crate::random::{Draws, fill_words};

const MIB: f64 = (1u64 << 20) as f64;
const MEAN_BYTES: f64 = 140.0 * MIB;
const DEVIATION_BYTES: f64 = 65.0 * MIB;
const FLOOR_BYTES: f64 = 10.0 * MIB;

/// Bytes before the first word. NumPy aligns the header to 64 bytes.
const HEADER_BYTES: u64 = 128;

pub(super) fn volume_bytes(seed: u64, scale: f64) -> u64 {
    let bytes = (MEAN_BYTES + DEVIATION_BYTES * Draws::new(seed).normal()).max(FLOOR_BYTES) * scale;
    let words = (bytes as u64).saturating_sub(HEADER_BYTES) / 8;
    HEADER_BYTES + words.max(1) * 8
}

pub(super) fn fill_volume(size: u64, stream: u64, offset: u64, out: &mut [u8]) {
    let header_bytes = HEADER_BYTES.saturating_sub(offset).min(out.len() as u64) as usize;
    let (head, words) = out.split_at_mut(header_bytes);
    if !head.is_empty() {
        let from = offset as usize;
        head.copy_from_slice(&header(size)[from..from + header_bytes]);
    }
    fill_words(stream, offset.saturating_sub(HEADER_BYTES), words, |word| word);
}

fn header(size: u64) -> [u8; HEADER_BYTES as usize] {
    let words = (size - HEADER_BYTES) / 8;
    let shape = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({words},), }}");
    let mut header = [b' '; HEADER_BYTES as usize];
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    header[8..10].copy_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    header[10..10 + shape.len()].copy_from_slice(shape.as_bytes());
    header[HEADER_BYTES as usize - 1] = b'\n';
    header
}

/// Upper bound of the token ids: the vocabulary of GPT-2's tokenizer.
const VOCABULARY: u64 = 50_257;

pub(super) fn fill_tokens(stream: u64, offset: u64, out: &mut [u8]) {
    fill_words(stream, offset, out, |word| {
        // A word gives four tokens: each 16-bit lane is scaled to the vocabulary. A lane times the vocabulary fits 32
        // bits, so the even and the odd lanes are scaled two at a time.
        let even = word & 0x0000_FFFF_0000_FFFF;
        let odd = (word >> 16) & 0x0000_FFFF_0000_FFFF;
        let even = ((even * VOCABULARY) >> 16) & 0x0000_FFFF_0000_FFFF;
        let odd = (odd * VOCABULARY) & 0xFFFF_0000_FFFF_0000;
        even | odd
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_published_mean_and_deviation() {
        let sizes: Vec<f64> = (0..4000).map(|seed| volume_bytes(crate::random::mix(seed), 1.0) as f64 / MIB).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let deviation = (sizes.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / sizes.len() as f64).sqrt();
        assert!((mean - 140.0).abs() < 4.0, "{mean}");
        assert!((deviation - 65.0).abs() < 4.0, "{deviation}");
        assert!(sizes.iter().all(|&size| size > 9.99));
    }

    #[test]
    fn header_is_a_numpy_header() {
        let size = volume_bytes(1, 0.001);
        let mut bytes = vec![0; size as usize];
        fill_volume(size, 9, 0, &mut bytes);
        assert_eq!(&bytes[..6], b"\x93NUMPY");
        let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert_eq!((10 + length) % 64, 0);
        let text = core::str::from_utf8(&bytes[10..10 + length]).unwrap();
        assert!(text.ends_with('\n') && text.contains(&format!("({},)", (size - 128) / 8)), "{text}");
    }

    #[test]
    fn tokens_stay_below_the_vocabulary_and_use_all_of_it() {
        let mut bytes = vec![0u8; 1 << 20];
        fill_tokens(3, 0, &mut bytes);
        let tokens: Vec<u16> = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        assert!(tokens.iter().all(|&token| u64::from(token) < VOCABULARY));
        assert!(tokens.iter().any(|&token| token > 50_200) && tokens.iter().any(|&token| token < 50));
    }
}
