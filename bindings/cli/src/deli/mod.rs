//! DELI's experiment (IC2E 2021) with DELI as the rival: its system reimplemented from the paper, its rows and metrics,
//! and Fuelrail on the same bucket, order, batches and cache bytes.
//!
//! DELI's weaknesses are kept as published, because the experiment is about them: every prefetch lists the bucket again;
//! a fetch becomes visible only when it is complete; every sample of a fetch costs an OS thread; the cache is first in,
//! first out, although the order is known; fetch size and threshold are fixed; the look-ahead ends with the epoch. Python
//! is not kept. Neither side decodes, and cached samples are the bytes of the object.
//!
//! The trainer's step is simulated by waiting; everything else is real: HTTP over loopback, threads, caches, the engine.
//! Every delivered byte is compared with the generator, in every row alike, outside the data wait.

mod cache;
mod experiment;
mod feed;
mod http;
mod meter;
mod outcome;
mod prefetch;
mod rail;
mod scale;
mod trainer;

pub use experiment::{Findings, Watch, run};
pub use outcome::{Epoch, Row, RowName};
pub use scale::Scale;
