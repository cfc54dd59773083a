//! A packed listing: millions of keys, lengths and entity tags in a few large pieces of memory, or in a file that is mapped.
//!
//! Owns 34 bytes an object beside its key, plus the text of tags that are neither an MD5 nor what Azure writes. Never lists a bucket.

mod file;
mod piece;
mod tags;

use fuelrail_base::search::first_wanted;
use fuelrail_wire::Etag;
use piece::Piece;
use std::borrow::Cow;
use tags::Tags;

/// One listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Full key in the bucket.
    pub key: String,
    /// Length, bytes.
    pub size: u64,
    /// ETag as listed, if any.
    pub etag: Option<String>,
}

/// Many listed objects, in chunks as they were added: joining them would take their memory twice.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    chunks: Vec<Chunk>,
    /// The first object of every chunk.
    firsts: Vec<usize>,
    len: usize,
}

/// A chunk is closed at so many objects: one that grows may take twice its memory for a moment.
const CHUNK_OBJECTS_MAX: usize = 1 << 18;
/// What is shorter joins the chunk before it.
const CHUNK_OBJECTS_MIN: usize = 1 << 12;

impl Listing {
    /// Adds an object after those there are.
    pub fn push(&mut self, key: &str, size: u64, etag: Option<&str>) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK_OBJECTS_MAX || chunk.is_shared()) {
            self.close();
            self.firsts.push(self.len);
            self.chunks.push(Chunk::default());
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(key, size, etag);
            self.len += 1;
        }
    }

    /// Adds everything `other` holds.
    pub fn append(&mut self, mut other: Listing) {
        if other.len < CHUNK_OBJECTS_MIN {
            (0..other.len).for_each(|at| self.push(other.key(at), other.size(at), other.etag(at).as_deref()));
            return;
        }
        self.close();
        other.close();
        self.firsts.extend(other.firsts.iter().map(|first| self.len + first));
        self.chunks.append(&mut other.chunks);
        self.len += other.len;
    }

    /// Frees memory that the last chunk does not need.
    fn close(&mut self) {
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.shrink();
        }
    }

    /// The chunk of an object, and its place there.
    fn find(&self, at: usize) -> (&Chunk, usize) {
        let chunk = self.firsts.partition_point(|first| *first <= at) - 1;
        (&self.chunks[chunk], at - self.firsts[chunk])
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunks.iter().map(Chunk::memory_bytes).sum()
    }

    /// How many objects it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length of all objects together, bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.chunks.iter().flat_map(|chunk| chunk.sizes.numbers()).sum()
    }

    /// The key of an object.
    ///
    /// # Panics
    /// When there is no such object.
    #[must_use]
    pub fn key(&self, at: usize) -> &str {
        let (chunk, at) = self.find(at);
        chunk.key(at)
    }

    /// The first object, of a listing in the order of its keys, whose key is this one or after it.
    #[must_use]
    pub fn first_from(&self, key: &str) -> usize {
        first_wanted(0..self.len as u64, |at| self.key(at as usize) >= key) as usize
    }

    /// The length of an object, bytes.
    ///
    /// # Panics
    /// When there is no such object.
    #[must_use]
    pub fn size(&self, at: usize) -> u64 {
        let (chunk, at) = self.find(at);
        chunk.sizes.number(at)
    }

    /// The entity tag of an object as it was listed.
    ///
    /// # Panics
    /// When there is no such object.
    #[must_use]
    pub fn etag(&self, at: usize) -> Option<Cow<'_, str>> {
        let (chunk, at) = self.find(at);
        chunk.tags.get(at)
    }

    /// The entity tag as it is compared, without a heap.
    pub(crate) fn compared(&self, at: usize) -> Option<Etag> {
        let (chunk, at) = self.find(at);
        chunk.tags.compared(at)
    }

    /// Appends the entity tag as it was listed, where it can stand in a request; without a heap.
    pub(crate) fn push_strong(&self, at: usize, out: &mut String) {
        let (chunk, at) = self.find(at);
        chunk.tags.push_strong(at, out);
    }

    /// All objects, one by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Listed> + '_ {
        (0..self.len()).map(|at| Listed {
            key: self.key(at).to_owned(),
            size: self.size(at),
            etag: self.etag(at).map(Cow::into_owned),
        })
    }

    /// Whether every key is after the one before it.
    #[must_use]
    pub fn is_sorted(&self) -> bool {
        (1..self.len()).all(|at| self.key_bytes(at - 1) < self.key_bytes(at))
    }

    /// The same objects in the order of their keys.
    #[must_use]
    pub fn sorted(&self) -> Listing {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by_key(|at| self.key_bytes(*at));
        let mut sorted = Listing::default();
        for at in order {
            sorted.push(self.key(at), self.size(at), self.etag(at).as_deref());
        }
        sorted
    }

    /// Takes the lengths out: from then on only keys and tags can be read.
    pub(crate) fn take_sizes(&mut self) -> Vec<u64> {
        let mut sizes = Vec::with_capacity(self.len);
        self.chunks.iter_mut().for_each(|chunk| sizes.extend(std::mem::take(&mut chunk.sizes).numbers()));
        sizes
    }

    fn key_bytes(&self, at: usize) -> &[u8] {
        let (chunk, at) = self.find(at);
        chunk.key_bytes(at)
    }
}

/// Some objects, one after another. Numbers are little-endian.
#[derive(Clone, Debug, Default)]
struct Chunk {
    keys: Piece,
    /// Where each key ends, 8 bytes.
    ends: Piece,
    /// 8 bytes each.
    sizes: Piece,
    tags: Tags,
}

impl Chunk {
    fn len(&self) -> usize {
        self.ends.len() / 8
    }

    /// Whether it lies in a file, and nothing can be added to it.
    fn is_shared(&self) -> bool {
        matches!(self.ends, Piece::Shared(..))
    }

    fn memory_bytes(&self) -> u64 {
        let Chunk { keys, ends, sizes, tags: Tags { digests, forms, texts, odd } } = self;
        [keys, ends, sizes, digests, forms, texts, odd].map(Piece::memory_bytes).iter().sum()
    }

    fn push(&mut self, key: &str, size: u64, etag: Option<&str>) {
        self.keys.add(key.as_bytes());
        self.ends.add(&(self.keys.len() as u64).to_le_bytes());
        self.sizes.add(&size.to_le_bytes());
        self.tags.push(etag);
    }

    fn key(&self, at: usize) -> &str {
        core::str::from_utf8(self.key_bytes(at)).expect("keys are text, those of a file checked")
    }

    fn key_bytes(&self, at: usize) -> &[u8] {
        let from = if at == 0 { 0 } else { self.ends.number(at - 1) as usize };
        &self.keys[from..self.ends.number(at) as usize]
    }

    fn shrink(&mut self) {
        let Chunk { keys, ends, sizes, tags: Tags { digests, forms, texts, odd } } = self;
        [keys, ends, sizes, digests, forms, texts, odd].into_iter().for_each(Piece::shrink);
    }
}

impl<'a> FromIterator<&'a Listed> for Listing {
    fn from_iter<T: IntoIterator<Item = &'a Listed>>(objects: T) -> Listing {
        let mut listing = Listing::default();
        for Listed { key, size, etag } in objects {
            listing.push(key, *size, etag.as_deref());
        }
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_wire::kept::Flaw;

    fn objects() -> Vec<Listed> {
        let md5 = "9b2cf535f27731c974343645a3985328";
        let tags = [
            None,
            Some(format!("\"{md5}\"")),
            Some(format!("\"{md5}-7\"")),
            Some(format!("\"{md5}-10000\"")),
            Some(format!("\"{md5}-10001\"")),
            Some(format!("\"{md5}-07\"")),
            Some(format!("\"{md5}-+7\"")),
            Some(format!("\"{md5}-\"")),
            Some(md5.into()),
            Some(format!("\"{}\"", md5.to_uppercase())),
            Some(format!("W/\"{md5}\"")),
            Some("\"0x8DC0123456789AB\"".into()),
            Some("\"0x0\"".into()),
            Some("\"0x0123\"".into()),
            Some("\"0x8dc\"".into()),
            Some("\"0x\"".into()),
            Some("\"CKih16GjycICEAE=\"".into()),
            Some("\"00000000000000000000000000000000\"".into()),
            Some("\"é\"".into()),
            Some(String::new()),
        ];
        let object =
            |(n, etag): (usize, Option<String>)| Listed { key: format!("k/é{n:03}"), size: n as u64 * 7, etag };
        tags.into_iter().enumerate().map(object).collect()
    }

    #[test]
    fn the_memory_stated_is_what_keys_ends_and_sizes_take() {
        let mut chunk = Chunk::default();
        for n in 0..1000 {
            let packed = format!("\"{n:032x}\"");
            let etag = [packed.as_str(), "odd!"][n % 2];
            chunk.push(&format!("key/{n:04}"), n as u64, Some(etag));
        }
        // 8 bytes of key, 8 of its end, 8 of its size, 18 of its tag; of an odd one 4 of text and 16 of its place.
        let least = 42 * 1000 + 20 * 500;
        assert!((least..=2 * least).contains(&chunk.memory_bytes()), "{}", chunk.memory_bytes());
        chunk.shrink();
        assert_eq!(chunk.memory_bytes(), least);
    }

    #[test]
    fn what_is_packed_comes_out_as_it_was() {
        let objects = objects();
        let listing: Listing = objects.iter().collect();
        assert_eq!(listing.iter().collect::<Vec<_>>(), objects);
        for (at, object) in objects.iter().enumerate() {
            assert_eq!(listing.compared(at), object.etag.as_deref().map(Etag::of), "{object:?}");
            let mut strong = String::new();
            listing.push_strong(at, &mut strong);
            let sent = object.etag.as_deref().filter(|tag| !tag.starts_with("W/") && !tag.contains(' '));
            assert_eq!(strong, sent.unwrap_or_default(), "{object:?}");
        }
        assert_eq!(listing.total_bytes(), objects.iter().map(|o| o.size).sum::<u64>());
        let mut joined = Listing::default();
        for piece in objects.chunks(3) {
            joined.append(piece.iter().collect());
        }
        let sizes = joined.clone().take_sizes();
        assert!(sizes.iter().copied().eq(objects.iter().map(|o| o.size)));
        assert_eq!(joined.iter().collect::<Vec<_>>(), objects);
        assert!(joined.is_sorted() && Listing::default().is_sorted());
    }

    #[test]
    fn what_is_written_is_used_from_the_file_and_takes_no_memory_of_its_own() {
        let tags = objects();
        let of = |numbers: core::ops::Range<usize>| -> Vec<Listed> {
            let object =
                |n: usize| Listed {
                    key: format!("é/{n:06}"), size: n as u64, etag: tags[n % tags.len()].etag.clone()
                };
            numbers.map(object).collect()
        };
        // Three chunks.
        let all = of(0..3 * CHUNK_OBJECTS_MIN);
        let mut listing = Listing::default();
        all.chunks(CHUNK_OBJECTS_MIN).for_each(|piece| listing.append(piece.iter().collect()));
        assert_eq!(listing.chunks.len(), 3);
        let (header, mut file) = ([7; fuelrail_wire::kept::HEADER_BYTES], Vec::new());
        assert_eq!(listing.write(&header, &mut file).unwrap(), file.len() as u64);
        let odd = |object: &&Listed| {
            listing.find(object.size as usize).0.tags.is_odd(object.size as usize % CHUNK_OBJECTS_MIN)
        };
        let odd_bytes: usize = all.iter().filter(odd).map(|object| 16 + object.etag.as_ref().unwrap().len()).sum();
        let bytes = header.len() + 24 + all.len() * ("é/000000".len() + 34) + odd_bytes + 4;
        assert_eq!(file.len(), bytes);
        let mut shared = Listing::of_file(file.clone(), all.len() as u64).unwrap();
        assert!(shared.iter().eq(all.iter().cloned()) && shared.is_sorted());
        assert_eq!((shared.memory_bytes(), shared.total_bytes()), (0, listing.total_bytes()));
        let mut again = Vec::new();
        shared.write(&header, &mut again).unwrap();
        assert!(again == file);
        // What is added is its own.
        shared.push("é/a", 1, None);
        assert_eq!((shared.len(), shared.key(all.len()), shared.key(0)), (all.len() + 1, "é/a", "é/000000"));
        assert!(shared.memory_bytes() > 0);
        assert_eq!(Listing::of_file(file.clone(), all.len() as u64 + 1).unwrap_err(), Flaw::Short);
        assert_eq!(Listing::of_file(file, all.len() as u64 - 1).unwrap_err(), Flaw::Absurd);
        let mut none = Vec::new();
        Listing::default().write(&header, &mut none).unwrap();
        assert!(Listing::of_file(none, 0).unwrap().is_empty());
    }

    #[test]
    fn sorting_keeps_every_objects_own() {
        let objects = objects();
        let backwards: Listing = objects.iter().rev().collect();
        assert!(!backwards.is_sorted());
        assert_eq!(backwards.sorted().iter().collect::<Vec<_>>(), objects);
    }

    #[test]
    fn an_object_takes_34_bytes_beside_its_key() {
        let (objects, key) = (CHUNK_OBJECTS_MAX * 2 + CHUNK_OBJECTS_MIN * 2, "train/n00000000/0000000000.JPEG");
        let tags = [
            "\"9b2cf535f27731c974343645a3985328\"",
            "\"9b2cf535f27731c974343645a3985328-12\"",
            "\"0x8DC0123456789AB\"",
        ];
        let mut listing = Listing::default();
        // One piece that fills two chunks and a half, one that is a chunk of its own, and one that joins it.
        let mut pushed = 0;
        for len in [CHUNK_OBJECTS_MAX * 2 + 5, CHUNK_OBJECTS_MIN, CHUNK_OBJECTS_MIN - 5] {
            let mut piece = Listing::default();
            (0..len).for_each(|n| piece.push(key, (pushed + n) as u64, Some(tags[n % 3])));
            listing.append(piece);
            pushed += len;
        }
        assert_eq!((listing.len(), listing.chunks.len()), (objects, 4));
        for at in [0, CHUNK_OBJECTS_MAX - 1, CHUNK_OBJECTS_MAX, pushed / 2, pushed - CHUNK_OBJECTS_MIN, pushed - 1] {
            assert_eq!((listing.key(at), listing.size(at)), (key, at as u64));
        }
        listing.close();
        assert_eq!(listing.memory_bytes(), (objects * (key.len() + 34)) as u64);
    }
}
