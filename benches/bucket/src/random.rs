//! Seeded pseudo-random 64-bit words: the one source of randomness in this crate. A word is a pure function of a stream and an index,
//! so content can be produced from any offset, in any order, on any machine, with the same bytes.
//!
//! Only integer and basic IEEE arithmetic is used: the C library's `exp` may differ in the last bit between machines.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The SplitMix64 finaliser: a bijection that spreads every input bit.
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[inline]
pub(crate) fn word(stream: u64, index: u64) -> u64 {
    mix(stream.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// Fills `out` with bytes `offset..` of the endless little-endian sequence `shape(word(stream, 0)), shape(word(stream, 1)), …`.
#[inline]
pub(crate) fn fill_words(stream: u64, offset: u64, out: &mut [u8], shape: impl Fn(u64) -> u64) {
    let mut index = offset / 8;
    let skip = (offset % 8) as usize;
    let head_bytes = if skip == 0 { 0 } else { (8 - skip).min(out.len()) };
    let (head, body) = out.split_at_mut(head_bytes);
    if head_bytes > 0 {
        head.copy_from_slice(&shape(word(stream, index)).to_le_bytes()[skip..skip + head_bytes]);
        index += 1;
    }
    let mut eights = body.chunks_exact_mut(8);
    for eight in &mut eights {
        eight.copy_from_slice(&shape(word(stream, index)).to_le_bytes());
        index += 1;
    }
    let tail = eights.into_remainder();
    if !tail.is_empty() {
        tail.copy_from_slice(&shape(word(stream, index)).to_le_bytes()[..tail.len()]);
    }
}

/// A sequence of draws from one stream.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    stream: u64,
    next: u64,
}

impl Draws {
    pub(crate) fn new(stream: u64) -> Draws {
        Draws { stream, next: 0 }
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.next += 1;
        word(self.stream, self.next)
    }

    /// Uniform in `0.0..1.0`, 53 bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`; 0 when `bound` is 0. The bias of the multiply-shift is below 2⁻⁶⁴ × bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Standard normal as the sum of twelve uniforms (Irwin–Hall): exact on every machine, tails end at ±6.
    pub(crate) fn normal(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..12 {
            sum += self.unit();
        }
        sum - 6.0
    }
}

/// `e` to the power `x` for `|x| < 700`, from basic arithmetic only.
pub(crate) fn exp(x: f64) -> f64 {
    let halvings = (x * core::f64::consts::LOG2_E).round();
    let rest = x - halvings * core::f64::consts::LN_2;
    // |rest| <= ln 2 / 2, so the term of order 14 is below 1e-17.
    let mut term = 1.0;
    let mut sum = 1.0;
    for order in 1..14 {
        term *= rest / f64::from(order);
        sum += term;
    }
    sum * f64::from_bits(((halvings as i64 + 1023) as u64) << 52)
}

/// Sine and cosine for small angles (radians, up to about one), from basic arithmetic only.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    let x2 = x * x;
    let sin = x * (1.0 - x2 / 6.0 * (1.0 - x2 / 20.0 * (1.0 - x2 / 42.0)));
    let cos = 1.0 - x2 / 2.0 * (1.0 - x2 / 12.0 * (1.0 - x2 / 30.0));
    (sin, cos)
}
