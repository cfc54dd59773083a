//! Stands in for `exceptions` in a build without clouds, which cannot tell which servers `no_proxy` means.

use crate::environment::Environment;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::Endpoint;

pub(super) fn is_excepted(environment: &Environment, server: &Endpoint) -> Result<bool> {
    if environment.first(["no_proxy", "NO_PROXY"]).is_none() {
        return Ok(false);
    }
    let cause = format!("a proxy is set for {}, and this build does not read no_proxy", server.authority());
    Err(Error::new(Kind::Usage, cause)
        .with_hint("build it with the feature `clouds`, or unset no_proxy or the proxy for this program"))
}
