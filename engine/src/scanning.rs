//! The pass over shards that finds their records, or what an earlier one found.

use crate::config::Config;
use crate::packed::PackedShards;
use crate::records::{Asked, Kept, Pass, Read, Records, content_of};
use fuelrail_base::{ByteSize, Result};
use fuelrail_flow::Listing;
use fuelrail_wire::kept::SourceId;
use std::time::Instant;

/// The records of the data set's shards, where it has a format: those that an earlier run found and kept, or what reading all shards once,
/// in order, finds.
pub(crate) fn records(
    config: &Config,
    (listing, id): (&Listing, SourceId),
    packed: Option<&PackedShards>,
    notices: &mut Vec<String>,
    read: Read<'_>,
) -> Result<Option<Records>> {
    let Some(format) = config.format else { return Ok(None) };
    let documents = config
        .token_document_end
        .map(|end| format!("{:?} {:?} {} {end}", config.token_window, config.token_stride, config.token_bytes));
    let parts = packed.map(|packed| format!("{} parts", packed.parts().len()));
    let named = config.columns().iter().chain(&config.side_cars).chain(&documents).chain(&parts);
    let content = content_of(id, listing, named);
    let asked = Asked {
        format,
        content: content.unwrap_or_default(),
        label: config.label_field.clone(),
        picture: config.decode.field.clone(),
        wanted: if config.decode.shape.is_some() { config.fields.clone() } else { Vec::new() },
        is_decoded: config.decode.shape.is_some(),
        tokens: (config.token_window, config.token_stride, config.token_bytes, config.token_document_end),
        file: config.record_file.clone(),
        side_cars: config.side_cars.clone(),
    };
    // Those are made without reading the bucket, and depend on more than the objects.
    let is_made = format.word() == "manifest" || format.word() == "tokens" && documents.is_none();
    let is_kept = content.is_some() && !is_made;
    let opened =
        config.network.listing_dir.as_ref().filter(|_| is_kept).map(|dir| Kept::open(dir, id, format, notices));
    let kept = opened.transpose().unwrap_or_else(|error| {
        notices.push(format!("listing_dir: {error}; the index of records is not kept"));
        None
    });
    let there = || kept.as_ref().and_then(|kept| Records::kept(kept, &asked));
    if let Some(found) = there() {
        return found.map(Some);
    }
    let waits =
        || tracing::warn!("{format}: waiting for another process, which is indexing the records of this data set");
    // Held to the end of the pass.
    let _first = match kept.as_ref().map(|kept| kept.look_first(waits)).transpose() {
        Ok(first) => first.flatten(),
        Err(error) => {
            notices.push(format!("listing_dir: {error}; several processes may index the records at once"));
            None
        }
    };
    if let Some(found) = there() {
        return found.map(Some);
    }
    let (begun, mut bytes) = (Instant::now(), 0);
    let records = Records::find(listing, packed, &asked, notices, &mut |ranges, take| {
        let (mut pass, before) = (Pass::begin(), bytes);
        let of = ranges.iter().map(|range| range.len).sum();
        read(ranges, &mut |range, piece| {
            bytes += piece.len() as u64;
            pass.reached(bytes - before, of);
            take(range, piece)
        })
    })?;
    if bytes > 0 {
        let (count, seconds) = (records.count(), begun.elapsed().as_secs_f64());
        let how = match kept.as_ref().map(|kept| records.keep(kept)) {
            Some(Ok(path)) => format!("kept for later runs in {}", path.display()),
            Some(Err(error)) => format!("they could not be kept: {error}"),
            None => "later runs read them again unless listing_dir is set and the objects have entity tags".into(),
        };
        notices
            .push(format!("{format}: {count} records found by reading {} in {seconds:.1} s; {how}", ByteSize(bytes)));
    }
    // What all processes share is used by this one, too.
    there().unwrap_or(Ok(records)).map(Some)
}
