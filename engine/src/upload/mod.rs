//! Putting one object into a bucket, outside the hot path: whole or not at all.
//!
//! A short one goes in one `PUT`, a long one in parts, several at a time: S3's multipart, which Google's XML interface knows too, or
//! Azure's blocks. Google's own resumable uploads are left out: they take one stream, in order, while parts go side by side and
//! are the same requests on both clouds. Readers of the bucket see the old object or the new one, never a part. The source
//! is never held in memory as a whole. What a process that is killed leaves behind are parts without an object, which a rule of the
//! bucket (`AbortIncompleteMultipartUpload`) has to remove; Azure forgets blocks after a week by itself.

mod exchange;
mod one;
mod parts;

use crate::access::{Access, wherever};
use crate::folder;
use exchange::{Exchange, interrupted};
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_wire::multipart::PARTS_MAX;
use fuelrail_wire::{Dialect, Scheme};
use one::{length, rewind};
use parts::Plan;
use std::io::{Cursor, Read};

pub use exchange::{PART_BYTES, PARTS_ABOVE_BYTES, PutOptions, PutOver, Stored, UPLOAD_BYTES_MAX, Upload};

/// How an object of `bytes` goes in parts; `None` when it goes in one request.
fn plan(options: &PutOptions, bytes: u64, dialect: Dialect) -> Option<Plan> {
    // Google's XML interface judges no conditions on uploads in parts, but takes any length in one request.
    let judged = dialect != Dialect::Gcs || options.over == PutOver::Anything;
    (bytes > options.parts_above_bytes && judged)
        .then(|| Plan { bytes, part_bytes: options.part_bytes.max(bytes.div_ceil(PARTS_MAX)) })
}

/// Puts `bytes` into the bucket as one object, over what was there. The URI's prefix is the whole key. Feature `clouds`.
///
/// # Errors
/// `Usage` for a bad URI or more than [`UPLOAD_BYTES_MAX`], `Denied` when the bucket may not be written to, `NotFound` when
/// there is none, `Network`, `Throttled`, `Server` … for what the server answers after retries.
pub fn put(uri: &str, bytes: &[u8]) -> Result<Stored> {
    put_with(Access::default(), uri, &mut Cursor::new(bytes), |_| {})
}

/// As [`put`], from a source, with the bucket reached as `access` says. `progress` receives the bytes sent so far; what has to be sent
/// again counts again. Feature `clouds`.
///
/// # Errors
/// As [`put`]; `File` when the source cannot be read or changes meanwhile; `Usage` and `Environment` for what [`Access`]
/// holds and cannot be used.
pub fn put_with(
    access: impl Into<Access>,
    uri: &str,
    source: &mut dyn Upload,
    progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    put_as(&PutOptions::default(), access, uri, source, progress)
}

/// As [`put_with`], as `options` say. Parts are held in memory until the server has taken them: at most four, and no more than 256 MiB
/// unless one part is longer. Feature `clouds`.
///
/// # Errors
/// As [`put_with`]; `Exists` when only a new object was to be put and one is there, `Changed` when another one was to be
/// replaced than is there, `Usage` for options that make no sense.
pub fn put_as(
    options: &PutOptions,
    access: impl Into<Access>,
    uri: &str,
    source: &mut dyn Upload,
    progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    let access: Access = access.into();
    put_unless(&|| false, options, (&access, uri, ""), source, progress)
}

/// As [`put_as`], with `below` appended to the key that the URI names: any text, where a URI cannot hold some. Stops soon after `stopped`
/// says so, and removes the parts that the server has.
///
/// # Errors
/// As [`put_as`]; `Cancelled` once it was stopped.
pub fn put_unless(
    stopped: &(dyn Fn() -> bool + Sync),
    options: &PutOptions,
    (access, uri, below): (&Access, &str, &str),
    source: &mut dyn Upload,
    mut progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    let (access, endpoint, key) = access.clone().object_below(uri, below)?;
    options.validate(endpoint.dialect)?;
    if endpoint.scheme == Scheme::File {
        // Where a scheme was forgotten, the object would be a file of the working directory.
        if !uri.contains("://") && !uri.starts_with(['/', '.']) {
            let cause = format!("'{}' has no scheme, and may be a bucket's key or a file", uri.escape_debug());
            return Err(Error::new(Kind::Usage, cause).with_hint("write s3://BUCKET/KEY, or ./FILE"));
        }
        rewind(source)?;
        if matches!(options.over, PutOver::Etag(_)) {
            return Err(Error::new(Kind::Usage, "a folder judges no entity tags of what is replaced")
                .with_hint("put it over anything, or over nothing"));
        }
        let mut source = Stoppable { source, stopped };
        let stored = folder::put(&endpoint, &key, options.over == PutOver::Nothing, &mut source, &mut progress);
        let stored = stored.map_err(|error| if stopped() { interrupted() } else { error });
        return stored.map(|(bytes, etag)| Stored { bytes, etag: Some(etag) }).map_err(|e| e.with_object(key));
    }
    let bytes = length(source)?;
    if bytes > UPLOAD_BYTES_MAX {
        let cause = format!("it is longer than {}, the most a bucket takes", ByteSize(UPLOAD_BYTES_MAX));
        return Err(Error::new(Kind::Usage, cause).with_hint("split it into smaller objects").with_object(key));
    }
    let stored = wherever(&access, uri, endpoint, None, |route| {
        route.run(async |client| {
            let path = route.endpoint.object_path(&key);
            let exchange = Exchange { client: &client, path, over: &options.over, stopped };
            let taken = match plan(options, bytes, route.endpoint.dialect) {
                Some(plan) => parts::put(&exchange, source, plan, &mut progress).await?,
                None => None,
            };
            match taken {
                Some(stored) => Ok(stored),
                // Short, or the server knows no parts.
                None => exchange.unless_stopped(one::put(&exchange, source, bytes, &mut progress)).await,
            }
        })
    });
    stored.map(|(stored, _)| stored).map_err(|e| e.with_object(key))
}

/// A source that fails once its reader is stopped.
struct Stoppable<'a> {
    source: &'a mut dyn Upload,
    stopped: &'a (dyn Fn() -> bool + Sync),
}

impl Read for Stoppable<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        if (self.stopped)() { Err(std::io::Error::other("interrupted")) } else { self.source.read(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exchange::PUT_BYTES_MAX;
    use std::io::{Seek, SeekFrom};

    #[test]
    fn parts_are_as_long_as_ten_thousand_need() {
        let options = PutOptions::default();
        let plan = |bytes: u64| super::plan(&options, bytes, Dialect::S3).map(|plan| (plan.part_bytes, plan.count()));
        assert_eq!(plan(PARTS_ABOVE_BYTES), None);
        assert_eq!(plan(PARTS_ABOVE_BYTES + 1), Some((PART_BYTES, 5)));
        assert_eq!(plan(PART_BYTES * 10_000), Some((PART_BYTES, 10_000)));
        assert_eq!(plan(PART_BYTES * 10_000 + 1), Some((PART_BYTES + 1, 10_000)));
        let (part_bytes, count) = plan(UPLOAD_BYTES_MAX).unwrap();
        assert!(part_bytes < PUT_BYTES_MAX && count <= 10_000);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let plain = PutOptions::default();
        for bad in [PutOptions { part_bytes: 0, ..plain.clone() }, PutOptions { parts_above_bytes: 6 << 30, ..plain }] {
            assert_eq!(bad.validate(Dialect::S3).unwrap_err().kind(), Kind::Usage);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_sent() {
        /// As long as it says.
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                unreachable!("its length is enough")
            }
        }
        impl Seek for Endless {
            fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
                Ok(if to == SeekFrom::End(0) { UPLOAD_BYTES_MAX + 1 } else { 0 })
            }
        }
        let error = put_with(Access::default(), "http://127.0.0.1:1/b/k", &mut Endless, |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("split it"), "{error}");
    }
}
