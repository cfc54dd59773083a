//! Records that are no ranges of objects: rows of Parquet files, and samples of compressed MDS shards. A part of a shard, a row group or all
//! of it, is read as a whole and unpacked.

mod once;

pub use once::PackedRecords;

use crate::records::find::{MdsShard, mds_shards};
use crate::records::heads::Read;
#[cfg(feature = "parquet")]
use core::ops::Range;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{ByteRange, Listing};
use fuelrail_format::mds::{Columns, Encoding, Scan};
#[cfg(feature = "parquet")]
use fuelrail_format::parquet::{File, TAIL_BYTES, footer_bytes};
use fuelrail_format::{Field, Format, Index, IndexBuilder, TakeFields, is_below, is_named, scan_whole};
#[cfg(feature = "parquet")]
use std::collections::HashMap;

/// The shards of a data set that have to be unpacked, in the listing's order.
#[derive(Debug)]
pub(crate) struct PackedShards {
    columns: Vec<(String, Encoding)>,
    parts: Vec<Part>,
    shards: Shards,
}

/// What is unpacked together: some ranges of an object.
#[derive(Debug)]
pub(crate) struct Part {
    /// The number of its first record.
    pub first: u64,
    records: u64,
    /// At least one.
    pub ranges: Vec<ByteRange>,
    /// Its shard, and its number among the parts of that.
    shard: usize,
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "a shard of MDS is one part"))]
    group: usize,
}

#[derive(Debug)]
enum Shards {
    Mds(Columns, Vec<MdsShard>),
    /// Files, and how their rows are laid out.
    #[cfg(feature = "parquet")]
    Parquet(Vec<(u32, File)>, Columns),
}

impl PackedShards {
    /// Those of a listing, with the fields of these names, or all where there is none. Of Parquet only their columns are read. `None` where
    /// records are ranges of objects.
    ///
    /// # Errors
    /// Those of `read`; `Undecodable` for a shard that is not sound, naming it; `Usage` for what is not read of a format, fields that are not
    /// there, shards that differ in their columns, and Parquet in a build without the feature `parquet`.
    pub(crate) fn find(
        format: Option<Format>,
        listing: &Listing,
        fields: &[String],
        read: Read<'_>,
    ) -> Result<Option<PackedShards>> {
        let owned = |name: &str, encoding: &Encoding| (name.to_owned(), encoding.clone());
        let (mut parts, shards, columns): (Vec<Part>, _, Vec<_>) = match format {
            // The name of a compressed shard ends with that of its compression.
            Some(Format::Mds) if (0..listing.len()).any(|at| listing.key(at).contains(".mds.")) => {
                let (set, shards) = mds_shards(listing, read)?;
                if shards.iter().all(|shard| shard.compression.is_none()) {
                    return Ok(None);
                }
                let mut columns = set.columns.all().to_vec();
                if let Some(field) = fields.iter().find(|field| !columns.iter().any(|of| is_below(field, &of.name))) {
                    let error = Error::new(Kind::Usage, format!("no column is named '{field}'"));
                    return Err(error.with_hint("name some of index.json's column_names"));
                }
                columns.retain(|column| is_named(fields, &column.name));
                let columns = columns.iter().map(|column| owned(&column.name, &column.encoding)).collect();
                (shards_of(listing, &shards), Shards::Mds(set.columns, shards), columns)
            }
            #[cfg(feature = "parquet")]
            Some(Format::Parquet) => {
                let files = files(listing, fields, read)?;
                let columns = files.first().map(|(_, file)| file.columns()).unwrap_or_default();
                let columns: Vec<_> = columns.iter().map(|column| owned(&column.name, &column.encoding)).collect();
                let rows = Columns::nullable(columns.iter().map(|(name, encoding)| (name.as_str(), encoding)))?;
                (groups_of(&files), Shards::Parquet(files, rows), columns)
            }
            #[cfg(not(feature = "parquet"))]
            Some(Format::Parquet) => {
                let error = Error::new(Kind::Usage, "this build reads no Parquet files");
                return Err(error.with_hint("build it with the feature `parquet`"));
            }
            _ => return Ok(None),
        };
        parts.retain(|part| part.records > 0);
        let mut first = 0_u64;
        for part in &mut parts {
            part.first = first;
            first = first.saturating_add(part.records);
        }
        Ok(Some(PackedShards { columns, parts, shards }))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn count(&self) -> u64 {
        self.parts.last().map_or(0, |last| last.first.saturating_add(last.records))
    }

    /// The index of all records: each is a range of what its part is unpacked to, laid out as a sample of MDS. A part counts as an object.
    ///
    /// # Errors
    /// Those of `read`; `Undecodable` for a part that does not unpack, naming its object; `Usage` where the index cannot hold a record.
    pub(crate) fn index(&self, listing: &Listing, content: [u8; 16], read: Read<'_>) -> Result<IndexBuilder> {
        let (format, columns) = match &self.shards {
            Shards::Mds(columns, _) => (Format::Mds, columns),
            #[cfg(feature = "parquet")]
            Shards::Parquet(_, rows) => (Format::Parquet, rows),
        };
        let mut index = IndexBuilder::new(format, content, self.parts.len() as u32).without_keys();
        index.describe(columns.description());
        let mut numbers = 0..;
        each_part(self.parts.iter(), listing, read, &mut |part, pieces| {
            let number = numbers.next().unwrap_or(u32::MAX);
            match &self.shards {
                Shards::Mds(_, shards) => {
                    let bytes = self.unpacked(part, pieces)?;
                    let mut scan = Scan::new(number, bytes.len() as u64, &shards[part.shard].shard, columns)?;
                    scan_whole(&mut scan, &bytes, &mut index)
                }
                #[cfg(feature = "parquet")]
                Shards::Parquet(files, _) => {
                    let (mut begin, mut row) = (0, Vec::new());
                    files[part.shard].1.rows(part.group, pieces, &mut |fields| {
                        row.clear();
                        columns.join(fields, &mut row)?;
                        index.push_range(number, begin, row.len() as u64)?;
                        begin += row.len() as u64;
                        Ok(())
                    })
                }
            }
        })?;
        Ok(index)
    }

    /// A part, of whose ranges these are the bytes, unpacked: its records lie where the index says.
    ///
    /// # Errors
    /// `Undecodable` for one that is not sound.
    pub(crate) fn unpacked(&self, part: &Part, mut pieces: Vec<Vec<u8>>) -> Result<Vec<u8>> {
        match &self.shards {
            Shards::Mds(_, shards) => {
                let (bytes, MdsShard { shard, compression, .. }) =
                    (pieces.pop().unwrap_or_default(), &shards[part.shard]);
                match compression {
                    Some(compression) => compression.unpacked(&bytes, shard),
                    None => Ok(bytes),
                }
            }
            #[cfg(feature = "parquet")]
            Shards::Parquet(files, columns) => {
                let mut rows = Vec::new();
                files[part.shard].1.rows(part.group, pieces, &mut |fields| columns.join(fields, &mut rows))?;
                Ok(rows)
            }
        }
    }

    /// Unpacks a part, of whose ranges these are the bytes, and hands over the fields of each record.
    fn unpack(&self, part: &Part, pieces: Vec<Vec<u8>>, take: TakeFields<'_>) -> Result<()> {
        match &self.shards {
            #[cfg(feature = "parquet")]
            Shards::Parquet(files, _) => files[part.shard].1.rows(part.group, pieces, take),
            Shards::Mds(columns, shards) => {
                let (bytes, shard) = (self.unpacked(part, pieces)?, &shards[part.shard].shard);
                let mut index = IndexBuilder::new(Format::Mds, [0; 16], 1).without_keys();
                scan_whole(&mut Scan::new(0, bytes.len() as u64, shard, columns)?, &bytes, &mut index)?;
                for record in Index::open(index.to_bytes())?.iter() {
                    let Some(Field::Span(span)) = record.field(0) else { continue };
                    let sample = &bytes[span.offset as usize..(span.offset + span.length) as usize];
                    let is_read = |name: &str| self.columns.iter().any(|(column, _)| column == name);
                    let fields = columns.split(sample)?.filter(|(column, _)| is_read(&column.name));
                    take(&fields.map(|(column, bytes)| (&*column.name, bytes)).collect::<Vec<_>>())?;
                }
                Ok(())
            }
        }
    }
}

/// Takes a part, and the bytes of its ranges.
type TakePart<'t> = &'t mut dyn FnMut(&Part, Vec<Vec<u8>>) -> Result<()>;

/// Reads these parts in their order, and hands over each with the bytes of its ranges.
fn each_part<'p>(
    parts: impl Iterator<Item = &'p Part> + Clone,
    listing: &Listing,
    read: Read<'_>,
    take: TakePart<'_>,
) -> Result<()> {
    let ranges = parts.clone().flat_map(|part| part.ranges.iter().copied()).collect();
    let (mut parts, mut pieces) = (parts.peekable(), Vec::new());
    read(ranges, &mut |range, bytes| {
        pieces.push(bytes.to_vec());
        let Some(part) = parts.next_if(|part| part.ranges.len() == pieces.len()) else { return Ok(()) };
        let taken = take(part, std::mem::take(&mut pieces));
        taken.map_err(|error| error.with_object(listing.key(range.object as usize)))
    })
}

/// The shards of MDS, each of which is a part.
fn shards_of(listing: &Listing, shards: &[MdsShard]) -> Vec<Part> {
    let part = |(number, MdsShard { object, shard, .. }): (usize, &MdsShard)| {
        let whole = ByteRange { object: *object, first: 0, len: listing.size(*object as usize) };
        Part { first: 0, records: shard.samples.into(), ranges: vec![whole], shard: number, group: 0 }
    };
    shards.iter().enumerate().map(part).collect()
}

/// The footers of all Parquet files, in the order of the listing.
#[cfg(feature = "parquet")]
fn files(listing: &Listing, fields: &[String], read: Read<'_>) -> Result<Vec<(u32, File)>> {
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
        read(std::mem::take(&mut ends), &mut |range, bytes| {
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
    // Files may have them in any order; records have one.
    if let Some(((_, first), others)) = files.split_first_mut() {
        others.iter_mut().for_each(|(_, file)| file.order_as(first));
    }
    Ok(files)
}

/// The row groups of all files.
#[cfg(feature = "parquet")]
fn groups_of(files: &[(u32, File)]) -> Vec<Part> {
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
