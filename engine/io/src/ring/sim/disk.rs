//! The simulated disk: files, the part of them that survives a power cut, and disk failures.
//!
//! A file stays readable through its open handles when its name is gone, as on a real file system.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Error, Kind, Result};

use crate::ring::file::{FileMark, FileOptions};

/// Alignment of direct operations, as on most devices. Also the unit a device writes atomically.
const SECTOR_BYTES: usize = 512;

/// Properties of a simulated disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimDisk {
    /// Bytes all files together may have.
    pub capacity_bytes: u64,
    /// Longest an operation takes; each takes a time drawn from zero to this.
    pub latency_max: Duration,
}

impl Default for SimDisk {
    /// 1 GiB, up to 200 µs.
    fn default() -> SimDisk {
        SimDisk { capacity_bytes: 1 << 30, latency_max: Duration::from_micros(200) }
    }
}

/// A failure of a part of a simulated disk. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimDiskFailure {
    /// The error number every read ends with: `EIO`.
    pub reads: Option<i32>,
    /// The error number every write ends with, and every opening that makes or lengthens a file: `ENOSPC`, `EROFS`, `EIO`. A
    /// read-only disk (`EROFS`) opens nothing for writing, and a broken one (`EIO`) syncs nothing.
    pub writes: Option<i32>,
}

#[derive(Clone, Debug)]
pub(super) struct Opened {
    path: PathBuf,
    inode: Inode,
    write: bool,
    direct: bool,
}

impl Opened {
    /// Bytes transfers are multiples of, unless the file ends in one.
    pub(super) fn unit(&self) -> usize {
        if self.direct { SECTOR_BYTES } else { 1 }
    }
}

#[derive(Debug)]
struct Write {
    number: u64,
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Image {
    /// The content a read sees.
    live: Vec<u8>,
    /// The content that survives a power cut.
    durable: Vec<u8>,
    /// Writes since, oldest first: any part of each may or may not survive.
    unsynced: Vec<Write>,
    /// Number of open handles.
    opened: u32,
    /// Number of the last write to it.
    changed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) settings: SimDisk,
    pub(super) names: Names,
    files: BTreeMap<Inode, Image>,
    failures: BTreeMap<PathBuf, SimDiskFailure>,
    /// Files made so far.
    made: u64,
    writes: u64,
}

impl Disk {
    /// Opens or creates a file, and allocates the requested length.
    pub(super) fn open(&mut self, path: &Path, options: &FileOptions) -> Result<Opened> {
        options.validate()?;
        let refuse = |errno| Err(Error::from_errno(Kind::File, &format!("opening {}", path.display()), errno));
        let found = self.names.live().get(path).copied();
        if found.is_none() && !options.create {
            let cause = format!("opening {}: there is no such file", path.display());
            return Err(Error::new(Kind::NotFound, cause).with_hint("check the path"));
        }
        let len = found.and_then(|inode| self.files.get(&inode)).map_or(0, |image| image.live.len() as u64);
        let wanted = options.len.unwrap_or(0).max(len);
        match self.failure(path).writes {
            Some(libc::EROFS) if options.write => return refuse(libc::EROFS),
            Some(errno) if found.is_none() || wanted > len => return refuse(errno),
            _ => {}
        }
        if wanted - len > self.free_bytes() {
            return refuse(libc::ENOSPC);
        }
        let inode = found.unwrap_or_else(|| self.make(path));
        let image = self.files.entry(inode).or_default();
        image.live.resize(wanted as usize, 0);
        image.opened += 1;
        Ok(Opened { path: path.to_owned(), inode, write: options.write, direct: options.direct })
    }

    fn make(&mut self, path: &Path) -> Inode {
        self.made += 1;
        self.names.make(path, self.made);
        self.made
    }

    /// The mark of an open file, with the number of its last write as the time.
    pub(super) fn marked(&self, file: &Opened) -> FileMark {
        let image = self.files.get(&file.inode);
        let (len, changed) = image.map_or((0, 0), |image| (image.live.len() as u64, image.changed));
        FileMark { inode: file.inode, len, modified_ns: changed }
    }

    pub(super) fn close(&mut self, file: &Opened) {
        if let Some(image) = self.files.get_mut(&file.inode) {
            image.opened -= 1;
        }
        self.forget();
    }

    /// Frees what neither a name nor an open file leads to.
    fn forget(&mut self) {
        let reachable = self.names.reachable();
        self.files.retain(|inode, image| image.opened > 0 || reachable.contains(inode));
    }

    /// The bytes at `offset`, at most `len`; none after the end.
    pub(super) fn read(&self, file: &Opened, offset: u64, len: usize) -> core::result::Result<&[u8], i32> {
        if let Some(errno) = self.failure(&file.path).reads {
            return Err(errno);
        }
        if file.direct && !aligned(offset, len) {
            return Err(libc::EINVAL);
        }
        let live = self.files.get(&file.inode).map_or(&[][..], |image| &image.live);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(live.len());
        Ok(&live[from..live.len().min(from.saturating_add(len))])
    }

    /// Writes bytes at `offset`, as many as the disk has room for; returns how many.
    pub(super) fn write(&mut self, file: &Opened, offset: u64, bytes: &[u8]) -> core::result::Result<usize, i32> {
        if !file.write {
            return Err(libc::EBADF);
        }
        if let Some(errno) = self.failure(&file.path).writes {
            return Err(errno);
        }
        if file.direct && !aligned(offset, bytes.len()) {
            return Err(libc::EINVAL);
        }
        let free = self.free_bytes();
        let Some(image) = self.files.get_mut(&file.inode) else { return Err(libc::EIO) };
        let room = (image.live.len() as u64 + free).saturating_sub(offset);
        let n = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if n == 0 {
            return Err(libc::ENOSPC);
        }
        let write = Write { number: self.writes, offset: offset as usize, bytes: bytes[..n].to_vec() };
        self.writes += 1;
        apply(&mut image.live, write.offset, &write.bytes);
        image.changed = self.writes;
        image.unsynced.push(write);
        Ok(n)
    }

    /// Number of the next write: a sync submitted now covers those before it.
    pub(super) fn mark(&self) -> u64 {
        self.writes
    }

    /// Makes the writes before `mark` survive a power cut, and the file's length and name.
    pub(super) fn sync(&mut self, file: &Opened, mark: u64) -> core::result::Result<(), i32> {
        if self.failure(&file.path).writes == Some(libc::EIO) {
            return Err(libc::EIO);
        }
        self.sync_inode(file.inode, mark);
        Ok(())
    }

    fn sync_inode(&mut self, inode: Inode, mark: u64) {
        let Some(image) = self.files.get_mut(&inode) else { return };
        let covered = image.unsynced.partition_point(|write| write.number < mark);
        image.durable.resize(image.durable.len().max(image.live.len()), 0);
        for write in image.unsynced.drain(..covered) {
            apply(&mut image.durable, write.offset, &write.bytes);
        }
        self.names.commit();
    }

    /// Creates a file of these bytes, over an existing one.
    pub(super) fn write_file(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        if let Some(errno) = self.failure(path).writes {
            return Err(Error::from_errno(Kind::File, &format!("writing {}", path.display()), errno));
        }
        self.names.remove(path);
        self.forget();
        let len = Some(bytes.len() as u64);
        let file = self.open(path, &FileOptions { write: true, create: true, direct: false, len })?;
        if let Some(image) = self.files.get_mut(&file.inode) {
            image.live.copy_from_slice(bytes);
            image.durable = bytes.to_vec();
        }
        self.names.commit();
        self.close(&file);
        Ok(())
    }

    pub(super) fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        let refuse = |errno| Error::from_errno(Kind::File, &format!("reading {}", path.display()), errno);
        let inode = self.names.live().get(path).copied().ok_or_else(|| refuse(libc::ENOENT))?;
        match self.failure(path).reads {
            Some(errno) => Err(refuse(errno)),
            None => Ok(self.files.get(&inode).map_or_else(Vec::new, |image| image.live.clone())),
        }
    }

    /// Sets the failure of all files below a path, in place of an earlier one of the same path.
    pub(super) fn fail(&mut self, below: &Path, failure: SimDiskFailure) {
        self.failures.insert(below.to_owned(), failure);
    }

    fn failure(&self, path: &Path) -> SimDiskFailure {
        let mut all = SimDiskFailure::default();
        for (_, failure) in self.failures.iter().filter(|(below, _)| path.starts_with(below)) {
            all = SimDiskFailure { reads: all.reads.or(failure.reads), writes: all.writes.or(failure.writes) };
        }
        all
    }

    /// Flips one random bit of a file, durably. False when it has none.
    pub(super) fn rot(&mut self, path: &Path, prng: &mut Prng) -> bool {
        let Some(image) = self.names.live().get(path).copied().and_then(|inode| self.files.get_mut(&inode)) else {
            return false;
        };
        if image.live.is_empty() {
            return false;
        }
        let (at, bit) = (prng.below(image.live.len() as u64) as usize, 1u8 << prng.below(8));
        let flip = |bytes: &mut [u8], at: usize| bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
        flip(&mut image.live, at);
        flip(&mut image.durable, at);
        for write in &mut image.unsynced {
            if let Some(at) = at.checked_sub(write.offset) {
                flip(&mut write.bytes, at);
            }
        }
        true
    }

    /// The same disk without failures.
    pub(super) fn restarted(mut self) -> Disk {
        self.failures.clear();
        self
    }

    /// Keeps what was synced, and of each later write all, none or random sectors; of the changes of names those up to a random
    /// point.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        self.names.cut_power(prng);
        for image in self.files.values_mut() {
            let mut left = core::mem::take(&mut image.durable);
            for write in image.unsynced.drain(..) {
                survive(&mut left, &write, prng);
            }
            image.live.clone_from(&left);
            image.durable = left;
        }
        self.forget();
    }

    fn free_bytes(&self) -> u64 {
        let named: BTreeSet<&Inode> = self.names.live().values().collect();
        let taken = self.files.iter().filter(|(inode, image)| image.opened > 0 || named.contains(inode));
        let used: u64 = taken.map(|(_, image)| image.live.len() as u64).sum();
        self.settings.capacity_bytes.saturating_sub(used)
    }
}

fn aligned(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(SECTOR_BYTES as u64) && len.is_multiple_of(SECTOR_BYTES)
}

fn apply(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    file.resize(file.len().max(end), 0);
    file[offset..end].copy_from_slice(bytes);
}

/// Applies the part of an unsynced write that survives a power cut: random whole sectors.
fn survive(file: &mut Vec<u8>, write: &Write, prng: &mut Prng) {
    // Everything, nothing, up to some sector, from some sector on, any.
    let mode = prng.below(5);
    let Write { offset, bytes, .. } = write;
    let first = offset / SECTOR_BYTES;
    let sectors = (offset + bytes.len()).div_ceil(SECTOR_BYTES) - first;
    let point = prng.below(sectors as u64 + 1) as usize;
    for sector in 0..sectors {
        let kept = match mode {
            0 => true,
            1 => false,
            2 => sector < point,
            3 => sector >= point,
            _ => prng.chance(0.5),
        };
        if kept {
            let start = ((first + sector) * SECTOR_BYTES).max(*offset);
            let end = ((first + sector + 1) * SECTOR_BYTES).min(offset + bytes.len());
            apply(file, start, &bytes[start - offset..end - offset]);
        }
    }
}

/// A file, independent of its names.
pub(super) type Inode = u64;

/// The names of the disk's files. All names before and after each change since the last sync: a cut leaves one of these, and the last is the
/// live one. Changes reach the disk in their order; syncing a file or a directory brings all of them there, as the journals of ext4
/// and XFS do.
#[derive(Debug)]
pub(super) struct Names(Vec<BTreeMap<PathBuf, Inode>>);

impl Default for Names {
    fn default() -> Names {
        Names(vec![BTreeMap::new()])
    }
}

impl Names {
    pub(super) fn live(&self) -> &BTreeMap<PathBuf, Inode> {
        self.0.last().expect("the names before the first change are there")
    }

    pub(super) fn make(&mut self, path: &Path, inode: Inode) {
        let mut names = self.live().clone();
        names.insert(path.to_owned(), inode);
        self.0.push(names);
    }

    /// False when there is no such file.
    pub(super) fn remove(&mut self, path: &Path) -> bool {
        let mut names = self.live().clone();
        let is = names.remove(path).is_some();
        if is {
            self.0.push(names);
        }
        is
    }

    /// Everything so far survives a power cut.
    pub(super) fn commit(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }

    /// Keeps the changes up to a random point.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        self.0.truncate(1 + prng.below(self.0.len() as u64) as usize);
        self.commit();
    }

    /// Files that have a name, or may have one again after a power cut.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        self.0.iter().flat_map(BTreeMap::values).copied().collect()
    }
}
