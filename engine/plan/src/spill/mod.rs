//! The disk below the RAM cache: which blocks go there, where they lie, which segment is trimmed when room is needed.
//!
//! Deciding costs nothing per byte and next to nothing per block: a block's next use is arithmetic on the order, so the
//! index holds no value, and segments are valued in passing, a few entries at a time.
//!
//! Owns the index and the ledger. Never touches a byte or a file: it gets segments by number, and decides what
//! is written where.

mod cost;
mod index;
mod lanes;
mod ledger;
mod place;
mod tier;
mod types;

pub use index::{PLACE_STEP_BYTES, SegmentId, Spot};
pub use ledger::{PAGE_BYTES, PAGE_RECORDS, SEGMENTS_MAX};
pub use place::ram_first_max;
pub use tier::Spill;
pub use types::{Mount, SpillConfig, SpillPolicy, SpillStats, Weigh};
