//! Samples that are records of shards: found by one pass over the shards, and split into their fields in a batch.
//!
//! Owns the index. What the bytes of a shard mean is `format`'s; who reads them is the caller's.

use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{ByteRange, Listing};
pub use fuelrail_format::Format;
use fuelrail_format::{Field, Index, IndexBuilder, Need, Record, Scan, tar};

/// Shards are read in pieces of this length, bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// Where every record of a data set lies.
#[derive(Debug)]
pub(crate) struct Records {
    index: Index<Vec<u8>>,
    /// The field that is the label, and the one that is decoded.
    label: Option<usize>,
    picture: Option<usize>,
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
const PICTURES: [&str; 5] = ["jpg", "jpeg", "png", "img", "image"];

/// Reads ranges of the listed objects, in the order given, and hands over the bytes of each.
pub(crate) type Read<'r> =
    &'r mut dyn FnMut(Vec<ByteRange>, &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>) -> Result<()>;

impl Records {
    /// Finds the records of all shards, in the order of the listing.
    ///
    /// # Errors
    /// Those of `read`; `Undecodable` for a shard that breaks its format, `Usage` where there is no record or the label's field is not
    /// there: all name the object.
    pub(crate) fn find(listing: &Listing, asked: &Asked, read: Read<'_>) -> Result<Records> {
        let format = asked.format;
        let shards: Vec<u32> =
            (0..listing.len() as u32).filter(|at| is_shard(format, listing.key(*at as usize))).collect();
        let pieces = shards.iter().flat_map(|&object| pieces(object, listing.size(object as usize)));
        let mut index = IndexBuilder::new(format, [0; 16], listing.len() as u32);
        let mut scanning: Option<Scanning> = None;
        read(pieces.collect(), &mut |piece, bytes| {
            let key = || listing.key(piece.object as usize);
            if scanning.as_ref().is_none_or(|scanning| scanning.object != piece.object) {
                scanning = Some(Scanning::new(format, piece.object, listing.size(piece.object as usize))?);
            }
            let scanned = scanning.as_mut().map_or(Ok(()), |scanning| scanning.take(piece.first, bytes, &mut index));
            scanned.map_err(|error| error.with_object(key()))
        })?;
        if index.is_empty() {
            let cause = format!("no record of {format} is in the {} objects of the data set", listing.len());
            return Err(Error::new(Kind::Usage, cause).with_hint("check the prefix and the format"));
        }
        let index = Index::open(index.to_bytes())?;
        let named = |setting: &str, name: &Option<String>| {
            let numbered = |name: &String| {
                index.field(name).ok_or_else(|| {
                    let names: Vec<&str> = index.fields().map(|(name, _)| name).collect();
                    let cause = format!("{setting} is '{name}', and the records have {}", names.join(", "));
                    Error::new(Kind::Usage, cause).with_hint("name one of them")
                })
            };
            name.as_ref().map(numbered).transpose()
        };
        let label = named("label_field", &asked.label)?;
        let picture = named("decode_field", &asked.picture)?;
        let picture = picture.or_else(|| PICTURES.iter().find_map(|name| index.field(name)));
        if asked.is_decoded && picture.is_none() {
            let cause = format!("decode is set, and no field of the records is named {}", PICTURES.join(", "));
            return Err(Error::new(Kind::Usage, cause).with_hint("name the field of the pictures as decode_field"));
        }
        Ok(Records { index, label, picture })
    }

    /// What is fetched of each record: from the first byte of its first field to the last byte of its last.
    pub(crate) fn ranges(&self) -> Vec<ByteRange> {
        self.index.iter().map(|record| cover(&record)).collect()
    }

    /// The key of a record.
    pub(crate) fn key(&self, sample: SampleId) -> Option<&[u8]> {
        self.index.record(sample.0)?.key()
    }

    /// The fields of a record whose bytes, as they were fetched, these are.
    pub(crate) fn fields<'a>(&'a self, sample: SampleId, bytes: &'a [u8]) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let record = self.index.record(sample.0);
        let first = record.map_or(0, |record| cover(&record).first);
        let fields = record.into_iter().flat_map(|record| record.fields());
        fields.filter_map(move |(name, field)| Some((name, within(field, first, bytes)?)))
    }

    /// One field of a record.
    pub(crate) fn field<'a>(&'a self, sample: SampleId, name: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.numbered(sample, self.index.field(name)?, bytes)
    }

    /// The field of a record that is decoded.
    ///
    /// # Errors
    /// `Undecodable` where the record lacks it.
    pub(crate) fn picture<'a>(&'a self, sample: SampleId, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let picture = self.picture.and_then(|field| self.numbered(sample, field, bytes));
        picture.ok_or_else(|| {
            let name = self.picture.and_then(|field| self.index.fields().nth(field)).map_or("", |(name, _)| name);
            Error::new(Kind::Undecodable, format!("the record has no field '{name}'"))
        })
    }

    fn numbered<'a>(&'a self, sample: SampleId, field: usize, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let record = self.index.record(sample.0)?;
        within(record.field(field)?, cover(&record).first, bytes)
    }

    /// The label of a record: the decimal number that its field is. `None` where no field is the label's, or it is no number.
    pub(crate) fn label(&self, sample: SampleId, bytes: &[u8]) -> Option<u32> {
        std::str::from_utf8(self.numbered(sample, self.label?, bytes)?).ok()?.trim().parse().ok()
    }
}

/// Whether an object is a shard of the format, as its name says.
fn is_shard(format: Format, key: &str) -> bool {
    format != Format::WebDataset || key.ends_with(".tar")
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
    fn new(format: Format, object: u32, size: u64) -> Result<Scanning> {
        let scan: Box<dyn Scan> = match format {
            Format::WebDataset => Box::new(tar::Scan::new(object, size)),
            other => {
                let cause = format!("a loader does not read {other} yet");
                return Err(Error::new(Kind::Usage, cause).with_hint("use webdataset"));
            }
        };
        Ok(Scanning { object, scan, begun: Vec::new() })
    }

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
