//! DELI's experiment (IC2E 2021) with DELI as the rival: its system written anew from the paper, its rows and its measures, and
//! Fuelrail beside them on the same bucket, order, batches and cache bytes.
//!
//! DELI's flaws are kept as published, because the experiment is about them: the bucket is listed again for every prefetch;
//! a fetch becomes visible only when all of it has landed; every sample of a fetch costs an OS thread; the cache is first
//! in, first out, though the order is known; fetch size and threshold are fixed; the look-ahead ends at the epoch's edge.
//! What is not kept: Python. Decoding is left out on both sides, and cached samples are the bytes of the object.
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
