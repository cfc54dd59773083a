//! A bucket that is not where its URI says: followed to where its server says it is.
//!
//! Remembers for the process where buckets have gone for good. What may be followed is `wire`'s to judge.

use crate::access::Access;
use crate::client::Route;
use crate::credentials::{Origin, Provider};
use crate::proxy::proxy_for;
use crate::tls::Tls;
use fuelrail_base::Result;
use fuelrail_wire::Endpoint;
use fuelrail_wire::redirect::Moved;
use std::sync::{Mutex, PoisonError};

/// More than any bucket needs: from the old host to the new one, and on to the right region.
const HOPS_MAX: usize = 3;
/// Buckets remembered; the oldest is forgotten.
const REMEMBERED_MAX: usize = 64;

/// Buckets that have moved for good, by where they are said to be and by what those who said so were trusted with.
static REMEMBERED: Mutex<Vec<(Place, Moved)>> = Mutex::new(Vec::new());

/// Where a bucket is said to be, and what decides whether an answer from there is believed: how requests are signed, which
/// certificates are accepted, and which proxy is on the way. A run that trusts otherwise asks for itself.
#[derive(Clone, PartialEq)]
struct Place {
    /// Without its prefix: all of a bucket has moved, whatever of it is asked for.
    bucket: Endpoint,
    signing: Option<Provider>,
    tls: Tls,
    proxy: Option<String>,
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
    mut work: impl FnMut(&Route) -> Result<T>,
) -> Result<(T, Route)> {
    let proxy = proxy_for(&access.credentials.environment, &endpoint)?.map(|proxy| proxy.authority());
    let mut origin = Origin { signing: access.credentials.signing(uri, &endpoint), endpoint };
    let signing = origin.signing.as_ref().map(|signing| signing.provider);
    let place = |endpoint: &Endpoint| {
        let bucket = Endpoint { prefix: String::new(), ..endpoint.clone() };
        Place { bucket, signing, tls: access.tls.clone(), proxy: proxy.clone() }
    };
    if let Some(moved) = remembered(&place(&origin.endpoint)) {
        go(&mut origin, moved);
    }
    let mut hops = 0;
    loop {
        let route = access.open(&origin)?;
        let outcome = work(&route);
        match (outcome, route.take_moved()) {
            (Err(_), Some(moved)) if hops < HOPS_MAX => {
                hops += 1;
                if moved.lasting {
                    remember(place(&origin.endpoint), moved.clone());
                }
                go(&mut origin, moved);
            }
            (outcome, _) => return Ok((outcome?, route)),
        }
    }
}

/// The rest of the URI stays as it is, and so does who signs.
fn go(origin: &mut Origin, moved: Moved) {
    let prefix = core::mem::take(&mut origin.endpoint.prefix);
    origin.endpoint = Endpoint { prefix, ..moved.endpoint };
    if let (Some(signing), Some(region)) = (&mut origin.signing, moved.region) {
        signing.region = Some(region);
    }
}

fn remembered(place: &Place) -> Option<Moved> {
    let known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|(from, _)| from == place).map(|(_, moved)| moved.clone())
}

fn remember(place: Place, moved: Moved) {
    let mut known = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(from, _)| *from != place);
    if known.len() == REMEMBERED_MAX {
        known.remove(0);
    }
    known.push((place, moved));
}
