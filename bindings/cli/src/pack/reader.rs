//! The records of a source, in any order: objects that are grouped by their names, or what other shards hold.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use fuelrail::internal::PackedRecords;
use fuelrail::{Batch, Error, Format, Kind, Loader, LoaderBuilder, SampleId, State};
use fuelrail_format::bytes::Dtype;
use fuelrail_format::mds::encoding::Value as Decoded;
use fuelrail_format::write::{KEY, Value};
use fuelrail_format::{mds, tfrecord};
use fuelrail_plan::order::{Order, OrderName};
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::Pack;
use super::objects::{Grouped, Pieces, Take};
use super::source::{Source, as_memory_allows};
use crate::failure::{Outcome, usage};
use crate::screen::note;

/// Records of shards in a batch; where memory is short, one.
const BATCH_RECORDS: [u32; 2] = [16, 1];

pub(super) enum Reader<'s> {
    Objects { source: &'s Source, grouped: Grouped<'s>, order: Order, builder: Box<LoaderBuilder> },
    Shards { loader: Box<Loader>, columns: Option<mds::Columns>, format: Format, next: u64, names_keys: bool },
    Packed { packed: Box<PackedRecords>, names_keys: bool },
}

impl<'s> Reader<'s> {
    /// A reader from the record at place `first` on. Of a source of shards, `state` is where an earlier run began.
    pub(super) fn open(args: &Pack, source: &'s Source, state: Option<&State>, first: u64) -> Outcome<Reader<'s>> {
        let builder = source.loader(args)?;
        if source.format == Format::Objects {
            let grouped = Grouped::of(source)?;
            let order = Order::named(OrderName::Global, grouped.records() as u64, args.seed, args.shuffle);
            return Ok(Reader::Objects { source, grouped, order, builder: Box::new(builder) });
        }
        let mut builder = builder.format(source.format).shuffle(args.shuffle).seed(args.seed);
        let names_keys = args.format == Format::WebDataset;
        if let Some(packed) = PackedRecords::open(&builder, &args.fields)? {
            if args.shuffle {
                let cause = "records of Parquet and of compressed MDS are read in their own order";
                return Err(usage(cause, "pack without --shuffle, then pack those shards with it"));
            }
            return Ok(Reader::Packed { packed: Box::new(packed), names_keys });
        }
        let next = state.map_or(0, |_| first);
        if let Some(state) = state {
            builder = builder.resume(State { position: first, ..state.clone() });
        }
        let build = |batch_size| builder.clone().batch_size(batch_size).build();
        let loader = Box::new(as_memory_allows(BATCH_RECORDS, build)?);
        loader.notices().iter().for_each(|notice| note(notice));
        if source.format == Format::WebDataset {
            check_keys(&loader)?;
        }
        let columns = if source.format == Format::Mds { Some(columns(args, source)?) } else { None };
        Ok(Reader::Shards { loader, columns, format: source.format, next, names_keys })
    }

    pub(super) fn records(&self) -> u64 {
        match self {
            Reader::Objects { grouped, .. } => grouped.records() as u64,
            Reader::Shards { loader, .. } => loader.samples(),
            Reader::Packed { packed, .. } => packed.count(),
        }
    }

    /// Where a source of shards begins.
    pub(super) fn state(&self) -> Option<State> {
        match self {
            Reader::Objects { .. } | Reader::Packed { .. } => None,
            Reader::Shards { loader, .. } => Some(State { position: 0, ..loader.state() }),
        }
    }

    /// Reads the records at these places of the order, which come one after the other.
    pub(super) fn read(&mut self, wanted: &[Range<u64>], take: Take<'_>) -> Outcome<()> {
        match self {
            Reader::Objects { source, grouped, order, builder } => {
                let places = wanted.iter().cloned().flatten();
                let records = places.map(|place| order.sample_at(0, place).0 as usize);
                let mut pieces = Pieces::open(source, grouped, builder, records.clone())?;
                for record in records {
                    grouped.read(source, record, &mut pieces, take)?;
                }
                Ok(())
            }
            Reader::Shards { loader, columns, format, next, names_keys } => {
                let end = wanted.last().map_or(0, |last| last.end);
                while let Some(batch) = loader.next_batch().filter(|_| *next < end) {
                    let batch = batch?;
                    for (i, id) in batch.ids().iter().enumerate() {
                        let at = *next;
                        *next += 1;
                        if wanted.iter().any(|wanted| wanted.contains(&at)) {
                            let key = (*format == Format::WebDataset).then(|| loader.record_key(*id));
                            let key = key.or_else(|| names_keys.then(|| numbered(id.0).into()));
                            record((&batch, i), *format, columns.as_ref(), key, take)?;
                        }
                    }
                }
                Ok(())
            }
            Reader::Packed { packed, names_keys } => {
                let all = wanted.first().map_or(0, |first| first.start)..wanted.last().map_or(0, |last| last.end);
                packed.read(all, &mut |number, read| {
                    if !wanted.iter().any(|wanted| wanted.contains(&number)) {
                        return Ok(());
                    }
                    let fields = read.iter().map(|&(name, bytes)| {
                        let value = packed.encoding(name).and_then(|encoding| decoded(encoding, bytes));
                        (name, value.unwrap_or(Value::Bytes(bytes)))
                    });
                    let key = names_keys.then(|| numbered(number));
                    keyed(fields.collect(), key.as_deref(), take)
                })
            }
        }
    }
}

/// The key of a record that has none, where one is needed.
fn numbered(record: u64) -> String {
    format!("{record:09}")
}

/// Keys of records in archives are unique, or readers could join two of them.
fn check_keys(loader: &Loader) -> Outcome<()> {
    let mut known = HashSet::new();
    for id in (0..loader.samples()).map(SampleId) {
        let key = loader.record_key(id);
        if !known.insert(xxh3_64(key.as_bytes())) {
            let cause = format!("two records have the key '{}'", key.escape_debug());
            let error = Error::new(Kind::Undecodable, cause).with_object(loader.key(id));
            return Err(error
                .with_hint("pack the shards apart, or write them with a key of its own for each record")
                .into());
        }
    }
    Ok(())
}

fn columns(args: &Pack, source: &Source) -> Outcome<mds::Columns> {
    let index = source.listed.iter().find(|object| object.key.rsplit('/').next() == Some("index.json"));
    let index =
        index.ok_or_else(|| usage("no object of the source is named index.json", "name what MDSWriter wrote"))?;
    let mut loader = source.loader(args)?.listing(vec![index.clone()]).batch_size(1).build()?;
    let batch = loader.next_batch().ok_or_else(|| Error::new(Kind::Truncated, "index.json did not come"))??;
    Ok(mds::DataSet::parse(batch.sample(0)).map_err(|error| error.with_object(&*index.key))?.columns)
}

/// Splits a record of a shard into its fields, with the types that the shard's format gives them.
fn record(
    (batch, i): (&Batch, usize),
    format: Format,
    columns: Option<&mds::Columns>,
    key: Option<Cow<'_, str>>,
    take: Take<'_>,
) -> Outcome<()> {
    let mut example = tfrecord::Example::default();
    let is_example = format == Format::TfRecord;
    let features = is_example.then(|| example.read(tfrecord::data(batch.sample(i))).ok()).flatten();
    let read: Vec<_> = batch.fields(i).collect();
    let typed = read.iter().map(|(name, bytes)| {
        let mut values = features.and_then(|features| features.get(name)).map(|feature| feature.values());
        let numbers = values.as_mut().map(|values| (values.next(), values.next()));
        let column = columns.and_then(|columns| columns.all().iter().find(|column| column.name == *name));
        let value = match (numbers, column) {
            (Some((Some(tfrecord::Value::Int(number)), None)), _) => Some(Value::Int(number)),
            (_, column) => column.and_then(|column| decoded(&column.encoding, bytes)),
        };
        (*name, value.unwrap_or(Value::Bytes(bytes)))
    });
    keyed(typed.collect(), key.as_deref(), take)
}

/// Hands over a record. A field named [`KEY`] is its key.
fn keyed(mut fields: Vec<(&str, Value<'_>)>, key: Option<&str>, take: Take<'_>) -> Outcome<()> {
    let own = fields.iter().position(|(name, _)| *name == KEY).map(|at| fields.remove(at).1);
    let own = match own {
        Some(Value::Text(text)) => Some(text),
        Some(Value::Bytes(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    take(own.or(key), &fields)
}

/// A value of an encoding that is text or an integer; other numbers and arrays stay the bytes they are.
/// Those of unsigned 64 bits stay bytes, too: not all of them are integers of ours, and a column is of one type.
fn decoded<'a>(encoding: &'a mds::Encoding, bytes: &'a [u8]) -> Option<Value<'a>> {
    match encoding.view(bytes)? {
        Decoded::Text(text) => Some(Value::Text(text)),
        Decoded::Array(array) if array.dtype != Dtype::U64 => array.integer().map(Value::Int),
        _ => None,
    }
}
