//! Samples that are records of shards: found by one pass over the shards, and split into their fields in a batch.
//!
//! Owns the index. What the bytes of a shard mean is `format`'s; who reads them is the caller's.

use crate::listing::own_directory;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, BadSamples, ByteRange, Listing, Objects};
pub use fuelrail_format::Format;
use fuelrail_format::{Field, Index, IndexBuilder, Need, Record, Scan, mds, objects, tar, tfrecord};
use fuelrail_io::OwnDirectory;
use std::borrow::Cow;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Shards are read in pieces of this length, bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// Where every record of a data set lies.
#[derive(Debug)]
pub(crate) struct Records {
    index: Index<Vec<u8>>,
    split: Split,
    /// The field that is the label, and the one that is decoded.
    label: Option<String>,
    picture: Option<String>,
}

/// How the bytes of a record are split into its fields.
#[derive(Debug)]
enum Split {
    /// The index has the ranges of all.
    Ranges,
    /// Columns of MDS.
    Columns(mds::Columns),
    /// A frame of TFRecord with a `tf.Example`.
    Example,
}

/// What is asked of the records.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) format: Format,
    /// The field that is the label.
    pub(crate) label: Option<String>,
    /// The field that is decoded, where it is named.
    pub(crate) picture: Option<String>,
    pub(crate) is_decoded: bool,
}

/// Fields that are decoded where none is named.
const PICTURES: [&str; 6] = ["jpg", "jpeg", "png", "img", "image", "image/encoded"];

/// Reads ranges of the listed objects, in the order given, and hands over the bytes of each.
pub(crate) type Read<'r> =
    &'r mut dyn FnMut(Vec<ByteRange>, &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>) -> Result<()>;

impl Records {
    /// Finds the records of all shards, in the order of the listing.
    ///
    /// # Errors
    /// Those of `read`; `Undecodable` for a shard that breaks its format, naming it; `Usage` where there is no record, a field that is asked
    /// for is not there, or the format is not read.
    pub(crate) fn find(listing: &Listing, asked: &Asked, read: Read<'_>) -> Result<Records> {
        let format = asked.format;
        let source = identity(listing, format).unwrap_or_default();
        let index = IndexBuilder::new(format, source, listing.len() as u32);
        let whole = |is_shard: fn(&str) -> bool| {
            let shards = (0..listing.len() as u32).filter(move |at| is_shard(listing.key(*at as usize)));
            shards.flat_map(|at| pieces(at, listing.size(at as usize)))
        };
        let index = match format {
            Format::Objects => of_objects(listing, index)?,
            Format::WebDataset => {
                let begin = |object, size| Ok(Box::new(tar::Scan::new(object, size)) as Box<dyn Scan>);
                scan(listing, whole(|key| key.ends_with(".tar")), begin, index, read)?
            }
            Format::TfRecord => {
                let begin = |object, size| Ok(Box::new(tfrecord::Scan::new(object, size)) as Box<dyn Scan>);
                scan(listing, whole(|_| true), begin, index.without_keys(), read)?
            }
            Format::Mds => of_mds(listing, source, read)?,
            other => {
                let cause = format!("a loader does not read {other}");
                return Err(Error::new(Kind::Usage, cause).with_hint("use objects, webdataset, mds or tfrecord"));
            }
        };
        if index.is_empty() {
            let cause = format!("no record of {format} is in the {} objects of the data set", listing.len());
            return Err(Error::new(Kind::Usage, cause).with_hint("check the prefix and the format"));
        }
        Records::of(Index::open(index.to_bytes())?, asked)
    }

    /// The records of an index.
    fn of(index: Index<Vec<u8>>, asked: &Asked) -> Result<Records> {
        let split = match index.format() {
            Format::Mds => Split::Columns(mds::Columns::parse(index.description())?),
            Format::TfRecord => Split::Example,
            _ => Split::Ranges,
        };
        let records = Records { index, split, label: asked.label.clone(), picture: asked.picture.clone() };
        records.check_names(asked.is_decoded)?;
        Ok(records)
    }

    /// Checks the fields that were asked for, where the format says which there are.
    fn check_names(&self, is_decoded: bool) -> Result<()> {
        let names: Vec<&str> = match &self.split {
            Split::Ranges => self.index.fields().map(|(name, _)| name).collect(),
            Split::Columns(columns) => columns.all().iter().map(|column| &*column.name).collect(),
            Split::Example => return Ok(()),
        };
        for (setting, asked) in [("label_field", &self.label), ("decode_field", &self.picture)] {
            if let Some(name) = asked.as_ref().filter(|name| !names.contains(&name.as_str())) {
                let cause = format!("{setting} is '{name}', and the records have {}", names.join(", "));
                return Err(Error::new(Kind::Usage, cause).with_hint("name one of them"));
            }
        }
        if is_decoded && self.picture.is_none() && !PICTURES.iter().any(|name| names.contains(name)) {
            let cause = format!("decode is set, and no field of the records is named {}", PICTURES.join(", "));
            return Err(Error::new(Kind::Usage, cause).with_hint("name the field of the pictures as decode_field"));
        }
        Ok(())
    }

    /// What is fetched of each record: from the first byte of its first field to the last byte of its last.
    pub(crate) fn ranges(&self) -> Vec<ByteRange> {
        self.index.iter().map(|record| cover(&record)).collect()
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> u64 {
        self.index.len()
    }

    /// Bytes of memory that the index takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.index.as_bytes().len() as u64
    }

    /// The key of a record; its number where the format has no keys.
    pub(crate) fn key(&self, sample: SampleId) -> Cow<'_, str> {
        let key = self.index.record(sample.0).and_then(|record| record.key());
        key.map_or_else(|| sample.0.to_string().into(), String::from_utf8_lossy)
    }

    /// Checks the bytes of a record, as they were fetched, against what they say of themselves.
    ///
    /// # Errors
    /// `Mismatch` for a wrong checksum, `Undecodable` for lengths that do not add up.
    fn check(&self, bytes: &[u8]) -> Result<()> {
        match &self.split {
            Split::Ranges => Ok(()),
            Split::Columns(columns) => columns.split(bytes).map(drop),
            Split::Example => tfrecord::check(bytes).map(drop),
        }
    }

    /// Leaves out the records of a batch that are not as they say of themselves.
    ///
    /// # Errors
    /// The first one's, under `raise`.
    pub(crate) fn leave_out_flawed(
        &self,
        assembled: &mut Assembled,
        objects: &Objects,
        policy: BadSamples,
    ) -> Result<()> {
        let Assembled { slot, samples, left_out, .. } = assembled;
        let mut flawed = samples.iter().enumerate().filter_map(|(at, placed)| {
            let error = self.check(&slot[placed.offset..placed.offset + placed.len]).err()?;
            Some((at, placed.id, error.with_object(&*objects.name(placed.id))))
        });
        if policy == BadSamples::Raise {
            return flawed.next().map_or(Ok(()), |(.., error)| Err(error));
        }
        let flawed: Vec<(usize, SampleId, Error)> = flawed.collect();
        samples.retain(|at, _| !flawed.iter().any(|(flaw, ..)| *flaw == at));
        left_out.extend(flawed.into_iter().map(|(_, id, error)| (id, error)));
        Ok(())
    }

    /// The fields of a record whose bytes, as they were fetched, these are. A feature of several texts is several fields of one name;
    /// numbers are little-endian, integers of 8 bytes, floats of 4.
    pub(crate) fn fields<'a>(
        &'a self,
        sample: SampleId,
        bytes: &'a [u8],
    ) -> Box<dyn Iterator<Item = (&'a str, Cow<'a, [u8]>)> + 'a> {
        match &self.split {
            Split::Ranges => {
                let record = self.index.record(sample.0);
                let first = record.map_or(0, |record| cover(&record).first);
                let fields = record.into_iter().flat_map(|record| record.fields());
                Box::new(fields.filter_map(move |(name, field)| Some((name, within(field, first, bytes)?.into()))))
            }
            Split::Columns(columns) => {
                let fields = columns.split(bytes).into_iter().flatten();
                Box::new(fields.map(|(column, bytes)| (&*column.name, bytes.into())))
            }
            Split::Example => Box::new(features(bytes).into_iter()),
        }
    }

    /// One field of a record.
    pub(crate) fn field<'a>(&'a self, sample: SampleId, name: &str, bytes: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match &self.split {
            Split::Ranges => {
                let (record, field) = (self.index.record(sample.0)?, self.index.field(name)?);
                within(record.field(field)?, cover(&record).first, bytes).map(Cow::from)
            }
            _ => self.fields(sample, bytes).find(|(known, _)| *known == name).map(|(_, bytes)| bytes),
        }
    }

    /// The field of a record that is decoded.
    ///
    /// # Errors
    /// `Undecodable` where the record lacks it, and as [`Records::check`].
    pub(crate) fn picture<'a>(&'a self, sample: SampleId, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        self.check(bytes)?;
        let named = |name: &str| self.field(sample, name, bytes);
        let picture = self.picture.as_deref().map_or_else(|| PICTURES.iter().find_map(|name| named(name)), named);
        let name = || self.picture.clone().unwrap_or_else(|| PICTURES.join(", "));
        picture.ok_or_else(|| Error::new(Kind::Undecodable, format!("the record has no field named {}", name())))
    }

    /// The label of a record: the number that its field is. `None` where no field is the label's, or it is no number.
    pub(crate) fn label(&self, sample: SampleId, bytes: &[u8]) -> Option<u32> {
        let name = self.label.as_deref()?;
        let field = self.field(sample, name, bytes)?;
        let text = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse().ok();
        match &self.split {
            Split::Ranges => text(&field),
            Split::Columns(columns) => {
                let column = columns.all().iter().find(|column| column.name == name)?;
                match column.encoding.view(&field)? {
                    mds::Value::Int(number) => u32::try_from(number).ok(),
                    mds::Value::Uint(number) => u32::try_from(number).ok(),
                    _ => text(&field),
                }
            }
            // An integer, or its digits.
            Split::Example => {
                let number = field.first_chunk().map(|bytes| i64::from_le_bytes(*bytes)).filter(|_| field.len() == 8);
                text(&field).or_else(|| u32::try_from(number?).ok())
            }
        }
    }
}

/// Where an index is kept, for later runs over the same data set.
pub(crate) struct Kept {
    own: OwnDirectory,
    name: String,
    source: [u8; 16],
}

impl Kept {
    /// In this user's directory in `dir`, under a name that follows from the URI. `None` where an object has no entity tag: nothing tells
    /// then whether it changed.
    ///
    /// # Errors
    /// `File` when the directory cannot be made or is not this user's.
    pub(crate) fn open(dir: &Path, uri: &str, listing: &Listing, format: Format) -> Result<Option<Kept>> {
        let Some(source) = identity(listing, format) else { return Ok(None) };
        let name = format!("fuelrail-{:016x}.{format}-records", xxh3_64(uri.as_bytes()));
        Ok(Some(Kept { own: own_directory(dir)?, name, source }))
    }

    /// The records of the index that is there. `None` where there is none of these very objects.
    pub(crate) fn load(&self, asked: &Asked) -> Option<Result<Records>> {
        let mut bytes = Vec::new();
        self.own.open_file(&self.name, false).ok()??.read_to_end(&mut bytes).ok()?;
        let index = Index::open(bytes).ok()?;
        (index.source() == self.source && index.format() == asked.format).then(|| Records::of(index, asked))
    }

    /// Keeps an index, in the place of what is there.
    ///
    /// # Errors
    /// What the disk refuses; what was there stays then.
    pub(crate) fn save(&self, records: &Records) -> std::io::Result<PathBuf> {
        let new = format!("{}-{:x}", self.name, std::process::id());
        let written = self.own.make_file(&new).and_then(|mut file| file.write_all(records.index.as_bytes()));
        let saved = written.and_then(|()| self.own.rename(&new, &self.name));
        saved.inspect_err(|_| drop(self.own.remove(&new)))?;
        Ok(self.own.path().join(&self.name))
    }
}

/// What tells one content of a data set from another: a hash of keys, sizes and entity tags. `None` where an object has no tag.
fn identity(listing: &Listing, format: Format) -> Option<[u8; 16]> {
    let mut hash = Xxh3::new();
    hash.update(format.word().as_bytes());
    for at in 0..listing.len() {
        let (key, tag) = (listing.key(at), listing.etag(at)?);
        for text in [key, &*tag] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&listing.size(at).to_le_bytes());
    }
    Some(hash.digest128().to_le_bytes())
}

/// Every object is a record.
fn of_objects(listing: &Listing, mut index: IndexBuilder) -> Result<IndexBuilder> {
    let mut records = objects::Records::new(false, false);
    for at in 0..listing.len() {
        records.add(at as u32, listing.key(at), listing.size(at), &mut index)?;
    }
    records.finish(&mut index)?;
    Ok(index)
}

/// The samples of all shards that every `index.json` of the listing names.
fn of_mds(listing: &Listing, source: [u8; 16], read: Read<'_>) -> Result<IndexBuilder> {
    let names: Vec<u32> =
        (0..listing.len() as u32).filter(|at| in_folder(listing.key(*at as usize)).1 == "index.json").collect();
    let whole = |object: u32| ByteRange { object, first: 0, len: listing.size(object as usize) };
    let mut sets = Vec::new();
    read(names.into_iter().map(whole).collect(), &mut |document, bytes| {
        let key = listing.key(document.object as usize);
        sets.push((in_folder(key).0, mds::DataSet::parse(bytes).map_err(|error| error.with_object(key))?));
        Ok(())
    })?;
    let Some((_, first)) = sets.first() else {
        let error = Error::new(Kind::Usage, "no object of the data set is named index.json");
        return Err(error.with_hint("name the folder that MDSWriter wrote, or another format"));
    };
    let (index, columns) = (first.index(source, listing.len() as u32), first.columns.clone());
    let mut shards = Vec::new();
    for (folder, set) in &sets {
        if set.columns != columns {
            let error = Error::new(Kind::Usage, format!("'{folder}index.json' has other columns than the first one"));
            return Err(error.with_hint("read the two as two data sets"));
        }
        for shard in &set.shards {
            let find = |name: &str| find(listing, &format!("{folder}{name}"));
            match (find(&shard.raw.basename), shard.zip.as_ref().and_then(|zip| find(&zip.basename))) {
                (Some(object), _) => shards.push((object, shard)),
                (None, Some(_)) => {
                    let cause = format!(
                        "shard '{folder}{}' is compressed, and ranges of it cannot be read",
                        shard.stored().basename
                    );
                    return Err(Error::new(Kind::Usage, cause).with_hint("write the data set without compression"));
                }
                (None, None) => {
                    let cause = format!("index.json names a shard '{}' that is not there", shard.raw.basename);
                    return Err(
                        Error::new(Kind::NotFound, cause).with_object(format!("{folder}{}", shard.raw.basename))
                    );
                }
            }
        }
    }
    // The order of samples is that of the listing, as with every format.
    shards.sort_unstable_by_key(|(object, _)| *object);
    // A shard begins with its number of samples and their offsets.
    let heads = shards.iter().map(|(object, shard)| {
        let len = (4 * (u64::from(shard.samples) + 2)).min(listing.size(*object as usize));
        ByteRange { object: *object, first: 0, len }
    });
    let scanned = |object: u32, size| {
        let at = shards.binary_search_by_key(&object, |(object, _)| *object).expect("only heads of shards are read");
        Ok(Box::new(mds::Scan::new(object, size, shards[at].1, &columns)?) as Box<dyn Scan>)
    };
    scan(listing, heads, scanned, index, read)
}

/// A key's folder with its slash, and the name in it.
fn in_folder(key: &str) -> (&str, &str) {
    key.split_at(key.rfind('/').map_or(0, |slash| slash + 1))
}

/// An object by its key: listings are sorted.
fn find(listing: &Listing, key: &str) -> Option<u32> {
    let (mut from, mut to) = (0, listing.len());
    while from < to {
        let middle = from.midpoint(to);
        match listing.key(middle).cmp(key) {
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Equal => return Some(middle as u32),
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}

/// The features of a frame with a `tf.Example`; of any other frame its data.
fn features(frame: &[u8]) -> Vec<(&str, Cow<'_, [u8]>)> {
    let Ok(data) = tfrecord::check(frame) else { return Vec::new() };
    // The reader lends names and values only as long as it lives: they are found again in the frame.
    let again = |part: &[u8]| {
        let from = part.as_ptr() as usize - data.as_ptr() as usize;
        &data[from..from + part.len()]
    };
    let mut example = tfrecord::Example::default();
    let Ok(features) = example.read(data) else { return vec![("data", data.into())] };
    let mut fields = Vec::new();
    for (name, feature) in features.iter() {
        let Ok(name) = std::str::from_utf8(again(name.as_bytes())) else { continue };
        let mut numbers = Vec::new();
        let before = fields.len();
        for value in feature.values() {
            match value {
                tfrecord::Value::Bytes(bytes) => fields.push((name, again(bytes).into())),
                tfrecord::Value::Int(number) => numbers.extend(number.to_le_bytes()),
                tfrecord::Value::Float(number) => numbers.extend(number.to_le_bytes()),
            }
        }
        if fields.len() == before {
            fields.push((name, numbers.into()));
        }
    }
    fields
}

/// Scans the objects whose pieces these are, in their order.
fn scan(
    listing: &Listing,
    pieces: impl Iterator<Item = ByteRange>,
    mut begin: impl FnMut(u32, u64) -> Result<Box<dyn Scan>>,
    mut index: IndexBuilder,
    read: Read<'_>,
) -> Result<IndexBuilder> {
    let mut scanning: Option<Scanning> = None;
    read(pieces.collect(), &mut |piece, bytes| {
        let named = |error: Error| error.with_object(listing.key(piece.object as usize));
        if scanning.as_ref().is_none_or(|scanning| scanning.object != piece.object) {
            let scan = begin(piece.object, listing.size(piece.object as usize)).map_err(named)?;
            scanning = Some(Scanning { object: piece.object, scan, begun: Vec::new() });
        }
        let scanned = scanning.as_mut().map_or(Ok(()), |scanning| scanning.take(piece.first, bytes, &mut index));
        scanned.map_err(named)
    })?;
    Ok(index)
}

fn pieces(object: u32, len: u64) -> impl Iterator<Item = ByteRange> {
    (0..len.div_ceil(PIECE_BYTES)).map(move |n| {
        let first = n * PIECE_BYTES;
        ByteRange { object, first, len: PIECE_BYTES.min(len - first) }
    })
}

fn cover(record: &Record<'_>) -> ByteRange {
    let spans = record.fields().filter_map(|(_, field)| match field {
        Field::Span(span) => Some((span.object, span.offset, span.offset + span.length)),
        Field::Value(_) => None,
    });
    let joined = spans.reduce(|a, b| (a.0, a.1.min(b.1), a.2.max(b.2)));
    let (object, first, end) = joined.unwrap_or_default();
    ByteRange { object, first, len: end - first }
}

/// A field's bytes, of those that were fetched from byte `first` on.
fn within<'a>(field: Field<'a>, first: u64, bytes: &'a [u8]) -> Option<&'a [u8]> {
    match field {
        Field::Value(value) => Some(value),
        Field::Span(span) => {
            let from = (span.offset - first) as usize;
            bytes.get(from..from + span.length as usize)
        }
    }
}

/// The scan of one shard that comes in pieces.
struct Scanning {
    object: u32,
    scan: Box<dyn Scan>,
    /// The begin of what the scan needs, where that goes beyond a piece.
    begun: Vec<u8>,
}

impl Scanning {
    /// Takes a piece from byte `first` of the object on; pieces come in order, and all of them.
    fn take(&mut self, first: u64, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        while let Need::Read { offset, at_least } = self.scan.need() {
            let from = (offset + self.begun.len() as u64).saturating_sub(first) as usize;
            let Some(there) = bytes.get(from..).filter(|there| !there.is_empty()) else { return Ok(()) };
            let missing = at_least as usize - self.begun.len();
            if there.len() < missing || !self.begun.is_empty() {
                self.begun.extend_from_slice(&there[..missing.min(there.len())]);
                if there.len() < missing {
                    return Ok(());
                }
                self.scan.give(&std::mem::take(&mut self.begun), index)?;
            } else {
                self.scan.give(there, index)?;
            }
        }
        Ok(())
    }
}
