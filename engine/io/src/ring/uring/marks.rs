//! User data of the ring's own requests. No operation has such numbers: indices are below 2^15. Owns nothing.

/// The poll of the waker.
pub(super) const WAKE: u64 = u64::MAX;
/// Requests whose completions say nothing we want to know.
pub(super) const CANCEL: u64 = u64::MAX - 1;
