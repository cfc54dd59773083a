//! What it costs to get a block again, as measured: from the bucket, and from the disk.
//!
//! Kept as the logarithm of seconds, one smoothed mean per source and power of two of the length, so that costs which
//! differ by orders of magnitude are compared by a subtraction and nothing under- or overflows. Owns a small table.

use fuelrail_base::Duration;

/// Where blocks come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// The bucket.
    Bucket,
    /// The local disk.
    Disk,
}

/// Lengths up to 2^31 bytes have a mean of their own each.
const CLASSES: usize = 32;
/// Weight of the newest measurement.
const WEIGHT: f64 = 1.0 / 16.0;

/// Measured costs of both sources.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    bucket: [Option<f64>; CLASSES],
    disk: [Option<f64>; CLASSES],
}

impl Costs {
    /// A block of `bytes` came from `tier` in `time`.
    pub fn measured(&mut self, tier: Tier, bytes: u64, time: Duration) {
        let table = if tier == Tier::Bucket { &mut self.bucket } else { &mut self.disk };
        let ln = time.as_secs_f64().max(1e-9).ln();
        let mean = &mut table[class(bytes)];
        *mean = Some(mean.map_or(ln, |old| old + (ln - old) * WEIGHT));
    }

    /// How much dearer the bucket is than the disk for a block of `bytes`, as a logarithm: above zero, the disk pays.
    /// `None` while either is unknown for such lengths.
    #[must_use]
    pub fn gain_ln(&self, bytes: u64) -> Option<f64> {
        Some(self.bucket[class(bytes)]? - self.disk[class(bytes)]?)
    }
}

fn class(bytes: u64) -> usize {
    (u64::BITS - bytes.leading_zeros()).min(CLASSES as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_which_source_is_dearer_by_length() {
        let mut costs = Costs::default();
        assert_eq!(costs.gain_ln(1000), None);
        for _ in 0..100 {
            costs.measured(Tier::Bucket, 1000, Duration::from_millis(20));
            costs.measured(Tier::Disk, 1000, Duration::from_micros(100));
            costs.measured(Tier::Bucket, 8 << 20, Duration::from_millis(30));
            costs.measured(Tier::Disk, 8 << 20, Duration::from_millis(60));
        }
        assert!((costs.gain_ln(1010).unwrap() - 200f64.ln()).abs() < 1e-9);
        assert!((costs.gain_ln(8 << 20).unwrap() + 2f64.ln()).abs() < 1e-9);
        assert_eq!(costs.gain_ln(1 << 40), None);
        costs.measured(Tier::Disk, 0, Duration::ZERO);
    }
}
