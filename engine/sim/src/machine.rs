//! The machine all ranks run on, as far as its disk goes: what lies there before the first life, what befalls it within one and
//! between two.

use crate::dataset::DataSet;
use crate::scenario::{DiskShape, SEGMENT_BYTES};
use crate::segment_manager::{self, DIRECTORY, OWNED_ELSEWHERE};
use fuelrail_base::prng::Prng;
use fuelrail_base::{BlockId, Duration, SampleId};
use fuelrail_flow::Objects;
use fuelrail_io::{SimDisk, SimDiskFailure, SimWorld};
use fuelrail_wire::block::{Fingerprint, PAGE_BYTES, RECORD_BYTES, Record, SegmentName};
use std::path::Path;

/// Blocks of a segment that was there before: one page of its journal.
const PLANTED_MAX: usize = PAGE_BYTES / RECORD_BYTES;

/// What is found in a segment of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// This data set's blocks.
    True,
    /// What its journal says are this data set's blocks, and are not.
    False,
    /// Another data set's blocks.
    Strange,
}

/// Gives the machine its disk: a new one, or that of the machine before with the bits that flipped meanwhile.
pub(crate) fn start(world: &SimWorld, shape: &DiskShape, before: Option<&SimWorld>, prng: &mut Prng) -> u64 {
    let latency_max = Duration::from_micros(shape.latency_us_max);
    let mut flipped = 0;
    if let Some(before) = before {
        world.inherit_disk(before);
        let files = world.files();
        for _ in 0..if files.is_empty() { 0 } else { shape.rot_bits } {
            flipped += u64::from(world.rot(&files[prng.below(files.len() as u64) as usize]));
        }
    }
    world.set_disk(SimDisk { capacity_bytes: shape.capacity_bytes, latency_max });
    flipped
}

/// Puts there what others left: segments that a living process owns, some with blocks of this data set, and files that only
/// look like segments. A disk that is too small for them has fewer.
pub(crate) fn litter(world: &SimWorld, unit: u64, objects: &Objects, set: &DataSet, prng: &mut Prng) {
    let id = |low: u128, prng: &mut Prng| u128::from(prng.next()) << 64 | u128::from(prng.next() & !0xFF) | low;
    for (content, low) in [
        (Content::True, OWNED_ELSEWHERE),
        (Content::False, OWNED_ELSEWHERE),
        (Content::Strange, 0),
        (Content::False, 0),
    ] {
        let id = id(low, prng);
        segment_manager::make(world, id, unit, |bytes| plant(bytes, id as u64, objects, set, content, prng));
    }
    for len in [0, 100, SEGMENT_BYTES] {
        let path = Path::new(DIRECTORY).join(SegmentName { id: id(0, prng), new: false }.to_string());
        let garbage: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| prng.next().to_le_bytes()).collect();
        // A full disk has no room for litter either.
        drop(world.write_file(&path, &garbage[..len as usize]));
    }
}

fn plant(bytes: &mut [u8], mark: u64, objects: &Objects, set: &DataSet, content: Content, prng: &mut Prng) {
    let catalog = objects.catalog();
    let journal = bytes.len() - PAGE_BYTES;
    let (mut place, mut records) = (PAGE_BYTES, 0);
    for sample in (0..catalog.samples()).map(SampleId) {
        let Some(fingerprint) = objects.fingerprint(sample) else { return };
        for index in 0..catalog.blocks(sample) {
            let block = BlockId { sample, index };
            let (first, len) = (catalog.block_first(block), catalog.block_len(block) as usize);
            if records == PLANTED_MAX || place + len > journal {
                return;
            }
            let there = &mut bytes[place..place + len];
            there.copy_from_slice(&set.bytes(sample)[first as usize..first as usize + len]);
            let crc32c = crc32c::crc32c(there);
            if content == Content::False {
                there.iter_mut().for_each(|byte| *byte = prng.next() as u8);
            }
            let fingerprint = if content == Content::Strange { Fingerprint([7; 16]) } else { fingerprint };
            let (len, sequence) = (len as u32, records as u32);
            let record =
                Record { fingerprint, first, len, place: place as u64, crc32c, promised: None, sequence, mark };
            let at = journal + records * RECORD_BYTES;
            bytes[at..at + RECORD_BYTES].copy_from_slice(&record.encode());
            (place, records) = ((place + len as usize).next_multiple_of(PAGE_BYTES), records + 1);
        }
    }
}

/// The part of a life in which the disk fails begins or ends.
pub(crate) fn befall(world: &SimWorld, shape: &DiskShape, event: u64) {
    let Some(failure) = shape.failure else { return };
    let begins = SimDiskFailure { reads: failure.reads, writes: failure.writes };
    if event == failure.from_event {
        world.fail_disk(Path::new(DIRECTORY), begins);
    } else if event == failure.from_event + failure.events {
        world.fail_disk(Path::new(DIRECTORY), SimDiskFailure::default());
    }
}
