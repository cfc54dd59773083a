//! The segment manager: a thread beside the shards that creates their segments, removes those they trim, and keeps the limits.
//!
//! Owns the segments' locks for as long as it lives, so that no other process takes them over. Never touches a
//! block: shards write and read them by their rings.

mod recovery;
mod trouble;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::stats::DiskFacts;
use crate::system::spawn;
use fuelrail_base::{Error, Kind, Result, ShardId};
use fuelrail_flow::{
    Contents, Known, ManagerLink, Objects, SegmentFile, SegmentGrant, SegmentRequest, ShardLink, SpillSetup,
    segment_queues,
};
use fuelrail_io::{Waker, open_files_max};
use fuelrail_plan::spill::Mount;
use fuelrail_wire::block::{Scanned, SegmentHeader, SegmentName};

use super::directory::{Directory, Named, Owned, Segment, named};
use super::{Lengths, Limits, Report, Room, owned_max, read_max, usable_in};

/// How often the segment manager looks for requests without a wake-up.
const LOOK: Duration = Duration::from_millis(250);
/// How often it looks for what other processes have written; on large data sets, where a look takes long, …
const LOOK_AT_OTHERS: Duration = Duration::from_secs(2);
/// … it rests so many times as long.
const REST: u32 = 20;
/// Writes so close to a look may have the time of one before it.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// Pages of a journal that may not have been written yet when a later one was.
const PAGES_UNDER_WAY: u64 = 16;

/// How long the end of the thread is waited for without a word.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Handle of the segment manager's thread. Dropping it ends the thread and releases the locks.
pub(crate) struct SegmentManager {
    facts: Arc<Mutex<DiskFacts>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread ends.
    ended: Mutex<mpsc::Receiver<()>>,
    /// Told of directories that keep it from ending.
    tell: Report,
    paths: String,
}

impl SegmentManager {
    /// Looks through the directories, takes over segments of this data set from ended processes, and starts the thread. Also returns
    /// each shard's initial segments.
    ///
    /// # Errors
    /// `Environment` when a thread is refused. Failing disks are reported and skipped.
    pub(crate) fn start(
        (limits, lengths, shards): (Limits, Lengths, u16),
        directories: Vec<Directory>,
        objects: &Arc<Objects>,
        tell: Report,
    ) -> Result<(SegmentManager, Vec<SpillSetup>)> {
        let unit = directories.iter().map(Directory::unit).max().unwrap_or(4096);
        let paths: Vec<String> =
            directories.iter().map(|directory| directory.own.path().display().to_string()).collect();
        let mut work = Work::new((limits, lengths, shards), directories, Arc::clone(&tell));
        let setup = |channel| SpillSetup {
            channel,
            unit: u64::from(unit),
            files_max: read_max(open_files_max(), shards),
            found: Vec::new(),
        };
        let mut setups: Vec<SpillSetup> = work.links.drain(..).map(setup).collect();
        work.recover(objects, &mut setups);
        let facts = Arc::clone(&work.facts);
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), Waker::sleeper());
        let (stopped, woken) = (Arc::clone(&stop), waker.clone());
        let objects = Arc::clone(objects);
        let (lives, ended) = mpsc::channel();
        let thread = spawn("fuelrail-spill", move || {
            let _lives: mpsc::Sender<()> = lives;
            work.live(&stopped, &woken, &objects, LOOK);
        })?;
        let (thread, ended, paths) = (Some(thread), Mutex::new(ended), paths.join(", "));
        Ok((SegmentManager { facts, stop, waker, thread, ended, tell, paths }, setups))
    }

    /// What it counts: segments, failures and failed directories.
    pub(crate) fn facts(&self) -> Arc<Mutex<DiskFacts>> {
        Arc::clone(&self.facts)
    }
}

impl Drop for SegmentManager {
    /// The shards have ended before: what they requested last is still done.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            self.waker.wake();
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            if ended.recv_timeout(END_PATIENCE) == Err(RecvTimeoutError::Timeout) {
                (self.tell)(&format!("disk: {} does not answer; the loader is closed when it does", self.paths));
            }
            // A thread that panicked has said so on standard error; its locks are gone with it.
            let _ = thread.join();
        }
    }
}

fn segment_file(key: u64, named: &Named, header: &SegmentHeader, direct: bool, mount: Mount) -> SegmentFile {
    let (path, directory) = (named.path(), Some(Arc::clone(&named.directory)));
    SegmentFile { key, mark: header.mark(), path, directory, len: header.len, direct, mount }
}

/// A segment a shard knows.
struct Kept {
    /// The lock; `None` for one that is read only.
    owned: Option<Owned>,
    named: Named,
    directory: usize,
    /// Pages of its journal that were there when it was taken over: its shard writes to those after them.
    pages: u64,
}

impl Kept {
    /// Whether somebody has removed it.
    fn is_removed(&self) -> bool {
        let is_there = || self.named.directory.open_file(&self.named.name.to_string(), false);
        self.owned.as_ref().map_or_else(|| matches!(is_there(), Ok(None)), Owned::is_removed)
    }
}

/// A segment that another process owns, or that ended with it and was not taken over.
#[derive(Default)]
struct Foreign {
    /// When its journal was read last, and how many pages of it had a record then.
    looked: Option<SystemTime>,
    pages: u64,
    /// What shards call it.
    keys: BTreeMap<ShardId, u64>,
}

/// The thread's side.
pub(super) struct Work {
    pub(super) shards: Vec<ShardLink>,
    /// The ends of shards that have not started.
    pub(super) links: Vec<ManagerLink>,
    room: Room,
    lengths: Lengths,
    kept: HashMap<u64, Kept>,
    /// Segments that no shard knows yet, and their directories.
    ready: VecDeque<(usize, Owned)>,
    next_key: u64,
    /// Directories of which it was told that blocks in them are damaged.
    rotten_in: HashSet<usize>,
    /// Those of which it was told that they do not answer.
    unanswered_in: HashSet<usize>,
    foreign: HashMap<SegmentName, Foreign>,
    /// Segments to own at a time: each is an open file.
    owned_max: usize,
    /// No further file can be open, as far as is known, and whether that was ever so.
    is_short: bool,
    was_short: bool,
    /// It was told that no file system has room for a further segment.
    told_full: bool,
    facts: Arc<Mutex<DiskFacts>>,
    tell: Report,
}

impl Work {
    pub(super) fn new(
        (limits, lengths, shards): (Limits, Lengths, u16),
        directories: Vec<Directory>,
        tell: Report,
    ) -> Work {
        let (links, shards) = (0..shards).map(|_| segment_queues()).unzip();
        let is_low = |directory| usable_in(limits, directory).is_some_and(|(_, usable)| usable < lengths.least);
        Work {
            shards,
            links,
            // The start tells of one that has too little from the first.
            told_full: directories.iter().any(is_low),
            room: Room::new(directories, limits),
            lengths,
            kept: HashMap::new(),
            ready: VecDeque::new(),
            next_key: 0,
            rotten_in: HashSet::new(),
            unanswered_in: HashSet::new(),
            foreign: HashMap::new(),
            owned_max: owned_max(open_files_max()),
            is_short: false,
            was_short: false,
            facts: Arc::default(),
            tell,
        }
    }

    #[cfg(test)]
    pub(super) fn facts(&self) -> DiskFacts {
        self.facts.lock().unwrap().clone()
    }

    fn count(&self, counted: impl FnOnce(&mut DiskFacts)) {
        counted(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn keep(&mut self, kept: Kept) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.kept.insert(key, kept);
        key
    }

    /// Carries out requests as they come, and looks for them every `look` besides.
    pub(super) fn live(mut self, stop: &AtomicBool, waker: &Waker, objects: &Objects, look: Duration) {
        self.shards.iter().for_each(|shard| shard.from.set_waker(waker.clone()));
        let mut look_at = Instant::now() + LOOK_AT_OTHERS;
        loop {
            // Looked at before the requests: those of shards that have ended are all there then.
            let last = stop.load(Ordering::Acquire);
            for shard in 0..self.shards.len() {
                // A request waits until its grant has room: a shard asks once.
                while (self.shards[shard].to.room() > 0 || self.shards[shard].to.is_closed())
                    && let Some(request) = self.shards[shard].from.recv()
                {
                    self.grant(shard, request);
                }
            }
            if last {
                return self.leave();
            }
            let now = Instant::now();
            if now >= look_at {
                self.let_go_of_removed();
                self.look_at_others(objects);
                look_at = Instant::now() + LOOK_AT_OTHERS.max(now.elapsed() * REST);
            }
            // One at a time: a request waits for no more than that.
            if !self.stock() {
                if waker.arm() {
                    waker.sleep(look);
                }
                waker.disarm();
            }
        }
    }

    /// The segments that this process owns.
    fn own(&self) -> impl Iterator<Item = SegmentName> {
        let kept = self.kept.values().filter(|kept| kept.owned.is_some()).map(|kept| kept.named.name);
        kept.chain(self.ready.iter().map(|ready| ready.1.0.named.name))
    }

    /// Tells the shards what other processes have written since the last look.
    pub(super) fn look_at_others(&mut self, objects: &Objects) {
        let own: HashSet<SegmentName> = self.own().collect();
        // A directory that cannot be read is reported by those that write to it.
        let files =
            |at, directory: &Directory| named(&directory.own).into_iter().flatten().map(move |named| (at, named));
        let all = self.room.directories().enumerate().flat_map(|(at, directory)| files(at, directory));
        let others: Vec<_> = all.filter(|(_, named)| !named.name.new && !own.contains(&named.name)).collect();
        // Those that are there no more are forgotten.
        let mut before = core::mem::take(&mut self.foreign);
        let mut contents = None;
        for (directory, named) in others {
            let looked = SystemTime::now();
            let mut seen = before.remove(&named.name).unwrap_or_default();
            if let Ok(segment) = Segment::open(&named)
                && segment.modified().zip(seen.looked).is_none_or(|(modified, looked)| modified + CLOCK_STEP >= looked)
                && let Ok(scanned) = segment.scan_on(seen.pages.saturating_sub(PAGES_UNDER_WAY))
            {
                // The fingerprints of the data set are sorted only for a journal that says something.
                let found = if scanned.records.is_empty() {
                    Vec::new()
                } else {
                    let contents = contents.get_or_insert_with(|| Contents::new(objects));
                    shares(contents, &scanned, self.shards.len() as u16)
                };
                let mut told = true;
                for (shard, known) in found {
                    let keep = || self.keep(Kept { owned: None, named: named.clone(), directory, pages: 0 });
                    let key = *seen.keys.entry(shard).or_insert_with(keep);
                    // One that failed is not spoken of again.
                    if self.kept.contains_key(&key) {
                        let file = segment_file(key, &named, &segment.header, segment.is_direct(), Mount::Foreign);
                        told &= self.shards[usize::from(shard.0)].to.send(SegmentGrant::Listed(file, known)).is_ok();
                    }
                }
                if told {
                    (seen.looked, seen.pages) = (Some(looked), seen.pages.max(scanned.pages));
                }
            }
            self.foreign.insert(named.name, seen);
        }
    }

    fn grant(&mut self, shard: usize, request: SegmentRequest) {
        match request {
            SegmentRequest::Another { reclaim } => {
                let grant = self.another(reclaim).map_or(SegmentGrant::NoMore, SegmentGrant::Segment);
                if reclaim && matches!(grant, SegmentGrant::NoMore) {
                    self.tell_of_full();
                }
                if let Err(SegmentGrant::Segment(file)) = self.shards[shard].to.send(grant) {
                    self.trim(file.key);
                }
            }
            SegmentRequest::Trimmed(key) => self.trim(key),
            SegmentRequest::Failed(key, error) => self.failed(key, &error),
            SegmentRequest::Rotten(key, place) => self.rotten(key, place),
            SegmentRequest::Unanswered(key, waited) => self.unanswered(key, waited),
        }
    }

    /// An empty segment: one that is ready, or a new one, if the limits or, with `reclaim`, segments of ended processes leave room. A new one may
    /// be shorter if there is too little, so that the limit is used up.
    pub(super) fn another(&mut self, reclaim: bool) -> Option<SegmentFile> {
        let (directory, owned) = self.ready.pop_front().or_else(|| self.make(usize::MAX, reclaim))?;
        let (named, header, direct) = (owned.0.named.clone(), owned.0.header, owned.0.is_direct());
        let key = self.keep(Kept { owned: Some(owned), named: named.clone(), directory, pages: 0 });
        let mount = Mount::Open { end: fuelrail_plan::spill::PAGE_BYTES, records: 0 };
        Some(segment_file(key, &named, &header, direct, mount))
    }

    /// Makes a segment ahead of need, one for each shard at most and where there is room to spare: no shard waits for a file
    /// system then. False when that is not the case.
    pub(super) fn stock(&mut self) -> bool {
        if self.is_short || self.ready.len() >= self.shards.len() {
            return false;
        }
        let made = self.make(1, false);
        let more = made.is_some();
        self.ready.extend(made);
        more
    }

    /// Makes a segment of the first of so many lengths that there is room for; with `reclaim`, in the place of segments of ended processes.
    /// None while as many are owned as may be: one must be trimmed first.
    fn make(&mut self, lengths: usize, reclaim: bool) -> Option<(usize, Owned)> {
        if self.own().count() >= self.owned_max {
            return None;
        }
        let lengths = self.lengths.halves().take(lengths);
        // Where no further file can be open, a shorter one cannot, either.
        lengths.map_while(|len| self.make_of(len, reclaim).ok()).flatten().next()
    }

    /// # Errors
    /// `Environment` when no further file can be open.
    fn make_of(&mut self, len: u64, reclaim: bool) -> Result<Option<(usize, Owned)>> {
        loop {
            // Others' may go when their owners have ended: what shards read of them then is fetched anew.
            let in_use: Vec<SegmentName> = self.own().collect();
            let others = reclaim.then_some(in_use.as_slice());
            let mut reclaimed = 0;
            let made = self.room.make(len, others, || reclaimed += 1);
            self.count(|facts| facts.segments_reclaimed += reclaimed);
            let Some((directory, made)) = made else { return Ok(None) };
            match made {
                Ok(owned) => {
                    self.is_short = false;
                    self.count(|facts| facts.segments_made += 1);
                    return Ok(Some((directory, owned)));
                }
                Err(error) => {
                    self.give_up_directory(directory, &error);
                    if error.kind() == Kind::Environment {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A shard has given a segment up: its room comes back, if it is ours to give.
    pub(super) fn trim(&mut self, key: u64) {
        let Some(Kept { owned: Some(owned), directory, .. }) = self.kept.remove(&key) else { return };
        if let Err(error) = owned.remove() {
            self.give_up_directory(directory, &error);
        }
    }

    /// A shard could not use a segment.
    pub(super) fn failed(&mut self, key: u64, error: &Error) {
        let Some(kept) = self.kept.get(&key) else { return };
        if kept.is_removed() {
            if kept.owned.is_none() {
                // Its owner removed it, as owners may. Of one of ours the next look tells.
                self.kept.remove(&key);
            }
            return;
        }
        let name = kept.named.name;
        self.give_up_directory(kept.directory, error);
        if error.kind() == Kind::Environment {
            // The shard has given it up. A file with blocks stays for the next run; without the lock a descriptor comes back.
            if let Some(owned) = self.kept.remove(&key).and_then(|kept| kept.owned) {
                remove_empty(owned);
            }
            self.foreign.entry(name).and_modify(|seen| seen.keys.retain(|_, known| *known != key));
        }
    }

    /// Says once what is wrong with a directory, and makes nothing in it any more; what is in it is read. What the system refuses this process, a further
    /// open file, is said once and is no fault of the directory.
    fn give_up_directory(&mut self, directory: usize, error: &Error) {
        self.count(|facts| facts.failures += 1);
        if error.kind() == Kind::Environment {
            self.is_short = true;
            if !core::mem::replace(&mut self.was_short, true) {
                (self.tell)(&format!("disk: no further segment can be opened: {error}"));
            }
            return;
        }
        if let Some(path) = self.room.give_up(directory) {
            self.count(|facts| facts.directories_failed += 1);
            let (gone, ready) = self.ready.drain(..).partition(|ready| ready.0 == directory);
            self.ready = ready;
            // What cannot be removed is empty, and found by the next opening.
            let gone: VecDeque<(usize, Owned)> = gone;
            gone.into_iter().for_each(|(_, owned)| drop(owned.remove()));
            (self.tell)(&format!(
                "disk: no further segment is made in {}; those there are used while they can be: {error}",
                path.display()
            ));
        }
    }

    /// Releases the locks, and removes segments without a record.
    pub(super) fn leave(self) {
        let kept = self.kept.into_values().filter_map(|kept| kept.owned);
        kept.chain(self.ready.into_iter().map(|ready| ready.1)).for_each(remove_empty);
    }
}

/// Releases the lock, and removes the segment if it has no record.
fn remove_empty(owned: Owned) {
    if owned.0.scan().is_ok_and(|found| found.records.is_empty()) {
        // It stays when it cannot be removed: the next run tries again.
        let _ = owned.remove();
    }
}

/// The blocks of a segment by whose they are: first of whom most are.
fn shares(contents: &Contents<'_>, scanned: &Scanned, shards: u16) -> Vec<(ShardId, Vec<Known>)> {
    let mut shares: BTreeMap<ShardId, Vec<Known>> = BTreeMap::new();
    for known in contents.known(scanned) {
        shares.entry(known.block.owner(shards)).or_default().push(known);
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|share| core::cmp::Reverse(share.1.len()));
    shares
}
