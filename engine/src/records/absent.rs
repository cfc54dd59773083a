//! Records of shards, in a build without the feature `formats`: there are none.

use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::{Assembled, BadSamples, ByteRange, Listing, Objects, SampleSpan};
use fuelrail_wire::kept::SourceId;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// How the bytes of a data set are arranged; this build reads objects alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// tar archives.
    WebDataset,
}

fuelrail_base::named!(Format, "a format": WebDataset = "webdataset");

/// What is asked of the records.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) format: Format,
    pub(crate) content: [u8; 16],
    pub(crate) label: Option<String>,
    pub(crate) picture: Option<String>,
    /// Of records that are decoded, the other fields that are wanted.
    pub(crate) wanted: Vec<String>,
    pub(crate) is_decoded: bool,
    pub(crate) tokens: (Option<u64>, Option<u64>, u32, Option<u64>),
    pub(crate) file: Option<PathBuf>,
    pub(crate) side_cars: Vec<String>,
}

/// Where every record of a data set lies.
#[derive(Debug)]
pub(crate) enum Records {}

/// Reads ranges of the listed objects.
pub(crate) type Read<'r> =
    &'r mut dyn FnMut(Vec<ByteRange>, &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>) -> Result<()>;

impl Records {
    pub(crate) fn find<P>(_: &Listing, _: Option<&P>, _: &Asked, _: &mut Vec<String>, _: Read<'_>) -> Result<Records> {
        Err(Error::new(Kind::Usage, "this build reads no shards").with_hint("build it with the feature `formats`"))
    }

    pub(crate) fn kept(_: &Kept, _: &Asked) -> Option<Result<Records>> {
        None
    }

    pub(crate) fn keep(&self, _: &Kept) -> std::io::Result<PathBuf> {
        match *self {}
    }

    pub(crate) fn digest(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn other_room(&self, _: u64) -> u64 {
        match *self {}
    }

    pub(crate) fn write_others(&self, _: &[SampleSpan], _: &[u8], _: &mut [u8]) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn count(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn ranges(&self) -> Vec<ByteRange> {
        match *self {}
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn leave_out_flawed(&self, _: &mut Assembled, _: &Objects, _: BadSamples) -> Result<()> {
        match *self {}
    }

    pub(crate) fn key(&self, _: SampleId) -> Cow<'_, str> {
        match *self {}
    }

    pub(crate) fn fields<'a>(&'a self, _: SampleId, _: &'a [u8]) -> impl Iterator<Item = (&'a str, Cow<'a, [u8]>)> {
        std::iter::empty()
    }

    pub(crate) fn field<'a>(&'a self, _: SampleId, _: &str, _: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match *self {}
    }

    pub(crate) fn picture<'a>(&'a self, _: SampleId, _: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        match *self {}
    }

    pub(crate) fn label(&self, _: SampleId, _: &[u8]) -> Result<Option<u32>> {
        match *self {}
    }
}

pub(crate) fn content_of<'n>(_: SourceId, _: &Listing, _: impl Iterator<Item = &'n String>) -> Option<[u8; 16]> {
    None
}

/// Where an index is kept.
pub(crate) struct Kept;

impl Kept {
    pub(crate) fn open(_: &Path, _: SourceId, _: Format, _: &mut Vec<String>) -> Result<Kept> {
        Ok(Kept)
    }

    pub(crate) fn look_first(&self, _: impl FnOnce()) -> Result<Option<Kept>> {
        Ok(None)
    }
}

/// How far a pass over shards is.
pub(crate) struct Pass;

impl Pass {
    pub(crate) fn begin() -> Pass {
        Pass
    }

    pub(crate) fn reached(&mut self, _: u64, _: u64) {}
}
