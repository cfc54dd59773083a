//! The arena: one mapping with a hard byte budget, shared out to regions, one per shard.
//!
//! Owns the only large memory of the engine. It is unmapped when the last of the arena, its regions and their slots
//! is gone, so never while a slot, a window or an operation still names it. Pages are populated as they are touched.

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use fuelrail_base::limits::SHARDS_MAX;
use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::region::{Home, Region};

mod budget;
mod huge;

pub(crate) use budget::cgroup_limit;
pub use budget::{Budget, default_budget};
pub(crate) use huge::{THP_ENABLED, ThpMode, free_huge_pages, thp_mode};

/// Regions start at multiples of this many bytes where there are huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4 << 10;

/// Whether to ask for huge pages.
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
    /// Regions to share it out to, all of the same size: one per shard.
    pub regions: u16,
    /// Whether to ask for huge pages.
    pub huge_pages: HugePages,
    /// Slots one region can have out at a time.
    pub slots_per_region: usize,
}

impl Default for ArenaConfig {
    /// 1 GiB in one region of at most 8192 slots.
    fn default() -> ArenaConfig {
        ArenaConfig { bytes: 1 << 30, regions: 1, huge_pages: HugePages::Auto, slots_per_region: 8192 }
    }
}

impl ArenaConfig {
    /// Checks that an arena of this shape can exist.
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
        if self.bytes < least {
            let cause = format!("{} cannot be shared out to {} regions", ByteSize(self.bytes), self.regions);
            return Err(Error::new(Kind::Budget, cause).cure(format!("give at least {}", ByteSize(least))));
        }
        Ok(())
    }
}

/// Which pages back the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Huge {
    /// Reserved huge pages (`MAP_HUGETLB`).
    Explicit,
    /// Transparent huge pages, as the kernel finds them.
    Transparent,
    /// Ordinary pages; the text says why and what to do.
    None(String),
}

/// What was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaReport {
    /// Bytes mapped; never more than asked for.
    pub bytes: u64,
    /// Bytes in each region.
    pub region_bytes: u64,
    /// Size of the pages asked for.
    pub page_bytes: u64,
    /// Which pages, or why not huge ones.
    pub huge: Huge,
}

/// A handle on the arena. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    homes: Arc<[Arc<Home>]>,
    report: Arc<ArenaReport>,
}

impl Arena {
    /// Maps the budget and shares it out.
    ///
    /// # Errors
    /// As [`ArenaConfig::validate`]; `Budget` when the kernel refuses the mapping.
    pub fn new(config: &ArenaConfig) -> Result<(Arena, Vec<Region>)> {
        config.validate()?;
        let (mapping, page_bytes, huge) = huge::map(config)?;
        let mapping = Arc::new(mapping);
        let region_bytes = mapping.len as u64 / u64::from(config.regions);
        let slots = config.slots_per_region as u32;
        let regions: Vec<Region> = (0..u64::from(config.regions))
            .map(|n| Region::new(mapping.clone(), n * region_bytes, region_bytes, slots))
            .collect();
        let report = ArenaReport { bytes: mapping.len as u64, region_bytes, page_bytes, huge };
        let homes = regions.iter().map(Region::home).collect();
        Ok((Arena { mapping, homes, report: Arc::new(report) }, regions))
    }

    /// What was mapped.
    #[must_use]
    pub fn report(&self) -> &ArenaReport {
        &self.report
    }

    /// Slots of all regions that are still held by someone.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.homes.iter().map(|home| home.outstanding()).sum()
    }

    /// The mapping, for a ring that registers it: it must keep this until the kernel has let go.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }
}

/// The mapping itself. Unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range; it hands out raw addresses only, whose use is governed by slots and windows.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first byte and the length.
    pub(crate) fn range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Address of the byte at `offset`, which must have `len` bytes of mapping from there on.
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let fits = usize::try_from(offset).ok().and_then(|o| o.checked_add(len)).is_some_and(|end| end <= self.len);
        assert!(fits, "{offset}+{len} lies outside the mapping");
        // SAFETY: checked to lie inside the mapping; whoever uses the address holds the mapping through its home.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `huge::map` and belongs to this value. Every slot, window and operation holds
        // this mapping through its home, and every ring that registered it holds it too, so nobody can reach it now.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "the range is our own mapping");
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
