//! Configuration of an arena and the report of its making.
//!
//! Owns the checks. Maps nothing and makes no system call.

use core::ops::Range;

use fuelrail_base::limits::SHARDS_MAX;
use fuelrail_base::{ByteSize, Error, Kind, Result};

/// Regions start at multiples of this many bytes where there are huge pages.
pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;
pub(super) const PAGE_BYTES: u64 = 4 << 10;

/// Whether to use huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Reserved huge pages when enough are free, else transparent ones, else ordinary pages; the report says which.
    #[default]
    Auto,
    /// Ordinary pages.
    Off,
}

/// How to make an arena.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// The budget, in bytes. Rounded down to whole pages, never up.
    pub bytes: u64,
    /// Regions to divide it into, all of the same size: one per shard.
    pub regions: u16,
    /// Bytes of one more region, after those and inside the budget; 0 for none. Rounded down to whole pages.
    pub extra_bytes: u64,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
    /// Slots one region can have in use at a time.
    pub slots_per_region: usize,
    /// The NUMA node of each shard's region, in their order; no node is requested where there is no entry.
    pub nodes: Vec<Option<usize>>,
    /// Whether other processes shall map it, to read: see [`Arena::lend`](crate::Arena::lend).
    pub lent: bool,
}

impl Default for ArenaConfig {
    /// 1 GiB in one region of at most 8192 slots.
    fn default() -> ArenaConfig {
        ArenaConfig {
            bytes: 1 << 30,
            regions: 1,
            extra_bytes: 0,
            huge_pages: HugePages::Auto,
            slots_per_region: 8192,
            nodes: Vec::new(),
            lent: false,
        }
    }
}

impl ArenaConfig {
    /// Checks counts and sizes.
    ///
    /// # Errors
    /// `Usage` for counts of zero or beyond the limits, `Budget` when a region would be smaller than a page.
    pub fn validate(&self) -> Result<()> {
        let usage = |cause: String| Err(Error::new(Kind::Usage, cause));
        if self.regions == 0 || self.regions > SHARDS_MAX {
            return usage(format!("an arena has 1 to {SHARDS_MAX} regions, not {}", self.regions));
        }
        if self.slots_per_region == 0 || self.slots_per_region > 1 << 24 {
            return usage(format!("a region has 1 to {} slots, not {}", 1 << 24, self.slots_per_region));
        }
        let least = u64::from(self.regions) * PAGE_BYTES;
        let shared = self.bytes.saturating_sub(self.extra_bytes);
        if shared < least {
            let cause = format!("{} cannot be divided into {} regions", ByteSize(shared), self.regions);
            let least = least.saturating_add(self.extra_bytes);
            return Err(Error::new(Kind::Budget, cause).with_hint(format!("give at least {}", ByteSize(least))));
        }
        Ok(())
    }

    /// Ranges of the shards' regions in a mapping of `bytes` bytes, then that of the extra one, if any.
    pub(super) fn ranges(&self, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let extra = self.extra_bytes / PAGE_BYTES * PAGE_BYTES;
        let (regions, shared) = (u64::from(self.regions), bytes - extra);
        let region = shared / regions;
        let shards = (0..regions).map(move |n| n * region..(n + 1) * region);
        shards.chain((extra > 0).then_some(shared..bytes))
    }
}

/// Which pages back the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Huge {
    /// Reserved huge pages (`MAP_HUGETLB`).
    Explicit,
    /// Transparent huge pages, as available.
    Transparent,
    /// Ordinary pages; the text says why and what to do.
    None(String),
}

/// What was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaReport {
    /// Bytes mapped; never more than requested.
    pub bytes: u64,
    /// Bytes in each region.
    pub region_bytes: u64,
    /// Bytes in the extra one.
    pub extra_bytes: u64,
    /// Size of the requested pages.
    pub page_bytes: u64,
    /// Which pages, or why not huge ones.
    pub huge: Huge,
    /// Other refusals of the kernel, and what is used instead.
    pub notices: Vec<String>,
}
