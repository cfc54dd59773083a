//! What is there at the start: segments of ended processes, which are taken over, and of living ones, which are read.

use core::cmp::Reverse;
use fuelrail_base::{ByteSize, ShardId};
use fuelrail_flow::{Contents, Known, Objects, SpillSetup, resume};
use fuelrail_io::may_write;
use fuelrail_plan::spill::Mount;
use fuelrail_wire::block::{SegmentHeader, SegmentName};

use super::{Kept, Work, segment_file, shares};
use crate::spill::directory::{Directory, Named, Owned, Segment, Unfit, named};

impl Work {
    /// Mounts what is there: ended processes' segments with blocks of this data set are taken over, as many as may be owned, and those
    /// with no record at all are removed; others stay as they are. A shard goes on with one segment that has room left; the others are full as
    /// they are.
    pub(in crate::spill) fn recover(&mut self, objects: &Objects, setups: &mut [SpillSetup]) {
        let (contents, mut left) = (Contents::new(objects), self.owned_max);
        let list = |directory: &Directory| (directory.own.path().to_owned(), named(&directory.own));
        let listed: Vec<_> = self.room.directories().map(list).collect();
        let mut all: Vec<(usize, Found)> = Vec::new();
        for (directory, (path, listed)) in listed.into_iter().enumerate() {
            let listed = listed.unwrap_or_else(|error| {
                self.give_up_directory(directory, &error);
                Vec::new()
            });
            let mut flawed = Vec::new();
            for named in listed.iter().filter(|named| !named.name.new) {
                match look(named, &contents, setups.len() as u16, &mut left) {
                    Ok(found) => all.extend(found.map(|found| (directory, found))),
                    Err(Unfit::Gone) => {}
                    Err(Unfit::Flawed(why)) => flawed.push(format!("{}: {why}", named.path().display())),
                    Err(Unfit::Failed(error)) => {
                        self.count(|facts| facts.failures += 1);
                        (self.tell)(&format!("disk: {error}"));
                    }
                }
            }
            if let Some(first) = flawed.first() {
                self.count(|facts| facts.failures += flawed.len() as u64);
                let (n, path) = (flawed.len(), path.display());
                (self.tell)(&format!(
                    "disk: {n} of the files in {path} are ignored, although they are named as segments: {first}; fuelrail cache rm \
                     {path} removes them"
                ));
            }
        }
        if self.room.over() > 0 {
            self.keep_to_the_limit(&mut all);
        }
        all.into_iter().for_each(|(directory, found)| self.mount(directory, found, setups));
    }

    /// Removes what ended processes left beyond the limit: first the oldest segments of other data sets, then those that have the fewest blocks
    /// of this one; none of these where what living processes have is beyond it alone.
    fn keep_to_the_limit(&mut self, all: &mut Vec<(usize, Found)>) {
        let _turns = self.room.turns();
        let in_use: Vec<SegmentName> = all.iter().map(|(_, found)| found.named.name).collect();
        let mut over = self.room.over();
        let (mut removed, freed) = self.room.reclaim(&in_use, over);
        over = over.saturating_sub(freed);
        let ours: u64 = all.iter().filter(|(_, found)| found.owned.is_some()).map(|(_, found)| found.named.len).sum();
        if (1..ours).contains(&over) {
            let blocks = |found: &Found| found.shares.iter().map(|share| share.1.len()).sum::<usize>();
            // Those with the most blocks first, and what is only read: they stay.
            all.sort_by_key(|(_, found)| Reverse(if found.owned.is_some() { blocks(found) } else { usize::MAX }));
            while over > 0
                && let Some((directory, found)) = all.pop_if(|(_, found)| found.owned.is_some())
            {
                over = over.saturating_sub(found.named.len);
                match found.owned.map(Owned::remove) {
                    Some(Err(error)) => self.give_up_directory(directory, &error),
                    _ => removed += 1,
                }
            }
        }
        if removed > 0 {
            self.count(|facts| facts.segments_reclaimed += removed);
            let limit = ByteSize(self.room.limits.limit_bytes);
            (self.tell)(&format!(
                "disk: {removed} segments were removed: those there took more than spill_limit, {limit}"
            ));
        }
    }

    /// Gives a segment to those whose blocks are in it: to own to the first of them, and to read to the others.
    fn mount(&mut self, directory: usize, found: Found, setups: &mut [SpillSetup]) {
        let Found { named, header, direct, mut owned, pages, mount, shares } = found;
        self.count(|facts| facts.segments_taken_over += u64::from(owned.is_some()));
        for (shard, known) in shares {
            let segments = &setups[usize::from(shard.0)].found;
            let has_open = segments.iter().any(|(file, _)| matches!(file.mount, Mount::Open { .. }));
            let mount = match (&owned, mount) {
                (None, _) => Mount::Foreign,
                (Some(_), Mount::Open { .. }) if has_open => Mount::Sealed,
                (Some(_), mount) => mount,
            };
            let key = self.keep(Kept { owned: owned.take(), named: named.clone(), directory, pages });
            if matches!(mount, Mount::Foreign) {
                self.foreign.entry(named.name).or_default().keys.insert(shard, key);
            }
            setups[usize::from(shard.0)].found.push((segment_file(key, &named, &header, direct, mount), known));
        }
    }
}

/// A segment with blocks of this data set.
#[derive(Debug)]
struct Found {
    named: Named,
    header: SegmentHeader,
    direct: bool,
    /// The lock, if its owner has ended.
    owned: Option<Owned>,
    /// Pages of its journal.
    pages: u64,
    /// What its owner may do with it.
    mount: Mount,
    /// Whose blocks are in it: first of whom most are.
    shares: Vec<(ShardId, Vec<Known>)>,
}

fn look(named: &Named, contents: &Contents<'_>, shards: u16, left: &mut usize) -> Result<Option<Found>, Unfit> {
    let segment = Segment::open(named)?;
    let scanned = segment.scan().map_err(Unfit::Failed)?;
    if scanned.records.is_empty() {
        // Nothing will ever be found in it. A living owner has only just made it, and keeps it.
        if let Ok(Some(owned)) = segment.try_own() {
            owned.remove().map_err(Unfit::Failed)?;
        }
        return Ok(None);
    }
    let shares = shares(contents, &scanned, shards);
    if shares.is_empty() {
        return Ok(None);
    }
    // What cannot be owned, on a disk that takes no locks or no writes, or for want of open files, is read all the same.
    let owned = if *left > 0 { segment.try_own().unwrap_or(None) } else { None };
    *left -= usize::from(owned.is_some());
    // One that is longer than files of this process may be is not written to: that would be its end.
    let is_writable = may_write(segment.header.len);
    let mount = if is_writable { resume(segment.header.len, &scanned) } else { Mount::Sealed };
    let direct = segment.is_direct();
    let pages = scanned.pages;
    Ok(Some(Found { named: segment.named, header: segment.header, direct, owned, pages, mount, shares }))
}
