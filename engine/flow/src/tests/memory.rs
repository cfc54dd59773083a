//! A small arena for tests.

use fuelrail_io::{Arena, ArenaConfig, HugePages, Region, Window};

/// One region of `bytes` bytes. The memory lives as long as it or anything allocated from it.
pub(super) fn region(bytes: u64) -> Region {
    let config =
        ArenaConfig { bytes, regions: 1, huge_pages: HugePages::Off, slots_per_region: 1024, ..ArenaConfig::default() };
    let (_, mut regions) = Arena::new(&config).unwrap();
    regions.remove(0)
}

/// A window of its own slot.
pub(super) fn window(region: &mut Region, len: usize) -> Window {
    region.alloc(len).expect("the test's region is large enough").fill().carve(len).unwrap()
}
