//! The types shared by all crates of the engine.
//!
//! Holds ids, units, limits, the error type, time as a value, seeded randomness and metrics. Owns no
//! resource, starts no thread, reads no clock: time and randomness enter as values.
#![forbid(unsafe_code)]

pub mod canary;
pub mod error;
pub mod ids;
pub mod limits;
pub mod metrics;
pub mod prng;
pub mod reorder;
pub mod search;
pub mod sync;
pub mod time;
pub mod units;

pub use error::{Error, Kind, Result, panic_text};
pub use ids::{BatchSeq, BlockId, SampleId, ShardId};
pub use reorder::ReorderWindow;
pub use time::{Duration, Instant, WallTime};
pub use units::{ByteSize, read_duration};
