//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod chunks;
mod importance;
mod mixture;
mod order;
mod pace;
mod planner;
mod planner_model;
mod policy;
mod prefetch;
mod quality;
mod ranks;
mod run;
mod schedule;
mod spill;
mod split;
mod sticky;
mod sweep;
mod tune;
mod window;
