//! What goes wrong while a run goes on, and is told: damaged blocks, removed segments, and disks that are full or do not answer.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use fuelrail_base::ByteSize;
use fuelrail_flow::SegmentGrant;
use fuelrail_wire::block::SegmentName;

use super::Work;
use crate::spill::directory::Owned;

impl Work {
    /// Gives up segments that somebody has removed: as long as they are open their room is taken, and nobody sees it.
    pub(in crate::spill) fn let_go_of_removed(&mut self) {
        let mut ours: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let mut count = |owned: &Owned| *ours.entry(owned.0.named.directory.path().to_owned()).or_default() += 1;
        self.ready.retain(|(_, owned)| {
            let is_there = !owned.is_removed();
            if !is_there {
                count(owned);
            }
            is_there
        });
        let gone = self.kept.values().filter(|kept| kept.is_removed()).map(|kept| kept.named.name);
        let gone: HashSet<SegmentName> = gone.collect();
        let keys = self.kept.iter().filter(|(_, kept)| gone.contains(&kept.named.name)).map(|(key, _)| *key);
        for key in keys.collect::<Vec<u64>>() {
            if self.shards.iter().any(|shard| shard.to.room() == 0 && !shard.to.is_closed()) {
                // The next look goes on.
                break;
            }
            for shard in &mut self.shards {
                // One that has ended has closed it.
                let _ = shard.to.send(SegmentGrant::Removed(key));
            }
            self.kept.remove(&key).and_then(|kept| kept.owned).iter().for_each(&mut count);
        }
        for (path, n) in ours {
            (self.tell)(&format!(
                "disk: {n} segments of this run were removed from {}; their blocks are fetched again and kept in new ones",
                path.display()
            ));
        }
    }

    /// Says once that there is no room for a further segment, unless it is the limit that is reached.
    pub(super) fn tell_of_full(&mut self) {
        let full = if self.told_full { None } else { self.room.full(self.lengths.least) };
        let Some((path, free, floor)) = full else { return };
        self.told_full = true;
        let (path, free, floor) = (path.display(), ByteSize(free), ByteSize(floor));
        (self.tell)(&format!(
            "disk: {path} has {free} free, and spill_floor is {floor}: further blocks are kept only in the place of others"
        ));
    }

    /// The block at this place of a segment is damaged: no later run is to find it. What a living process wrote, this one included, stays: its journal
    /// is still written to.
    pub(in crate::spill) fn rotten(&mut self, key: u64, place: u64) {
        let Some(kept) = self.kept.get(&key) else { return };
        let (directory, path) = (kept.directory, kept.named.path());
        let mut same = self.kept.values().filter(|known| known.named.name == kept.named.name);
        let refused = same.find_map(|known| known.owned.as_ref()?.forget(known.pages, place).err());
        if self.rotten_in.insert(directory) {
            let (path, dir) = (path.display(), path.parent().unwrap_or(&path).display());
            (self.tell)(&format!(
                "disk: a block in {path} is not what was written, and is fetched again; disk.lost counts those that follow: look at the \
                 kernel's log (dmesg), and at all of them with fuelrail cache verify {dir}"
            ));
        }
        if let Some(error) = refused {
            self.give_up_directory(directory, &error);
        }
    }

    /// An operation on a segment has been under way for very long.
    pub(super) fn unanswered(&mut self, key: u64, waited: Duration) {
        let Some(kept) = self.kept.get(&key) else { return };
        if self.unanswered_in.insert(kept.directory) {
            (self.tell)(&format!(
                "disk: {} has not answered for {} s: look at the disk, and at the kernel's log (dmesg); blocks that are asked of it wait",
                kept.named.directory.path().display(),
                waited.as_secs()
            ));
        }
    }
}
