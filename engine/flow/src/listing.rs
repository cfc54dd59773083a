//! A packed listing: millions of keys, lengths and entity tags in a few large pieces of memory.
//!
//! Owns 34 bytes an object beside its key, plus the text of tags that are neither an MD5 nor what Azure writes. Never lists a bucket.

use fuelrail_base::search::first_wanted;
use fuelrail_wire::Etag;
use std::borrow::Cow;
use std::io::Write;

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
    /// Adds an object behind those there are.
    pub fn push(&mut self, key: &str, size: u64, etag: Option<&str>) {
        if self.chunks.last().is_none_or(|chunk| chunk.sizes.len() >= CHUNK_OBJECTS_MAX) {
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

    /// Bytes of memory it takes.
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
        self.chunks.iter().flat_map(|chunk| &chunk.sizes).sum()
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

    /// The first object, of a listing in the order of its keys, whose key is this one or behind it.
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
        chunk.sizes[at]
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

    /// Whether every key is behind the one before it.
    #[must_use]
    pub fn is_sorted(&self) -> bool {
        (1..self.len()).all(|at| self.key(at - 1) < self.key(at))
    }

    /// The same objects in the order of their keys.
    #[must_use]
    pub fn sorted(&self) -> Listing {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by_key(|at| self.key(*at));
        let mut sorted = Listing::default();
        for at in order {
            sorted.push(self.key(at), self.size(at), self.etag(at).as_deref());
        }
        sorted
    }

    /// Takes the lengths out: from then on only keys and tags can be read.
    pub(crate) fn take_sizes(&mut self) -> Vec<u64> {
        let mut sizes = Vec::with_capacity(self.len);
        self.chunks.iter_mut().for_each(|chunk| sizes.append(&mut std::mem::take(&mut chunk.sizes)));
        sizes
    }
}

/// Some objects, one behind the other.
#[derive(Clone, Debug, Default)]
struct Chunk {
    keys: String,
    /// Where each key ends.
    ends: Vec<u64>,
    sizes: Vec<u64>,
    tags: Tags,
}

impl Chunk {
    /// Bytes of memory taken.
    fn memory_bytes(&self) -> u64 {
        let Tags { digests, forms, texts, odd } = &self.tags;
        let texts = self.keys.capacity() + texts.capacity() + size_of::<(u64, u64)>() * odd.capacity();
        let words = size_of::<u64>() * (self.ends.capacity() + self.sizes.capacity());
        (texts + words + size_of::<[u8; 16]>() * digests.capacity() + size_of::<u16>() * forms.capacity()) as u64
    }

    fn push(&mut self, key: &str, size: u64, etag: Option<&str>) {
        self.keys.push_str(key);
        self.ends.push(self.keys.len() as u64);
        self.sizes.push(size);
        self.tags.push(etag);
    }

    fn key(&self, at: usize) -> &str {
        let from = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.keys[from..self.ends[at] as usize]
    }

    fn shrink(&mut self) {
        self.keys.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.sizes.shrink_to_fit();
        self.tags.digests.shrink_to_fit();
        self.tags.forms.shrink_to_fit();
        self.tags.texts.shrink_to_fit();
        self.tags.odd.shrink_to_fit();
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

/// Entity tags. Nearly all are an MD5 in quotes, or one and a number of parts; on Azure a number.
#[derive(Clone, Debug, Default)]
struct Tags {
    digests: Vec<[u8; 16]>,
    /// Parts of a multipart object, 0 for none; or one of the forms below.
    forms: Vec<u16>,
    /// Texts of the odd ones, one behind the other, and which object each belongs to, and where it ends.
    texts: String,
    odd: Vec<(u64, u64)>,
}

/// The longest text of one that is packed: quotes, 32 digits, a hyphen and five more.
const TEXT_BYTES_MAX: usize = 40;
const PARTS_MAX: u16 = 10_000;
const NUMBER: u16 = u16::MAX - 2;
const ODD: u16 = u16::MAX - 1;
const NONE: u16 = u16::MAX;

impl Tags {
    fn push(&mut self, etag: Option<&str>) {
        let (digest, form) = match etag {
            None => ([0; 16], NONE),
            Some(text) => packed(text).unwrap_or_else(|| {
                self.texts.push_str(text);
                self.odd.push((self.forms.len() as u64, self.texts.len() as u64));
                ([0; 16], ODD)
            }),
        };
        self.digests.push(digest);
        self.forms.push(form);
    }

    fn get(&self, at: usize) -> Option<Cow<'_, str>> {
        if self.forms[at] == ODD {
            return self.odd(at).map(Cow::Borrowed);
        }
        let mut room = [0; TEXT_BYTES_MAX];
        self.written(at, &mut room).map(|text| Cow::Owned(String::from_utf8_lossy(text).into_owned()))
    }

    fn compared(&self, at: usize) -> Option<Etag> {
        if self.forms[at] == ODD {
            return self.odd(at).map(Etag::of);
        }
        let mut room = [0; TEXT_BYTES_MAX];
        self.written(at, &mut room).map(Etag::of_bytes)
    }

    fn push_strong(&self, at: usize, out: &mut String) {
        let mut room = [0; TEXT_BYTES_MAX];
        let text = match self.forms[at] {
            ODD => self.odd(at).filter(|text| fuelrail_wire::can_match(text)),
            _ => self.written(at, &mut room).and_then(|text| core::str::from_utf8(text).ok()),
        };
        out.push_str(text.unwrap_or_default());
    }

    fn odd(&self, at: usize) -> Option<&str> {
        let place = self.odd.binary_search_by_key(&(at as u64), |(at, _)| *at).ok()?;
        let from = if place == 0 { 0 } else { self.odd[place - 1].1 as usize };
        Some(&self.texts[from..self.odd[place].1 as usize])
    }

    /// The text of one that is not odd.
    fn written<'r>(&self, at: usize, room: &'r mut [u8; TEXT_BYTES_MAX]) -> Option<&'r [u8]> {
        let digest = u128::from_be_bytes(self.digests[at]);
        let mut rest = room.as_mut_slice();
        let done = match self.forms[at] {
            NONE => return None,
            NUMBER => write!(rest, "\"0x{digest:X}\""),
            0 => write!(rest, "\"{digest:032x}\""),
            parts => write!(rest, "\"{digest:032x}-{parts}\""),
        };
        done.ok()?;
        let len = TEXT_BYTES_MAX - rest.len();
        Some(&room[..len])
    }
}

/// A tag that can be written again from 16 bytes and its form. `None` for any other.
fn packed(text: &str) -> Option<([u8; 16], u16)> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if let Some(digits) = inner.strip_prefix("0x") {
        let fits = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
        let plain =
            (1..=32).contains(&digits.len()) && digits.bytes().all(fits) && (digits == "0" || !digits.starts_with('0'));
        return plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(|n| (n.to_be_bytes(), NUMBER));
    }
    let (digits, form) = match inner.split_once('-') {
        None => (inner, 0),
        Some((digits, parts)) => {
            let number: u16 = parts.parse().ok().filter(|parts| (1..=PARTS_MAX).contains(parts))?;
            (digits, (number.to_string() == parts).then_some(number)?)
        }
    };
    let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let plain = digits.len() == 32 && digits.bytes().all(fits);
    plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(|digest| (digest.to_be_bytes(), form))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sorting_keeps_every_objects_own() {
        let objects = objects();
        let backwards: Listing = objects.iter().rev().collect();
        assert!(!backwards.is_sorted());
        assert_eq!(backwards.sorted().iter().collect::<Vec<_>>(), objects);
    }

    fn taken(chunk: &Chunk) -> usize {
        let Chunk { keys, ends, sizes, tags } = chunk;
        let names = keys.capacity() + tags.texts.capacity() + 16 * tags.odd.capacity();
        names + 8 * (ends.capacity() + sizes.capacity()) + 16 * tags.digests.capacity() + 2 * tags.forms.capacity()
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
        let taken: usize = listing.chunks.iter().map(taken).sum();
        assert_eq!(taken, objects * (key.len() + 34));
    }
}
