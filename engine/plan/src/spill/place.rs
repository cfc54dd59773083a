//! Which blocks belong in RAM rather than on disk, by their length alone. Pure arithmetic on the catalog.

use crate::catalog::Catalog;
use fuelrail_base::SampleId;

/// Samples looked at, evenly spread over the data set: enough for a quantile to within a percent.
const LOOKED_AT_MAX: u64 = 1 << 16;

/// The length up to which blocks belong in RAM first, when RAM holds `ram_bytes` of this data set.
///
/// A read from disk costs a fixed part and a part per byte, so what RAM saves per byte it holds is most for the shortest
/// blocks: RAM is for the shortest that fill it, and the disk for the rest. Zero when RAM holds nothing.
#[must_use]
pub fn ram_first_max(catalog: &Catalog, ram_bytes: u64) -> u64 {
    let stride = catalog.samples().div_ceil(LOOKED_AT_MAX).max(1);
    let mut lengths: Vec<(u64, u64)> = Vec::new();
    for sample in (0..catalog.samples()).step_by(stride as usize) {
        let (size, whole) = (catalog.size(SampleId(sample)), catalog.block_bytes());
        lengths.extend((size >= whole).then_some((whole, size / whole * whole)));
        lengths.extend((size % whole > 0).then_some((size % whole, size % whole)));
    }
    lengths.sort_unstable();
    let mut room = ram_bytes / stride;
    let mut longest = 0;
    for (len, bytes) in lengths {
        if room == 0 {
            break;
        }
        longest = len;
        room = room.saturating_sub(bytes);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_fill_it_belong_in_ram() {
        let mixed = Catalog::new(vec![10, 20, 30, 100, 100, 100, 250], 100).unwrap();
        assert_eq!(ram_first_max(&mixed, 0), 0);
        assert_eq!(ram_first_max(&mixed, 25), 20);
        assert_eq!(ram_first_max(&mixed, 60), 30);
        assert_eq!(ram_first_max(&mixed, 110), 50, "the tail of 250 is a block of 50");
        assert_eq!(ram_first_max(&mixed, 10_000), 100);
        let many = Catalog::new((0..300_000).map(|n| 1000 + n % 1000).collect(), 1 << 20).unwrap();
        let half = ram_first_max(&many, many.total_bytes() / 2);
        assert!((1550..1600).contains(&half), "{half}");
    }
}
