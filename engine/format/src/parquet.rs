//! Parquet files: a record is a row, its fields are the columns.
//!
//! Nested columns are named by their paths, `image.bytes`. Values are the bytes that Parquet stores: text and byte arrays as they are,
//! numbers little-endian, a boolean one byte, a list of numbers one number after the other. A null is a field that is not there.
//!
//! A [`File`] is made of the footer at the end of a file; it says which ranges hold a row group's columns, and reads rows out of their bytes.
//! Encodings are the library's ([the format](https://parquet.apache.org/docs/file-format/)); pages are decompressed here, because nothing
//! there stops at the length that the footer states. One page of each column is unpacked at a time.

mod footer;
mod pages;
#[cfg(test)]
pub(crate) mod tests;

use crate::bytes::Dtype;
use crate::mds::Encoding;
use crate::{TakeFields, check_given, is_below, is_named, shown, unsupported};
use bytes::Bytes;
use core::ops::Range;
use fuelrail_base::{Error, Result};
use pages::{Pages, Pieces, flawed};
use parquet::basic::{Compression, ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{AsBytes, DataType};
use parquet::file::metadata::{
    ColumnChunkMetaData, FooterTail, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that every file ends with: they tell how long its footer is.
pub const TAIL_BYTES: u64 = 8;
/// Longest footer that is read.
const FOOTER_BYTES_MAX: u64 = 256 << 20;

/// A file, by its footer, and the columns of it that are read.
#[derive(Debug)]
pub struct File {
    metadata: ParquetMetaData,
    columns: Vec<Column>,
}

/// A column that is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its path, with dots, without the inner levels of a list.
    pub name: String,
    /// What its bytes mean; those of a list are [`Encoding::Bytes`].
    pub encoding: Encoding,
    /// Its number in the file.
    leaf: usize,
}

/// Rows that are read together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// How many.
    pub rows: u64,
    /// The bytes of the file that hold the columns, in their order, apart from each other.
    pub ranges: Vec<Range<u64>>,
}

/// Bytes of the footer at the end of a file of `size` bytes, of which `tail` are the last.
///
/// # Errors
/// [`Undecodable`](fuelrail_base::Kind::Undecodable) when this is the end of no Parquet file; [`Usage`](fuelrail_base::Kind::Usage) for an
/// encrypted one, and a footer above 256 MiB.
pub fn footer_bytes(tail: &[u8], size: u64) -> Result<u64> {
    if size < TAIL_BYTES {
        return Err(flawed(format_args!("it has {size} bytes")));
    }
    check_given(tail, size - TAIL_BYTES, TAIL_BYTES)?;
    let last = tail.last_chunk().ok_or_else(|| flawed("it has no footer"))?;
    let tail = FooterTail::try_new(last).map_err(flawed)?;
    if tail.is_encrypted_footer() {
        return Err(unsupported("the Parquet file is encrypted", "write it without encryption"));
    }
    let bytes = tail.metadata_length() as u64 + TAIL_BYTES;
    if bytes > size {
        return Err(flawed(format_args!("it has {size} bytes, its footer {bytes}")));
    }
    if bytes > FOOTER_BYTES_MAX {
        return Err(unsupported(
            format!("the footer of the Parquet file has {bytes} bytes"),
            "write fewer row groups a file",
        ));
    }
    Ok(bytes)
}

impl File {
    /// Reads the footer of a file of `size` bytes, of which `end` are the last ones. Of the columns those are read that `fields` names, or that
    /// lie below one that it names; all where it names none.
    ///
    /// # Errors
    /// As [`footer_bytes`]; [`Usage`](fuelrail_base::Kind::Usage) for a field that is not there, for columns that are not read, by their
    /// names: lists of anything but numbers, lists in lists, other compressions than snappy, gzip and zstd; for a schema of more than 1024
    /// columns and groups.
    pub fn open(end: &[u8], size: u64, fields: &[String]) -> Result<File> {
        let footer = footer_bytes(end, size)?;
        check_given(end, size - footer, footer)?;
        let footer = &end[end.len() - footer as usize..end.len() - TAIL_BYTES as usize];
        match footer::schema_elements(footer) {
            None => return Err(flawed("its footer is broken")),
            Some(elements) if elements > footer::ELEMENTS_MAX => {
                let (cause, max) = (format!("the schema has {elements} columns and groups"), footer::ELEMENTS_MAX);
                return Err(unsupported(cause, format!("write a file of at most {max}")));
            }
            Some(_) => {}
        }
        let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(footer).map_err(flawed))?;
        let leaves = metadata.file_metadata().schema_descr().columns().iter().enumerate();
        let mut columns: Vec<Column> = leaves.map(|(leaf, descriptor)| Column::of(leaf, descriptor)).collect();
        if let Some(field) = fields.iter().find(|field| !columns.iter().any(|column| is_below(field, &column.name))) {
            let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
            let cause = format!("no column of the Parquet file is named '{}'", shown(field.as_bytes()));
            return Err(unsupported(cause, format!("name some of {}", shown(names.join(", ").as_bytes()))));
        }
        columns.retain(|column| is_named(fields, &column.name));
        let mut names = BTreeSet::new();
        if let Some(column) = columns.iter().find(|column| !names.insert(&*column.name)) {
            let cause = format!("two columns of the Parquet file are named '{}'", shown(column.name.as_bytes()));
            return Err(unsupported(cause, "read other columns, or write the file with other names"));
        }
        let file = File { metadata, columns };
        file.check(size)?;
        Ok(file)
    }

    /// Checks all that reading takes for granted of the columns that are read.
    fn check(&self, size: u64) -> Result<()> {
        let metadata = &self.metadata;
        if self.columns.is_empty() {
            return Err(flawed("it has no column"));
        }
        for Column { name, leaf, .. } in &self.columns {
            let descriptor = metadata.file_metadata().schema_descr().column(*leaf);
            let is_bytes = matches!(descriptor.physical_type(), Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY);
            if descriptor.max_rep_level() > 1 || descriptor.max_rep_level() == 1 && is_bytes {
                let cause = format!("column '{}' is a list of lists, texts or bytes", shown(name.as_bytes()));
                return Err(unsupported(cause, "leave it out: name the other columns in the setting `fields`"));
            }
        }
        for (number, group) in metadata.row_groups().iter().enumerate() {
            let chunks = self.columns.iter().map(|column| Some((column, group.columns().get(column.leaf)?)));
            for chunk in chunks {
                let (column, chunk) = chunk.ok_or_else(|| flawed(format_args!("row group {number} lacks a column")))?;
                let name = shown(column.name.as_bytes());
                let is_there = |range: Range<u64>| range.end <= size && (!range.is_empty() || group.num_rows() == 0);
                let is_sound = range(chunk).is_some_and(is_there)
                    && [group.num_rows(), chunk.num_values(), chunk.uncompressed_size()].iter().all(|n| *n >= 0);
                if !is_sound {
                    return Err(flawed(format_args!("column '{name}' of row group {number} is not in the file")));
                }
                let is_read = matches!(
                    chunk.compression(),
                    Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::GZIP(_) | Compression::ZSTD(_)
                );
                if chunk.file_path().is_some() || !is_read {
                    let cause = match chunk.file_path() {
                        Some(path) => format!("column '{name}' is in another file, {}", shown(path.as_bytes())),
                        None => format!("column '{name}' is compressed with {}", chunk.compression()),
                    };
                    return Err(unsupported(cause, "write the file anew, with snappy, gzip, zstd or no compression"));
                }
            }
        }
        Ok(())
    }

    /// The columns that are read, in the order of the file, or of another after [`File::order_as`].
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Hands over the columns of each row in the order of another file, which has the same ones.
    pub fn order_as(&mut self, other: &File) {
        self.columns.sort_by_cached_key(|column| other.columns.iter().position(|of| of.name == column.name));
    }

    /// The row groups, in the order of the file.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = Group> {
        let groups = self.metadata.row_groups().iter();
        groups.map(|group| Group { rows: group.num_rows() as u64, ranges: self.ranges(group) })
    }

    /// The bytes that hold the columns that are read, joined where they touch.
    fn ranges(&self, group: &RowGroupMetaData) -> Vec<Range<u64>> {
        let ranges = self.columns.iter().filter_map(|column| range(group.column(column.leaf)));
        let mut ranges: Vec<Range<u64>> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let touches = next.start <= range.end;
            if touches {
                range.end = range.end.max(next.end);
            }
            touches
        });
        ranges
    }

    /// Reads the rows of a group, whose `ranges` hold these bytes, and hands over each row's columns. What `take` refuses ends it.
    ///
    /// # Errors
    /// [`Undecodable`](fuelrail_base::Kind::Undecodable) when they are not as the footer says; [`Usage`](fuelrail_base::Kind::Usage) for
    /// encodings that are not read, by the column's name; what `take` returns.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn rows(&self, group: usize, bytes: Vec<Vec<u8>>, take: TakeFields<'_>) -> Result<()> {
        let number = group;
        let group = self.metadata.row_group(number);
        let begins = self.ranges(group).into_iter().map(|range| range.start);
        let pieces = Pieces::new(begins.zip(bytes.into_iter().map(Bytes::from)).collect());
        let cursors = self.columns.iter().map(|column| {
            let (chunk, name) = (group.column(column.leaf), &column.name);
            Ok((&**name, guarded(|| cursor(&pieces, chunk)).map_err(|error| named(error, name))?))
        });
        let mut cursors = cursors.collect::<Result<Vec<(&str, Box<dyn Cursor>)>>>()?;
        for row in 0..group.num_rows() {
            for (name, cursor) in &mut cursors {
                let place = format_args!("row {row} of row group {number}");
                guarded(|| cursor.advance()).map_err(|error| named(error, name).within(place))?;
            }
            let fields = cursors.iter().filter_map(|(name, cursor)| Some((*name, cursor.value()?)));
            take(&fields.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Column {
    fn of(leaf: usize, descriptor: &ColumnDescriptor) -> Column {
        let (mut name, is_list) = (descriptor.path().parts().join("."), descriptor.max_rep_level() > 0);
        // The standard's levels of a list, and those of older writers.
        for inner in [".list.element", ".list.item", ".bag.array_element"].into_iter().filter(|_| is_list) {
            name = name.replacen(inner, "", 1);
        }
        let converted = descriptor.converted_type();
        let dtype = match (descriptor.physical_type(), converted) {
            (Type::BOOLEAN, _) => Some(Dtype::U8),
            (Type::INT32, ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32) => Some(Dtype::U32),
            (Type::INT32, _) => Some(Dtype::I32),
            (Type::INT64, ConvertedType::UINT_64) => Some(Dtype::U64),
            (Type::INT64, _) => Some(Dtype::I64),
            (Type::FLOAT, _) => Some(Dtype::F32),
            (Type::DOUBLE, _) => Some(Dtype::F64),
            _ => None,
        };
        let encoding = match (dtype.filter(|_| !is_list), converted) {
            (Some(dtype), _) => Encoding::Array { dtype: Some(dtype), shape: Some(Vec::new()) },
            (None, ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM) if !is_list => Encoding::Text,
            _ => Encoding::Bytes,
        };
        Column { name, encoding, leaf }
    }
}

/// The bytes of a column in a row group. `None` where they are none.
fn range(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let dictionary = chunk.dictionary_page_offset().filter(|offset| *offset > 0);
    let start = u64::try_from(dictionary.unwrap_or(chunk.data_page_offset())).ok()?;
    let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
    Some(start..end)
}

/// The values of one column, row by row.
trait Cursor {
    /// Goes to the next row.
    fn advance(&mut self) -> Result<()>;
    /// The bytes of the row's value. `None` where it is null.
    fn value(&self) -> Option<&[u8]>;
}

struct Values<T: DataType> {
    reader: ColumnReaderImpl<T>,
    descriptor: ColumnDescPtr,
    /// The row: its values, and the levels that say what is null or repeated.
    values: Vec<T::T>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    /// The values of a list.
    joined: Vec<u8>,
    is_null: bool,
}

fn cursor(pieces: &Pieces, chunk: &ColumnChunkMetaData) -> Result<Box<dyn Cursor>> {
    fn values<T: DataType>(reader: ColumnReaderImpl<T>, descriptor: ColumnDescPtr) -> Box<dyn Cursor> {
        let (values, definitions, repetitions, joined) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Box::new(Values { reader, descriptor, values, definitions, repetitions, joined, is_null: true })
    }
    let descriptor = chunk.column_descr_ptr();
    let pages = Pages::of(pieces.clone(), chunk).map_err(flawed)?;
    Ok(match get_column_reader(descriptor.clone(), Box::new(pages)) {
        ColumnReader::BoolColumnReader(reader) => values(reader, descriptor),
        ColumnReader::Int32ColumnReader(reader) => values(reader, descriptor),
        ColumnReader::Int64ColumnReader(reader) => values(reader, descriptor),
        ColumnReader::Int96ColumnReader(reader) => values(reader, descriptor),
        ColumnReader::FloatColumnReader(reader) => values(reader, descriptor),
        ColumnReader::DoubleColumnReader(reader) => values(reader, descriptor),
        ColumnReader::ByteArrayColumnReader(reader) => values(reader, descriptor),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => values(reader, descriptor),
    })
}

impl<T: DataType> Cursor for Values<T> {
    fn advance(&mut self) -> Result<()> {
        let Values { reader, values, definitions, repetitions, joined, .. } = self;
        values.clear();
        definitions.clear();
        repetitions.clear();
        joined.clear();
        let read = reader.read_records(1, Some(definitions), Some(repetitions), values);
        if read.map_err(pages::error)?.0 != 1 {
            return Err(flawed("it ends before its row group"));
        }
        self.is_null = values.is_empty();
        if self.descriptor.max_rep_level() > 0 {
            // An element is there from this level on; one below, the list is there and empty.
            let (element, full) = (self.descriptor.repeated_ancestor_def_level(), self.descriptor.max_def_level());
            self.is_null = definitions.first().is_none_or(|level| level + 1 < element);
            if definitions.iter().any(|level| (element..full).contains(level)) {
                let hint = "fill it, or leave the column out: name the others in the setting `fields`";
                return Err(unsupported("an element of its list is null", hint));
            }
            values.iter().for_each(|value| joined.extend_from_slice(value.as_bytes()));
        }
        Ok(())
    }

    fn value(&self) -> Option<&[u8]> {
        match &self.values[..] {
            _ if self.is_null => None,
            [value] => Some(value.as_bytes()),
            _ => Some(&self.joined),
        }
    }
}

/// The library takes for granted what damaged files break, and panics there.
fn guarded<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(flawed("its structure is broken")))
}

fn named(error: Error, column: &str) -> Error {
    error.within(format_args!("column '{}'", shown(column.as_bytes())))
}
