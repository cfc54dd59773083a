//! Generated data sets: every key, size and byte is a pure function of `(kind, seed, count, …)`, so any reader can check
//! every byte it received without a copy of the data, and a server can serve petabytes from nothing.
//!
//! Objects are numbered in the order of their keys' bytes, which is the order a listing gives. Sizes are known without
//! generating content. Functions of an index panic when it is not below `len()`.

mod arrays;
mod digits;
mod photos;

use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::random::mix;
use crate::script::word;
use crate::{Error, ErrorKind, Result};

/// Largest number of objects in a generated set.
const COUNT_MAX: u64 = 1_000_000_000;

/// The content of a generated set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetKind {
    /// 28×28 greyscale PNGs of the ten digits, shifted, rotated and noisy; keys `training/<class>/<id>.png`; about 1 KiB.
    Digits,
    /// JPEGs, log-normal around 110 KiB, 5 to 500 KiB; keys `train/<class>/<id>.jpg`.
    Photos,
    /// `.npy` arrays of `<u8`, normal around 140 MiB with a deviation of 65 MiB; keys `case_00000.npy`.
    Volumes,
    /// Shards of little-endian `u16` token ids below 50 257; keys `shard_000000.bin`.
    Tokens,
}

impl fmt::Display for SetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for SetKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<SetKind> {
        let unknown =
            || Error::usage(format!("unknown data set `{text}`")).cure("use digits, photos, volumes or tokens");
        word(text).ok_or_else(unknown)
    }
}

/// A generated set. Two sets with equal fields have equal keys, sizes and bytes, on every machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// The kind of content.
    pub kind: SetKind,
    /// Seed of the content.
    pub seed: u64,
    /// Number of objects, at most 10⁹.
    pub count: u64,
    /// Multiplies the sizes of `volumes`; 1 is the published size. Other kinds ignore it.
    #[serde(default = "scale_default")]
    pub scale: f64,
    /// Bytes of every `tokens` shard, even. Other kinds ignore it.
    #[serde(default = "shard_bytes_default")]
    pub shard_bytes: u64,
}

fn scale_default() -> f64 {
    1.0
}

fn shard_bytes_default() -> u64 {
    64 << 20
}

/// Progress of [`DataSet::write_to`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Written {
    /// Objects completely written.
    pub objects: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// One object, with all that content functions need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    index: u64,
    class: u64,
    seed: u64,
    pub(crate) size: u64,
}

impl Item {
    /// Returns the seed for content of `generation`. Generation 0 is the listed content; others are the content of
    /// overwritten objects.
    fn stream(&self, generation: u64) -> u64 {
        mix(self.seed ^ generation.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }
}

impl DataSet {
    /// A set with default `scale` and `shard_bytes`.
    pub fn new(kind: SetKind, count: u64, seed: u64) -> DataSet {
        DataSet { kind, seed, count, scale: scale_default(), shard_bytes: shard_bytes_default() }
    }

    /// `count` digit images. See [`SetKind::Digits`].
    pub fn digits(count: u64, seed: u64) -> DataSet {
        DataSet::new(SetKind::Digits, count, seed)
    }

    /// `count` photos. See [`SetKind::Photos`].
    pub fn photos(count: u64, seed: u64) -> DataSet {
        DataSet::new(SetKind::Photos, count, seed)
    }

    /// `count` volumes with sizes multiplied by `scale`. See [`SetKind::Volumes`].
    pub fn volumes(count: u64, seed: u64, scale: f64) -> DataSet {
        DataSet { scale, ..DataSet::new(SetKind::Volumes, count, seed) }
    }

    /// `count` shards of `shard_bytes` each. See [`SetKind::Tokens`].
    pub fn tokens(count: u64, seed: u64, shard_bytes: u64) -> DataSet {
        DataSet { shard_bytes, ..DataSet::new(SetKind::Tokens, count, seed) }
    }

    /// Checks that the fields are valid.
    ///
    /// # Errors
    /// `Usage` with the field, its value and its bounds.
    pub fn validate(&self) -> Result<()> {
        if self.count > COUNT_MAX {
            return Err(Error::usage(format!("count = {} is above {COUNT_MAX}", self.count)));
        }
        if !(self.scale > 0.0 && self.scale <= 64.0) {
            return Err(Error::usage(format!("scale = {} is outside 0 < scale <= 64", self.scale)));
        }
        if !self.shard_bytes.is_multiple_of(2) || self.shard_bytes > 1 << 40 {
            let cause = format!("shard_bytes = {} is not an even number up to 1 TiB", self.shard_bytes);
            return Err(Error::usage(cause).cure("a token takes two bytes"));
        }
        Ok(())
    }

    /// Number of objects.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Key of object `index`; keys ascend bytewise with the index.
    pub fn key(&self, index: u64) -> String {
        assert!(index < self.count, "object {index} of {}", self.count);
        let width = (self.count - 1).checked_ilog10().unwrap_or(0) as usize + 1;
        match self.kind {
            SetKind::Digits => format!("training/{}/{index:0w$}.png", self.class(index), w = width.max(5)),
            SetKind::Photos => format!("train/{:04}/{index:0w$}.jpg", self.class(index), w = width.max(7)),
            SetKind::Volumes => format!("case_{index:0w$}.npy", w = width.max(5)),
            SetKind::Tokens => format!("shard_{index:0w$}.bin", w = width.max(6)),
        }
    }

    /// Index of the object with this key; `None` when there is none.
    pub fn index(&self, key: &str) -> Option<u64> {
        let name = key.rsplit('/').next()?;
        let id = name.split('.').next()?;
        let id = id.rsplit('_').next()?;
        let index: u64 = id.parse().ok()?;
        (index < self.count && self.key(index) == key).then_some(index)
    }

    /// Class of object `index` (the folder in its key), for `digits` and `photos`; 0 for kinds without classes.
    pub fn class(&self, index: u64) -> u64 {
        let classes = self.classes().min(self.count.max(1));
        let (each, longer) = (self.count / classes, self.count % classes);
        let in_longer = longer * (each + 1);
        if index < in_longer { index / (each + 1) } else { longer + (index - in_longer) / each }
    }

    /// Exact size in bytes of object `index`, without generating it.
    pub fn size(&self, index: u64) -> u64 {
        self.item(index).size
    }

    /// Sum of all sizes; takes time in proportion to `len()`.
    pub fn total_bytes(&self) -> u64 {
        (0..self.count).map(|index| self.size(index)).sum()
    }

    /// The whole content of object `index`.
    pub fn content(&self, index: u64) -> Vec<u8> {
        self.content_range(index, 0..self.size(index))
    }

    /// Bytes `range` of object `index`.
    pub fn content_range(&self, index: u64, range: Range<u64>) -> Vec<u8> {
        let item = self.item(index);
        assert!(range.start <= range.end && range.end <= item.size, "{range:?} of {} bytes", item.size);
        let mut out = vec![0; (range.end - range.start) as usize];
        self.fill_item(&item, 0, range.start, &mut out);
        out
    }

    /// Checks that `bytes` are exactly the object.
    ///
    /// # Errors
    /// `NotFound` for a key outside the set; `Mismatch` with the sizes or the first wrong byte.
    pub fn verify(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let absent = || Error::new(ErrorKind::NotFound, format!("no object `{key}` in {} {}", self.count, self.kind));
        let item = self.item(self.index(key).ok_or_else(absent)?);
        if bytes.len() as u64 != item.size {
            let cause = format!("`{key}` has {} bytes, not {}", item.size, bytes.len());
            return Err(Error::new(ErrorKind::Mismatch, cause));
        }
        let mut want = vec![0; bytes.len().min(VERIFY_BYTES)];
        for (step, got) in bytes.chunks(VERIFY_BYTES).enumerate() {
            let at = (step * VERIFY_BYTES) as u64;
            let want = &mut want[..got.len()];
            self.fill_item(&item, 0, at, want);
            if want != got {
                let first = want.iter().zip(got).position(|(want, got)| want != got).unwrap_or(0);
                let (want, got) = (want[first], got[first]);
                let cause = format!("`{key}` differs at byte {}: {got:#04x} for {want:#04x}", at + first as u64);
                return Err(Error::new(ErrorKind::Mismatch, cause));
            }
        }
        Ok(())
    }

    /// Strong entity tag of object `index`, quotes included: 32 hexadecimal digits from key, seed and size.
    pub fn etag(&self, index: u64) -> String {
        self.etag_item(&self.item(index), 0)
    }

    pub(crate) fn etag_item(&self, item: &Item, generation: u64) -> String {
        let mut identity = [0u8; 24];
        identity[..8].copy_from_slice(&item.seed.to_le_bytes());
        identity[8..16].copy_from_slice(&item.size.to_le_bytes());
        identity[16..].copy_from_slice(&generation.to_le_bytes());
        format!("\"{:032x}\"", xxh3_128_with_seed(&identity, self.seed))
    }

    pub(crate) fn item(&self, index: u64) -> Item {
        let key = self.key(index);
        let class = self.class(index);
        let seed = xxh3_64_with_seed(key.as_bytes(), self.seed);
        let size = match self.kind {
            SetKind::Digits => digits::size(seed),
            SetKind::Photos => photos::size(seed),
            SetKind::Volumes => arrays::volume_bytes(seed, self.scale),
            SetKind::Tokens => self.shard_bytes,
        };
        Item { index, class, seed, size }
    }

    /// Writes content into `out`. The caller has checked that `offset + out.len()` is within the item.
    pub(crate) fn fill_item(&self, item: &Item, generation: u64, offset: u64, out: &mut [u8]) {
        let stream = item.stream(generation);
        match self.kind {
            SetKind::Digits => digits::fill(item.class, item.seed, stream, offset, out),
            SetKind::Photos => photos::fill(item.seed, item.size, stream, offset, out),
            SetKind::Volumes => arrays::fill_volume(item.size, stream, offset, out),
            SetKind::Tokens => arrays::fill_tokens(stream, offset, out),
        }
    }

    /// Writes every object to the file `dir/<key>`, making folders as needed and overwriting files that exist;
    /// `progress` is called at least once per MiB and after every object.
    ///
    /// # Errors
    /// `Usage` for an invalid set, `System` when a file cannot be written. Files already written stay.
    pub fn write_to(&self, dir: &Path, mut progress: impl FnMut(Written)) -> Result<Written> {
        self.validate()?;
        let mut written = Written::default();
        let mut made = None;
        let mut step = Vec::new();
        for index in 0..self.count {
            let path = dir.join(self.key(index));
            let folder = path.parent().unwrap_or(dir).to_path_buf();
            if made.as_ref() != Some(&folder) {
                fs::create_dir_all(&folder).map_err(|e| Error::system(format!("making {}", folder.display()), &e))?;
                made = Some(folder);
            }
            let failed = |e: &std::io::Error| Error::system(format!("writing {}", path.display()), e);
            let mut file = fs::File::create(&path).map_err(|e| failed(&e))?;
            let item = self.item(index);
            let mut at = 0;
            while at < item.size {
                step.resize((item.size - at).min(STEP_BYTES) as usize, 0);
                self.fill_item(&item, 0, at, &mut step);
                file.write_all(&step).map_err(|e| failed(&e))?;
                at += step.len() as u64;
                written.bytes += step.len() as u64;
                if at < item.size {
                    progress(written);
                }
            }
            written.objects += 1;
            progress(written);
        }
        Ok(written)
    }

    fn classes(&self) -> u64 {
        match self.kind {
            SetKind::Digits => 10,
            SetKind::Photos => 1000,
            SetKind::Volumes | SetKind::Tokens => 1,
        }
    }
}

/// Bytes generated and written at once.
const STEP_BYTES: u64 = 1 << 20;

/// Bytes generated at once when checking: small enough to stay in the second-level cache.
const VERIFY_BYTES: usize = 64 << 10;
