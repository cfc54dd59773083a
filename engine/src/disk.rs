//! Moving blocks between memory and one file by a ring, and nothing else: what this machine's disk gives at most to
//! whoever keeps blocks on it, and what that costs.
//!
//! Owns a ring, an arena of its own and the file. Decides nothing about what is worth keeping. Every block carries its
//! number, so that a read proves what was written.

use fuelrail_base::{Error, Kind, Result};
#[cfg(feature = "glommio")]
use fuelrail_io::GlommioRing;
#[cfg(feature = "tokio-uring")]
use fuelrail_io::TokioUringRing;
use fuelrail_io::{
    Arena, ArenaConfig, Backend, FileId, FileOptions, Op, PollRing, Ring, RingChoice, RingCounts, UringConfig,
    UringRing, Window,
};
use std::path::PathBuf;
use std::time::Instant;

/// Lengths, offsets and addresses of direct access are multiples of this on every disk.
const ALIGNMENT: u64 = 4096;
/// Bytes of a block that carry its number.
const STAMP_BYTES: usize = 16;
const DEPTH_MAX: u32 = 1024;

/// What to move, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskPlan {
    /// The file. Made when there is none; not removed.
    pub path: PathBuf,
    /// The ring.
    pub ring: RingChoice,
    /// Bytes a block: a multiple of 4096.
    pub block_bytes: u64,
    /// Blocks under way at once: 1 to 1024.
    pub depth: u32,
    /// Bytes of the file: a multiple of the block, at least one.
    pub bytes: u64,
    /// Around the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Through memory registered with the kernel, where the ring can.
    pub register: bool,
}

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DiskWay {
    /// From memory to the file, in the file's order, and synced at the end.
    Write,
    /// From the file to memory, in the file's order. Every block is checked to be the one that was written there.
    Read,
}

/// What one way over the whole file came to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DiskPass {
    /// Bytes moved.
    pub bytes: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// From the first operation to the last, the sync included, s.
    pub wall_s: f64,
    /// System calls (or stays in a runtime) that submitted or waited.
    pub enters: u64,
    /// Bytes the CPU copied besides, where a runtime knows no memory but its own.
    pub copied_bytes: u64,
}

/// A file and a ring to move its blocks by. Belongs to the thread that opened it.
pub struct Disk {
    ring: Box<dyn Ring>,
    file: FileId,
    /// Memory for the blocks under way. A window that is read into travels with its operation; one that is written from
    /// stays, and is lent.
    windows: Vec<Option<Window>>,
    /// The block each window is for.
    under_way: Vec<u64>,
    /// Windows for which there is no block.
    idle: Vec<usize>,
    block_bytes: u64,
    blocks: u64,
    facts: String,
    notices: Vec<String>,
    // Outlives the ring and the windows: all of its memory is theirs.
    _arena: Arena,
}

impl DiskPlan {
    /// Checks that such a plan can be followed.
    ///
    /// # Errors
    /// `Usage` that says what is wrong.
    pub fn validate(&self) -> Result<()> {
        let usage = |cause: String, cure: &str| Err(Error::new(Kind::Usage, cause).cure(cure));
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(ALIGNMENT) || self.block_bytes > 1 << 30 {
            let cause = format!("a block of {} bytes", self.block_bytes);
            return usage(cause, "give a multiple of 4096, at most 1 GiB");
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return usage(format!("{} blocks at once", self.depth), "give 1 to 1024");
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(self.block_bytes) {
            let cause = format!("a file of {} bytes in blocks of {}", self.bytes, self.block_bytes);
            return usage(cause, "give a multiple of the block");
        }
        Ok(())
    }

    /// Opens ring, memory and file.
    ///
    /// # Errors
    /// As [`DiskPlan::validate`]; `Environment` when the ring is refused, `Budget` without memory, `File` when the file
    /// cannot be opened.
    pub fn open(&self) -> Result<Disk> {
        self.validate()?;
        let bytes = self.block_bytes * u64::from(self.depth);
        let config = ArenaConfig { bytes, regions: 1, slots_per_region: self.depth as usize, ..ArenaConfig::default() };
        let (arena, mut regions) = Arena::new(&config)?;
        let mut region = regions.pop().expect("an arena of one region has one region");
        let (backend, notice) = self.ring.settle()?;
        let register = self.register.then(|| arena.clone());
        let config = UringConfig { entries: self.depth, sockets: 1, register };
        let mut ring = open_ring(backend, &config)?;
        let options = FileOptions { write: true, create: true, direct: self.direct, len: None };
        let file = ring.open(&self.path, &options)?;
        let mut windows = Vec::with_capacity(self.depth as usize);
        for _ in 0..self.depth {
            let slot = region.alloc(self.block_bytes as usize).expect("the arena has room for every block");
            windows.push(slot.fill().carve(self.block_bytes as usize));
        }
        // Every page is there, and differs from the others, before anything is measured.
        for (n, window) in windows.iter_mut().flatten().enumerate() {
            fill(window, n as u64);
        }
        let facts = ring.facts();
        let mut notices: Vec<String> = notice.into_iter().collect();
        notices.extend(facts.refusals);
        let facts = format!("{} ({})", facts.backend, facts.abilities.join(", "));
        let blocks = self.bytes / self.block_bytes;
        let (under_way, idle) = (vec![0; windows.len()], (0..windows.len()).collect());
        let block_bytes = self.block_bytes;
        Ok(Disk { ring, file, windows, under_way, idle, block_bytes, blocks, facts, notices, _arena: arena })
    }
}

fn open_ring(backend: Backend, config: &UringConfig) -> Result<Box<dyn Ring>> {
    Ok(match backend {
        Backend::Uring => Box::new(UringRing::new(config)?),
        Backend::Poll => Box::new(PollRing::new(config)?),
        #[cfg(feature = "tokio-uring")]
        Backend::TokioUring => Box::new(TokioUringRing::new(config)?),
        #[cfg(feature = "glommio")]
        Backend::Glommio => Box::new(GlommioRing::new(config)?),
    })
}

/// Fills a window with bytes that do not compress.
fn fill(window: &mut Window, seed: u64) {
    let mut words = fuelrail_base::prng::Prng::new(seed);
    let mut line = [0; 4096];
    while window.room() > 0 {
        for word in line.chunks_exact_mut(8) {
            word.copy_from_slice(&words.next().to_le_bytes());
        }
        window.put(&line);
    }
}

impl Disk {
    /// The ring and its abilities.
    #[must_use]
    pub fn ring(&self) -> &str {
        &self.facts
    }

    /// What was wanted and not given, with cause and cure.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Moves the whole file once.
    ///
    /// # Errors
    /// `File` when the disk refuses, `Mismatch` when a block read is not the one that was written. Afterwards it can only
    /// be dropped.
    pub fn pass(&mut self, way: DiskWay) -> Result<DiskPass> {
        let (start, before) = (Instant::now(), self.counts());
        let (mut begun, mut done) = (0, 0);
        while done < self.blocks {
            while begun < self.blocks
                && let Some(place) = self.idle.pop()
            {
                self.begin(way, begun, place);
                begun += 1;
            }
            while let Some(back) = self.ring.pop() {
                let n = back.result.map_err(|errno| refused(way, errno))?;
                done += u64::from(self.go_on(back.token as usize, back.op, n)?);
            }
            if done < self.blocks && (begun == self.blocks || self.idle.is_empty()) {
                self.ring.wait(None)?;
            }
        }
        if way == DiskWay::Write {
            self.sync()?;
        }
        let after = self.counts();
        Ok(DiskPass {
            bytes: self.blocks * self.block_bytes,
            blocks: self.blocks,
            wall_s: start.elapsed().as_secs_f64(),
            enters: after.enters - before.enters,
            copied_bytes: after.copied_bytes - before.copied_bytes,
        })
    }

    fn counts(&self) -> RingCounts {
        self.ring.facts().counts
    }

    fn begin(&mut self, way: DiskWay, block: u64, place: usize) {
        self.under_way[place] = block;
        let (file, offset) = (self.file, block * self.block_bytes);
        let mut window = self.windows[place].take().expect("an idle window is here");
        let op = match way {
            DiskWay::Write => {
                window = stamped(window, block);
                let from = window.lend();
                self.windows[place] = Some(window);
                Op::WriteAt { file, offset, from, start: 0 }
            }
            DiskWay::Read => {
                window.rewind(0);
                Op::ReadAt { file, offset, into: window }
            }
        };
        self.push(op, place);
    }

    fn push(&mut self, op: Op, place: usize) {
        self.ring.push(op, place as u64).expect("the ring has room for every block under way");
    }

    /// Takes an operation that moved `n` bytes: on with the rest of its block, or done with it. Whether the block is done.
    fn go_on(&mut self, place: usize, op: Op, n: usize) -> Result<bool> {
        let block = self.under_way[place];
        let offset = block * self.block_bytes;
        match op {
            Op::WriteAt { file, from, start, .. } if start + n < from.len() => {
                let start = start + n;
                self.push(Op::WriteAt { file, offset: offset + start as u64, from, start }, place);
                return Ok(false);
            }
            // What was lent is given back here, so that the window can be written to again.
            Op::WriteAt { .. } => {}
            Op::ReadAt { .. } if n == 0 => {
                return Err(Error::new(Kind::Mismatch, format!("the file ends before block {block}"))
                    .cure("write it before it is read"));
            }
            Op::ReadAt { file, into, .. } if into.room() > 0 => {
                self.push(Op::ReadAt { file, offset: offset + into.filled() as u64, into }, place);
                return Ok(false);
            }
            Op::ReadAt { into, .. } => {
                if into.bytes()[..STAMP_BYTES] != stamp(block) {
                    return Err(Error::new(Kind::Mismatch, format!("block {block} is not what was written there"))
                        .cure("look for another writer of the file, then at the disk"));
                }
                self.windows[place] = Some(into);
            }
            _ => {
                unreachable!("only blocks are under way here")
            }
        }
        self.idle.push(place);
        Ok(true)
    }

    fn sync(&mut self) -> Result<()> {
        self.push(Op::SyncData { file: self.file }, 0);
        loop {
            if let Some(back) = self.ring.pop() {
                return back.result.map(drop).map_err(|errno| refused(DiskWay::Write, errno));
            }
            self.ring.wait(None)?;
        }
    }
}

fn refused(way: DiskWay, errno: i32) -> Error {
    let doing = match way {
        DiskWay::Write => "writing blocks",
        DiskWay::Read => "reading blocks",
    };
    let cure = match std::io::Error::from_raw_os_error(errno).kind() {
        std::io::ErrorKind::StorageFull => "free some space, or give fewer bytes",
        std::io::ErrorKind::InvalidInput => "go through the page cache: this disk's own block may be larger",
        _ => "look at the kernel's log (dmesg)",
    };
    Error::from_errno(Kind::File, doing, errno).cure(cure)
}

/// What the first bytes of a block say.
fn stamp(block: u64) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&block.to_le_bytes());
    stamp[8..].copy_from_slice(&fuelrail_base::prng::mix64(block).to_le_bytes());
    stamp
}

/// The window, whole again, with the block's number at its start.
fn stamped(mut window: Window, block: u64) -> Window {
    let rest = window.split_off(STAMP_BYTES);
    window.rewind(0);
    window.put(&stamp(block));
    window.join(rest).unwrap_or_else(|_| unreachable!("split just now"))
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.ring.close_file(self.file);
    }
}
