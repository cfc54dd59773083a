//! A cache directory: which segments are in it, how much room there is, and how a segment is made.
//!
//! Owns the directory's tag file, which says to backup programs that nothing here is worth keeping, and whose lock
//! serialises processes that count and create segments. Never touches a file that is not a segment.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuelrail_base::limits::SEGMENT_BYTES_MIN;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_io::{
    OwnDirectory, direct_unit, file_bytes_max, is_locked, may_write, next_written, preallocate, try_lock,
};
use fuelrail_wire::block::{
    Entry, PAGE_BYTES, RECORD_BYTES, Record, Scan, Scanned, SegmentHeader, SegmentName, entries, journal_page,
};

use crate::system::{own_directory, refused};

const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# Blocks that fuelrail keeps. All of it can be had again.\n";
/// What transfers are multiples of where direct access is not to be had.
const UNIT_BYTES_INDIRECT: u32 = 4096;
/// How long a process waits for its turn with a directory: longer than another takes to make a segment.
const TURN_PATIENCE: Duration = Duration::from_secs(5);
const TURN_LOOK: Duration = Duration::from_millis(5);

/// A cache directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) own: Arc<OwnDirectory>,
    /// What direct transfers are multiples of; `None` where there is no direct access.
    pub(crate) direct: Option<u32>,
    /// Why nothing can be made here.
    pub(crate) refusal: Option<Error>,
}

/// The lock of a directory: no other process creates segments there meanwhile.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Locked until it is closed. `None` where there is no tag to lock, or patience ended.
    _tag: Option<File>,
}

impl Directory {
    /// Opens this user's directory in `path`, or makes it, as [`own_directory`] does. Removes what processes left that died while they made a
    /// segment.
    pub(crate) fn open(path: &Path, notices: &mut Vec<String>) -> Result<Directory> {
        let own = Arc::new(own_directory("spill_dirs", path, notices)?);
        let tagged = short_files().map_or_else(|| tag(&own), Err);
        let refusal = tagged.as_ref().err().cloned();
        let direct = match &tagged {
            Ok(Some(tag)) => direct_unit(tag),
            // Nothing to ask; segments that are there are asked one by one.
            _ => Some(UNIT_BYTES_INDIRECT),
        };
        let directory = Directory { own, direct, refusal };
        clear_dead(&named(&directory.own)?);
        Ok(directory)
    }

    /// What direct transfers here are multiples of, or would be.
    pub(crate) fn unit(&self) -> u32 {
        self.direct.unwrap_or(UNIT_BYTES_INDIRECT)
    }

    /// Waits for the turn with this directory, and no longer than its patience.
    pub(crate) fn turn(&self) -> Turn {
        let Ok(Some(tag)) = self.own.open_file(TAG, true) else { return Turn { _tag: None } };
        let path = self.own.path().join(TAG);
        let began = std::time::Instant::now();
        loop {
            match try_lock(&tag, &path) {
                Ok(true) => return Turn { _tag: Some(tag) },
                Ok(false) if began.elapsed() < TURN_PATIENCE => std::thread::sleep(TURN_LOOK),
                _ => return Turn { _tag: None },
            }
        }
    }

    /// Makes a segment of `len` bytes, owned by this process. It becomes visible once it is complete and on disk. `None` when the
    /// disk is full.
    ///
    /// # Errors
    /// `File` when the disk refuses, `Environment` when no further file can be open; nothing is left of it then.
    pub(crate) fn make(&self, len: u64) -> Result<Option<Owned>> {
        let id = random()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header = SegmentHeader { id, len, unit: self.unit(), created_s: now.as_secs() };
        let named = |new| Named { name: SegmentName { id, new }, directory: Arc::clone(&self.own), len };
        let (new, whole) = (named(true), named(false));
        let (path, from, to) = (new.path(), new.name.to_string(), whole.name.to_string());
        let file = self.own.make_file(&from).map_err(|error| refused(&path, "making", &error))?;
        let made = fill(&file, &path, &header).and_then(|()| {
            self.own.rename(&from, &to).map_err(|error| refused(&path, "renaming", &error))?;
            self.own.sync()
        });
        let owned = Owned::new(file, whole.clone(), header);
        match made {
            Ok(()) if owned.is_in_place() => Ok(Some(owned)),
            Ok(()) => {
                Err(Error::new(Kind::File, format!("{} vanished while it was being created", whole.path().display()))
                    .with_hint("check what else removes files there"))
            }
            Err(error) => {
                let full = self.own.room().is_ok_and(|room| room.free_bytes < len);
                // Whichever of the names it has by now; what cannot be removed is found by the next opening.
                let _ = self.own.remove(&from);
                let _ = owned.remove();
                if full { Ok(None) } else { Err(error) }
            }
        }
    }
}

/// Files that are named as segments, whole and new ones, by name.
pub(crate) fn named(own: &Arc<OwnDirectory>) -> Result<Vec<Named>> {
    let files = own.files().map_err(|error| refused(own.path(), "reading the directory", &error))?;
    let named =
        |(name, len): (String, u64)| Some(Named { name: SegmentName::parse(&name)?, directory: Arc::clone(own), len });
    let mut all: Vec<Named> = files.into_iter().filter_map(named).collect();
    all.sort_unstable_by_key(|named| named.name);
    Ok(all)
}

/// Locks a new file before another process can take it for an ended one's, allocates it and writes the header.
fn fill(file: &File, path: &Path, header: &SegmentHeader) -> Result<()> {
    if !try_lock(file, path)? {
        return Err(Error::new(Kind::File, format!("{} was removed while it was being created", path.display())));
    }
    preallocate(file, path, header.len)?;
    file.write_all_at(&header.encode(), 0).map_err(|error| refused(path, "writing", &error))?;
    file.sync_all().map_err(|error| refused(path, "syncing", &error))
}

/// Removes unfinished segments of ended processes.
pub(crate) fn clear_dead(all: &[Named]) {
    all.iter().filter(|named| named.name.new).for_each(clear);
}

/// Removes an unfinished segment whose process has ended. A file with other content stays.
fn clear(named: &Named) {
    let name = named.name.to_string();
    let Ok(Some(read)) = named.directory.open_file(&name, false) else { return };
    let mut page = [0; PAGE_BYTES];
    let is_ours = match read.read_at(&mut page, 0) {
        Ok(0) => true,
        Ok(n) => {
            let is_zero = page[..n].iter().all(|byte| *byte == 0);
            is_zero || SegmentHeader::decode(&page[..n]).is_ok_and(|header| header.id == named.name.id)
        }
        Err(_) => false,
    };
    let Ok(Some(file)) = named.directory.open_file(&name, is_ours) else { return };
    if is_ours && try_lock(&file, &named.path()).unwrap_or(false) {
        // It stays where it is when it cannot be removed: the next opening tries again.
        let _ = remove(&file, named);
    }
}

/// The error where this process may not write a file as long as the shortest segment.
fn short_files() -> Option<Error> {
    let most = file_bytes_max().filter(|most| *most < SEGMENT_BYTES_MIN)?;
    let (most, least) = (ByteSize(most), ByteSize(SEGMENT_BYTES_MIN));
    let cause = format!("this process may write files of at most {most}, and a segment takes at least {least}");
    Some(Error::new(Kind::File, cause).with_hint("raise that limit (ulimit -f)"))
}

/// The tag file, open to be asked; made when there is nothing under its name. `None` when there is something else.
fn tag(own: &OwnDirectory) -> Result<Option<File>> {
    let path = own.path().join(TAG);
    match own.make_file(TAG) {
        Ok(mut file) => {
            file.write_all(TAG_TEXT.as_bytes()).map_err(|error| refused(&path, "writing", &error))?;
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refused(&path, "making", &error)),
    }
    own.open_file(TAG, false)
}

fn random() -> Result<u128> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    let read = File::open(path).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| refused(path, "reading", &error))?;
    Ok(u128::from_le_bytes(bytes))
}

/// A file in a cache directory that is named as a segment.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: SegmentName,
    pub(crate) directory: Arc<OwnDirectory>,
    /// Its length, bytes.
    pub(crate) len: u64,
}

impl Named {
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(self.name.to_string())
    }
}

/// One segment's file, open to be read: validated before its content is used, and locked before it is changed. A file whose name is not
/// exactly a segment's is never opened for writing, changed or removed; one whose header is not is never written to.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    pub(crate) named: Named,
    pub(crate) header: SegmentHeader,
}

/// Why a file with a segment's name is not one to be used.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It does not exist, or is not a regular file.
    Gone,
    /// It is not what its name says.
    Flawed(String),
    /// It cannot be read.
    Failed(Error),
}

impl Segment {
    /// Opens a file that is named as a segment, and checks its header against name and length.
    pub(crate) fn open(named: &Named) -> Result<Segment, Unfit> {
        let opened = named.directory.open_file(&named.name.to_string(), false);
        let file = opened.map_err(Unfit::Failed)?.ok_or(Unfit::Gone)?;
        let failed = |error: &std::io::Error| Unfit::Failed(refused(&named.path(), "reading", error));
        let len = file.metadata().map_err(|error| failed(&error))?.len();
        if len < PAGE_BYTES as u64 {
            return Err(Unfit::Flawed("it is shorter than its header".into()));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, 0).map_err(|error| failed(&error))?;
        let header = SegmentHeader::decode(&page).map_err(|flaw| Unfit::Flawed(flaw.to_string()))?;
        if header.id != named.name.id {
            return Err(Unfit::Flawed("its header belongs to another segment".into()));
        }
        if header.len != len {
            return Err(Unfit::Flawed(format!("it has {len} bytes of {}", header.len)));
        }
        Ok(Segment { file, named: named.clone(), header })
    }

    /// When it was written to last, where the file system tells.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|facts| facts.modified()).ok()
    }

    /// Reads its journal.
    pub(crate) fn scan(&self) -> Result<Scanned> {
        self.read_journal(Scan::new(&self.header), true)
    }

    /// What its journal lists after so many pages, up to the first stretch without a record: its owner writes on.
    pub(crate) fn scan_on(&self, pages: u64) -> Result<Scanned> {
        self.read_journal(Scan::starting_at(&self.header, pages), false)
    }

    /// Reads on while there is something to read, or, unless `to_the_end`, while what was read last had a record.
    fn read_journal(&self, mut scan: Scan, to_the_end: bool) -> Result<Scanned> {
        let (mut bytes, mut goes_on) = (Vec::new(), true);
        while let Some((place, len)) = scan.wants().filter(|_| goes_on) {
            let before = scan.found();
            // What was preallocated and never written need not be read: it may be nearly a GiB.
            if next_written(&self.file, place).is_some_and(|at| at < place + len as u64) {
                bytes.resize(len, 0);
                self.read(&mut bytes, place)?;
                scan.take(&bytes);
            } else {
                scan.skip();
            }
            goes_on = to_the_end || scan.found() > before;
        }
        Ok(scan.finish())
    }

    /// Whether a record's block is what it says.
    pub(crate) fn proves(&self, record: &Record, bytes: &mut Vec<u8>) -> Result<bool> {
        bytes.resize(record.len as usize, 0);
        self.read(bytes, record.place)?;
        Ok(crc32c::crc32c(bytes) == record.crc32c)
    }

    fn read(&self, bytes: &mut [u8], place: u64) -> Result<()> {
        self.file.read_exact_at(bytes, place).map_err(|error| refused(&self.named.path(), "reading", &error))
    }

    /// Whether direct transfers to it work in the unit it was written in.
    pub(crate) fn is_direct(&self) -> bool {
        direct_unit(&self.file).is_some_and(|unit| unit <= self.header.unit)
    }

    /// Whether a living process owns it.
    pub(crate) fn is_owned(&self) -> Result<bool> {
        is_locked(&self.file, &self.named.path())
    }

    /// Becomes its owner, if it has none. `None` when it has one, or when another file is under its name by now.
    pub(crate) fn try_own(&self) -> Result<Option<Owned>> {
        let Named { name, directory, .. } = &self.named;
        let Some(file) = directory.open_file(&name.to_string(), true)? else { return Ok(None) };
        if !try_lock(&file, &self.named.path())? || !directory.holds(&name.to_string(), &self.file) {
            return Ok(None);
        }
        let owned = Owned::new(file, self.named.clone(), self.header);
        // Its owner may have removed it between opening and locking.
        Ok(owned.is_in_place().then_some(owned))
    }

    /// Removes its name, whichever process owns it; open files stay readable.
    pub(crate) fn remove(&self) -> Result<()> {
        remove(&self.file, &self.named)
    }
}

/// A segment this process owns, open to be written: it alone appends to it, and may remove it.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Segment);

impl Owned {
    /// Around a file just made, locked and given its header.
    pub(super) fn new(file: File, named: Named, header: SegmentHeader) -> Owned {
        Owned(Segment { file, named, header })
    }

    /// Whether it is still what is found under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        let Segment { named, file, .. } = &self.0;
        named.directory.holds(&named.name.to_string(), file)
    }

    /// Whether its file has no name any more: somebody has removed it.
    pub(crate) fn is_removed(&self) -> bool {
        // Some file systems count no links.
        self.0.file.metadata().is_ok_and(|facts| facts.nlink() == 0) && !self.is_in_place()
    }

    /// Takes the record of the block at `place` out of the first pages of its journal, which nobody writes to any more.
    pub(crate) fn forget(&self, pages: u64, place: u64) -> Result<()> {
        let Segment { file, named, header } = &self.0;
        if !may_write(header.len) {
            return Ok(());
        }
        let is_it = |entry: Entry| match entry {
            Entry::Record(record) => record.place == place && record.mark == header.mark(),
            Entry::Empty | Entry::Damaged => false,
        };
        let mut page = [0; PAGE_BYTES];
        for at in (0..pages).filter_map(|page| journal_page(header.len, page)) {
            self.0.read(&mut page, at)?;
            if let Some(nth) = entries(&page).position(is_it) {
                let written = file.write_all_at(&[0; RECORD_BYTES], at + (nth * RECORD_BYTES) as u64);
                return written.map_err(|error| refused(&named.path(), "writing", &error));
            }
        }
        Ok(())
    }

    /// Gives its room back, as soon as the last reader has closed it.
    pub(crate) fn remove(self) -> Result<()> {
        self.0.remove()
    }
}

/// Removes a file that is named as a segment and is none: damaged, cut short, or of another version. False when a living process has locked
/// it, unless that is not to matter.
pub(super) fn remove_flawed(named: &Named, force: bool) -> Result<bool> {
    let Some(file) = named.directory.open_file(&named.name.to_string(), true)? else { return Ok(true) };
    if !try_lock(&file, &named.path())? && !force {
        return Ok(false);
    }
    remove(&file, named).map(|()| true)
}

/// Removes the name if it is still this file's.
pub(super) fn remove(file: &File, named: &Named) -> Result<()> {
    let name = named.name.to_string();
    if !named.directory.holds(&name, file) {
        return Ok(());
    }
    match named.directory.remove(&name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused(&named.path(), "removing", &error)),
        _ => Ok(()),
    }
}
