//! Samples that are records of shards: found by one pass over the shards, and split into their fields in a batch.
//!
//! Owns the index. What the bytes of a shard mean is `format`'s; who reads them is the caller's.

pub(crate) mod find;
pub(crate) mod heads;
mod kept;
mod label;

pub use find::OPEN_END;
pub(crate) use find::{Asked, content_of};
pub use fuelrail_format::Format;
pub(crate) use heads::{Pass, Read};
pub(crate) use kept::Kept;

use crate::other_fields::{self, FIELD_BYTES, SAMPLE_BYTES};
use crate::packed::PackedShards;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, BadSamples, ByteRange, Listing, Objects, SampleSpan};
use fuelrail_format::{Field, Index, Record, is_below, is_named, mds, tfrecord};
use fuelrail_io::MappedFile;
use std::borrow::Cow;
use std::path::PathBuf;

/// Where every record of a data set lies.
#[derive(Debug)]
pub(crate) struct Records {
    index: Index<IndexBytes>,
    split: Split,
    /// The field that is the label, and the one that is decoded.
    label: Option<String>,
    picture: Option<String>,
    /// Of records that are decoded, the other fields that are wanted, and the most room that those of one take.
    wanted: Vec<String>,
    room: usize,
}

/// The bytes of an index: this process's own, or a file that is mapped, whose memory all processes of the machine share.
#[derive(Debug)]
enum IndexBytes {
    Own(Vec<u8>),
    Shared(MappedFile),
}

impl AsRef<[u8]> for IndexBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            IndexBytes::Own(bytes) => bytes,
            IndexBytes::Shared(file) => file.as_ref(),
        }
    }
}

/// How the bytes of a record are split into its fields.
#[derive(Debug)]
enum Split {
    /// The index has the ranges of all.
    Ranges,
    /// Columns of MDS, or of Parquet.
    Columns(mds::Columns),
    /// A frame of TFRecord with a `tf.Example`.
    Example,
}

/// Room for the other fields of a sample, on average over a batch, where the index does not have their lengths.
const ROOM_BYTES: usize = 32 << 10;

/// Fields that are decoded where none is named.
const PICTURES: [&str; 9] = ["jpg", "jpeg", "png", "img", "image", "image/encoded", "flac", "wav", "audio"];

impl Records {
    /// Finds the records of all shards, in the order of the listing.
    ///
    /// # Errors
    /// Those of `read`; `Undecodable` for a shard that breaks its format, naming it; `Usage` where there is no record, a field that is asked
    /// for is not there, or the format is not read.
    pub(crate) fn find(
        listing: &Listing,
        packed: Option<&PackedShards>,
        asked: &Asked,
        notices: &mut Vec<String>,
        read: Read<'_>,
    ) -> Result<Records> {
        let index = match packed {
            Some(packed) => packed.index(listing, asked.content, read)?,
            None => find::index(listing, asked, read)?,
        };
        if index.is_empty() {
            return Err(find::nothing(listing, asked.format));
        }
        notices.extend(find::open_ends(listing, index.open_ends()));
        Records::of(Index::open(IndexBytes::Own(index.to_bytes()))?, asked)
    }

    /// Those whose index an earlier run kept. `None` where it kept none of these very objects.
    pub(crate) fn kept(kept: &Kept, asked: &Asked) -> Option<Result<Records>> {
        kept.load(asked.format, asked.content).map(|index| Records::of(index, asked))
    }

    /// Keeps the index for later runs.
    ///
    /// # Errors
    /// What the disk refuses; what was there stays then.
    pub(crate) fn keep(&self, kept: &Kept) -> std::io::Result<PathBuf> {
        kept.save(self.index.as_bytes())
    }

    /// The records of an index.
    fn of(index: Index<IndexBytes>, asked: &Asked) -> Result<Records> {
        let split = match index.format() {
            Format::Mds | Format::Parquet => Split::Columns(mds::Columns::parse(index.description())?),
            Format::TfRecord => Split::Example,
            _ => Split::Ranges,
        };
        let (label, picture, wanted) = (asked.label.clone(), asked.picture.clone(), asked.wanted.clone());
        let mut records = Records { index, split, label, picture, wanted, room: 0 };
        records.check_names(asked.is_decoded)?;
        if !records.wanted.is_empty() {
            records.room = records.room();
        }
        Ok(records)
    }

    /// Checks the fields that were asked for, where the format says which there are.
    fn check_names(&self, is_decoded: bool) -> Result<()> {
        let names: Vec<&str> = match &self.split {
            Split::Ranges => self.index.fields().map(|(name, _)| name).collect(),
            Split::Columns(columns) => columns.all().iter().map(|column| &*column.name).collect(),
            Split::Example => return Ok(()),
        };
        let wanted = self.wanted.iter().map(|name| ("fields", name));
        let asked = [("label_field", &self.label), ("decode_field", &self.picture)];
        for (setting, name) in
            asked.into_iter().filter_map(|(setting, name)| Some((setting, name.as_ref()?))).chain(wanted)
        {
            let is_known = |known: &&str| if setting == "fields" { is_below(name, known) } else { name == known };
            if !names.iter().any(is_known) {
                let cause = format!("{setting} is '{name}', and the records have {}", names.join(", "));
                return Err(Error::new(Kind::Usage, cause).with_hint("name one of them"));
            }
        }
        if is_decoded && self.picture.is_none() && !PICTURES.iter().any(|name| names.contains(name)) {
            let cause = format!("decode is set, and no field of the records is named {}", PICTURES.join(", "));
            let hint =
                "name the field of the pictures as decode_field; of Parquet it must be among fields, where that is set";
            return Err(Error::new(Kind::Usage, cause).with_hint(hint));
        }
        Ok(())
    }

    /// What is fetched of each record: from the first byte of its first field to the last byte of its last. Of one that is unpacked, where
    /// it lies in what its part, which counts as an object, is unpacked to.
    pub(crate) fn ranges(&self) -> Vec<ByteRange> {
        self.index.iter().map(|record| cover(&record)).collect()
    }

    /// A hash of where they lie, and of the fields that are not in their objects.
    pub(crate) fn digest(&self) -> u64 {
        self.index.body_hash()
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> u64 {
        self.index.len()
    }

    /// Bytes of memory that the index takes, of this process alone.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self.index.memory() {
            IndexBytes::Own(bytes) => bytes.len() as u64,
            IndexBytes::Shared(_) => 0,
        }
    }

    /// The key of a record; its number where the format has no keys.
    pub(crate) fn key(&self, sample: SampleId) -> Cow<'_, str> {
        let key = self.index.record(sample.0).and_then(|record| record.key());
        key.map_or_else(|| sample.0.to_string().into(), String::from_utf8_lossy)
    }

    /// Checks the bytes of a record, as they were fetched, against what they say of themselves, and its label.
    ///
    /// # Errors
    /// `Mismatch` for a wrong checksum, `Undecodable` for lengths that do not add up; those of [`Records::label`].
    fn check(&self, sample: SampleId, bytes: &[u8]) -> Result<Option<u32>> {
        match &self.split {
            Split::Ranges => {}
            Split::Columns(columns) => columns.split(bytes).map(drop)?,
            Split::Example => tfrecord::check(bytes).map(drop)?,
        }
        self.label(sample, bytes)
    }

    /// Notes the labels of a batch's records, and leaves out the records of a batch that are not as they say of themselves.
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
        let mut flawed = samples.iter_mut().enumerate().filter_map(|(at, placed)| {
            match self.check(placed.id, &slot[placed.offset..placed.offset + placed.len]) {
                Ok(label) => {
                    placed.label = label;
                    None
                }
                Err(error) => Some((at, placed.id, error.with_object(&*objects.name(placed.id)))),
            }
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
        self.check(sample, bytes)?;
        let named = |name: &str| self.field(sample, name, bytes);
        let picture = self.picture.as_deref().map_or_else(|| PICTURES.iter().find_map(|name| named(name)), named);
        let name = || self.picture.clone().unwrap_or_else(|| PICTURES.join(", "));
        picture.ok_or_else(|| Error::new(Kind::Undecodable, format!("the record has no field named {}", name())))
    }

    /// The most room that the fields wanted of a batch of decoded samples take.
    pub(crate) fn other_room(&self, samples: u64) -> u64 {
        (self.room as u64).saturating_mul(samples)
    }

    /// The same of one sample. Where the index has no ranges of fields, as much as captions take, and records are small.
    fn room(&self) -> usize {
        let length = |(name, field): (&str, Field<'_>)| match field {
            Field::Span(span) => FIELD_BYTES + name.len() + span.length as usize,
            Field::Value(value) => FIELD_BYTES + name.len() + value.len(),
        };
        let most = match self.split {
            Split::Ranges => {
                let others = |record: Record<'_>| self.others(record.fields().collect()).into_iter().map(length).sum();
                self.index.iter().map(others).max()
            }
            _ => Some(ROOM_BYTES),
        };
        most.unwrap_or(0) + SAMPLE_BYTES
    }

    /// Of the fields of a record those that are wanted beside the one that is decoded.
    fn others<'a, T>(&self, mut fields: Vec<(&'a str, T)>) -> Vec<(&'a str, T)> {
        let at = |wanted: &str| fields.iter().position(|(name, _)| *name == wanted);
        let decoded = self.picture.as_deref().map_or_else(|| PICTURES.iter().find_map(|name| at(name)), at);
        decoded.map(|at| fields.remove(at));
        fields.retain(|(name, _)| is_named(&self.wanted, name));
        fields
    }

    /// Writes the fields wanted of these samples, whose records these are, but for the one that is decoded of each. Returns their length; `None`
    /// where there is no room.
    pub(crate) fn write_others(&self, samples: &[SampleSpan], raw: &[u8], room: &mut [u8]) -> Option<usize> {
        if self.wanted.is_empty() {
            return Some(0);
        }
        let bytes = |placed: &SampleSpan| &raw[placed.offset..placed.offset + placed.len];
        let others = |placed: &SampleSpan| self.others(self.fields(placed.id, bytes(placed)).collect());
        other_fields::write(room, samples.iter().map(others))
    }

    /// The label of a record. `None` where no field is the label's, or the record lacks it.
    ///
    /// # Errors
    /// `Undecodable` for a field that is no whole number from 0 to 2147483647.
    pub(crate) fn label(&self, sample: SampleId, bytes: &[u8]) -> Result<Option<u32>> {
        let Some(name) = self.label.as_deref() else { return Ok(None) };
        let field = || self.field(sample, name, bytes);
        let found = match &self.split {
            // An empty cell is how a CSV file says that there is none.
            Split::Ranges => field()
                .filter(|field| !field.is_empty() || self.index.format() != Format::Manifest)
                .map(|field| label::of_text(&field)),
            Split::Columns(columns) => field().map(|field| {
                let column = columns.all().iter().find(|column| column.name == name);
                label::of_value(column.and_then(|column| column.encoding.view(&field)))
            }),
            Split::Example => label::of_frame(bytes, name),
        };
        found.transpose().map_err(|held| {
            let (key, name) = (self.key(sample), name.escape_debug());
            let cause = format!(
                "the field '{name}' of record '{}' is {held}: a label is a whole number from 0 to 2147483647",
                key.escape_debug()
            );
            Error::new(Kind::Undecodable, cause)
                .with_hint("name another field as label_field or none, mend the record, or set bad_samples = skip")
        })
    }
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
            let from = usize::try_from(span.offset.checked_sub(first)?).ok()?;
            bytes.get(from..)?.get(..usize::try_from(span.length).ok()?)
        }
    }
}

/// The features of a frame with a `tf.Example`; of any other frame its data. Frames are checked once, before they are delivered.
fn features(frame: &[u8]) -> Vec<(&str, Cow<'_, [u8]>)> {
    let data = tfrecord::data(frame);
    let mut example = tfrecord::Example::default();
    let Ok(features) = example.read(data) else { return vec![("data", data.into())] };
    let mut fields = Vec::new();
    for (name, feature) in features.iter() {
        let mut numbers = Vec::new();
        let before = fields.len();
        for value in feature.values() {
            match value {
                tfrecord::Value::Bytes(bytes) => fields.push((name, bytes.into())),
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
