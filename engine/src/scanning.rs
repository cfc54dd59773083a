//! The pass over shards that finds their records, or what an earlier one found.

use crate::config::Config;
use crate::packed::PackedShards;
use crate::records::{Asked, Kept, Read, Records, content_of};
use fuelrail_base::{ByteSize, Result};
use fuelrail_flow::Listing;
use fuelrail_wire::kept::SourceId;
use std::time::{Duration, Instant};

/// How often a long pass tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How far the pass is.
struct Pass {
    begun: Instant,
    /// When it last told, after its begin.
    told: Duration,
    bytes: u64,
    /// Bytes that are known to be read.
    of: u64,
}

impl Pass {
    /// Counts bytes that were read by `elapsed`; what there is to tell, if it is time to.
    fn read(&mut self, bytes: u64, elapsed: Duration) -> Option<String> {
        self.bytes += bytes;
        if elapsed < self.told + TELL_EVERY {
            return None;
        }
        self.told = elapsed;
        let left_s = elapsed.as_secs_f64() * (self.of as f64 / self.bytes.max(1) as f64 - 1.0);
        let (bytes, of) = (ByteSize(self.bytes), ByteSize(self.of));
        Some(format!("looking for records: {bytes} of {of} read, about {left_s:.0} s left"))
    }
}

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
    let content = content_of(id, listing, config.fields.iter().chain(&config.side_cars).chain(&documents));
    let asked = Asked {
        format,
        content: content.unwrap_or_default(),
        label: config.label_field.clone(),
        picture: config.decode.field.clone(),
        is_decoded: config.decode.shape.is_some(),
        tokens: (config.token_window, config.token_stride, config.token_bytes, config.token_document_end),
        file: config.record_file.clone(),
        side_cars: config.side_cars.clone(),
    };
    // Those are made without reading the bucket, and depend on more than the objects.
    let is_made = format.word() == "manifest" || format.word() == "tokens" && documents.is_none();
    let is_kept = content.is_some() && !is_made;
    let opened = config.network.listing_dir.as_ref().filter(|_| is_kept).map(|dir| Kept::open(dir, id, format));
    let kept = opened.transpose().unwrap_or_else(|error| {
        notices.push(format!("listing_dir: {error}; the index of records is not kept"));
        None
    });
    if let Some(found) = kept.as_ref().and_then(|kept| Records::kept(kept, &asked)) {
        return found.map(Some);
    }
    let mut pass = Pass { begun: Instant::now(), told: Duration::ZERO, bytes: 0, of: 0 };
    let records = Records::find(listing, packed, &asked, &mut |ranges, take| {
        pass.of += ranges.iter().map(|range| range.len).sum::<u64>();
        read(ranges, &mut |range, piece| {
            if let Some(line) = pass.read(piece.len() as u64, pass.begun.elapsed()) {
                tracing::warn!("{format}: {line}");
            }
            take(range, piece)
        })
    })?;
    let Pass { begun, bytes, .. } = pass;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_tells_how_far_it_is() {
        let mut pass = Pass { begun: Instant::now(), told: Duration::ZERO, bytes: 0, of: 400 << 20 };
        assert_eq!(pass.read(50 << 20, Duration::from_secs(5)), None);
        let line = pass.read(50 << 20, Duration::from_secs(12)).unwrap();
        assert_eq!(line, "looking for records: 100.0 MiB of 400.0 MiB read, about 36 s left");
        assert_eq!(pass.read(1, Duration::from_secs(13)), None);
        assert!(pass.read(1, Duration::from_secs(22)).is_some());
    }
}
