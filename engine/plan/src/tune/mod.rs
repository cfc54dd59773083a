//! Finding the settings a machine and a bucket want, by measuring few of many: what to measure next, what is best so far,
//! what limits it, and what to expect of it.
//!
//! Pure: the caller measures. The same seed and the same measurements give the same points.

mod limit;
mod measured;
mod search;
mod space;

pub use limit::{Limit, limit};
pub use measured::{Measured, Trials};
pub use search::{Forecast, Search};
pub use space::{Axis, Point, Range, Space};
