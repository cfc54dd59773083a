//! The pass over shards that finds their records: a loader of its own, over ranges of them in order.

use crate::builder::LoaderBuilder;
use crate::config::{Config, Order};
use crate::records::{Asked, Kept, Records, content_of};
use fuelrail_base::{ByteSize, Result};
use fuelrail_flow::{BadSamples, ByteRange, Listing};
use fuelrail_wire::kept::SourceId;
use std::time::Instant;

/// The records of the data set's shards, where it has a format: those that an earlier run found and kept, or what reading all shards once,
/// in order, finds.
pub(crate) fn records(
    config: &Config,
    (listing, id): (&Listing, SourceId),
    notices: &mut Vec<String>,
) -> Result<Option<Records>> {
    let Some(format) = config.format else { return Ok(None) };
    let content = content_of(id, listing);
    let asked = Asked {
        format,
        content: content.unwrap_or_default(),
        label: config.label_field.clone(),
        picture: config.decode.field.clone(),
        is_decoded: config.decode.shape.is_some(),
        window: (config.token_window, config.token_stride, config.token_bytes),
        file: config.record_file.clone(),
    };
    // Those are made without reading the bucket, and depend on more than the objects.
    let is_kept = content.is_some() && !["tokens", "manifest"].contains(&format.word());
    let opened = config.network.listing_dir.as_ref().filter(|_| is_kept).map(|dir| Kept::open(dir, id, format));
    let kept = opened.transpose().unwrap_or_else(|error| {
        notices.push(format!("listing_dir: {error}; the index of records is not kept"));
        None
    });
    if let Some(found) = kept.as_ref().and_then(|kept| Records::kept(kept, &asked)) {
        return found.map(Some);
    }
    let begun = Instant::now();
    let mut bytes = 0;
    let records = Records::find(listing, &asked, &mut |ranges, take| {
        read_ranges(config, listing, ranges, &mut |range, piece| {
            bytes += piece.len() as u64;
            take(range, piece)
        })
    })?;
    if bytes > 0 {
        let (count, seconds) = (records.count(), begun.elapsed().as_secs_f64());
        let how = match kept.map(|kept| records.keep(&kept)) {
            Some(Ok(path)) => format!("kept for later runs in {}", path.display()),
            Some(Err(error)) => format!("they could not be kept: {error}"),
            None => "later runs read them again unless listing_dir is set and the objects have entity tags".into(),
        };
        notices
            .push(format!("{format}: {count} records found by reading {} in {seconds:.1} s; {how}", ByteSize(bytes)));
    }
    Ok(Some(records))
}

/// Reads ranges of the listed objects, in the order given, and hands over the bytes of each. What `take` refuses ends it.
///
/// # Errors
/// Those of a loader; what `take` returns.
pub(crate) fn read_ranges(
    config: &Config,
    listing: &Listing,
    ranges: Vec<ByteRange>,
    take: &mut dyn FnMut(ByteRange, &[u8]) -> Result<()>,
) -> Result<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    let mut plain = Config { format: None, batch_size: 1, epochs: 1, rank: 0, world: 1, audit: None, ..config.clone() };
    (plain.bad_samples, plain.memory.cache_limit) = (BadSamples::Raise, ByteSize(0));
    plain.decode.shape = None;
    plain.disk.dirs.clear();
    plain.order = Order { shuffle: false, ..Order::default() };
    let mut builder = LoaderBuilder::new(plain).ranges(ranges.clone());
    builder.listing = Some(listing.clone());
    for batch in builder.build()? {
        batch?.samples().try_for_each(|piece| take(ranges[piece.id.0 as usize], piece.bytes))?;
    }
    Ok(())
}
