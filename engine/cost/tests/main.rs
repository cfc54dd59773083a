//! All integration tests of this crate, in one program: one link instead of one a file.
#![forbid(unsafe_code)]

mod deli;
mod fit;
mod hostile;
mod lives;
mod scenario;
mod spot;
mod traces;
