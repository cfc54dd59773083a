//! The harness: contestants as processes of their own, interleaved passes, processor time of whole process trees, servers
//! to read from, and results that can be compared.
//!
//! Owns nothing but its parts. The protocol that contestants speak is in [`protocol`].

pub mod account;
pub mod bar;
pub mod compare;
pub mod contestant;
pub mod hash;
pub mod metric;
pub mod place;
pub mod protocol;
pub mod result;
pub mod rounds;
pub mod scored;
pub mod shape;
pub mod spread;
pub mod venue;

pub use bar::{Bar, Heat, Judged, Relation};
pub use contestant::{Contestant, Pass, Patience, Running};
pub use fuelrail_cli::stop::Stop;
pub use hash::SetHash;
pub use metric::Metric;
pub use place::Place;
pub use protocol::{Said, Task};
pub use result::{Contested, Findings, SetFacts};
pub use rounds::{Contest, Entry, Stage, Turn, hold};
pub use scored::Scored;
pub use shape::{Laid, Shape, ShapeName};
pub use spread::Spread;
pub use venue::{Transport, Venue, VenueConfig, VenueFacts, VenueKind};
