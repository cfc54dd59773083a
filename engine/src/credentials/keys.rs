//! AWS keys that stand in the environment itself.

use super::chain::{Fetched, Source};
use super::environment::Environment;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::sign::Credential;

/// Keys in the environment itself.
///
/// # Errors
/// `Usage` when there is half of them, or they cannot be keys.
pub(super) fn from_environment(environment: &Environment) -> Result<Source> {
    let Some(id) = environment.get("AWS_ACCESS_KEY_ID") else {
        return Ok(Source::Nothing("AWS_ACCESS_KEY_ID is not set".into()));
    };
    let Some(secret) = environment.get("AWS_SECRET_ACCESS_KEY") else {
        return Err(Error::new(Kind::Usage, "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY"));
    };
    let token = environment.get("AWS_SESSION_TOKEN");
    let credential = Credential::aws(&id, &secret, token.as_deref().map(String::as_str))?;
    Ok(Source::Found(Fetched { fixed: true, ..Fetched::new(credential) }))
}
