//! The soak: a loader at full speed for a long time while its bucket misbehaves in ever other ways, and what must be true all
//! along and at the end. The question behind `cargo x bench soak`.
//!
//! Nothing is measured against a clock here: a soak passes when memory stays flat, descriptors, threads, slots and operations
//! come home, and every sample comes exactly once, in order, with its bytes, over every fault and every re-opening.

mod drive;
mod gauge;
mod judge;
mod ledger;
mod mood;
mod objects;
mod phases;
mod report;
mod server;

pub use drive::{Canary, Soaking, soak};
pub use gauge::Gauge;
pub use judge::{Criterion, Flatness, Slope};
pub use report::{Moment, SoakReport, Totals};
pub use server::{Served, Serving, serve};
