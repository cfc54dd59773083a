//! Errors of the bucket's room in the one error type. Owns nothing.

use fuelrail_base::{Error, Kind};

/// An error of the embedded bucket or its generator, as ours.
pub(super) fn of_bucket(error: &fuelrail_bucket::Error) -> Error {
    use fuelrail_bucket::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::Usage => Kind::Usage,
        ErrorKind::System => Kind::Environment,
        ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Mismatch,
    };
    Error::new(kind, error.to_string())
}
