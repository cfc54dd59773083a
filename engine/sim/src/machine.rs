//! The machine all ranks run on, as far as its disk goes: what lies there before the first life, what befalls it within one and
//! between two.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fuelrail_base::prng::Prng;
use fuelrail_base::{BlockId, Duration, Kind, SampleId, ShardId};
use fuelrail_flow::{
    Contents, Known, Objects, SegmentFile, SegmentGrant, SegmentRequest, ShardLink, SpillSetup, resume, segment_queues,
};
use fuelrail_io::{SimDisk, SimDiskFailure, SimWorld};
use fuelrail_plan::spill::Mount;
use fuelrail_wire::block::{Fingerprint, PAGE_BYTES, RECORD_BYTES, Record, Scan, Scanned, SegmentHeader, SegmentName};

use crate::dataset::DataSet;
use crate::scenario::{DiskShape, SEGMENT_BYTES};

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
        make(world, id, unit, |bytes| plant(bytes, id as u64, objects, set, content, prng));
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

/// Where segments lie.
pub(crate) const DIRECTORY: &str = "/cache";
/// Segments whose number ends in this belong to another process that is still running, and are never taken over.
pub(crate) const OWNED_ELSEWHERE: u128 = 0xFF;

/// One rank's segment manager.
pub(crate) struct SegmentManager {
    world: SimWorld,
    shape: DiskShape,
    channels: Vec<ShardLink>,
    /// Segments its shards know, by key; `true`: owned.
    kept: BTreeMap<u64, (PathBuf, bool)>,
    next_key: u64,
    prng: Prng,
    /// Nothing is made any more: the disk failed.
    given_up: bool,
    /// Segments given up by shards and removed.
    pub(crate) trimmed: u64,
}

impl SegmentManager {
    /// For so many shards of rank `rank` of `ranks`; also what each shard finds.
    pub(crate) fn new(
        world: &SimWorld,
        shape: &DiskShape,
        objects: &Objects,
        (rank, ranks): (u64, u64),
        shards: u16,
        prng: Prng,
    ) -> (SegmentManager, Vec<SpillSetup>) {
        let (links, channels): (Vec<_>, _) = (0..shards).map(|_| segment_queues()).unzip();
        let setup = |channel| SpillSetup { channel, unit: shape.unit, files_max: 8, found: Vec::new() };
        let mut setups: Vec<SpillSetup> = links.into_iter().map(setup).collect();
        let mut manager = SegmentManager {
            world: world.clone(),
            shape: shape.clone(),
            channels,
            kept: BTreeMap::new(),
            next_key: 0,
            prng,
            given_up: false,
            trimmed: 0,
        };
        let contents = Contents::new(objects);
        for (path, name) in segments(world) {
            let is_ours = name.id & 0xFF != OWNED_ELSEWHERE && (name.id >> 8) as u64 % ranks == rank;
            manager.find(&path, name, is_ours, &contents, &mut setups);
        }
        (manager, setups)
    }

    /// Mounts a segment that was there, where it is one and has blocks of this data set.
    fn find(&mut self, path: &Path, name: SegmentName, mut owned: bool, c: &Contents<'_>, setups: &mut [SpillSetup]) {
        let Some((header, scanned)) = look(&self.world, path, name) else { return };
        if scanned.records.is_empty() && owned {
            self.world.remove_file(path);
        }
        let mut shares: BTreeMap<ShardId, Vec<Known>> = BTreeMap::new();
        for known in c.known(&scanned) {
            shares.entry(known.block.owner(setups.len() as u16)).or_default().push(known);
        }
        for (shard, known) in shares {
            let found = &mut setups[usize::from(shard.0)].found;
            let has_open = found.iter().any(|(file, _)| matches!(file.mount, Mount::Open { .. }));
            let mount = match (owned, resume(header.len, &scanned)) {
                (false, _) => Mount::Foreign,
                (true, Mount::Open { .. }) if has_open => Mount::Sealed,
                (true, mount) => mount,
            };
            let (mark, path) = (header.mark(), path.to_owned());
            let key = self.keep(path.clone(), core::mem::take(&mut owned));
            found.push((SegmentFile { key, mark, path, directory: None, len: header.len, direct: true, mount }, known));
        }
    }

    fn keep(&mut self, path: PathBuf, owned: bool) -> u64 {
        self.kept.insert(self.next_key, (path, owned));
        self.next_key += 1;
        self.next_key - 1
    }

    /// Carries out the shards' requests. True when there were any.
    pub(crate) fn work(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.channels.len() {
            while let Some(request) = self.channels[at].from.recv() {
                any = true;
                match request {
                    SegmentRequest::Another { .. } => {
                        let grant = self.another().map_or(SegmentGrant::NoMore, SegmentGrant::Segment);
                        // A shard that has ended needs none.
                        let _ = self.channels[at].to.send(grant);
                    }
                    SegmentRequest::Rotten(..) | SegmentRequest::Unanswered(..) => {}
                    SegmentRequest::Trimmed(key) => {
                        self.trimmed += 1;
                        if let Some((path, true)) = self.kept.remove(&key) {
                            self.world.remove_file(&path);
                        }
                    }
                    // No descriptor was left to open it: its shard has given it up, its disk is sound, and it stays for the next run.
                    SegmentRequest::Failed(key, error) if error.kind() == Kind::Environment => {
                        self.kept.remove(&key);
                    }
                    SegmentRequest::Failed(key, _) => {
                        // A segment of others may be gone; one of ours has failed with its disk.
                        self.given_up |= self.kept.get(&key).is_some_and(|(_, owned)| *owned);
                    }
                }
            }
        }
        any
    }

    fn another(&mut self) -> Option<SegmentFile> {
        let owned = self.kept.values().filter(|(_, owned)| *owned).count() as u64;
        if self.given_up || owned >= self.shape.segments_max {
            return None;
        }
        let id = u128::from(self.prng.next()) << 64 | u128::from(self.prng.next() & !0xFF);
        let (path, mark) = make(&self.world, id, self.shape.unit, |_| ())?;
        let key = self.keep(path.clone(), true);
        let mount = Mount::Open { end: PAGE_BYTES as u64, records: 0 };
        Some(SegmentFile { key, mark, path, directory: None, len: SEGMENT_BYTES, direct: true, mount })
    }
}

/// What a journal says of a file that is named as a segment; `None` when it is none.
fn look(world: &SimWorld, path: &Path, name: SegmentName) -> Option<(SegmentHeader, Scanned)> {
    let bytes = world.read_file(path).ok()?;
    let header = SegmentHeader::decode(&bytes).ok()?;
    if header.id != name.id || header.len != bytes.len() as u64 {
        return None;
    }
    let mut scan = Scan::new(&header);
    while let Some((from, len)) = scan.wants() {
        scan.take(&bytes[from as usize..from as usize + len]);
    }
    Some((header, scan.finish()))
}

/// All files that are named as segments.
pub(crate) fn segments(world: &SimWorld) -> Vec<(PathBuf, SegmentName)> {
    let named = |path: PathBuf| Some((path.clone(), SegmentName::parse(path.file_name()?.to_str()?)?));
    world.files().into_iter().filter_map(named).collect()
}

/// Makes a segment, whole and synced; its path and mark. `None` when the disk is full or fails.
pub(crate) fn make(world: &SimWorld, id: u128, unit: u64, fill: impl FnOnce(&mut [u8])) -> Option<(PathBuf, u64)> {
    let header = SegmentHeader { id, len: SEGMENT_BYTES, unit: unit as u32, created_s: 1 };
    let path = Path::new(DIRECTORY).join(SegmentName { id, new: false }.to_string());
    let mut bytes = vec![0; SEGMENT_BYTES as usize];
    bytes[..PAGE_BYTES].copy_from_slice(&header.encode());
    fill(&mut bytes);
    world.write_file(&path, &bytes).ok()?;
    Some((path, header.mark()))
}
