//! Records that have to be unpacked, for those who read each once.

use super::{PackedShards, Part, each_part};
use crate::builder::{LoaderBuilder, read_ranges};
use crate::config::Config;
use crate::listing::{KeptListing, Saved, given_or_listed};
use crate::records::Format;
use core::ops::Range;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Listing;
use fuelrail_format::mds::Encoding;

/// The records of a data set whose shards have to be unpacked, each once. They come in the listing's order.
#[derive(Debug)]
pub struct PackedRecords {
    config: Config,
    listing: Listing,
    saved: Saved,
    packed: PackedShards,
}

/// Takes a record: its number, and its fields.
type Take<'t, E> = &'t mut dyn FnMut(u64, &[(&str, &[u8])]) -> Result<(), E>;

impl PackedRecords {
    /// The records that a loader's settings name, with the fields of these names, or all where there is none. Of Parquet only their columns
    /// are read. `None` where records are ranges of objects.
    ///
    /// # Errors
    /// Those of the listing and of reading; `Undecodable` for a shard that is not sound, naming it; `Usage` for what is not read of a format,
    /// fields that are not there, shards that differ in their columns, and Parquet in a build without the feature `parquet`.
    pub fn open(builder: &LoaderBuilder, fields: &[String]) -> Result<Option<PackedRecords>> {
        let config = builder.config().clone();
        if !config.format.is_some_and(|format| matches!(format, Format::Mds | Format::Parquet)) {
            return Ok(None);
        }
        let (access, source) = config.source()?;
        let given = (builder.listing.clone(), config.manifest.as_deref());
        let (dir, wait) = (config.listing_dir(), config.network.outage_limit);
        let kept = given_or_listed(given, dir, (&access, &config.uri), source, wait)?.0;
        let KeptListing { listing, mut saved, .. } = kept;
        let mut read = |ranges, take: &mut dyn FnMut(_, &[u8]) -> _| read_ranges(&config, &listing, ranges, take);
        let packed = PackedShards::find(config.format, &listing, fields, &mut read);
        let packed = packed.map_err(|error| saved.judged(error))?;
        Ok(packed.map(|packed| PackedRecords { config, listing, saved, packed }))
    }

    /// How many records there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.packed.count()
    }

    /// What the bytes of a field mean.
    #[must_use]
    pub fn encoding(&self, field: &str) -> Option<&Encoding> {
        self.packed.columns.iter().find(|(name, _)| name == field).map(|(_, encoding)| encoding)
    }

    /// Reads these records, in their order; parts without any of them are not read. What `take` refuses ends it.
    ///
    /// # Errors
    /// Those of reading; `Undecodable` for a part that does not unpack, naming its object; what `take` returns.
    pub fn read<E: From<Error>>(&self, records: Range<u64>, take: Take<'_, E>) -> Result<(), E> {
        let is_wanted =
            |part: &&Part| part.first < records.end && records.start < part.first.saturating_add(part.records);
        let parts = self.packed.parts.iter().filter(is_wanted);
        let mut refused = None;
        let mut read =
            |ranges, take: &mut dyn FnMut(_, &[u8]) -> _| read_ranges(&self.config, &self.listing, ranges, take);
        let read = each_part(parts, &self.listing, &mut read, &mut |part, pieces| {
            let mut next = part.first;
            self.packed.unpack(part, pieces, &mut |fields| {
                let number = next;
                next += 1;
                let taken = if records.contains(&number) { take(number, fields) } else { Ok(()) };
                taken.map_err(|error| {
                    refused = Some(error);
                    Error::new(Kind::Cancelled, "a record was refused")
                })
            })
        });
        refused.map_or_else(|| read.map_err(|error| E::from(self.saved.clone().judged(error))), Err)
    }
}
