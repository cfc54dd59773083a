//! A small arena for tests.

use fuelrail_io::{Arena, ArenaConfig, HugePages, Region};

/// One region of `bytes` bytes. The memory lives as long as it or anything allocated from it.
pub(super) fn region(bytes: u64) -> Region {
    let config = ArenaConfig { bytes, regions: 1, huge_pages: HugePages::Off, slots_per_region: 256 };
    let (_, mut regions) = Arena::new(&config).unwrap();
    regions.remove(0)
}
