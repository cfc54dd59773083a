//! Cache directories on real files: a scratch folder, a small data set, and segments written as shards write them.

mod files;
mod keeping;
mod owners;
mod processes;
#[path = "../../../tests/common/skip.rs"]
mod skip;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fuelrail_base::{BlockId, SampleId};
use fuelrail_flow::{Listed, Objects, SegmentFile, SpillSetup, segment_queues};
use fuelrail_wire::block::{PAGE_BYTES, RECORD_BYTES, Record, SegmentName, journal_page};

use super::directory::Directory;
use super::manager::Work;
use super::{Lengths, Limits, Report};

const MIB: u64 = 1 << 20;
const ONE_MIB: Lengths = Lengths { usual: MIB, least: MIB };

/// A data set of 40 objects, their lengths 1 000 bytes apart, in blocks of 10 000.
fn objects(etag: &str) -> Objects {
    let object = |n: u64| Listed { key: format!("o/{n:02}"), size: 1_000 * n, etag: Some(format!("\"{etag}{n}\"")) };
    let listed: Vec<Listed> = (1..=40).map(object).collect();
    let address = "127.0.0.1:80".parse().unwrap();
    Objects::new("http://host/bucket/o/".parse().unwrap(), vec![address], &listed, 10_000).unwrap()
}

/// The bytes of a block, which nothing else has.
fn content(block: BlockId, len: u64) -> Vec<u8> {
    let mut prng = fuelrail_base::prng::Prng::new(block.hash64());
    (0..len).map(|_| prng.next() as u8).collect()
}

fn blocks(objects: &Objects, sample: u32) -> Vec<BlockId> {
    let sample = SampleId(sample.into());
    (0..objects.catalog().blocks(sample)).map(|index| BlockId { sample, index }).collect()
}

/// Writes blocks and their records into a segment, as its shard would, from `place` and the `nth` record on; the byte after them.
fn spill(path: &Path, objects: &Objects, all: &[BlockId], mut place: u64, nth: usize) -> u64 {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let name = SegmentName::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
    for (nth, block) in (nth..).zip(all) {
        let bytes = content(*block, objects.catalog().block_len(*block));
        file.write_all_at(&bytes, place).unwrap();
        let record = Record {
            fingerprint: objects.fingerprint(block.sample).unwrap(),
            first: objects.catalog().block_first(*block),
            len: bytes.len() as u32,
            place,
            crc32c: crc32c::crc32c(&bytes),
            promised: None,
            sequence: nth as u32,
            mark: name.mark(),
        };
        let page = journal_page(len, (nth / (PAGE_BYTES / RECORD_BYTES)) as u64).unwrap();
        let at = page + (nth % (PAGE_BYTES / RECORD_BYTES) * RECORD_BYTES) as u64;
        file.write_all_at(&record.encode(), at).unwrap();
        place = (place + bytes.len() as u64).next_multiple_of(16);
    }
    place
}

/// Lines somebody was told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn tell(&self) -> Report {
        let lines = self.0.clone();
        Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()))
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn open(path: &Path) -> Directory {
    Directory::open(path, &mut Vec::new()).unwrap()
}

/// A segment manager's work over these directories, for so many shards, with a limit in MiB and segments of one.
fn work(directories: &[&Path], shards: u16, limit_mib: u64, told: &Told) -> Work {
    let limits = Limits { limit_bytes: limit_mib * MIB, floor_bytes: Some(0) };
    let config = (limits, ONE_MIB, shards);
    Work::new(config, directories.iter().map(|path| open(path)).collect(), told.tell())
}

/// What each shard is given at the start.
fn recovered(work: &mut Work, objects: &Objects, shards: u16) -> Vec<Vec<(SegmentFile, Vec<fuelrail_flow::Known>)>> {
    let setup = |_| SpillSetup { channel: segment_queues().0, unit: 4096, files_max: 8, found: Vec::new() };
    let mut setups: Vec<SpillSetup> = (0..shards).map(setup).collect();
    work.recover(objects, &mut setups);
    setups.into_iter().map(|setup| setup.found).collect()
}

/// Files of this user's directory in another, but for its tag.
fn names(path: &Path) -> Vec<PathBuf> {
    let own = fuelrail_io::OwnDirectory::open(path).unwrap();
    let all = fs::read_dir(own.path()).unwrap().map(|item| item.unwrap().path());
    let mut all: Vec<PathBuf> = all.filter(|path| !path.ends_with("CACHEDIR.TAG")).collect();
    all.sort();
    all
}
