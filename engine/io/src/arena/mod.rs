//! The arena: one mapping with a hard byte budget, divided into regions: one per shard, and optionally one for the stages
//! after them.
//!
//! Owns the only large memory of the engine. It is unmapped when the last of the arena, its regions and their slots
//! is gone, so never while a slot, a window or an operation still names it. Pages are populated as they are touched.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fuelrail_base::Result;

use crate::region::Region;
use crate::remote_free::RemoteFreeList;

mod config;
mod mapping;

pub use config::{ArenaConfig, ArenaReport, Huge, HugePages};
pub(crate) use mapping::{Mapping, THP_ENABLED, ThpMode, free_huge_pages, thp_mode};

/// A handle on the arena. Clones are the same arena.
#[derive(Clone, Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    remotes: Arc<[Arc<RemoteFreeList>]>,
    report: Arc<ArenaReport>,
}

impl Arena {
    /// Maps the budget and divides it. The extra region, if one was requested, comes last.
    ///
    /// # Errors
    /// As [`ArenaConfig::validate`]; `Budget` when the kernel refuses the mapping.
    pub fn new(config: &ArenaConfig) -> Result<(Arena, Vec<Region>)> {
        config.validate()?;
        let (mapping, report) = mapping::map(config)?;
        let (mapping, slots) = (Arc::new(mapping), config.slots_per_region as u32);
        let ranges = config.ranges(mapping.len as u64);
        let regions: Vec<Region> =
            ranges.map(|range| Region::new(mapping.clone(), range.start, range.end - range.start, slots)).collect();
        let remotes = regions.iter().map(Region::remote).collect();
        Ok((Arena { mapping, remotes, report: Arc::new(report) }, regions))
    }

    /// What was mapped.
    pub fn report(&self) -> &ArenaReport {
        &self.report
    }

    /// Slots of all regions that are still held.
    pub fn outstanding(&self) -> usize {
        self.remotes.iter().map(|remote| remote.outstanding()).sum()
    }

    /// Where the mapping begins, and how many bytes it has: for registering it with a device, which must end before this
    /// handle and every slot are gone.
    pub fn span(&self) -> (*const u8, usize) {
        (self.mapping.base.as_ptr(), self.mapping.len)
    }

    /// The same, region by region.
    pub fn region_spans(&self) -> impl ExactSizeIterator<Item = (*const u8, usize)> {
        let (base, region, last) = (self.span().0, self.report.region_bytes as usize, self.remotes.len() - 1);
        let extra = self.report.extra_bytes as usize;
        let bytes = move |n| if n == last && extra > 0 { extra } else { region };
        (0..self.remotes.len()).map(move |n| (base.wrapping_add(n * region), bytes(n)))
    }

    /// The descriptor of its memory, for another process to map; `None` unless that was [asked for](ArenaConfig::lent).
    pub fn lend(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.kept.as_ref().map(|memory| memory.as_fd())
    }

    /// The mapping, for a ring that registers it: it must keep this until the kernel has unregistered it.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_node_that_is_there_is_memory_and_others_are_refused() {
        let on = |nodes| ArenaConfig { bytes: 4 << 20, regions: 2, nodes, ..ArenaConfig::default() };
        let (arena, mut regions) = Arena::new(&on(vec![None, Some(0)])).unwrap();
        // Docker's default profile refuses the call; then it must say so.
        assert!(arena.report().notices.iter().all(|notice| notice.contains("seccomp")), "{:?}", arena.report());
        for absent in [1_000, 1 << 20] {
            let (arena, _) = Arena::new(&on(vec![Some(absent)])).unwrap();
            let notices = &arena.report().notices;
            assert!(notices.len() == 1 && notices[0].contains(&absent.to_string()), "{notices:?}");
        }
        for region in &mut regions {
            let mut filling = region.alloc(1 << 20).unwrap().fill();
            let mut window = filling.carve(1 << 20).unwrap();
            assert_eq!(window.put(&[7; 4096]), 4096);
            assert_eq!(window.bytes(), [7; 4096]);
        }
    }
}
