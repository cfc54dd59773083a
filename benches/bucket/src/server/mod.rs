//! The server: HTTP/1.1 on one single-threaded runtime per thread. Heads are parsed by `httparse`; what goes out is written
//! here, because a script may ask for bytes that no HTTP library sends.
//!
//! ```text
//! service ─── the requests of one connection: script, answer, fault
//!   target, auth, conditions ── what is asked       answer, list ── what is answered
//!     writing, sums ── what is brought: bodies, parts, their checksums
//!       request, reply ── the connection: what comes in, what goes out
//!         desk ── what connections share         refusal ── S3's errors and notation
//! ```

mod answer;
mod auth;
mod chunks;
mod conditions;
mod desk;
mod list;
mod refusal;
mod reply;
mod request;
mod service;
mod sums;
mod target;
mod writing;

pub use auth::AccessKey;
pub(crate) use conditions::PutCondition;
pub(crate) use desk::{Desk, Hosted, Site};
pub(crate) use list::{Keys, ListQuery, Page, page};
pub(crate) use refusal::Refusal;
pub(crate) use service::serve;
pub(crate) use sums::Summed;
