//! Stands in for `credentials` in a build without clouds: settings, and nothing that would get what they mean.

mod settings;

pub use settings::{CredentialProvider, Credentials, SharedProvider};
pub(crate) use settings::{Origin, Provider};

use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Authority;
use std::sync::Arc;

/// The region that is signed for: none is known.
pub(crate) fn region(_: &Credentials) -> Result<String> {
    Ok(String::new())
}

/// Nothing, for requests that go unsigned.
pub(crate) fn authority_for(settings: &Credentials, origin: &Origin) -> Result<Option<Arc<Authority>>> {
    if origin.signing.is_none() && !settings.requester_pays {
        return Ok(None);
    }
    Err(Error::new(Kind::Usage, "this build does not sign requests")
        .with_hint("build it with the feature `clouds`, or set anonymous = true if the bucket is public"))
}
