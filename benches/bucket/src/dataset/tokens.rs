//! `tokens`: shards of little-endian `u16` token ids, uniform below the vocabulary size, addressable at any byte.

use crate::words::fill_words;

/// Tokens are below this: the vocabulary of GPT-2's tokenizer.
const VOCABULARY: u64 = 50_257;

pub(super) fn fill(stream: u64, offset: u64, out: &mut [u8]) {
    fill_words(stream, offset, out, |word| {
        // Four tokens a word: each 16-bit lane scaled into the vocabulary. A lane times the vocabulary fits 32 bits, so
        // the even and the odd lanes are scaled two at a time.
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
    fn tokens_stay_below_the_vocabulary_and_use_all_of_it() {
        let mut bytes = vec![0u8; 1 << 20];
        fill(3, 0, &mut bytes);
        let tokens: Vec<u16> = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        assert!(tokens.iter().all(|&token| u64::from(token) < VOCABULARY));
        assert!(tokens.iter().any(|&token| token > 50_200) && tokens.iter().any(|&token| token < 50));
    }
}
