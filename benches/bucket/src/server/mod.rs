//! The server: HTTP/1.1 by hyper on one single-threaded runtime per thread, faults below HTTP by writing to the socket
//! directly.
//!
//! ```text
//! driver ─────── polls hyper, sends what `pipe` held back, takes the socket over for `raw` faults
//!   service ──── one request: script, answer, fault
//!     target, conditions ── what is asked          answer, list, reply, payload ── what is answered
//!     writing, sums, documents ── what is brought: bodies, their checksums, lists of parts
//!       connection, desk ── what they share        refusal, notation, pool, pacing ── what all are made of
//! ```

mod answer;
mod asked;
mod conditions;
mod connection;
mod desk;
mod documents;
mod driver;
mod list;
mod notation;
mod pacing;
mod payload;
mod pipe;
mod pool;
mod raw;
mod refusal;
mod reply;
mod service;
mod socket;
mod sums;
mod target;
mod writing;

pub(crate) use conditions::PutCondition;
pub(crate) use desk::{Checksums, Desk, Site};
pub(crate) use driver::serve;
pub(crate) use list::{After, Entry, Keys, ListQuery, Page, page};
pub(crate) use pool::Pool;
pub(crate) use refusal::Refusal;
pub(crate) use sums::Summed;
