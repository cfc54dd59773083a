//! The catalog: how long every sample is and how it is cut into blocks. Arithmetic on sizes from the listing.
//!
//! Owns one `u64` per sample unless all are equally long, and 16 bytes per chunk. Never knows a key: those stay with the listing, in `flow`.

use crate::usage;
use fuelrail_base::limits::{BLOCK_BYTES_MAX, DIRECT_BYTES_MIN, OBJECT_BYTES_MAX, SAMPLE_ALIGN, SAMPLES_MAX};
use fuelrail_base::{BlockId, Result, SampleId};

/// Neighbouring samples of one object that one request reads: each of them is a block of its own, too, and the first one's second block is
/// the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The first of them.
    pub first: SampleId,
    /// How many; at least two.
    pub samples: u32,
    /// From the first byte of the first one to the last byte of the last.
    pub bytes: u32,
}

impl Chunk {
    /// The block that is the chunk.
    pub fn block(&self) -> BlockId {
        BlockId { sample: self.first, index: 1 }
    }
}

/// How long samples are, bytes.
#[derive(Clone, Debug)]
enum Sizes {
    /// By sample.
    Each(Vec<u64>),
    /// So many of one size, as windows of tokens are.
    Same { samples: u64, size: u64 },
}

impl Sizes {
    /// Every size there is, and how many samples in a row have it.
    fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let (each, same) = match self {
            Sizes::Each(sizes) => (&**sizes, None),
            Sizes::Same { samples, size } => (&[][..], Some((*size, *samples))),
        };
        each.iter().map(|size| (*size, 1)).chain(same)
    }
}

/// Sizes of all samples and the block length.
#[derive(Clone, Debug)]
pub struct Catalog {
    sizes: Sizes,
    /// In the order of their samples. None overlap.
    chunks: Vec<Chunk>,
    block_bytes: u64,
    total_bytes: u64,
    /// What direct transfers to a disk are multiples of; zero where there is none.
    direct_unit: u64,
    /// Some samples are too short for direct transfers and some are not.
    mixed: bool,
}

impl Catalog {
    /// A catalog of `sizes` bytes, indexed by [`SampleId`], cut into blocks of at most `block_bytes`.
    ///
    /// # Errors
    /// `Usage` when there is no sample, more than 2^40−1 of them, an object above 5 TiB or a block length out of range.
    pub fn new(sizes: Vec<u64>, block_bytes: u64) -> Result<Catalog> {
        if sizes.is_empty() {
            return usage(
                "the data set is empty",
                "check the bucket and prefix; `fuelrail ls URI` shows what is there",
            );
        }
        if sizes.len() as u64 > SAMPLES_MAX {
            let cause = format!("{} objects; at most {SAMPLES_MAX} are supported", sizes.len());
            return usage(cause, "pack small objects into shards");
        }
        if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return usage(format!("block_bytes is {block_bytes}"), format!("choose between 1 and {BLOCK_BYTES_MAX}"));
        }
        if let Some(at) = sizes.iter().position(|&size| size > OBJECT_BYTES_MAX) {
            let cause = format!("object number {at} has {} bytes", sizes[at]);
            return usage(cause, format!("objects have at most {OBJECT_BYTES_MAX} bytes"));
        }
        let total_bytes = sizes.iter().sum();
        let sizes = match sizes[..] {
            [size, ref others @ ..] if others.iter().all(|other| *other == size) => {
                Sizes::Same { samples: sizes.len() as u64, size }
            }
            _ => Sizes::Each(sizes),
        };
        Ok(Catalog { sizes, chunks: Vec::new(), block_bytes, total_bytes, direct_unit: 0, mixed: false })
    }

    /// A catalog of so many samples of one size, at most 2^40−1, each a block.
    pub fn of_same(samples: u64, size: u64) -> Catalog {
        assert!((1..=SAMPLES_MAX).contains(&samples) && (1..=BLOCK_BYTES_MAX).contains(&size), "{samples} of {size}");
        let (sizes, total_bytes) = (Sizes::Same { samples, size }, samples * size);
        Catalog { sizes, chunks: Vec::new(), block_bytes: size, total_bytes, direct_unit: 0, mixed: false }
    }

    /// The same, with neighbours that are read together: in the order of their samples, each of one block.
    #[must_use]
    pub fn chunked(self, chunks: Vec<Chunk>) -> Catalog {
        debug_assert!(chunks.is_sorted_by_key(|chunk| chunk.first));
        Catalog { chunks, ..self }
    }

    /// The chunk that a sample is read with; `None` where it is read alone.
    pub fn chunk_of(&self, sample: SampleId) -> Option<&Chunk> {
        let behind = self.chunks.partition_point(|chunk| chunk.first <= sample);
        let chunk = self.chunks[..behind].last()?;
        (sample.0 - chunk.first.0 < u64::from(chunk.samples)).then_some(chunk)
    }

    /// The block that a block is fetched with: its chunk, or itself.
    pub fn fetched_with(&self, block: BlockId) -> BlockId {
        self.chunk_of(block.sample).map_or(block, Chunk::block)
    }

    /// Bytes of the longest chunk; 0 where there is none.
    pub fn chunk_bytes_max(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).max().unwrap_or(0)
    }

    /// Room that the longest chunk takes in memory, bytes: with what may have to be left out before and after it for direct transfers.
    pub fn chunk_room(&self) -> u64 {
        (self.chunk_bytes_max() + 2 * self.direct_unit).next_multiple_of(SAMPLE_ALIGN as u64)
    }

    /// Bytes of memory that sizes and chunks take.
    pub fn memory_bytes(&self) -> u64 {
        let sizes = if let Sizes::Each(sizes) = &self.sizes { size_of_val(&**sizes) } else { 0 };
        (sizes + size_of_val(&*self.chunks)) as u64
    }

    fn chunk(&self, block: BlockId) -> Option<&Chunk> {
        // Most blocks are no chunks: they are told without a search.
        if block.index != 1 {
            return None;
        }
        self.chunk_of(block.sample).filter(|chunk| chunk.block() == block)
    }

    /// The same, for batches whose long samples can be written to a disk and read from it without a copy: they begin at
    /// multiples of `unit` bytes in memory, and so does what follows them.
    ///
    /// # Errors
    /// `Usage` when blocks would begin elsewhere.
    pub fn direct(mut self, unit: u64) -> Result<Catalog> {
        if !self.block_bytes.is_multiple_of(unit) {
            let cause = format!("block_bytes is {}, and a disk is written in multiples of {unit}", self.block_bytes);
            let fits = self.block_bytes.next_multiple_of(unit);
            return usage(cause, format!("choose block_bytes = {fits}, or keep nothing on disk"));
        }
        let long: u64 =
            self.sizes.runs().filter(|(size, _)| *size >= DIRECT_BYTES_MIN).map(|(_, samples)| samples).sum();
        self.mixed = long > 0 && long < self.samples();
        self.direct_unit = if long > 0 || !self.chunks.is_empty() { unit } else { 0 };
        Ok(self)
    }

    /// Where direct transfers are wanted, the unit of those of this sample.
    pub fn direct_unit(&self, sample: SampleId) -> Option<u64> {
        (self.direct_unit > 0 && self.size(sample) >= DIRECT_BYTES_MIN).then_some(self.direct_unit)
    }

    /// Room a batch takes besides its samples, bytes: its memory may begin off a unit's boundary.
    pub fn batch_slack(&self) -> u64 {
        self.direct_unit
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        match &self.sizes {
            Sizes::Each(sizes) => sizes.len() as u64,
            Sizes::Same { samples, .. } => *samples,
        }
    }

    /// Sum of all sizes, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Longest block, bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Length of a sample, bytes.
    ///
    /// # Panics
    /// When the id is not of this catalog.
    pub fn size(&self, sample: SampleId) -> u64 {
        match &self.sizes {
            Sizes::Each(sizes) => sizes[sample.0 as usize],
            Sizes::Same { samples, size } => {
                assert!(sample.0 < *samples, "{sample:?} of {samples}");
                *size
            }
        }
    }

    /// How many blocks a sample has: 0 for an empty one.
    pub fn blocks(&self, sample: SampleId) -> u32 {
        u32::try_from(self.size(sample).div_ceil(self.block_bytes)).unwrap_or(u32::MAX)
    }

    /// First byte of a block in its object.
    pub fn block_first(&self, block: BlockId) -> u64 {
        if self.chunk(block).is_some() {
            return 0;
        }
        u64::from(block.index) * self.block_bytes
    }

    /// Length of a block, bytes.
    pub fn block_len(&self, block: BlockId) -> u64 {
        if let Some(chunk) = self.chunk(block) {
            return u64::from(chunk.bytes);
        }
        (self.size(block.sample) - self.block_first(block)).min(self.block_bytes)
    }

    /// The longest block there is and the mean of all, bytes, and how many there are.
    pub fn block_lengths(&self) -> (u64, u64, u64) {
        let longest = self.sizes.runs().map(|(size, _)| size).max().unwrap_or(0);
        let longest = longest.min(self.block_bytes).max(self.chunk_bytes_max());
        let blocks: u64 = self.sizes.runs().map(|(size, samples)| size.div_ceil(self.block_bytes) * samples).sum();
        (longest, self.total_bytes / blocks.max(1), blocks)
    }

    /// Room a sample takes in a batch slot: its size rounded up to the sample alignment, or to the unit of direct transfers,
    /// with what may have to be left out before it.
    pub fn room(&self, sample: SampleId) -> u64 {
        self.room_of(self.size(sample))
    }

    fn room_of(&self, size: u64) -> u64 {
        if self.direct_unit == 0 || size < DIRECT_BYTES_MIN {
            return size.next_multiple_of(SAMPLE_ALIGN as u64);
        }
        size.next_multiple_of(self.direct_unit) + if self.mixed { self.direct_unit } else { 0 }
    }

    /// The most room where a batch of `samples` may hold a sample several times: it may be the largest one.
    pub fn batch_room_max_drawn(&self, samples: u64) -> u64 {
        let largest = self.sizes.runs().map(|(size, _)| self.room_of(size)).max().unwrap_or(0);
        largest.saturating_mul(samples).saturating_add(self.batch_slack())
    }

    /// The most room any batch of `samples` samples can take, bytes: the sum of the largest ones.
    pub fn batch_room_max(&self, samples: u64) -> u64 {
        if samples == 0 {
            return 0;
        }
        let Sizes::Each(sizes) = &self.sizes else { return self.batch_room_max_drawn(samples.min(self.samples())) };
        let take = usize::try_from(samples).unwrap_or(usize::MAX).min(sizes.len());
        let mut rooms: Vec<u64> = sizes.iter().map(|&size| self.room_of(size)).collect();
        let (largest, mid, _) = rooms.select_nth_unstable_by(take - 1, |a, b| b.cmp(a));
        largest.iter().sum::<u64>() + *mid + self.batch_slack()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::Kind;

    #[test]
    fn cuts_objects_into_blocks() {
        let c = Catalog::new(vec![0, 1, 8, 9, 20], 8).unwrap();
        let blocks: Vec<u32> = (0..5).map(|s| c.blocks(SampleId(s))).collect();
        assert_eq!(blocks, [0, 1, 1, 2, 3]);
        let last = BlockId { sample: SampleId(4), index: 2 };
        assert_eq!((c.block_first(last), c.block_len(last)), (16, 4));
        assert_eq!(c.total_bytes(), 38);
    }

    #[test]
    fn batch_room_is_an_upper_bound() {
        let c = Catalog::new(vec![1, 65, 500, 0, 64], 8).unwrap();
        assert_eq!(c.batch_room_max(1), 512);
        assert_eq!(c.batch_room_max(2), 512 + 128);
        assert_eq!(c.batch_room_max(100), 512 + 128 + 64 + 64);
        assert_eq!(c.batch_room_max(0), 0);
    }

    #[test]
    fn samples_of_one_size_take_no_memory() {
        let (same, each) =
            (Catalog::new(vec![65_600; 9], 8_192).unwrap(), Catalog::new(vec![65_600, 1], 8_192).unwrap());
        assert_eq!((same.memory_bytes(), each.memory_bytes()), (0, 16));
        let same = same.direct(512).unwrap();
        assert_eq!((same.samples(), same.total_bytes(), same.block_lengths()), (9, 9 * 65_600, (8_192, 7_288, 81)));
        assert_eq!((same.batch_room_max(2), same.batch_room_max(20)), (2 * 66_048 + 512, 9 * 66_048 + 512));
        assert_eq!((same.blocks(SampleId(8)), same.room(SampleId(0))), (9, 66_048), "all are long");
        assert!(std::panic::catch_unwind(|| same.size(SampleId(9))).is_err());
        let many = Catalog::of_same(1_000_000_000_000, 110_000);
        assert_eq!((many.total_bytes(), many.size(SampleId(999_999_999_999))), (110_000_000_000_000_000, 110_000));
    }

    #[test]
    fn room_for_direct_transfers_is_rounded_up() {
        let long = Catalog::new(vec![65_536, 70_001], 1 << 20).unwrap().direct(512).unwrap();
        assert_eq!((long.room(SampleId(0)), long.room(SampleId(1))), (65_536, 70_144));
        assert_eq!((long.batch_slack(), long.batch_room_max(2)), (512, 65_536 + 70_144 + 512));
        let mixed = Catalog::new(vec![100, 70_001], 1 << 20).unwrap().direct(512).unwrap();
        assert_eq!((mixed.room(SampleId(0)), mixed.room(SampleId(1))), (128, 70_144 + 512));
        assert_eq!((mixed.direct_unit(SampleId(0)), mixed.direct_unit(SampleId(1))), (None, Some(512)));
        let short = Catalog::new(vec![100, 200], 1 << 20).unwrap().direct(512).unwrap();
        assert_eq!((short.room(SampleId(0)), short.batch_slack()), (128, 0));
        assert_eq!(Catalog::new(vec![1], 1000).unwrap().direct(512).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn refuses_what_cannot_be() {
        assert_eq!(Catalog::new(vec![], 8).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Catalog::new(vec![1], 0).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Catalog::new(vec![u64::MAX], 8).unwrap_err().kind(), Kind::Usage);
    }
}
