//! Records that are no ranges of objects: rows of Parquet files, and samples of compressed MDS shards. A part of a shard, a row group or all
//! of it, is read as a whole and unpacked.

use crate::builder::{LoaderBuilder, read_ranges};
use crate::config::Config;
use crate::listing::given_or_listed;
use crate::records::{Format, MdsShard, mds_shards};
use core::ops::Range;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{ByteRange, Listing};
use fuelrail_format::mds::{Columns, Encoding, Scan};
#[cfg(feature = "parquet")]
use fuelrail_format::parquet::{File, TAIL_BYTES, footer_bytes};
use fuelrail_format::{Field, Index, IndexBuilder, TakeFields, is_below, is_named, scan_whole};
use std::borrow::Cow;
#[cfg(feature = "parquet")]
use std::collections::HashMap;

/// The records of a data set whose shards have to be unpacked, which a [`Loader`](crate::Loader) does not read. They come in the listing's
/// order.
#[derive(Debug)]
pub struct PackedRecords {
    config: Config,
    listing: Listing,
    columns: Vec<(String, Encoding)>,
    parts: Vec<Part>,
    shards: Shards,
}

/// What is unpacked together: some ranges of an object.
#[derive(Debug)]
struct Part {
    /// The number of its first record, and how many there are.
    first: u64,
    records: u64,
    ranges: Vec<ByteRange>,
    /// Its shard, and its number among the parts of that.
    shard: usize,
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "a shard of MDS is one part"))]
    group: usize,
}

#[derive(Debug)]
enum Shards {
    Mds(Columns, Vec<MdsShard>),
    #[cfg(feature = "parquet")]
    Parquet(Vec<(u32, File)>),
}

/// Takes a record: its number, and its fields.
type Take<'t, E> = &'t mut dyn FnMut(u64, &[(&str, &[u8])]) -> Result<(), E>;

impl PackedRecords {
    /// The records that a loader's settings name, with the fields of these names, or all where there is none. Of Parquet only their columns
    /// are read. `None` where records are ranges of objects: a loader reads those.
    ///
    /// # Errors
    /// Those of the listing and of reading; `Undecodable` for a shard that is not sound, naming it; `Usage` for what is not read of a format,
    /// fields that are not there, shards that differ in their columns, and Parquet in a build without the feature `parquet`.
    pub fn open(builder: &LoaderBuilder, fields: &[String]) -> Result<Option<PackedRecords>> {
        let config = builder.config().clone();
        let Some(format) = config.format.filter(|format| matches!(format, Format::Mds | Format::Parquet)) else {
            return Ok(None);
        };
        let (access, source) = config.source()?;
        let given = (builder.listing.clone(), config.manifest.as_deref());
        let listing = given_or_listed(given, config.listing_dir(), (&access, &config.uri), source)?.0.listing;
        let (parts, shards, columns) = match format {
            Format::Mds => {
                let (set, shards) =
                    mds_shards(&listing, &mut |ranges, take| read_ranges(&config, &listing, ranges, take))?;
                if shards.iter().all(|shard| shard.compression.is_none()) {
                    return Ok(None);
                }
                let parts = shards.iter().enumerate().map(|(number, MdsShard { object, shard, .. })| {
                    let whole = ByteRange { object: *object, first: 0, len: listing.size(*object as usize) };
                    Part { first: 0, records: shard.samples.into(), ranges: vec![whole], shard: number, group: 0 }
                });
                let columns = set.columns.all().iter().map(|column| (column.name.clone(), column.encoding.clone()));
                let mut columns: Vec<_> = columns.collect();
                if let Some(field) = fields.iter().find(|field| !columns.iter().any(|(name, _)| is_below(field, name)))
                {
                    let error = Error::new(Kind::Usage, format!("no column is named '{field}'"));
                    return Err(error.with_hint("name some of index.json's column_names"));
                }
                columns.retain(|(name, _)| is_named(fields, name));
                (parts.collect(), Shards::Mds(set.columns, shards), columns)
            }
            #[cfg(feature = "parquet")]
            _ => {
                let files = files(&config, &listing, fields)?;
                let columns = files.first().map(|(_, file)| file.columns()).unwrap_or_default();
                let columns = columns.iter().map(|column| (column.name.clone(), column.encoding.clone())).collect();
                (parts_of(&files), Shards::Parquet(files), columns)
            }
            #[cfg(not(feature = "parquet"))]
            _ => {
                let error = Error::new(Kind::Usage, "this build reads no Parquet files");
                return Err(error.with_hint("build it with the feature `parquet`"));
            }
        };
        let mut parts: Vec<Part> = parts;
        parts.retain(|part| part.records > 0);
        let mut first = 0_u64;
        for part in &mut parts {
            part.first = first;
            first = first.saturating_add(part.records);
        }
        Ok(Some(PackedRecords { config, listing, columns, parts, shards }))
    }

    /// How many records there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.parts.last().map_or(0, |last| last.first.saturating_add(last.records))
    }

    /// What the bytes of a field mean.
    #[must_use]
    pub fn encoding(&self, field: &str) -> Option<&Encoding> {
        self.columns.iter().find(|(name, _)| name == field).map(|(_, encoding)| encoding)
    }

    /// Reads these records, in their order; parts without any of them are not read. What `take` refuses ends it.
    ///
    /// # Errors
    /// Those of reading; `Undecodable` for a part that does not unpack, naming its object; what `take` returns.
    pub fn read<E: From<Error>>(&self, records: Range<u64>, take: Take<'_, E>) -> Result<(), E> {
        let is_wanted =
            |part: &&Part| part.first < records.end && records.start < part.first.saturating_add(part.records);
        let mut parts = self.parts.iter().filter(is_wanted).peekable();
        let ranges = parts.clone().flat_map(|part| part.ranges.iter().copied()).collect();
        let (mut pieces, mut refused) = (Vec::new(), None);
        let read = read_ranges(&self.config, &self.listing, ranges, &mut |range, bytes| {
            pieces.push(bytes.to_vec());
            let Some(part) = parts.next_if(|part| part.ranges.len() == pieces.len()) else { return Ok(()) };
            let mut next = part.first;
            let unpacked = self.unpack(part, std::mem::take(&mut pieces), &mut |fields| {
                let number = next;
                next += 1;
                let taken = if records.contains(&number) { take(number, fields) } else { Ok(()) };
                taken.map_err(|error| {
                    refused = Some(error);
                    Error::new(Kind::Cancelled, "a record was refused")
                })
            });
            unpacked.map_err(|error| error.with_object(self.listing.key(range.object as usize)))
        });
        refused.map_or_else(|| read.map_err(E::from), Err)
    }

    /// Unpacks a part, of whose ranges these are the bytes.
    fn unpack(&self, part: &Part, mut pieces: Vec<Vec<u8>>, take: TakeFields<'_>) -> Result<()> {
        match &self.shards {
            #[cfg(feature = "parquet")]
            Shards::Parquet(files) => files[part.shard].1.rows(part.group, pieces, take),
            Shards::Mds(columns, shards) => {
                let MdsShard { shard, compression, .. } = &shards[part.shard];
                let mut bytes = Cow::from(pieces.pop().unwrap_or_default());
                if let Some(compression) = compression {
                    bytes = compression.unpacked(&bytes, shard)?.into();
                }
                let mut index = IndexBuilder::new(Format::Mds, [0; 16], 1).without_keys();
                scan_whole(&mut Scan::new(0, bytes.len() as u64, shard, columns)?, &bytes, &mut index)?;
                for record in Index::open(index.to_bytes())?.iter() {
                    let Some(Field::Span(span)) = record.field(0) else { continue };
                    let sample = &bytes[span.offset as usize..(span.offset + span.length) as usize];
                    let fields = columns.split(sample)?.filter(|(column, _)| self.encoding(&column.name).is_some());
                    take(&fields.map(|(column, bytes)| (&*column.name, bytes)).collect::<Vec<_>>())?;
                }
                Ok(())
            }
        }
    }
}

/// The footers of all Parquet files, in the order of the listing.
#[cfg(feature = "parquet")]
fn files(config: &Config, listing: &Listing, fields: &[String]) -> Result<Vec<(u32, File)>> {
    let end = |object: u32, bytes: u64| {
        let size = listing.size(object as usize);
        ByteRange { object, first: size - bytes.min(size), len: bytes.min(size) }
    };
    let named = |object: u32| move |error: Error| error.with_object(listing.key(object as usize));
    let objects = (0..listing.len() as u32).filter(|at| listing.key(*at as usize).ends_with(".parquet"));
    let mut ends = Vec::new();
    for object in objects {
        if listing.size(object as usize) < TAIL_BYTES {
            footer_bytes(&[], listing.size(object as usize)).map_err(named(object))?;
        }
        ends.push(end(object, FOOTER_BYTES));
    }
    if ends.is_empty() {
        let error = Error::new(Kind::Usage, "no object of the data set ends with .parquet");
        return Err(error.with_hint("check the prefix and the format"));
    }
    let mut files = Vec::new();
    while !ends.is_empty() {
        // Longer footers are read once more.
        read_ranges(config, listing, std::mem::take(&mut ends), &mut |range, bytes| {
            let size = listing.size(range.object as usize);
            let needed = footer_bytes(bytes, size).map_err(named(range.object))?;
            if needed > range.len {
                ends.push(end(range.object, needed));
            } else {
                files.push((range.object, File::open(bytes, size, fields).map_err(named(range.object))?));
            }
            Ok(())
        })?;
    }
    files.sort_unstable_by_key(|(object, _)| *object);
    let columns =
        |file: &File| file.columns().iter().map(|column| (column.name.clone(), column.encoding.clone())).collect();
    let known: HashMap<String, Encoding> = files.first().map(|(_, file)| columns(file)).unwrap_or_default();
    if let Some((object, _)) = files.iter().find(|(_, file)| columns(file) != known) {
        let error = Error::new(Kind::Usage, "its columns are not those of the first file")
            .with_object(listing.key(*object as usize));
        return Err(error.with_hint("read the files as two data sets, or name the fields that all have"));
    }
    Ok(files)
}

/// The row groups of all files.
#[cfg(feature = "parquet")]
fn parts_of(files: &[(u32, File)]) -> Vec<Part> {
    let of_file = |(shard, (object, file)): (usize, &(u32, File))| {
        let part = |(group, found): (usize, fuelrail_format::parquet::Group)| {
            let range =
                |range: Range<u64>| ByteRange { object: *object, first: range.start, len: range.end - range.start };
            Part { first: 0, records: found.rows, ranges: found.ranges.into_iter().map(range).collect(), shard, group }
        };
        file.groups().enumerate().map(part).collect::<Vec<_>>()
    };
    files.iter().enumerate().flat_map(of_file).collect()
}

/// Bytes that are read of the end of a file, which hold most footers.
#[cfg(feature = "parquet")]
const FOOTER_BYTES: u64 = 64 << 10;
