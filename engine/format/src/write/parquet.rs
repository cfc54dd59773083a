//! Parquet files of records: a column for each field, uncompressed, in row groups of about [`GROUP_BYTES`].

use super::mds::Columns;
use crate::bytes::array_at;
use crate::mds::{self, Encoding};
use core::ops::Range;
use parquet::basic::{ConvertedType, Repetition, Type};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type as Schema;
use std::sync::Arc;

/// Bytes of the records of a row group; a longer record is one of its own. A reader takes a row group at a time.
const GROUP_BYTES: usize = 8 << 20;
/// Bytes that a column takes in a row group beside its values, and a page of 1 MiB, at most; a column's name comes besides.
const CHUNK_BYTES: usize = 192;
const PAGE_BYTES: usize = 1 << 20;

/// Most bytes that the file takes beside its records' `bytes`.
pub(super) fn overhead(columns: &Columns, bytes: usize) -> usize {
    // Two neighbouring row groups have more than one may.
    let groups = 2 * (bytes / GROUP_BYTES) + 1;
    let names = columns.columns.iter().map(|(name, _)| name.len() + CHUNK_BYTES).sum::<usize>();
    256 + (groups + 1) * names + bytes / PAGE_BYTES * CHUNK_BYTES
}

/// The file of these samples of MDS, which end so many bytes after their begin.
pub(super) fn file(columns: &Columns, samples: &[u8], ends: &[u32]) -> Vec<u8> {
    let columns = mds::Columns::parse(columns.settings.as_bytes()).expect("the settings name the columns");
    write(&columns, samples, ends).expect("memory takes what is written, and the columns are those of the schema")
}

fn write(columns: &mds::Columns, samples: &[u8], ends: &[u32]) -> Result<Vec<u8>> {
    let fields = columns.all().iter().map(|column| {
        let (physical, converted) = match column.encoding {
            Encoding::Array { .. } => (Type::INT64, ConvertedType::NONE),
            Encoding::Text => (Type::BYTE_ARRAY, ConvertedType::UTF8),
            Encoding::Bytes => (Type::BYTE_ARRAY, ConvertedType::NONE),
        };
        let field = Schema::primitive_type_builder(&column.name, physical).with_converted_type(converted);
        field.with_repetition(Repetition::REQUIRED).build().map(Arc::new)
    });
    let schema = Schema::group_type_builder("records").with_fields(fields.collect::<Result<_>>()?).build()?;
    let properties = WriterProperties::builder()
        .set_created_by("fuelrail".into())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_data_page_size_limit(PAGE_BYTES)
        .build();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut begin = 0;
    let samples: Vec<&[u8]> =
        ends.iter().map(|end| &samples[core::mem::replace(&mut begin, *end as usize)..begin]).collect();
    for group in groups(&samples) {
        let mut rows = file.next_row_group()?;
        for number in 0..columns.all().len() {
            let Some(mut column) = rows.next_column()? else { break };
            let values = samples[group.clone()].iter().filter_map(|sample| columns.split(sample).ok()?.nth(number));
            let values = values.map(|(_, value)| value);
            if matches!(columns.all()[number].encoding, Encoding::Array { .. }) {
                let numbers: Vec<i64> = values.filter_map(|value| array_at(value, 0)).map(i64::from_le_bytes).collect();
                column.typed::<Int64Type>().write_batch(&numbers, None, None)?;
            } else {
                let values: Vec<ByteArray> = values.map(|value| value.to_vec().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            column.close()?;
        }
        rows.close()?;
    }
    file.into_inner()
}

/// The records of each row group.
fn groups(samples: &[&[u8]]) -> Vec<Range<usize>> {
    let (mut groups, mut bytes) = (Vec::<Range<usize>>::new(), 0);
    for (at, sample) in samples.iter().enumerate() {
        bytes += sample.len();
        match groups.last_mut().filter(|_| bytes <= GROUP_BYTES) {
            Some(group) => group.end = at + 1,
            None => (bytes = sample.len(), groups.push(at..at + 1)).1,
        }
    }
    groups
}
