//! The pages of a column: cut out by the library, and decompressed within what the footer says of their length.

use crate::unsupported;
use crate::write::RECORD_BYTES_MAX;
use bytes::{Buf as _, Bytes};
use core::fmt;
use fuelrail_base::{Error, Kind};
use parquet::basic::{Compression, Encoding, PageType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::io::Read;
use std::sync::Arc;

/// Most values of a page: a value may take no byte of it.
const PAGE_VALUES_MAX: u64 = 1 << 24;
/// Most values of a list column in a row group: a list is read as a whole, of whatever pages.
const LIST_VALUES_MAX: u64 = 1 << 27;

/// The bytes of a file that were read, by their offsets.
#[derive(Clone)]
pub(super) struct Pieces(Arc<Vec<(u64, Bytes)>>);

impl Pieces {
    pub(super) fn new(pieces: Vec<(u64, Bytes)>) -> Pieces {
        Pieces(Arc::new(pieces))
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.0.last().map_or(0, |(first, bytes)| first + bytes.len() as u64)
    }
}

impl ChunkReader for Pieces {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let holds = |piece: &&(u64, Bytes)| (piece.0..piece.0 + piece.1.len() as u64).contains(&start);
        let piece = self.0.iter().find(holds).map(|(first, bytes)| bytes.slice((start - first) as usize..));
        piece
            .map(Bytes::reader)
            .ok_or_else(|| ParquetError::EOF(format!("a page at byte {start} is not in its column")))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let rest = self.get_read(start)?.into_inner();
        if length > rest.len() {
            return Err(ParquetError::EOF(format!("a page at byte {start} ends after its column")));
        }
        Ok(rest.slice(..length))
    }
}

/// The pages of a column in a row group.
pub(super) struct Pages {
    /// It takes the column to be as it is stored.
    stored: SerializedPageReader<Pieces>,
    /// The page that is next, as it is stored.
    ahead: Option<Page>,
    compression: Compression,
    is_list: bool,
    /// Bytes that the pages may still have when decompressed, and values.
    bytes_left: u64,
    values_left: u64,
}

impl Pages {
    pub(super) fn of(pieces: Pieces, chunk: &ColumnChunkMetaData) -> Result<Pages> {
        let dictionary = chunk.dictionary_page_offset().filter(|offset| *offset > 0);
        let plain = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED);
        let plain = plain.set_dictionary_page_offset(dictionary).build()?;
        let mut stored = SerializedPageReader::new(Arc::new(pieces), &plain, 0, None)?;
        Ok(Pages {
            ahead: with_values(&mut stored)?,
            stored,
            compression: chunk.compression(),
            is_list: chunk.column_descr().max_rep_level() > 0,
            bytes_left: chunk.uncompressed_size() as u64,
            values_left: chunk.num_values() as u64,
        })
    }

    fn unpacked(&mut self, mut page: Page) -> Result<Page> {
        let (is_dictionary, values) = (page.page_type() == PageType::DICTIONARY_PAGE, u64::from(page.num_values()));
        match &mut page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => *buf = self.decompressed(buf)?,
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                // Levels are never compressed.
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                let parts = buf.split_at_checked(levels);
                let (levels, data) = parts.ok_or_else(|| ParquetError::EOF("a page ends within its levels".into()))?;
                if *is_compressed {
                    *buf = [levels, &self.decompressed(&buf.slice_ref(data))?].concat().into();
                }
            }
        }
        if is_dictionary {
            // Every entry takes a byte at least.
            let is_sound = values <= page.buffer().len() as u64;
            return if is_sound { Ok(page) } else { Err(ParquetError::General("its dictionary is too short".into())) };
        }
        // Others say in their data how many values to make room for, in places that only decoding finds.
        use Encoding::{BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED, PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY};
        let read = [PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, RLE, BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED];
        if !read.contains(&page.encoding()) {
            let cause = format!("it is encoded as {}", page.encoding());
            return Err(refused(cause, "write the file with dictionary or PLAIN encoding, as pyarrow does by default"));
        }
        if values > PAGE_VALUES_MAX || self.is_list && self.values_left > LIST_VALUES_MAX {
            let cause = format!("it has {values} values in a page, {} in a row group", self.values_left);
            return Err(refused(cause, "write smaller row groups"));
        }
        self.values_left = self.values_left.checked_sub(values).ok_or_else(|| longer("values"))?;
        Ok(page)
    }

    /// The bytes of a page, none more than the column may have.
    fn decompressed(&mut self, page: &Bytes) -> Result<Bytes> {
        let limit = self.bytes_left.min(RECORD_BYTES_MAX);
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            from.take(limit + 1).read_to_end(&mut bytes)?;
            Ok::<_, ParquetError>(bytes.into())
        };
        let bytes: Bytes = match self.compression {
            // A page without a value may have no byte.
            _ if page.is_empty() => Bytes::new(),
            Compression::SNAPPY => {
                let length = snap::raw::decompress_len(page).map_err(damaged)?;
                // Three bytes become 64 at most.
                if length as u64 > limit || length / 32 > page.len() {
                    return Err(longer("bytes"));
                }
                snap::raw::Decoder::new().decompress_vec(page).map_err(damaged)?.into()
            }
            Compression::GZIP(_) => read(&mut flate2::bufread::MultiGzDecoder::new(&page[..]))?,
            Compression::ZSTD(_) => read(&mut zstd::Decoder::with_buffer(&page[..])?)?,
            _ => page.clone(),
        };
        if bytes.len() as u64 > limit {
            return Err(longer("bytes"));
        }
        self.bytes_left -= bytes.len() as u64;
        Ok(bytes)
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.ahead.take() else { return Ok(None) };
        self.ahead = with_values(&mut self.stored)?;
        self.unpacked(page).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Ok(self.ahead.as_ref().map(|page| PageMetadata {
            num_rows: if let Page::DataPageV2 { num_rows, .. } = page { Some(*num_rows as usize) } else { None },
            num_levels: page.is_data_page().then(|| page.num_values() as usize),
            is_dict: page.is_dictionary_page(),
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}

/// The next page that has a value: at one without any, which pyarrow writes, the library would end.
fn with_values(stored: &mut SerializedPageReader<Pieces>) -> Result<Option<Page>> {
    stored.find(|page| !matches!(page, Ok(page) if page.is_data_page() && page.num_values() == 0)).transpose()
}

fn damaged(error: snap::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

fn longer(what: &str) -> ParquetError {
    ParquetError::General(format!("it has more {what} than its footer says, or a page of more than 1 GiB"))
}

/// An error of ours, on its way through the library.
fn refused(cause: String, hint: &str) -> ParquetError {
    ParquetError::External(Box::new(unsupported(cause, hint)))
}

/// What came out of the library: an error of ours, or damage.
pub(super) fn error(error: ParquetError) -> Error {
    match error {
        ParquetError::External(error) => error.downcast::<Error>().map_or_else(flawed, |error| *error),
        error => flawed(error),
    }
}

/// Damage of a file.
pub(super) fn flawed(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Undecodable, format!("the Parquet file is damaged: {cause}"))
        .with_hint("write the file again, or leave it out")
}
