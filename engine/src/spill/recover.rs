//! What earlier runs, and other processes, left on disk: segments, and which of this run's blocks are in them.
//!
//! Believes records, not blocks: those prove themselves when they are read. Owns nothing.

use std::collections::BTreeMap;

use fuelrail_base::{Result, ShardId};
use fuelrail_flow::{Contents, Known, resume};
use fuelrail_plan::spill::Mount;
use fuelrail_wire::block::SegmentHeader;

use super::directory::Directory;
use super::segment::{Named, Owned, Segment, Unfit};

/// A segment with blocks of this data set.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) named: Named,
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
pub(crate) fn recover(directory: &Directory, contents: &Contents<'_>, shards: u16) -> Result<Recovered> {
    let mut recovered = Recovered::default();
    for named in directory.named()?.iter().filter(|named| !named.name.new) {
        match look(named, contents, shards) {
            Ok(found) => recovered.segments.extend(found),
            Err(Unfit::Gone) => {}
            Err(Unfit::Flawed(why)) => {
                recovered.flaws.push(format!("disk: {} is left alone: {why}", named.path().display()));
            }
            Err(Unfit::Failed(error)) => recovered.flaws.push(format!("disk: {error}")),
        }
    }
    Ok(recovered)
}

fn look(named: &Named, contents: &Contents<'_>, shards: u16) -> Result<Option<Found>, Unfit> {
    let segment = Segment::open(named)?;
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
    Ok(Some(Found { named: segment.named, header: segment.header, direct, owned, mount, shares }))
}
