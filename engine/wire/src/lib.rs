//! Bytes in, meaning out: everything Fuelrail says and hears over HTTP/1.1, and the documents it reads.
//!
//! Holds the writer of requests, the parsers of response heads, body framing, ranges, listings and manifests, the
//! formats of blocks, of listings and of lists of ranks on disk, signatures, and the client's side of TLS. Owns no
//! resource: no socket, file, clock, thread or ambient randomness. Every parser takes hostile bytes and answers with a
//! value or a typed error, never a panic, and keeps to the maxima of `fuelrail_base::limits`.
//!
//! Features, on by default: `tls`, and `clouds` with listings, uploads and signatures. Without them their modules are empty shells with the
//! same names, so that `flow` is one code.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "clouds"), allow(dead_code))]

pub mod base64;
pub mod block;
#[cfg_attr(not(feature = "tls"), path = "date/absent.rs")]
pub mod date;
pub mod digest;
mod escape;
pub mod etag;
pub mod framing;
#[cfg(feature = "clouds")]
#[doc(hidden)]
pub mod fuzz;
pub mod head;
pub mod kept;
pub mod list;
pub mod manifest;
#[cfg(feature = "clouds")]
pub mod multipart;
pub mod proxy;
pub mod range;
pub mod ranks;
pub mod redirect;
pub mod request;
mod sealed;
#[cfg_attr(not(feature = "clouds"), path = "sign/absent.rs")]
pub mod sign;
#[cfg_attr(not(feature = "tls"), path = "tls/absent.rs")]
pub mod tls;
pub mod uri;
mod xml;

pub use digest::Digest;
pub use etag::{Etag, can_match};
pub use framing::{Body, Expect, Framing};
pub use head::{Found, Parsed, ResponseHead, parse_head};
pub use list::{Entry, ListPage, PageStart, list_path, parse_error, parse_error_region, parse_list};
pub use proxy::Proxy;
pub use range::ContentRange;
pub use request::write_get;
pub use uri::{Addressing, Cloud, Dialect, Endpoint, Scheme, Source};
