//! Objects as records: which belong together by their names, and their bytes in any order of records.

use std::collections::BTreeSet;

use fuelrail::{Batch, ByteRange, ByteSize, Error, Kind, Loader, LoaderBuilder};
use fuelrail_format::write::{RECORD_BYTES_MAX, Value};

use super::source::{Source, as_memory_allows};
use crate::failure::Outcome;
use crate::screen::note;
use crate::settings::{PIECE_BYTES, WHOLE_BYTES, batch_samples};

/// Objects up to the first length come whole, so that the checksums that servers have of them are verified; where memory is too short for
/// that, up to the second. Longer ones come in pieces of that length.
const WHOLE: [u64; 2] = [WHOLE_BYTES, PIECE_BYTES];
/// The field of an object without an extension, and the one of a class.
const DATA: &str = "data";
const CLASS: &str = "cls";

/// Takes a record: its key and its fields.
pub(super) type Take<'t> = &'t mut dyn FnMut(Option<&str>, &[(&str, Value<'_>)]) -> Outcome<()>;

/// The records that the listed objects are.
pub(super) struct Grouped<'s> {
    /// Objects, by record.
    members: Vec<u32>,
    /// Where each record's begin in them, and the last one's end.
    starts: Vec<u32>,
    /// By name; empty where objects have no class.
    classes: Vec<&'s str>,
}

impl<'s> Grouped<'s> {
    /// Groups the objects by their paths up to the first dot of the file name, in the order of the first of each record.
    ///
    /// # Errors
    /// `Usage` where two objects are the same field of a record, which it names.
    pub(super) fn of(source: &'s Source) -> Outcome<Grouped<'s>> {
        // Record and object. Keys that begin with a record's key follow each other in a listing, so only those are open.
        let mut placed: Vec<(u32, u32)> = Vec::with_capacity(source.listed.len());
        let (mut open, mut records, mut hidden): (Vec<(&str, u32)>, u32, u64) = (Vec::new(), 0, 0);
        for (number, object) in (0_u32..).zip(&source.listed) {
            let path = source.path(object);
            let Some((key, _)) = named(path) else {
                hidden += 1;
                continue;
            };
            while open.last().is_some_and(|(key, _)| !path.starts_with(key)) {
                open.pop();
            }
            let record = open.iter().rev().find(|(open, _)| *open == key).map(|(_, record)| *record);
            let record = record.unwrap_or_else(|| {
                open.push((key, records));
                records += 1;
                records - 1
            });
            placed.push((record, number));
        }
        if hidden > 0 {
            note(&format!("{hidden} objects were skipped: their names begin with a dot"));
        }
        placed.sort_by_key(|(record, _)| *record);
        let starts = (0..=records).map(|record| placed.partition_point(|(of, _)| *of < record) as u32).collect();
        let members = placed.into_iter().map(|(_, object)| object).collect();
        let grouped = Grouped { members, starts, classes: classes(source) };
        (0..records as usize).try_for_each(|record| grouped.check_fields(source, record))?;
        Ok(grouped)
    }

    pub(super) fn records(&self) -> usize {
        self.starts.len() - 1
    }

    fn members(&self, record: usize) -> &[u32] {
        &self.members[self.starts[record] as usize..self.starts[record + 1] as usize]
    }

    /// Key, field and length of each object of a record.
    fn fields(&self, source: &'s Source, record: usize) -> impl Iterator<Item = (&'s str, String, u64)> {
        self.members(record).iter().filter_map(|member| {
            let object = &source.listed[*member as usize];
            named(source.path(object)).map(|(key, field)| (key, field.to_lowercase(), object.size))
        })
    }

    fn check_fields(&self, source: &'s Source, record: usize) -> Outcome<()> {
        let bytes: u64 = self.fields(source, record).map(|(.., size)| size).sum();
        if bytes > RECORD_BYTES_MAX {
            let error =
                Error::new(Kind::Usage, format!("its record would have {}, the limit is 1 GiB", ByteSize(bytes)));
            let key = &source.listed[self.members(record)[0] as usize].key;
            return Err(error
                .with_object(key.as_str())
                .with_hint("shards are for many small records: leave it out")
                .into());
        }
        let mut known = BTreeSet::new();
        for ((key, field, _), member) in self.fields(source, record).zip(self.members(record)) {
            if !known.insert(field.clone()) {
                let cause =
                    format!("two objects are the field '{}' of record '{}'", field.escape_debug(), key.escape_debug());
                let error = Error::new(Kind::Usage, cause).with_object(&*source.listed[*member as usize].key);
                return Err(error.with_hint("rename one of the two: names of fields are in lower case").into());
            }
        }
        Ok(())
    }

    /// Reads a record, whose objects are the next pieces.
    pub(super) fn read(&self, source: &'s Source, record: usize, pieces: &mut Pieces, take: Take<'_>) -> Outcome<()> {
        let mut read = Vec::new();
        for (_, field, size) in self.fields(source, record) {
            read.push((field, pieces.next(size)?));
        }
        let path = source.path(&source.listed[self.members(record)[0] as usize]);
        let class = path.split_once('/').and_then(|(folder, _)| self.classes.binary_search(&folder).ok());
        let class = class.filter(|_| !read.iter().any(|(field, _)| field == CLASS));
        let mut fields: Vec<_> = read.iter().map(|(field, bytes)| (field.as_str(), Value::Bytes(bytes))).collect();
        fields.extend(class.map(|class| (CLASS, Value::Int(class as i64))));
        take(named(path).map(|(key, _)| key), &fields)
    }
}

/// Key and field of an object; `None` where its name begins with a dot.
fn named(path: &str) -> Option<(&str, &str)> {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    match path[name..].find('.') {
        None => Some((path, DATA)),
        Some(0) => None,
        Some(dot) => Some((&path[..name + dot], &path[name + dot + 1..])),
    }
}

/// The folders that the objects lie in, by name. None where one lies in no folder, or all in the same.
fn classes(source: &Source) -> Vec<&str> {
    let mut classes = BTreeSet::new();
    for path in source.listed.iter().map(|object| source.path(object)).filter(|path| named(path).is_some()) {
        match path.split_once('/') {
            Some((folder, _)) => classes.insert(folder),
            None => return Vec::new(),
        };
    }
    if classes.len() > 1 { classes.into_iter().collect() } else { Vec::new() }
}

/// The bytes of objects, in the order of records.
pub(super) struct Pieces {
    /// `None` where all objects are empty.
    loader: Option<Loader>,
    batch: Option<Batch>,
    at: usize,
}

impl Pieces {
    /// Starts to read the objects of these records.
    pub(super) fn open(
        source: &Source,
        grouped: &Grouped<'_>,
        builder: &LoaderBuilder,
        records: impl Iterator<Item = usize> + Clone,
    ) -> Outcome<Pieces> {
        let build = |whole: u64| -> fuelrail::Result<Option<Loader>> {
            let of_object = |object: &u32| {
                let size = source.listed[*object as usize].size;
                ByteRange::pieces(*object, size, if size <= whole { whole } else { PIECE_BYTES })
            };
            let members = records.clone().flat_map(|record| grouped.members(record));
            let ranges: Vec<ByteRange> = members.flat_map(of_object).collect();
            let Some(longest) = ranges.iter().map(|range| range.len).max() else { return Ok(None) };
            builder.clone().ranges(ranges).batch_size(batch_samples(longest)).build().map(Some)
        };
        let loader = as_memory_allows(WHOLE, build)?;
        loader.iter().flat_map(Loader::notices).for_each(|notice| note(notice));
        Ok(Pieces { loader, batch: None, at: 0 })
    }

    /// The next object, of so many bytes.
    fn next(&mut self, size: u64) -> Outcome<Vec<u8>> {
        let mut object = Vec::with_capacity(size.min(PIECE_BYTES) as usize);
        while (object.len() as u64) < size {
            if let Some(batch) = self.batch.as_ref().filter(|batch| self.at < batch.len()) {
                object.extend_from_slice(batch.sample(self.at));
                self.at += 1;
            } else {
                // Its memory is given back before the next one is waited for.
                (self.batch, self.at) = (None, 0);
                let next = self.loader.as_mut().and_then(Loader::next_batch);
                self.batch = Some(next.ok_or_else(|| Error::new(Kind::Truncated, "the source ended early"))??);
            }
        }
        Ok(object)
    }
}
