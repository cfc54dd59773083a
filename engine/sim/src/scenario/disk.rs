//! The disk of a scenario: how fast and how large it is, what lies on it at the start, and what befalls it.

use super::{Scenario, as_word};
use fuelrail_base::prng::{Prng, mix64};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::spill::SpillPolicy;
use serde::Serialize;
use std::time::Duration;

/// The disk of a machine, and how ranks use it.
#[derive(Clone, Debug, Serialize)]
pub struct DiskShape {
    /// Segments of 1 MiB that each rank may have.
    pub segments_max: u64,
    /// Who gets in, and what goes.
    #[serde(serialize_with = "as_word")]
    pub policy: SpillPolicy,
    /// What direct transfers are multiples of, bytes.
    pub unit: u64,
    /// Bytes all files together may have.
    pub capacity_bytes: u64,
    /// Longest an operation takes, µs.
    pub latency_us_max: u64,
    /// At the first start there are files of others: segments of a living process, of another data set, and garbage.
    pub foreign: bool,
    /// A life that is killed loses its machine's power, too.
    pub power_cuts: bool,
    /// A life that is killed has been asked to end, and ends in order.
    pub in_order: bool,
    /// Bits of the segments that flip between two lives.
    pub rot_bits: u64,
    /// What goes wrong with it in each life.
    pub failure: Option<DiskFailure>,
}

/// A time in which all of the disk fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DiskFailure {
    /// It begins so many events after the life does.
    pub from_event: u64,
    /// It lasts so many events.
    pub events: u64,
    /// The error number of reads, if they fail.
    pub reads: Option<i32>,
    /// The error number of writes, if they fail.
    pub writes: Option<i32>,
}

pub(crate) const SEGMENT_BYTES: u64 = 1 << 20;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
/// Longest object of a scenario with a disk, bytes: longer than a block can be.
const OBJECT_BYTES_MAX: u64 = 1_600_000;
/// Blocks of such a scenario: keeps a run in fractions of a second.
const BLOCKS_MAX: u64 = 2_000;

impl DiskShape {
    /// A fast disk that nothing is wrong with.
    pub fn faultless() -> DiskShape {
        DiskShape {
            segments_max: 8,
            policy: SpillPolicy::NextUse,
            unit: 512,
            capacity_bytes: 1 << 30,
            latency_us_max: 200,
            foreign: false,
            power_cuts: false,
            in_order: true,
            rot_bits: 0,
            failure: None,
        }
    }

    /// Longest that reading and writing so many blocks, one after the other, may hold a batch up.
    pub(crate) fn cost(&self, blocks: u64) -> Duration {
        let each = Duration::from_micros(self.latency_us_max) * 4;
        each * u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Nothing on it is ever lost: what is read back is what was written.
    pub(crate) fn is_sound(&self) -> bool {
        !self.foreign && !self.power_cuts && self.rot_bits == 0 && self.failure.is_none()
    }
}

impl Scenario {
    /// About half of the seeds get a disk, with longer objects and more faults of the rings. Drawn apart, so that the others are what
    /// they were before there were disks.
    pub(super) fn with_disk(mut self) -> Scenario {
        let mut p = Prng::new(mix64(self.seed ^ 0xD15C));
        if p.chance(0.5) {
            return self;
        }
        self.lengthen(&mut p);
        self.add_disk(DiskShape::draw(&mut p));
        self
    }

    /// The same with this disk: its memory, and room for samples that are laid out for it.
    pub fn add_disk(&mut self, disk: DiskShape) {
        self.block_bytes = self.block_bytes.next_multiple_of(disk.unit);
        let direct = Catalog::new(self.sizes.clone(), self.block_bytes).and_then(|catalog| catalog.direct(disk.unit));
        let room = direct.map_or(0, |catalog| catalog.batch_room_max(u64::from(self.batch_size)));
        self.loader.room_bytes = self.loader.room_bytes.max(room);
        self.loader.spare_bytes = self.sizes.iter().max().copied().unwrap_or(0).min(self.block_bytes).max(1) as usize;
        // As the loader has them: room for every connection's operations beside the disk's.
        self.loader.ring_entries = self.loader.ring_entries.max(256);
        self.disk = Some(disk);
    }

    fn lengthen(&mut self, p: &mut Prng) {
        let longer = [1u64, 1, 3, 12][p.below(4) as usize];
        let room = (4 * super::draw::DATA_BYTES_MAX).div_ceil(self.total_bytes.max(1)).max(1);
        for size in &mut self.sizes {
            *size = (*size * longer.min(room)).min(OBJECT_BYTES_MAX);
        }
        self.total_bytes = self.sizes.iter().sum();
        self.block_bytes = self.block_bytes.max(self.total_bytes / BLOCKS_MAX);
        self.loader.room_bytes *= longer;
        // What has no listed tag is never found again.
        if p.chance(0.8) {
            self.bucket.etags = (true, true);
        }
        self.bucket.crc32c_of_parts = self.bucket.crc32c && p.chance(0.5);
        let calm = self.is_calm();
        let mut share = |most: f64| if p.chance(0.6) { 0.0 } else { p.unit() * most };
        let ring = &mut self.ring;
        (ring.short_read, ring.short_write) = (share(0.9), share(0.9));
        (ring.no_descriptor, ring.overflow) = (share(0.2), share(0.9));
        if !calm {
            (ring.disk_errno, ring.no_memory) = (share(0.02), share(0.02));
        }
    }
}

impl DiskShape {
    fn draw(p: &mut Prng) -> DiskShape {
        let failure = p.chance(0.3).then(|| {
            let writes = [None, Some(EIO), Some(ENOSPC), Some(EROFS)][p.below(4) as usize];
            let reads = (writes.is_none() || p.chance(0.3)).then_some(EIO);
            DiskFailure { from_event: p.below(400), events: 1 + p.below(400), reads, writes }
        });
        DiskShape {
            segments_max: 1 + p.below(6),
            policy: SpillPolicy::ALL[p.below(3) as usize],
            unit: [512, 4096][p.below(2) as usize],
            // A full disk is one that has room for fewer segments than are allowed.
            capacity_bytes: if p.chance(0.2) { p.below(4) * SEGMENT_BYTES + 5_000 } else { 1 << 30 },
            latency_us_max: [200, 200, 5_000, 200_000][p.below(4) as usize],
            foreign: p.chance(0.3),
            power_cuts: p.chance(0.5),
            in_order: p.chance(0.2),
            rot_bits: if p.chance(0.3) { 1 + p.below(20) } else { 0 },
            failure,
        }
    }
}
