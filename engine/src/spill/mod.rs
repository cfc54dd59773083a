//! The disk tier's files: directories, segments, locks, limits, and recovery.
//!
//! Owns the segment manager's thread. Shards write and read blocks by themselves, without waiting for it. The format is
//! `fuelrail_wire::block`'s.

mod directory;
mod inspection;
mod manager;

use std::path::PathBuf;
use std::sync::Arc;

use fuelrail_base::{ByteSize, Result, SampleId};
use fuelrail_flow::{Objects, SpillSetup};
use fuelrail_io::{VolumeRoom, file_bytes_max, may_write, open_files_max};
use fuelrail_wire::block::SegmentName;
use fuelrail_wire::{Endpoint, Scheme};

pub(crate) use self::directory::Directory;
use self::directory::{Named, Owned, Segment, Turn, Unfit, named, remove_flawed};
pub use self::inspection::{
    CacheDirectory, CacheSegment, CacheVerdict, RemovedCache, SegmentState, list_cache, remove_cache, verify_cache,
};
pub(crate) use self::manager::SegmentManager;
use crate::config::Config;
use crate::layout::Layout;

/// Opens the directories that can be opened, each once; a line about each of the others.
pub(crate) fn open_directories(paths: &[PathBuf], notices: &mut Vec<String>) -> Vec<Directory> {
    let mut directories: Vec<Directory> = Vec::new();
    for path in paths {
        match Directory::open(path, notices) {
            Ok(new) if directories.iter().any(|known| known.own.path() == new.own.path()) => {}
            Ok(new) => directories.push(new),
            Err(error) => notices.push(format!("disk: {} is not used: {error}", path.display())),
        }
    }
    directories
}

/// Receives one line about each failing disk.
type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What direct transfers to these directories are multiples of, bytes; `None` without any.
pub(crate) fn disk_unit(directories: &[Directory]) -> Option<u64> {
    directories.iter().map(|directory| u64::from(directory.unit())).max()
}

/// Leaves out what has no sense where the data set is a folder of this machine: a disk below it, and second requests.
pub(crate) fn settle_for(endpoint: &Endpoint, config: &mut Config, notices: &mut Vec<String>) {
    if endpoint.scheme != Scheme::File {
        return;
    }
    config.network.hedge_percent = 0;
    if !config.disk.dirs.is_empty() {
        config.disk.dirs.clear();
        notices.push(
            "spill_dirs: nothing is kept there, because the data set is on a disk of this machine already; cache_limit keeps \
             it in memory"
                .into(),
        );
    }
}

/// Starts the segment manager of these directories. Returns it and each shard's initial segments, and adds a notice about them.
pub(crate) fn start_segment_manager(
    config: &Config,
    layout: &Layout,
    directories: Vec<Directory>,
    objects: &Arc<Objects>,
    (notices, report): (&mut Vec<String>, Report),
) -> Result<(Option<SegmentManager>, Vec<Option<SpillSetup>>)> {
    if directories.is_empty() {
        return Ok((None, (0..layout.shards).map(|_| None).collect()));
    }
    let (limit, floor) = (config.disk.limit, config.disk.floor);
    let limits = Limits { limit_bytes: limit.map_or(0, |limit| limit.0), floor_bytes: floor.map(|floor| floor.0) };
    let catalog = objects.catalog();
    let longest = (0..catalog.samples()).map(|sample| catalog.size(SampleId(sample))).max().unwrap_or(0);
    let usable = usable(limits, &directories);
    let lengths = Lengths::new(usable, layout.shards, longest.min(catalog.block_bytes()));
    let (mut rooms, least) = (directories.len(), ByteSize(lengths.least));
    let mut no_room = |why: String| {
        notices.push(format!("disk: {why}, and a segment takes at least {least}: no room for new blocks"));
    };
    for directory in &directories {
        // One that cannot be asked says so when it is written to.
        let Some((volume, usable)) = usable_in(limits, directory) else { continue };
        if usable < lengths.least {
            let (path, floor) = (directory.own.path().display(), ByteSize(limits.floor(volume)));
            no_room(format!("{path} has {} free, spill_floor is {floor}", ByteSize(volume.free_bytes)));
            rooms -= 1;
        }
    }
    if (1..lengths.least).contains(&limits.limit_bytes) {
        no_room(format!("spill_limit is {}", ByteSize(limits.limit_bytes)));
        rooms = 0;
    }
    if !may_write(lengths.least) {
        // The first that is to be made tells.
        rooms = 0;
    }
    // Ranks that keep blocks for each other keep a part each.
    let ranks = if config.peers.addresses.is_empty() { 1 } else { u64::from(config.world) };
    let wanted = usable.min(catalog.total_bytes() / ranks);
    notices.extend(few_files(open_files_max(), lengths.usual, wanted));
    let (manager, setups) = SegmentManager::start((limits, lengths, layout.shards), directories, objects, report)?;
    let known = setups.iter().flat_map(|setup| &setup.found);
    let (segments, blocks) = known.fold((0, 0), |(s, b), (_, known)| (s + 1, b + known.len()));
    let new = if rooms > 0 { format!("; new ones have {}", ByteSize(lengths.usual)) } else { String::new() };
    notices.push(format!("disk: {blocks} blocks of this data set found in {segments} segments{new}"));
    Ok((Some(manager), setups.into_iter().map(Some).collect()))
}

/// Of the files that this process may have open, owned segments are at most one in so many, …
const OWNED_SHARE: u64 = 4;
/// … and those that its shards keep open to read and write one in so many: connections and the program want some, too.
const READ_SHARE: u64 = 8;

/// Segments that this process owns at most.
fn owned_max(open_files: Option<u64>) -> usize {
    open_files.map_or(usize::MAX, |files| usize::try_from(files / OWNED_SHARE).unwrap_or(usize::MAX))
}

/// Segments that a shard keeps open, but for those in use.
fn read_max(open_files: Option<u64>, shards: u16) -> usize {
    let share = |files: u64| files / READ_SHARE / u64::from(shards.max(1));
    open_files.map_or(usize::MAX, |files| usize::try_from(share(files)).unwrap_or(usize::MAX))
}

/// What is said where so many bytes are more than segments of this length hold, as many as may be owned.
fn few_files(open_files: Option<u64>, segment_bytes: u64, bytes: u64) -> Option<String> {
    let (files, most) = (open_files?, owned_max(open_files));
    let held = segment_bytes.saturating_mul(most as u64);
    (held < bytes).then(|| {
        let (held, bytes) = (ByteSize(held), ByteSize(bytes));
        format!(
            "disk: {held} instead of {bytes}, in {most} segments, a quarter of the {files} files that this process may \
             open: raise that (ulimit -n)"
        )
    })
}

/// Bytes that segments may take of these directories' file systems.
fn usable(limits: Limits, directories: &[Directory]) -> u64 {
    let usable = directories.iter().filter_map(|directory| usable_in(limits, directory));
    let free: u64 = usable.map(|(_, usable)| usable).sum();
    if limits.limit_bytes == 0 { free } else { limits.limit_bytes.min(free) }
}

/// The same of one directory, with its file system's room; `None` where that cannot be asked.
fn usable_in(limits: Limits, directory: &Directory) -> Option<(VolumeRoom, u64)> {
    let volume = directory.own.room().ok()?;
    // What segments take already is theirs.
    let held: u64 = named(&directory.own).into_iter().flatten().map(|named| named.len).sum();
    Some((volume, (volume.free_bytes + held).saturating_sub(limits.floor(volume))))
}

/// How much disk may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of all segments in all directories, of this and every other process; zero: what the floor leaves.
    pub(crate) limit_bytes: u64,
    /// Bytes to leave free on every file system; `None`: a twentieth of it.
    pub(crate) floor_bytes: Option<u64>,
}

/// Default share of a file system that is left free.
const FLOOR_SHARE: u64 = 20;

impl Limits {
    /// Bytes of this file system to leave free.
    fn floor(self, volume: VolumeRoom) -> u64 {
        self.floor_bytes.unwrap_or(volume.total_bytes / FLOOR_SHARE)
    }

    /// Whether so many bytes can be taken of this file system and its floor stays free.
    fn leaves(self, volume: VolumeRoom, bytes: u64) -> bool {
        volume.free_bytes >= self.floor(volume).saturating_add(bytes)
    }
}

/// Disk space for segments: the directories, the limit over all of them, and the floor of each file system. Counts every file named as a
/// segment, of any process: the limit is for the disk. Removes segments of ended processes before it reports that there is no room.
#[derive(Debug)]
pub(crate) struct Room {
    directories: Vec<(Directory, bool)>,
    limits: Limits,
    /// Which directory the next segment goes to, if it can.
    turn: usize,
}

impl Room {
    pub(crate) fn new(directories: Vec<Directory>, limits: Limits) -> Room {
        let directories = directories.into_iter().map(|directory| (directory, true)).collect();
        Room { directories, limits, turn: 0 }
    }

    pub(crate) fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.directories.iter().map(|directory| &directory.0)
    }

    /// Makes nothing in this directory any more. Its path, the first time.
    pub(crate) fn give_up(&mut self, directory: usize) -> Option<PathBuf> {
        let (directory, works) = &mut self.directories[directory];
        core::mem::replace(works, false).then(|| directory.own.path().to_owned())
    }

    /// Makes a segment in the next directory that has room, and says which one that was, or failed. `None` when there is
    /// no room in any: neither free nor, with `reclaim`, held by segments of ended processes other than those given.
    pub(crate) fn make(
        &mut self,
        len: u64,
        reclaim: Option<&[SegmentName]>,
        mut reclaimed: impl FnMut(),
    ) -> Option<(usize, Result<Owned>)> {
        let _turns = self.turns();
        loop {
            for n in 0..self.directories.len() {
                let at = (self.turn + n) % self.directories.len();
                match self.has_room(at, len) {
                    Ok(true) => {
                        self.turn = at + 1;
                        match self.directories[at].0.make(len) {
                            // Another process filled the disk meanwhile.
                            Ok(None) => {}
                            Ok(Some(owned)) => return Some((at, Ok(owned))),
                            Err(error) => return Some((at, Err(error))),
                        }
                    }
                    Ok(false) => {}
                    Err(error) => return Some((at, Err(error))),
                }
            }
            if reclaim.is_none_or(|in_use| self.reclaim(in_use, 1).0 == 0) {
                return None;
            }
            reclaimed();
        }
    }

    /// No other process counts or makes segments in these directories while they are held. Processes lock them in one order, so they
    /// cannot deadlock.
    fn turns(&self) -> Vec<Turn> {
        let mut order: Vec<&Directory> =
            self.directories.iter().filter(|directory| directory.1).map(|directory| &directory.0).collect();
        order.sort_unstable_by(|a, b| a.own.path().cmp(b.own.path()));
        order.iter().map(|directory| directory.turn()).collect()
    }

    /// Bytes that what is there takes beyond the limit, as when that was lowered.
    fn over(&self) -> u64 {
        match self.limits.limit_bytes {
            0 => 0,
            limit => self.used_bytes().saturating_sub(limit),
        }
    }

    /// A directory, with the free bytes of its file system and its floor, where the limit allows for a further segment of `len` bytes and no file
    /// system has room for one.
    fn full(&self, len: u64) -> Option<(PathBuf, u64, u64)> {
        let working = self.directories.iter().filter(|directory| directory.1).map(|directory| &directory.0.own);
        let rooms: Vec<_> = working.filter_map(|own| Some((own, own.room().ok()?))).collect();
        let is_full = self.is_within(len) && rooms.iter().all(|(_, volume)| !self.limits.leaves(*volume, len));
        let (own, volume) = rooms.first().filter(|_| is_full)?;
        Some((own.path().to_owned(), volume.free_bytes, self.limits.floor(*volume)))
    }

    /// Whether the limit allows for a further segment of so many bytes.
    fn is_within(&self, len: u64) -> bool {
        self.limits.limit_bytes == 0 || self.used_bytes().saturating_add(len) <= self.limits.limit_bytes
    }

    fn has_room(&self, at: usize, len: u64) -> Result<bool> {
        let (directory, works) = &self.directories[at];
        if !works {
            return Ok(false);
        }
        if let Some(refusal) = &directory.refusal {
            return Err(refusal.clone());
        }
        let volume = directory.own.room()?;
        Ok(self.is_within(len) && self.limits.leaves(volume, len))
    }

    /// Bytes of everything that is named as a segment. A directory that cannot be read says so when it is written to.
    fn used_bytes(&self) -> u64 {
        let all = self.directories().filter_map(|directory| named(&directory.own).ok());
        all.flatten().map(|named| named.len).sum()
    }

    /// Removes the oldest segments whose owning processes have ended; before those, what is named as one and is none. Until so many bytes are
    /// free, or there are no more. Returns how many segments and bytes that were.
    fn reclaim(&self, in_use: &[SegmentName], wanted: u64) -> (u64, u64) {
        let working = self.directories.iter().filter(|directory| directory.1);
        let found = working.filter_map(|directory| named(&directory.0.own).ok()).flatten();
        let free = |named: &Named| !named.name.new && !in_use.contains(&named.name);
        // One is open at a time: there may be more of them than this process may open files.
        let created = |named: Named| match Segment::open(&named) {
            Ok(segment) => Some((segment.header.created_s, named)),
            Err(Unfit::Flawed(_)) => Some((0, named)),
            Err(_) => None,
        };
        let mut segments: Vec<(u64, Named)> = found.filter(free).filter_map(created).collect();
        segments.sort_unstable_by_key(|segment| segment.0);
        let is_removed = |named: &Named| match Segment::open(named) {
            Ok(segment) => segment.try_own().ok().flatten().is_some_and(|owned| owned.remove().is_ok()),
            Err(Unfit::Flawed(_)) => remove_flawed(named, false).is_ok_and(|removed| removed),
            Err(_) => false,
        };
        let (mut removed, mut bytes) = (0, 0);
        for (_, named) in &segments {
            if bytes >= wanted {
                break;
            }
            if is_removed(named) {
                (removed, bytes) = (removed + 1, bytes + named.len);
            }
        }
        (removed, bytes)
    }
}

/// Lengths of new segments, bytes: powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lengths {
    /// While there is room.
    pub(crate) usual: u64,
    /// At least, to use up what is left: room for a block of any length.
    pub(crate) least: u64,
}

impl Lengths {
    /// Usually a sixteenth of a shard's share of the disk, so that little is lost when one is trimmed, with room for several
    /// blocks. No block is longer than `block_bytes`.
    pub(crate) fn new(usable: u64, shards: u16, block_bytes: u64) -> Lengths {
        use fuelrail_base::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_PAGE_BYTES};
        let share = usable / u64::from(shards.max(1));
        let room_for = |bytes: u64| bytes.next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let at_most = |bytes: u64| if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
        // The head and the journal of a segment for one block have a page each.
        let least = room_for(block_bytes + 2 * SEGMENT_PAGE_BYTES as u64);
        // Of few open files each has to hold more.
        let share_of_file = usable / owned_max(open_files_max()).max(1) as u64;
        let usual = at_most(share / 16).max(room_for(4 * block_bytes)).max(room_for(share_of_file)).min(at_most(share));
        // A write beyond the limit of a file's length would be the end of the process.
        let most = file_bytes_max().map_or(SEGMENT_BYTES_MAX, at_most).clamp(least, SEGMENT_BYTES_MAX);
        Lengths { usual: usual.clamp(least, most), least }
    }

    /// The usual one, its half, and so on.
    pub(crate) fn halves(self) -> impl Iterator<Item = u64> {
        core::iter::successors(Some(self.usual), move |len| Some(len / 2).filter(|half| *half >= self.least))
    }
}

#[cfg(test)]
mod tests;
