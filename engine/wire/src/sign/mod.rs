//! Authentication: credentials as values, and the header lines that sign a request.
//!
//! Pure: takes credentials, requests and the time, and writes lines. Never fetches a credential, reads a clock or prints a
//! secret. Written here, because on the hot path a signature has to cost less than two microseconds and no allocation (the
//! vendor's crate: 4.7 us and its own dependency tree); the tests compare it with the vendor's crate.

mod aws;
mod azure;
mod credential;
mod signer;
mod sts;
mod unsigned;

pub use aws::sha256_hex;
pub(crate) use credential::spare;
pub use credential::{Credential, Secret};
pub use signer::Signer;
pub use sts::{Grant, assertion, parse_keys, parse_session, refusal};
pub use unsigned::{Payload, Realm, Scope, Unsigned, covered};
