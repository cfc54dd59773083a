//! The disk of the model: segments that come or do not, writes and reads that end in any order, well or not.

use super::AskId;
use fuelrail_base::BlockId;
use fuelrail_base::prng::Prng;
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::spill::{Mount, PAGE_BYTES, SegmentId, Spill, SpillConfig, SpillPolicy, Spot};
use std::collections::BTreeMap;

/// Small enough that ten blocks fill it.
const SEGMENT_BYTES: u64 = 2 * PAGE_BYTES + 160;

struct Write {
    block: BlockId,
    segment: SegmentId,
    place: u64,
}

#[derive(Default)]
pub(super) struct Disk {
    segments_max: usize,
    /// What lies where, of segments that were not trimmed: place to block, its bytes and its checksum.
    segments: BTreeMap<SegmentId, BTreeMap<u64, (BlockId, u64, u32)>>,
    writes: Vec<Write>,
    pub(super) reads: BTreeMap<FetchId, (AskId, BlockId, Spot)>,
    pub(super) counted: Counted,
}

#[derive(Default, Debug)]
pub(super) struct Counted {
    pub(super) written: u64,
    pub(super) restored: u64,
    pub(super) lost: u64,
    pub(super) trims: u64,
}

/// How a read or a write ended.
pub(super) enum Ended {
    Written(BlockId, u32),
    NotWritten(BlockId),
    Read(FetchId, AskId),
    NotRead(FetchId),
}

impl Disk {
    pub(super) fn draw(prng: &mut Prng) -> (Disk, Option<SpillConfig>) {
        let config = prng.chance(0.6).then(|| SpillConfig {
            policy: SpillPolicy::ALL[prng.below(3) as usize],
            unit: [512, 4096][prng.below(2) as usize],
            blocks_max: 1 + prng.below(80) as usize,
            pending_bytes_max: prng.below(400),
        });
        (Disk { segments_max: prng.below(4) as usize, ..Disk::default() }, config)
    }

    /// The segment manager's part: a segment if one is wanted and the limit allows. False: there is none.
    pub(super) fn grant(&mut self, spill: &mut Spill) -> bool {
        if self.segments.len() >= self.segments_max {
            return false;
        }
        let mount = Mount::Open { end: PAGE_BYTES, records: 0 };
        let Some(id) = spill.mount(SEGMENT_BYTES, mount) else { return true };
        assert!(self.segments.insert(id, BTreeMap::new()).is_none(), "{id:?} is in use");
        true
    }

    pub(super) fn write(&mut self, block: BlockId, bytes: u64, segment: SegmentId, place: u64) {
        let held = self.segments.get_mut(&segment).expect("only a segment that is there is written to");
        assert!(place >= PAGE_BYTES && place + bytes <= SEGMENT_BYTES - PAGE_BYTES, "{place}+{bytes}");
        let before = held.range(..place + bytes.max(1)).next_back();
        assert!(before.is_none_or(|(at, (_, len, _))| at + len <= place), "{block:?} over another at {place}");
        held.insert(place, (block, bytes, u32::MAX));
        assert!(self.writes.iter().all(|w| w.block != block), "{block:?} is being written");
        self.writes.push(Write { block, segment, place });
    }

    pub(super) fn read(&mut self, fetch: FetchId, ask: AskId, block: BlockId, spot: Spot) {
        let held = &self.segments[&spot.segment][&spot.place];
        assert_eq!((held.0, held.2), (block, spot.crc32c), "it lies where the planner says");
        assert!(self.reads.insert(fetch, (ask, block, spot)).is_none(), "{fetch:?} reads already");
    }

    pub(super) fn trim(&mut self, segment: SegmentId) {
        self.counted.trims += 1;
        self.segments.remove(&segment).expect("a segment is trimmed once");
    }

    /// One of the operations under way ends somehow.
    pub(super) fn end_one(&mut self, prng: &mut Prng, trouble: f64) -> Option<Ended> {
        let n = self.writes.len() + self.reads.len();
        let which = prng.below(n.max(1) as u64) as usize;
        if n == 0 {
            return None;
        }
        let fails = prng.chance(trouble / 2.0);
        if which < self.writes.len() {
            let Write { block, segment, place } = self.writes.swap_remove(which);
            if fails {
                return Some(Ended::NotWritten(block));
            }
            let crc32c = prng.next() as u32;
            if let Some(held) = self.segments.get_mut(&segment).and_then(|held| held.get_mut(&place)) {
                held.2 = crc32c;
            }
            self.counted.written += 1;
            return Some(Ended::Written(block, crc32c));
        }
        let fetch = *self.reads.keys().nth(which - self.writes.len()).expect("counted above");
        let (ask, ..) = self.reads.remove(&fetch).expect("named above");
        if fails {
            self.counted.lost += 1;
            return Some(Ended::NotRead(fetch));
        }
        self.counted.restored += 1;
        Some(Ended::Read(fetch, ask))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}
