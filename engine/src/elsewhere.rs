//! A bucket that is not where its URI says: followed to where its server says it is.
//!
//! Remembers for the process where buckets have gone for good. What may be followed is `wire`'s to judge.

use crate::access::{Access, Way};
use fuelrail_base::Result;
use fuelrail_wire::Endpoint;
use fuelrail_wire::redirect::Moved;
use std::sync::{Mutex, PoisonError};

/// More than any bucket needs: from the old host to the new one, and on to the right region.
const HOPS_MAX: usize = 3;
/// Buckets remembered; the oldest is forgotten.
const REMEMBERED_MAX: usize = 64;

/// Buckets that have moved for good, by where they are said to be.
static REMEMBERED: Mutex<Vec<(Endpoint, Moved)>> = Mutex::new(Vec::new());

/// Where a bucket was found.
pub(crate) struct Found {
    pub(crate) endpoint: Endpoint,
    pub(crate) way: Way,
}

/// Does `work` where the bucket is: at `endpoint`, which somebody calls `uri`, or where its server sends it from there. What was
/// done before it is sent on is done again.
///
/// # Errors
/// As [`Access::open`]; what `work` returns.
pub(crate) fn wherever<T>(
    access: &Access,
    uri: &str,
    endpoint: Endpoint,
    mut work: impl FnMut(&Way, &Endpoint) -> Result<T>,
) -> Result<(T, Found)> {
    let mut access = access.clone();
    let mut endpoint = endpoint;
    if let Some(moved) = remembered(&endpoint) {
        go(&mut access, &mut endpoint, moved);
    }
    let mut hops = 0;
    loop {
        let way = access.open(uri, &endpoint)?;
        let outcome = work(&way, &endpoint);
        let moved = way.moved.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (outcome, moved) {
            (Err(_), Some(moved)) if hops < HOPS_MAX => {
                hops += 1;
                if moved.lasting {
                    remember(&endpoint, &moved);
                }
                go(&mut access, &mut endpoint, moved);
            }
            (outcome, _) => return Ok((outcome?, Found { endpoint, way })),
        }
    }
}

/// The rest of the URI stays as it is.
fn go(access: &mut Access, endpoint: &mut Endpoint, moved: Moved) {
    let prefix = core::mem::take(&mut endpoint.prefix);
    *endpoint = Endpoint { prefix, ..moved.endpoint };
    if moved.region.is_some() {
        access.credentials.region = moved.region;
    }
}

/// All of a bucket has moved, whatever of it is asked for.
fn bucket_of(endpoint: &Endpoint) -> Endpoint {
    Endpoint { prefix: String::new(), ..endpoint.clone() }
}

fn remembered(endpoint: &Endpoint) -> Option<Moved> {
    let bucket = bucket_of(endpoint);
    let known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|(from, _)| *from == bucket).map(|(_, moved)| moved.clone())
}

fn remember(endpoint: &Endpoint, moved: &Moved) {
    let bucket = bucket_of(endpoint);
    let mut known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(from, _)| *from != bucket);
    if known.len() == REMEMBERED_MAX {
        known.remove(0);
    }
    known.push((bucket, moved.clone()));
}
