//! Stands in for `client` in a build without TLS.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::Client;
use std::path::Path;

pub(super) fn client(_: Option<&Path>, _: bool, host: &str) -> Result<Client> {
    Err(Error::new(Kind::Usage, format!("this build does not speak TLS, which https://{host} is reached by"))
        .with_hint("build it with the feature `tls`, or use an http:// URI"))
}
