//! The servers that no proxy is used for.

use crate::connect::server_uri;
use crate::environment::Environment;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::Endpoint;
use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;

/// Whether `no_proxy` names it: read as curl reads it, and with what Go's tools take besides, `*.DOMAIN` and `HOST:PORT`.
pub(super) fn is_excepted(environment: &Environment, server: &Endpoint) -> Result<bool> {
    let Some(list) = environment.first(["no_proxy", "NO_PROXY"]) else {
        return Ok(false);
    };
    let entries = list.split(|c: char| c == ',' || c.is_whitespace()).filter_map(|entry| at_port(entry, server.port));
    let uri = server_uri(server);
    let uri: Uri = uri.parse().map_err(|e| Error::new(Kind::Usage, format!("{uri} is not an address: {e}")))?;
    // The matcher says whether a server has a proxy; only its exceptions matter here.
    let matcher = Matcher::builder().all("http://any").no(entries.collect::<Vec<_>>().join(",")).build();
    Ok(matcher.intercept(&uri).is_none())
}

/// The host part of an entry that applies to this port.
fn at_port(entry: &str, port: u16) -> Option<&str> {
    let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
    match entry.rsplit_once(':') {
        Some((host, only)) if !host.contains(':') => (only.parse() == Ok(port)).then_some(host),
        _ => Some(entry),
    }
}
