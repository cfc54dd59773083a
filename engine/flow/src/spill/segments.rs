//! The segments this shard knows: their files, opened when needed, and the journals of those it writes.
//!
//! Owns the descriptors' names. A segment that was trimmed or failed stays until its last operation is reaped.

use super::manager::SegmentFile;
use crate::conn::Proof;
use fuelrail_base::{BlockId, Error, Instant, Kind, Result};
use fuelrail_io::{FileId, FileOptions, Ring};
use fuelrail_plan::spill::{Mount, SegmentId};
use fuelrail_wire::block::{PAGE_BYTES, RECORD_BYTES, Record, journal_page};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

/// A segment with this many failures in a row is not used any more.
const FAILURES_MAX: u32 = 8;

/// One segment.
pub(super) struct Mounted {
    pub(super) id: SegmentId,
    pub(super) file: SegmentFile,
    open: Option<FileId>,
    /// Operations that name it: queued, waiting or under way.
    pub(super) busy: usize,
    /// Proofs of the server that blocks here do not carry: no ETag in the listing, or several blocks.
    pub(super) proofs: HashMap<BlockId, Proof>,
    journal: Option<Journal>,
    /// Given up: not used for new reads and writes.
    gone: bool,
    failures: u32,
    used: u64,
}

/// All segments, by a key of the stage's own: the planner's numbers are reused.
#[derive(Default)]
pub(super) struct Segments {
    mounted: BTreeMap<usize, Mounted>,
    /// Keys are never reused: an operation of a segment that is gone must not meet another.
    next_key: usize,
    /// Keys by the planner's number.
    keys: Vec<Option<usize>>,
    uses: u64,
    /// Segments given up that wait for their last operation.
    leaving: Vec<usize>,
    /// Those with records that are not on disk.
    unwritten: Vec<usize>,
    /// Files that stay open at a time, but for those in use.
    files_max: usize,
}

impl Segments {
    /// None yet; so many of their files stay open at a time.
    pub(super) fn new(files_max: usize) -> Segments {
        Segments { files_max, ..Segments::default() }
    }

    /// Mounts a segment under the planner's number.
    pub(super) fn mount(&mut self, id: SegmentId, file: SegmentFile) {
        let journal = match file.mount {
            Mount::Open { records, .. } => Some(Journal::new(records.div_ceil(PAGE_RECORDS as u64))),
            Mount::Sealed | Mount::Foreign => None,
        };
        let mounted = Mounted {
            id,
            file,
            open: None,
            busy: 0,
            proofs: HashMap::new(),
            journal,
            gone: false,
            failures: 0,
            used: 0,
        };
        let key = self.next_key;
        self.next_key += 1;
        self.mounted.insert(key, mounted);
        let at = usize::from(id.0);
        if self.keys.len() <= at {
            self.keys.resize(at + 1, None);
        }
        self.keys[at] = Some(key);
    }

    /// The planner's number of the segment in use that the segment manager calls `key`.
    pub(super) fn mounted_as(&self, key: u64) -> Option<SegmentId> {
        self.mounted.values().find(|mounted| mounted.file.key == key && !mounted.gone).map(|mounted| mounted.id)
    }

    /// The key of a segment that is in use.
    pub(super) fn key(&self, id: SegmentId) -> Option<usize> {
        self.keys.get(usize::from(id.0)).copied().flatten()
    }

    pub(super) fn get(&mut self, key: usize) -> &mut Mounted {
        self.mounted.get_mut(&key).expect("a segment stays until its last operation is reaped")
    }

    pub(super) fn path(&self, key: usize) -> &Path {
        self.mounted.get(&key).map_or(Path::new(""), |mounted| mounted.file.path.as_path())
    }

    fn open_files(&self) -> usize {
        self.mounted.values().filter(|mounted| mounted.open.is_some()).count()
    }

    /// Its open file.
    ///
    /// # Errors
    /// The error of opening it.
    pub(super) fn open<R: Ring>(&mut self, ring: &mut R, key: usize) -> Result<FileId> {
        self.uses += 1;
        let uses = self.uses;
        let mounted = self.get(key);
        mounted.used = uses;
        if let Some(file) = mounted.open {
            return Ok(file);
        }
        if mounted.gone {
            // Its lock may be another's by now.
            return Err(Error::new(Kind::File, "the segment was given up"));
        }
        let write = matches!(mounted.file.mount, Mount::Open { .. });
        let options = FileOptions { write, create: false, direct: mounted.file.direct, len: None };
        let (path, directory) = (mounted.file.path.clone(), mounted.file.directory.clone());
        let open = |ring: &mut R| ring.open_in(directory.as_deref(), &path, &options);
        while self.open_files() >= self.files_max && self.close_one(ring) {}
        let file = match open(ring) {
            // The ring's table is full, or the process has no descriptor left.
            Err(error) if matches!(error.kind(), Kind::Budget | Kind::Environment) && self.close_one(ring) => {
                open(ring)?
            }
            other => other?,
        };
        self.get(key).open = Some(file);
        Ok(file)
    }

    /// Closes the least recently used file without an operation under way.
    fn close_one<R: Ring>(&mut self, ring: &mut R) -> bool {
        let idle = self.mounted.values_mut().filter(|m| m.busy == 0 && m.open.is_some());
        let Some(mounted) = idle.min_by_key(|m| m.used) else { return false };
        if let Some(file) = mounted.open.take() {
            ring.close_file(file);
        }
        true
    }

    /// Counts the end of an operation. True when the segment has failed too often to be used any longer.
    pub(super) fn ended(&mut self, key: usize, well: bool) -> bool {
        let mounted = self.get(key);
        mounted.failures = if well { 0 } else { mounted.failures + 1 };
        !mounted.gone && mounted.failures >= FAILURES_MAX
    }

    pub(super) fn give_up(&mut self, key: usize) {
        let mounted = self.get(key);
        if mounted.gone {
            return;
        }
        mounted.gone = true;
        let id = mounted.id;
        if let Some(slot) = self.keys.get_mut(usize::from(id.0)) {
            slot.take_if(|now| *now == key);
        }
        self.leaving.push(key);
    }

    /// Closes segments that were given up and have nothing under way.
    pub(super) fn reap<R: Ring>(&mut self, ring: &mut R) {
        let (mounted, unwritten) = (&mut self.mounted, &mut self.unwritten);
        self.leaving.retain(|&key| {
            if mounted.get(&key).is_some_and(|segment| segment.busy > 0) {
                return true;
            }
            unwritten.retain(|&gone| gone != key);
            if let Some(file) = mounted.remove(&key).and_then(|segment| segment.open) {
                ring.close_file(file);
            }
            false
        });
    }

    /// Notes a block that is on disk, for later runs.
    pub(super) fn record(&mut self, now: Instant, key: usize, record: &Record) {
        let Some(journal) = &mut self.get(key).journal else { return };
        journal.add(now, record);
        if !self.unwritten.contains(&key) {
            self.unwritten.push(key);
        }
    }

    /// A page of a journal is on disk, or cannot get there.
    pub(super) fn recorded(&mut self, key: usize, page: u64) {
        let Some(journal) = &mut self.get(key).journal else { return };
        journal.wrote(page);
        if journal.is_idle() {
            self.unwritten.retain(|&unwritten| unwritten != key);
        }
    }

    /// The next page of any journal to write, if one is full or has waited since `before`: its segment, its number, where in
    /// the segment it belongs, and its bytes.
    pub(super) fn due(&mut self, before: Instant) -> Option<(usize, u64, u64, &[u8])> {
        let mounted = &mut self.mounted;
        let is_due = |key: &&usize| {
            mounted.get(*key).and_then(|m| m.journal.as_ref()).is_some_and(|journal| journal.has_due(before))
        };
        let key = *self.unwritten.iter().find(is_due)?;
        let segment = mounted.get_mut(&key)?;
        let (number, bytes) = segment.journal.as_mut()?.due(before)?;
        Some((key, number, journal_page(segment.file.len, number)?, bytes))
    }

    /// Since when the oldest record has waited to be written with others.
    pub(super) fn since(&self) -> Option<Instant> {
        self.unwritten.iter().filter_map(|&key| self.mounted.get(&key)?.journal.as_ref()?.since()).min()
    }

    /// All records are on disk.
    pub(super) fn is_recorded(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Blocks with more proofs than they carry, all segments together, and bytes of memory for them.
    pub(super) fn proofs(&self) -> (usize, u64) {
        let each =
            |segment: &Mounted| (segment.proofs.len(), segment.proofs.capacity() * size_of::<(BlockId, Proof)>());
        let (proofs, bytes) = self.mounted.values().map(each).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (proofs, bytes as u64)
    }

    pub(super) fn len(&self) -> usize {
        self.mounted.len()
    }
}

const PAGE_RECORDS: usize = PAGE_BYTES / RECORD_BYTES;

struct Page {
    number: u64,
    bytes: Box<[u8; PAGE_BYTES]>,
    records: usize,
    /// Records of it that are on disk or on their way.
    written: usize,
    /// A write of it is under way.
    busy: bool,
    since: Instant,
}

impl Page {
    fn is_due(&self, before: Instant) -> bool {
        let waits = !self.busy && self.written < self.records;
        waits && (self.records == PAGE_RECORDS || self.since <= before)
    }
}

/// The pages of one segment's journal that are not finished.
///
/// Records of blocks that are on disk, gathered into pages. A page is written when it is full, or a moment after its first record. It is
/// written whole each time, and what it held before it holds still, so a torn write of it loses no record that was there.
struct Journal {
    pages: VecDeque<Page>,
    next: u64,
    sequence: u32,
}

impl Journal {
    /// A journal that goes on after so many whole pages.
    pub(super) fn new(pages: u64) -> Journal {
        Journal { pages: VecDeque::new(), next: pages, sequence: 0 }
    }

    fn add(&mut self, now: Instant, record: &Record) {
        if self.pages.back().is_none_or(|page| page.records == PAGE_RECORDS) {
            let bytes = Box::new([0; PAGE_BYTES]);
            self.pages.push_back(Page { number: self.next, bytes, records: 0, written: 0, busy: false, since: now });
            self.next += 1;
        }
        let page = self.pages.back_mut().expect("there is one now");
        if page.written == page.records {
            page.since = now;
        }
        let record = Record { sequence: self.sequence, ..*record };
        self.sequence += 1;
        let at = page.records * RECORD_BYTES;
        page.bytes[at..at + RECORD_BYTES].copy_from_slice(&record.encode());
        page.records += 1;
    }

    /// Whether a page is full or has waited since `before`.
    fn has_due(&self, before: Instant) -> bool {
        self.pages.iter().any(|page| page.is_due(before))
    }

    /// The next page to write, if one is due: its number and bytes. It is busy from now on.
    pub(super) fn due(&mut self, before: Instant) -> Option<(u64, &[u8])> {
        let page = self.pages.iter_mut().find(|page| page.is_due(before))?;
        (page.busy, page.written) = (true, page.records);
        Some((page.number, &page.bytes[..]))
    }

    /// Since when the oldest record waits for company. One whose page is being written waits for that write.
    pub(super) fn since(&self) -> Option<Instant> {
        self.pages.iter().filter(|p| !p.busy && p.written < p.records).map(|p| p.since).min()
    }

    /// The write of a page ended. A page that failed is not tried again: its blocks are fetched anew by the next run.
    pub(super) fn wrote(&mut self, number: u64) {
        if let Some(page) = self.pages.iter_mut().find(|page| page.number == number) {
            page.busy = false;
        }
        let finished = |p: &Page| !p.busy && p.written == PAGE_RECORDS;
        while self.pages.front().is_some_and(finished) {
            self.pages.pop_front();
        }
    }

    /// Nothing is on its way or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.pages.iter().all(|page| !page.busy && page.written == page.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::Duration;
    use fuelrail_io::conformance::ScriptedHost;
    use fuelrail_io::{SimFaults, SimRing, SimWorld};
    use std::path::PathBuf;

    /// Half of all openings find no descriptor: those that find none twice fail, and those that have no idle file to close for it.
    #[test]
    fn idle_files_are_closed_for_others() {
        const SEGMENTS: u16 = 40;
        let faults = SimFaults { no_descriptor: 0.5, ..SimFaults::default() };
        let world = SimWorld::new(1, faults, Box::new(ScriptedHost::new(Duration::ZERO)));
        let mut ring = SimRing::with_capacity(&world, 8, 8);
        let mut segments = Segments::new(3);
        for number in 0..SEGMENTS {
            let path = PathBuf::from(format!("/cache/{number}"));
            world.write_file(&path, &[0; PAGE_BYTES]).unwrap();
            let (len, mount) = (PAGE_BYTES as u64, Mount::Sealed);
            let key = number.into();
            segments.mount(
                SegmentId(number),
                SegmentFile { key, mark: 0, path, directory: None, len, direct: true, mount },
            );
        }
        let mut refused = 0;
        for turn in 0..1_000 {
            refused += u32::from(segments.open(&mut ring, turn % usize::from(SEGMENTS)).is_err());
            assert!(segments.open_files() <= 3);
        }
        assert!((200..400).contains(&refused), "{refused} of 1000 openings failed");
        // Those in use are not closed, and the next opening closes what they leave open.
        (0..10).for_each(|key| segments.get(key).busy = 1);
        (0..10).for_each(|key| while segments.open(&mut ring, key).is_err() {});
        assert!(segments.open_files() >= 10);
        (0..10).for_each(|key| segments.get(key).busy = 0);
        while segments.open(&mut ring, 20).is_err() {}
        assert!(segments.open_files() <= 3);
    }
}
