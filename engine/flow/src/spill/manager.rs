//! What a shard and the segment manager tell each other: two bounded queues, requests up and grants down, and the journal of a segment that
//! was found. Neither side blocks.
//!
//! The segment manager has a thread of its own, because making a file may take long. Never opens a file.

use crate::objects::Objects;
use fuelrail_base::{BlockId, Duration, Error, SampleId};
use fuelrail_io::{OwnDirectory, Receiver, Sender, channel};
use fuelrail_plan::spill::{Mount, PAGE_BYTES, PAGE_RECORDS, PLACE_STEP_BYTES};
use fuelrail_wire::block::{Record, Scanned, journal_page};
use std::path::PathBuf;
use std::sync::Arc;

/// Requests and grants that may wait at a time: a shard requests one segment after the other, and trims rarely.
const QUEUE_ENTRIES: usize = 256;

/// A segment's file, as the segment manager grants it to a shard.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    /// The manager's name for it.
    pub key: u64,
    /// What its records carry ([`SegmentHeader::mark`](fuelrail_wire::block::SegmentHeader::mark)).
    pub mark: u64,
    /// Where it is.
    pub path: PathBuf,
    /// The directory it is opened in, by its name alone; `None` where the path says everything, in a simulated world.
    pub directory: Option<Arc<OwnDirectory>>,
    /// Its length, bytes.
    pub len: u64,
    /// Its file system offers direct access.
    pub direct: bool,
    /// What may be done with it.
    pub mount: Mount,
}

/// A block that a segment's journal lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The block, by this run's catalog.
    pub block: BlockId,
    /// Its first byte in the segment.
    pub place: u64,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
    /// CRC-32C of the whole object, if the server promised one and the object has several blocks.
    pub promised: Option<u32>,
}

/// A message of a shard to the segment manager.
#[derive(Clone, Debug)]
pub enum SegmentRequest {
    /// An empty segment will be needed: with `reclaim`, if need be in the place of one of an ended process.
    Another {
        /// See there.
        reclaim: bool,
    },
    /// Nothing in this segment is needed any more: unlink it.
    Trimmed(u64),
    /// A write to this segment failed, or it could not be opened or read.
    Failed(u64, Error),
    /// The block at this place of the segment is not what was written.
    Rotten(u64, u64),
    /// An operation on this segment has been under way for so long.
    Unanswered(u64, Duration),
}

/// What the segment manager says: replies to [`SegmentRequest::Another`], and news.
#[derive(Clone, Debug)]
pub enum SegmentGrant {
    /// A segment, empty or with room left.
    Segment(SegmentFile),
    /// The journal of another process's segment lists these blocks of the shard by now. The segment may be known, and most of them, too.
    Listed(SegmentFile, Vec<Known>),
    /// None is available until one is trimmed.
    NoMore,
    /// The file of this segment, which the shard may know, was removed: its room comes back when it is closed.
    Removed(u64),
}

/// One side's ends of the two queues between a shard and the segment manager.
pub struct Link<S, R> {
    /// What it sends.
    pub to: Sender<S>,
    /// What it receives.
    pub from: Receiver<R>,
}

/// The shard's ends.
pub type ManagerLink = Link<SegmentRequest, SegmentGrant>;

/// The segment manager's.
pub type ShardLink = Link<SegmentGrant, SegmentRequest>;

/// The two queues between one shard and the segment manager.
pub fn segment_queues() -> (ManagerLink, ShardLink) {
    let ((request, requests), (grant, grants)) = (channel(QUEUE_ENTRIES), channel(QUEUE_ENTRIES));
    (Link { to: request, from: grants }, Link { to: grant, from: requests })
}

/// Share of a segment that must be left for it to be appended to again.
const ROOM_SHARE: u64 = 8;

/// Where the owner of a segment of `len` bytes goes on, if what was found leaves enough of it: after whole units, because a unit
/// is written whole, and whole pages of the journal, because what a torn one held is not known.
pub fn resume(len: u64, scanned: &Scanned) -> Mount {
    let end = scanned.end.next_multiple_of(PAGE_BYTES);
    let room = journal_page(len, scanned.pages).and_then(|page| page.checked_sub(end)).unwrap_or(0);
    if room < len / ROOM_SHARE {
        return Mount::Sealed;
    }
    Mount::Open { end, records: scanned.pages * PAGE_RECORDS }
}

/// Finds samples by the fingerprint of their content.
///
/// Trusts records, not blocks: those are verified when they are read.
pub struct Contents<'o> {
    objects: &'o Objects,
    /// Start of each fingerprint and whose it is, in order: 16 bytes a sample, while segments are looked through.
    index: Vec<(u64, u64)>,
}

impl Contents<'_> {
    /// Of a data set; samples without a fingerprint are never found.
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
    pub fn known(&self, scanned: &Scanned) -> Vec<Known> {
        scanned.records.iter().filter_map(|record| self.find(record)).collect()
    }
}

fn start(fingerprint: [u8; 16]) -> u64 {
    fingerprint.iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
