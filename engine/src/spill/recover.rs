//! What earlier runs, and other processes, left on disk: segments, and which of this run's blocks are in them.
//!
//! Believes records, not blocks: those prove themselves when they are read. Owns the list by which content is found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fuelrail_base::{BlockId, Result, SampleId, ShardId};
use fuelrail_flow::{Known, Objects};
use fuelrail_plan::spill::{Mount, PAGE_BYTES, PAGE_RECORDS, PLACE_STEP_BYTES};
use fuelrail_wire::block::{Record, Scanned, SegmentHeader, journal_page};

use super::directory::{Directory, Named};
use super::segment::{Owned, Segment, Unfit};

/// Share of a segment that must be left for it to be appended to again.
const ROOM_SHARE: u64 = 8;

/// A segment with blocks of this data set.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    pub(crate) direct: bool,
    /// The lock, if its owner is dead.
    pub(crate) owned: Option<Owned>,
    /// What its owner may do with it.
    pub(crate) mount: Mount,
    /// Whose blocks are in it: first of whom most are.
    pub(crate) shares: Vec<(ShardId, Vec<Known>)>,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) segments: Vec<Found>,
    /// Files that are named as segments and are none, or cannot be read: one line each.
    pub(crate) flaws: Vec<String>,
}

/// Looks through a directory. Dead processes' segments with blocks of this data set are taken over, and those with no record
/// at all are removed; others stay as they are.
///
/// # Errors
/// `File` when the directory cannot be read.
pub(crate) fn recover(directory: &Directory, contents: &Contents<'_>, shards: u16) -> Result<Recovered> {
    let mut recovered = Recovered::default();
    for named in directory.named()?.iter().filter(|named| !named.name.new) {
        match look(named, contents, shards) {
            Ok(found) => recovered.segments.extend(found),
            Err(Unfit::Gone) => {}
            Err(Unfit::Flawed(why)) => {
                recovered.flaws.push(format!("disk: {} is left alone: {why}", named.path.display()));
            }
            Err(Unfit::Failed(error)) => recovered.flaws.push(format!("disk: {error}")),
        }
    }
    Ok(recovered)
}

fn look(named: &Named, contents: &Contents<'_>, shards: u16) -> Result<Option<Found>, Unfit> {
    let segment = Segment::open(&named.path, named.name)?;
    let scanned = segment.scan().map_err(Unfit::Failed)?;
    if scanned.records.is_empty() {
        // Nothing will ever be found in it. A living owner has only just made it, and keeps it.
        if let Ok(Some(owned)) = segment.try_own() {
            owned.remove().map_err(Unfit::Failed)?;
        }
        return Ok(None);
    }
    let mut shares: BTreeMap<ShardId, Vec<Known>> = BTreeMap::new();
    for known in contents.known(&scanned) {
        shares.entry(known.block.owner(shards)).or_default().push(known);
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|share| core::cmp::Reverse(share.1.len()));
    if shares.is_empty() {
        return Ok(None);
    }
    // A disk that takes no locks, or no writes, is read all the same.
    let owned = segment.try_own().unwrap_or(None);
    let (mount, direct) = (resume(segment.header.len, &scanned), segment.is_direct());
    Ok(Some(Found { path: segment.path, header: segment.header, direct, owned, mount, shares }))
}

/// Behind everything that was found, if that leaves enough: behind whole units, because a unit is written whole, and whole pages
/// of the journal, because what a torn one held is not known.
fn resume(len: u64, scanned: &Scanned) -> Mount {
    let end = scanned.end.next_multiple_of(PAGE_BYTES);
    let room = journal_page(len, scanned.pages).and_then(|page| page.checked_sub(end)).unwrap_or(0);
    if room < len / ROOM_SHARE {
        return Mount::Sealed;
    }
    Mount::Open { end, records: scanned.pages * PAGE_RECORDS }
}

/// Finds samples by the fingerprint of their content.
pub(crate) struct Contents<'o> {
    objects: &'o Objects,
    /// Start of each fingerprint and whose it is, in order: 16 bytes a sample, while segments are looked through.
    index: Vec<(u64, u32)>,
}

impl Contents<'_> {
    /// Of a data set; samples without a fingerprint are never found.
    pub(crate) fn new(objects: &Objects) -> Contents<'_> {
        let samples = u32::try_from(objects.catalog().samples()).unwrap_or(u32::MAX);
        let entry = |sample| Some((start(objects.fingerprint(SampleId(sample))?.0), sample));
        let mut index: Vec<(u64, u32)> = (0..samples).filter_map(entry).collect();
        index.sort_unstable();
        Contents { objects, index }
    }

    /// The block of this run a record is about, if there is one of the same content, place in it and length.
    pub(crate) fn find(&self, record: &Record) -> Option<Known> {
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
    pub(crate) fn known(&self, scanned: &Scanned) -> Vec<Known> {
        scanned.records.iter().filter_map(|record| self.find(record)).collect()
    }
}

fn start(fingerprint: [u8; 16]) -> u64 {
    fingerprint.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
