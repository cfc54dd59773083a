//! What an object's content is called on disk, the same in every run.

use aws_lc_rs::digest::{Context, SHA256};

use crate::etag::Etag;
use crate::uri::Endpoint;

/// Names one content of one object: 16 bytes of a SHA-256 over the bucket, the key, the entity tag and the length, and
/// whether the server was verified. An object that was overwritten has another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// Of the object `key` (the whole key) with this entity tag and length. The endpoint's prefix does not count: two data
    /// sets of one bucket share their objects. What came over TLS from a server that is not `verified` is another content:
    /// whoever was on the way may have written it.
    #[must_use]
    pub fn of(endpoint: &Endpoint, key: &str, etag: Etag, size: u64, verified: bool) -> Fingerprint {
        let mut hash = Context::new(&SHA256);
        let authority = endpoint.authority();
        // No bucket's name holds a slash: what stands before it cannot pass for a part of one.
        let bucket = match endpoint.base.as_str() {
            "" => endpoint.bucket.clone(),
            base => format!("{base}/{}", endpoint.bucket),
        };
        let scheme = if verified { endpoint.scheme.word() } else { "unverified" };
        for field in [scheme, authority.as_str(), bucket.as_str(), key] {
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
        hash.update(&etag.to_bytes());
        hash.update(&size.to_le_bytes());
        let digest = hash.finish();
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest.as_ref()[..16]);
        Fingerprint(fingerprint)
    }
}
