//! Who asks, proved to a bucket: credentials as values, and the header lines that a request is signed with.
//!
//! Pure: credentials, requests and the time come in, lines go out. Never fetches a credential, never reads a clock, never
//! prints a secret. Written here, because on the hot path a signature has to cost less than two microseconds and no
//! allocation (the vendor's crate: 4.7 us and a tree of its own); the vendor's crate is what the tests hold it against.

mod aws;
mod azure;
mod credential;
mod jwt;
mod signer;
mod sts;
mod unsigned;

pub use aws::{Payload, Scope};
pub(crate) use credential::spare;
pub use credential::{Credential, Secret};
pub use jwt::{Grant, assertion};
pub use signer::{Realm, Signer};
pub use sts::{parse_keys, parse_session, refusal};
pub use unsigned::{Unsigned, covered, sha256_hex};
