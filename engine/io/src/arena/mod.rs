//! The arena: one mapping with a hard byte budget, shared out to regions: one per shard, and one besides for whoever works
//! behind them.
//!
//! Owns the only large memory of the engine. It is unmapped when the last of the arena, its regions and their slots
//! is gone, so never while a slot, a window or an operation still names it. Pages are populated as they are touched.

use std::sync::Arc;

use fuelrail_base::Result;

use crate::home::Home;
use crate::region::Region;

mod budget;
mod config;
mod huge;
mod mapping;

pub use budget::{Budget, default_budget};
pub(crate) use budget::{budget_under, cgroup_limit};
pub use config::{ArenaConfig, ArenaReport, Huge, HugePages};
pub(crate) use huge::{THP_ENABLED, ThpMode, anonymous, free_huge_pages, thp_mode};
pub(crate) use mapping::Mapping;

/// A handle on the arena. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    homes: Arc<[Arc<Home>]>,
    report: Arc<ArenaReport>,
}

impl Arena {
    /// Maps the budget and shares it out. The region beside the shards', where one was asked for, comes last.
    ///
    /// # Errors
    /// As [`ArenaConfig::validate`]; `Budget` when the kernel refuses the mapping.
    pub fn new(config: &ArenaConfig) -> Result<(Arena, Vec<Region>)> {
        config.validate()?;
        let (mapping, page_bytes, huge) = huge::map(config)?;
        let mapping = Arc::new(mapping);
        let aside_bytes = config.aside_bytes / config::PAGE_BYTES * config::PAGE_BYTES;
        let shared = mapping.len as u64 - aside_bytes;
        let region_bytes = shared / u64::from(config.regions);
        let slots = config.slots_per_region as u32;
        let mut regions: Vec<Region> = (0..u64::from(config.regions))
            .map(|n| Region::new(mapping.clone(), n * region_bytes, region_bytes, slots))
            .collect();
        if aside_bytes > 0 {
            regions.push(Region::new(mapping.clone(), shared, aside_bytes, slots));
        }
        let report = ArenaReport { bytes: mapping.len as u64, region_bytes, aside_bytes, page_bytes, huge };
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

    /// Where the mapping begins, and how many bytes it has: for registering it with a device, which must end before this
    /// handle and every slot are gone.
    #[must_use]
    pub fn span(&self) -> (*const u8, usize) {
        (self.mapping.base.as_ptr(), self.mapping.len)
    }

    /// The same, region by region.
    pub fn region_spans(&self) -> impl ExactSizeIterator<Item = (*const u8, usize)> {
        let (base, region, last) = (self.span().0, self.report.region_bytes as usize, self.homes.len() - 1);
        let aside = self.report.aside_bytes as usize;
        let bytes = move |n| if n == last && aside > 0 { aside } else { region };
        (0..self.homes.len()).map(move |n| (base.wrapping_add(n * region), bytes(n)))
    }

    /// The mapping, for a ring that registers it: it must keep this until the kernel has let go.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }
}
