//! Reads the authorities, and makes of them what connections share.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::{Client, Roots, Trust};
use rustls::time_provider::DefaultTimeProvider;
use std::path::Path;
use std::sync::Arc;

pub(super) fn client(ca_file: Option<&Path>, insecure: bool, host: &str) -> Result<Client> {
    let trust = match (ca_file, insecure) {
        (None, false) => Trust::Roots(system_roots()?),
        (Some(path), false) => Trust::Roots(file_roots("ca_file", path)?),
        (Some(_), true) => {
            return Err(Error::new(Kind::Usage, "ca_file and tls_insecure are both set")
                .with_hint("remove tls_insecure: ca_file is enough to trust a private authority"));
        }
        (None, true) => {
            tracing::warn!(
                "tls_insecure is set: the certificate of {host} is not verified, and anyone on the network path can read and \
                 change the traffic; set ca_file instead"
            );
            Trust::Unverified
        }
    };
    Client::new(host, trust, Arc::new(DefaultTimeProvider))
}

/// The authorities of the file that a setting names.
pub(crate) fn file_roots(setting: &str, path: &Path) -> Result<Roots> {
    let file = format_args!("{setting} {}", path.display());
    let text = std::fs::read(path).map_err(|e| Error::new(Kind::File, e.to_string()).within(file))?;
    Roots::from_pem(&text).map_err(|e| e.within(file).with_hint("give the authority's certificate, in PEM"))
}

fn system_roots() -> Result<Roots> {
    let found = rustls_native_certs::load_native_certs();
    Roots::new(found.certs).map_err(|_| {
        let why = found.errors.first().map_or(String::new(), |error| format!(": {error}"));
        Error::new(Kind::Environment, format!("no CA certificates found on this system{why}"))
            .with_hint("install the package ca-certificates, or set ca_file")
    })
}
