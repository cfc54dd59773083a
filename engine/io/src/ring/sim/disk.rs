//! The simulated disk: files by path, and what of them would survive a power cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Error, Kind, Result};

use crate::ring::file::FileOptions;

/// Direct operations are aligned to this, as on most devices.
const DIRECT_BLOCK_BYTES: u64 = 512;

/// What a simulated disk is like.
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

/// An open file: which one, and how it was opened.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) path: PathBuf,
    write: bool,
    direct: bool,
}

impl Opened {
    /// Bytes transfers are multiples of, unless the file ends in one.
    pub(super) fn unit(&self) -> usize {
        if self.direct { DIRECT_BLOCK_BYTES as usize } else { 1 }
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
    /// What a read sees.
    live: Vec<u8>,
    /// What a power cut leaves for certain; `None` for a file that was never synced.
    durable: Option<Vec<u8>>,
    /// Writes since, oldest first: each may or may not survive.
    unsynced: Vec<Write>,
}

#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) settings: SimDisk,
    files: BTreeMap<PathBuf, Image>,
    /// Writes so far.
    writes: u64,
}

impl Disk {
    /// Opens or makes a file, and takes the room asked for.
    pub(super) fn open(&mut self, path: &Path, options: &FileOptions) -> Result<Opened> {
        options.validate()?;
        let refuse = |errno| Err(Error::from_errno(Kind::File, &format!("opening {}", path.display()), errno));
        if !self.files.contains_key(path) && !options.create {
            return refuse(libc::ENOENT);
        }
        let len = self.files.get(path).map_or(0, |image| image.live.len() as u64);
        let wanted = options.len.unwrap_or(0).max(len);
        if wanted - len > self.free_bytes() {
            return refuse(libc::ENOSPC);
        }
        let image = self.files.entry(path.to_owned()).or_default();
        image.live.resize(wanted as usize, 0);
        Ok(Opened { path: path.to_owned(), write: options.write, direct: options.direct })
    }

    /// What lies at `offset`, at most `len` bytes; none behind the end.
    pub(super) fn read(&self, file: &Opened, offset: u64, len: usize) -> core::result::Result<&[u8], i32> {
        if file.direct && !aligned(offset, len) {
            return Err(libc::EINVAL);
        }
        let live = self.files.get(&file.path).map_or(&[][..], |image| &image.live);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(live.len());
        Ok(&live[from..live.len().min(from.saturating_add(len))])
    }

    /// Puts bytes at `offset`, as many as the disk has room for; how many.
    pub(super) fn write(&mut self, file: &Opened, offset: u64, bytes: &[u8]) -> core::result::Result<usize, i32> {
        if !file.write {
            return Err(libc::EBADF);
        }
        if file.direct && !aligned(offset, bytes.len()) {
            return Err(libc::EINVAL);
        }
        let free = self.free_bytes();
        let Some(image) = self.files.get_mut(&file.path) else { return Err(libc::EIO) };
        let room = (image.live.len() as u64 + free).saturating_sub(offset);
        let n = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if n == 0 {
            return Err(libc::ENOSPC);
        }
        let write = Write { number: self.writes, offset: offset as usize, bytes: bytes[..n].to_vec() };
        self.writes += 1;
        apply(&mut image.live, &write);
        image.unsynced.push(write);
        Ok(n)
    }

    /// Number of the next write: a sync submitted now covers those before it.
    pub(super) fn mark(&self) -> u64 {
        self.writes
    }

    /// Makes the writes before `mark` survive a power cut, and the file's length.
    pub(super) fn sync(&mut self, file: &Opened, mark: u64) {
        let Some(image) = self.files.get_mut(&file.path) else { return };
        let covered = image.unsynced.partition_point(|write| write.number < mark);
        let durable = image.durable.get_or_insert_with(Vec::new);
        durable.resize(durable.len().max(image.live.len()), 0);
        for write in image.unsynced.drain(..covered) {
            apply(durable, &write);
        }
    }

    /// Leaves what was synced, and of each later write all or nothing, as the dice say. Files never synced are gone.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        self.files.retain(|_, image| image.durable.is_some());
        for image in self.files.values_mut() {
            let mut left = image.durable.clone().unwrap_or_default();
            for write in image.unsynced.drain(..) {
                if prng.chance(0.5) {
                    apply(&mut left, &write);
                }
            }
            image.live.clone_from(&left);
            image.durable = Some(left);
        }
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.files.values().map(|image| image.live.len() as u64).sum();
        self.settings.capacity_bytes.saturating_sub(used)
    }
}

fn aligned(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(DIRECT_BLOCK_BYTES) && (len as u64).is_multiple_of(DIRECT_BLOCK_BYTES)
}

fn apply(bytes: &mut Vec<u8>, write: &Write) {
    let end = write.offset + write.bytes.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[write.offset..end].copy_from_slice(&write.bytes);
}
