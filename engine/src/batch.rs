//! A batch: samples delivered together in one stretch of pinned memory. Holding it is a lease: dropping it gives the
//! memory back to the shard that filled it. And labels from keys: the class of a sample is the first directory of its key below the
//! prefix.

use crate::decode::Shape;
use crate::folder::{named_by, settled};
use crate::other_fields::{self, OtherFields};
use crate::records::Records;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, Objects};
use fuelrail_plan::importance::Draw;
use fuelrail_wire::Cloud;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// How often to look whether the disk is done with a batch that is to be changed.
const PIN_POLL: std::time::Duration = std::time::Duration::from_micros(100);

/// Samples delivered together.
pub struct Batch {
    inner: Assembled,
    ids: Vec<SampleId>,
    labels: Vec<u32>,
    offsets: Vec<usize>,
    weights: Vec<f32>,
    shape: Option<Shape>,
    objects: Arc<Objects>,
    records: Option<Arc<Records>>,
    /// Counted by the loader: it lives as long as the batch.
    _lease: Arc<()>,
}

/// One sample of a batch.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sample<'a> {
    /// Its place in the sorted listing.
    pub id: SampleId,
    /// Its class, or [`NO_LABEL`](crate::NO_LABEL).
    pub label: u32,
    /// Its bytes, as the bucket has them: of a record from its first field to its last ([`Batch::field`] splits them); its pixels
    /// where it was decoded.
    pub bytes: &'a [u8],
}

impl Batch {
    pub(crate) fn new(
        inner: Assembled,
        (labels, objects, records): (&Labels, Arc<Objects>, Option<Arc<Records>>),
        shape: Option<Shape>,
        draw: Option<&Arc<Draw>>,
        lease: Arc<()>,
    ) -> Batch {
        let ids: Vec<SampleId> = inner.samples.iter().map(|s| s.id).collect();
        let classes = match &records {
            None => ids.iter().map(|id| labels.of[id.0 as usize]).collect(),
            // Found when its bytes were checked.
            Some(_) => inner.samples.iter().map(|placed| placed.label.unwrap_or(NO_LABEL)).collect(),
        };
        let offsets = inner.samples.iter().map(|s| s.offset).collect();
        let weights = ids.iter().map(|id| draw.map_or(1.0, |draw| draw.weight(*id))).collect();
        Batch { weights, ids, labels: classes, offsets, shape, objects, records, inner, _lease: lease }
    }

    /// As the shards delivered it.
    pub(crate) fn into_assembled(self) -> Assembled {
        self.inner
    }

    /// Its memory, positions and samples.
    pub(crate) fn assembled(&self) -> &Assembled {
        &self.inner
    }

    /// Whether its bytes lie in memory of another process, under `shared_read`: reading them is all that may be done in place.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        self.inner.slot.is_borrowed()
    }

    /// The epoch it belongs to, from 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.spec.epoch
    }

    /// The global step within the epoch (within what is left of it after a resume), from 0.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.inner.spec.step
    }

    /// Number of the batch in this run of this rank, from 0.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.inner.spec.seq.0
    }

    /// Positions of the epoch's order this batch covers, left-out samples included.
    #[must_use]
    pub fn positions(&self) -> std::ops::Range<u64> {
        self.inner.spec.positions.clone()
    }

    /// Number of samples. The last step of an epoch may hold fewer than `batch_size`, even none.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// No samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The key of sample `i`'s record, or its number where the format has no keys; of a sample that is an object, the object's.
    ///
    /// # Panics
    /// When `i` is not below [`Batch::len`].
    #[must_use]
    pub fn key(&self, i: usize) -> Cow<'_, str> {
        key_of(&self.objects, self.records.as_deref(), self.ids[i])
    }

    /// Bytes of sample `i` of this batch.
    ///
    /// # Panics
    /// When `i` is not below [`Batch::len`].
    #[must_use]
    pub fn sample(&self, i: usize) -> &[u8] {
        let placed = self.inner.samples[i];
        &self.inner.slot[placed.offset..placed.offset + placed.len]
    }

    /// One field of sample `i`, such as `jpg` or `cls` of a record of a tar archive, as the shard has it. `None` where the sample has no
    /// field of this name or is an object; and where it was decoded for the field that it was decoded from, and those that
    /// [`fields`](crate::LoaderBuilder::fields) does not name.
    ///
    /// # Panics
    /// When `i` is not below [`Batch::len`].
    #[must_use]
    pub fn field(&self, i: usize, name: &str) -> Option<Cow<'_, [u8]>> {
        let (id, bytes) = (self.ids[i], self.sample(i));
        match self.shape {
            None => self.records.as_ref()?.field(id, name, bytes),
            Some(_) => self.fields(i).find(|(known, _)| *known == name).map(|(_, bytes)| bytes),
        }
    }

    /// All fields of sample `i` by their names: where it was decoded those that [`fields`](crate::LoaderBuilder::fields) names, but the decoded
    /// one; none where it is an object. Numbers are little-endian. A feature of TFRecord with several texts is several fields of one name.
    ///
    /// # Panics
    /// When `i` is not below [`Batch::len`].
    pub fn fields(&self, i: usize) -> impl Iterator<Item = (&str, Cow<'_, [u8]>)> {
        let (id, bytes) = (self.ids[i], self.sample(i));
        let records = self.records.as_deref().filter(|_| self.shape.is_none());
        let other = other_fields::fields(&self.inner.slot[self.end()..], self.len(), i);
        let other = other.map(|(name, bytes)| (name, bytes.into()));
        records.into_iter().flat_map(move |records| records.fields(id, bytes)).chain(other)
    }

    /// A copy of the fields that came with decoded samples, to be used after the batch. Empty where there are none.
    #[must_use]
    pub fn other_fields(&self) -> OtherFields {
        OtherFields::new(&self.inner.slot[self.end()..], self.len())
    }

    /// Where its samples end: behind the pixels of decoded ones are their other fields.
    fn end(&self) -> usize {
        match self.shape {
            None => self.inner.slot.len(),
            Some(_) => self.inner.samples.last().map_or(0, |placed| placed.offset + placed.len),
        }
    }

    /// All samples in order.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = Sample<'_>> {
        (0..self.len()).map(|i| Sample { id: self.ids[i], label: self.labels[i], bytes: self.sample(i) })
    }

    /// Which samples, in order.
    #[must_use]
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// Their classes, in order.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// What each sample's loss is to be multiplied by, in order: 1 unless epochs are drawn by importance and weights are on;
    /// then 1/(N p) with p the sample's share of the epoch's places, so that the mean over the epoch is unbiased.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Where each sample starts in [`Batch::bytes`]: at multiples of 64, or of a sample's length where they are decoded.
    #[must_use]
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The whole stretch of memory, bytes between samples included: what a device copy starts from. Of a decoded batch it is
    /// the samples and nothing else.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.inner.slot[..self.end()]
    }

    /// The bytes, writable: changes in place are visible to this consumer only. Waits for blocks that are still being written to disk
    /// from here: milliseconds, and only soon after delivery. Of a [borrowed](Batch::is_borrowed) batch all bytes are copied first, once.
    ///
    /// # Panics
    /// When the system has no memory for that copy.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.inner.slot.own().expect("memory for a copy of a borrowed batch");
        while self.inner.slot.is_read_pinned() {
            std::thread::sleep(PIN_POLL);
        }
        let end = self.end();
        &mut self.inner.slot[..end]
    }

    /// What the bytes of a decoded batch are: samples of rows of pixels of channels, dense. `None` where samples are as the
    /// bucket has them.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// Sum of the samples' lengths, bytes; of decoded ones, their pixels'.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.inner.samples.iter().map(|s| s.len as u64).sum()
    }

    /// Samples that could not be had or decoded, under `skip` and `quarantine`, with the reason.
    #[must_use]
    pub fn left_out(&self) -> &[(SampleId, Error)] {
        &self.inner.left_out
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("seq", &self.seq())
            .field("epoch", &self.epoch())
            .field("samples", &self.len())
            .field("bytes", &self.payload_bytes())
            .finish_non_exhaustive()
    }
}

/// The key of a sample's record, or its number where the format has no keys; of a sample that is an object, the object's.
pub(crate) fn key_of<'a>(objects: &'a Objects, records: Option<&'a Records>, sample: SampleId) -> Cow<'a, str> {
    records.map_or_else(|| objects.key(sample).into(), |records| records.key(sample))
}

/// The label of a sample whose key has no directory below the prefix.
pub const NO_LABEL: u32 = u32::MAX;

/// The classes of the samples under `uri`, in order: what a loader over it will number its labels by.
///
/// # Errors
/// `Usage` for a bad URI.
pub fn classes_of<'a>(uri: &str, keys: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<String>> {
    let source = settled(Cloud::default().source(uri)?)?;
    Labels::new(&source.endpoint.prefix, &[], keys).map(|labels| labels.classes)
}

/// Class names in order, and every sample's class.
#[derive(Default, Debug)]
pub(crate) struct Labels {
    pub classes: Vec<String>,
    pub of: Vec<u32>,
}

impl Labels {
    /// Classes are numbered as they are `named`, or where none is by their sorted names.
    ///
    /// # Errors
    /// `Usage` for a sample of another class than those that are named.
    pub(crate) fn new<'a>(
        prefix: &str,
        named: &[String],
        keys: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Labels> {
        // A prefix without its last slash may be the name of a folder, as it is on disk: of one with folders, or it is a class itself.
        let is_class = named.iter().any(|class| prefix.rsplit('/').next() == Some(class));
        let has_folders = |base: &usize| keys.clone().any(|key| key[*base..].contains('/'));
        let folder = named_by(prefix, keys.clone()).filter(|base| !is_class && has_folders(base));
        let base = folder.unwrap_or_else(|| prefix.rfind('/').map_or(0, |at| at + 1));
        let class = |key: &'a str| key.get(base..).and_then(|rest| rest.split_once('/')).map(|(class, _)| class);
        let mut classes = named.to_vec();
        if classes.is_empty() {
            let found: BTreeSet<&str> = keys.clone().filter_map(class).collect();
            classes = found.into_iter().map(ToOwned::to_owned).collect();
        }
        let numbers: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
        let number = |key| {
            let Some(name) = class(key) else { return Ok(NO_LABEL) };
            numbers.get(name).copied().ok_or_else(|| {
                let cause =
                    format!("the class '{}' is not among the {} of `classes`", name.escape_debug(), named.len());
                Error::new(Kind::Usage, cause).with_object(key).with_hint("name all classes, or leave such objects out")
            })
        };
        let of = keys.map(number).collect::<Result<_>>()?;
        Ok(Labels { classes, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_directory_below_the_prefix() {
        let keys = ["training/b/1.png", "training/a/2.png", "training/loose.png", "training/b/c/3.png"];
        let labels = Labels::new("training/", &[], keys.into_iter()).unwrap();
        assert_eq!(labels.classes, ["a", "b"]);
        assert_eq!(labels.of, [1, 0, NO_LABEL, 1]);
        assert_eq!(classes_of("http://h:1/bucket/training/", keys.into_iter()).unwrap(), labels.classes);
        assert_eq!(classes_of("http://h:1/bucket/training/{a,b}/", keys.into_iter()).unwrap(), labels.classes);
        for prefix in ["", "train"] {
            assert_eq!(Labels::new(prefix, &[], keys.into_iter()).unwrap().classes, ["training"]);
        }
        assert_eq!(Labels::new("training", &[], keys.into_iter()).unwrap().of, labels.of, "a folder without its slash");
        assert_eq!(classes_of("http://h:1/bucket/training", keys.into_iter()).unwrap(), labels.classes);
        let both = keys.into_iter().chain(["training-more/a/1.png"]);
        assert_eq!(Labels::new("training", &[], both).unwrap().classes, ["training", "training-more"]);
        let one = ["training/7/1.png", "training/7/2.png"];
        assert_eq!(Labels::new("training/7", &[], one.into_iter()).unwrap().classes, ["7"], "a class of its own");
    }

    #[test]
    fn named_classes_keep_their_numbers_where_one_is_missing() {
        let named = ["b", "x", "a"].map(String::from);
        let keys = ["v/a/1", "v/b/2", "v/loose"];
        let labels = Labels::new("v/", &named, keys.into_iter()).unwrap();
        assert_eq!((labels.classes.as_slice(), labels.of.as_slice()), (&named[..], &[2, 0, NO_LABEL][..]));
        let error = Labels::new("v/", &named, ["v/a/1", "v/c/1"].into_iter()).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("'c'"), "{error}");
    }
}
