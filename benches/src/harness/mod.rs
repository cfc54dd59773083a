//! The harness: contestants as processes of their own, interleaved passes, processor time of whole process trees, servers
//! to read from, and results that can be compared.
//!
//! Owns nothing but its parts. The protocol that contestants speak is in [`protocol`].

pub mod account;
pub mod compare;
pub mod contestant;
pub mod protocol;
pub mod result;
pub mod rounds;
pub mod shape;
pub(crate) mod tool;
pub mod venue;

pub use account::Place;
pub use contestant::{Contestant, Pass, Patience, Running};
pub use fuelrail_cli::stop::Stop;
pub use protocol::{Said, SetHash, Task};
pub use result::{Bar, Contested, Findings, Heat, Judged, Metric, Relation, Scored, SetFacts, Spread};
pub use rounds::{Contest, Entry, Stage, Turn, hold};
pub use shape::{Laid, Shape, ShapeName};
pub use venue::{Transport, Venue, VenueConfig, VenueFacts, VenueKind};
