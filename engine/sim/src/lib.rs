//! A whole world in virtual time around the shipping planner and flow: one seed, one run, exactly repeatable.
//!
//! [`Scenario::draw`] turns a seed into a data set, loaders, a bucket, faults and a consumer; [`run`] plays it over
//! simulated rings and has every batch checked against a plain model; a [`Canary`] is a planted bug that the checks
//! must catch. Never reads a real clock, opens a file or socket, or holds a second copy of the engine's logic.
#![forbid(unsafe_code)]

mod bucket;
mod canary;
mod check;
pub mod cluster;
mod consumer;
mod counters;
mod dataset;
pub mod forecast;
mod machine;
pub mod orders;
mod rank;
mod report;
mod ring_probe;
mod run;
mod scenario;
mod world;

pub use canary::Canary;
pub use check::{Checker, Violation};
pub use counters::Counters;
pub use report::SimReport;
pub use run::{run, run_with_canary};
pub use scenario::{
    BucketShape, ConsumerShape, Despair, DiskFailure, DiskShape, Down, FaultShares, Flavour, LifeShape, LoaderShape,
    OutageShape, Scenario,
};
