//! The chunked order: how samples are cut into chunks, and how many of those a rank holds.
//!
//! Arithmetic on the data set and the settings: the order must not depend on the machine. Only how many chunks find room does.

use crate::config::Config;
use crate::layout::Layout;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Objects;
use fuelrail_plan::order::{ChunkShape, OrderName};

/// How samples are read in chunks, where they are: a function of the data set and the settings, never of the machine.
pub(crate) fn chunk_shape(config: &Config, objects: &Objects) -> Result<Option<ChunkShape>> {
    if config.order.name != OrderName::Chunks {
        return Ok(None);
    }
    let catalog = objects.catalog();
    if objects.are_whole() {
        let error = Error::new(Kind::Usage, "order is chunks, and every sample is an object of its own");
        return Err(error.with_hint("chunks are neighbouring records of shards: set format, or another order"));
    }
    let mean = (catalog.total_bytes() / catalog.samples()).max(1);
    let samples = (config.order.chunk_size.0 / mean).max(1);
    Ok(Some(ChunkShape { samples, window: u64::from(config.order.chunk_window), in_turn: false }))
}

/// Chunks that a rank has in use at a time: its share of all, those that it shares with its neighbours, and an eighth for shards that are
/// not at the same batch.
pub(crate) fn chunks_held(config: &Config, objects: &Objects) -> u64 {
    let Ok(Some(ChunkShape { samples, window, .. })) = chunk_shape(config, objects) else { return 0 };
    let mixed = window.min(objects.catalog().samples() / samples).max(1);
    let share = mixed.div_ceil(u64::from(config.world.max(1)));
    share + share / 8 + 2
}

/// What is said where memory holds fewer chunks than are in use.
pub(crate) fn short_of_chunks(config: &Config, objects: &Objects, layout: &Layout) -> Option<String> {
    let (held, wanted) = (layout.chunks as u64 * u64::from(layout.shards), chunks_held(config, objects));
    (held < wanted).then(|| {
        format!(
            "order: memory_limit has room for {held} chunks of {wanted} that are in use at a time; records of the others are read one by \
             one: raise memory_limit, or lower chunk_size or chunk_window"
        )
    })
}
