//! The journal of a segment that was found: which blocks of this run it holds, and where to append to it.
//!
//! Trusts records, not blocks: those are verified when they are read. Owns the list by which content is found.

use super::Known;
use crate::objects::Objects;
use fuelrail_base::{BlockId, SampleId};
use fuelrail_plan::spill::{Mount, PAGE_BYTES, PAGE_RECORDS, PLACE_STEP_BYTES};
use fuelrail_wire::block::{Record, Scanned, journal_page};

/// Share of a segment that must be left for it to be appended to again.
const ROOM_SHARE: u64 = 8;

/// Where the owner of a segment of `len` bytes goes on, if what was found leaves enough of it: behind whole units, because a unit
/// is written whole, and whole pages of the journal, because what a torn one held is not known.
#[must_use]
pub fn resume(len: u64, scanned: &Scanned) -> Mount {
    let end = scanned.end.next_multiple_of(PAGE_BYTES);
    let room = journal_page(len, scanned.pages).and_then(|page| page.checked_sub(end)).unwrap_or(0);
    if room < len / ROOM_SHARE {
        return Mount::Sealed;
    }
    Mount::Open { end, records: scanned.pages * PAGE_RECORDS }
}

/// Finds samples by the fingerprint of their content.
pub struct Contents<'o> {
    objects: &'o Objects,
    /// Start of each fingerprint and whose it is, in order: 16 bytes a sample, while segments are looked through.
    index: Vec<(u64, u64)>,
}

impl Contents<'_> {
    /// Of a data set; samples without a fingerprint are never found.
    #[must_use]
    pub fn new(objects: &Objects) -> Contents<'_> {
        let entry = |sample| Some((start(objects.fingerprint(SampleId(sample))?.0), sample));
        let mut index: Vec<(u64, u64)> = (0..objects.catalog().samples()).filter_map(entry).collect();
        index.sort_unstable();
        Contents { objects, index }
    }

    /// The block of this run a record is about, if there is one of the same content, place in it and length.
    fn find(&self, record: &Record) -> Option<Known> {
        let catalog = self.objects.catalog();
        let key = start(record.fingerprint.0);
        let from = self.index.partition_point(|entry| entry.0 < key);
        let same = self.index[from..].iter().take_while(|entry| entry.0 == key).map(|entry| SampleId(entry.1));
        let sample = same.into_iter().find(|sample| self.objects.fingerprint(*sample) == Some(record.fingerprint))?;
        let index = u32::try_from(record.first / catalog.block_bytes()).ok()?;
        let block = BlockId { sample, index };
        let fits = index < catalog.blocks(sample)
            && catalog.block_first(block) == record.first
            && catalog.block_len(block) == u64::from(record.len)
            && record.place.is_multiple_of(PLACE_STEP_BYTES);
        let Record { place, crc32c, promised, .. } = *record;
        fits.then_some(Known { block, place, crc32c, promised })
    }

    /// All of a segment's.
    #[must_use]
    pub fn known(&self, scanned: &Scanned) -> Vec<Known> {
        scanned.records.iter().filter_map(|record| self.find(record)).collect()
    }
}

fn start(fingerprint: [u8; 16]) -> u64 {
    fingerprint.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
