//! Loads the certificate authorities that servers are verified against: the system's, those of a file, or, with a warning, none.
//!
//! Verification itself is in `wire`.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::{Client, Roots, Trust};
use fuelrail_wire::{Endpoint, Scheme};
use rustls::time_provider::DefaultTimeProvider;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How the certificate of an `https://` server is verified. The default is the system's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificate authorities to trust instead of the system's, in PEM: for a server with a private authority.
    pub ca_file: Option<PathBuf>,
    /// Disable certificate verification: insecure, anyone on the network path can read and change the traffic. Each use logs a warning.
    pub insecure: bool,
}

impl Tls {
    /// What connections to this endpoint share; `None` when it speaks plain HTTP.
    ///
    /// # Errors
    /// `Usage` for settings that contradict each other or a file without certificates, `File` when it cannot be read,
    /// `Environment` when the system has no authorities.
    pub(crate) fn client(&self, endpoint: &Endpoint) -> Result<Option<Client>> {
        if endpoint.scheme != Scheme::Https {
            return Ok(None);
        }
        let trust = match (&self.ca_file, self.insecure) {
            (None, false) => Trust::Roots(system_roots()?),
            (Some(path), false) => Trust::Roots(file_roots(path)?),
            (Some(_), true) => {
                return Err(Error::new(Kind::Usage, "ca_file and tls_insecure are both set")
                    .with_hint("remove tls_insecure: ca_file is enough to trust a private authority"));
            }
            (None, true) => {
                tracing::warn!(
                    "tls_insecure is set: the certificate of {} is not verified, and anyone on the network path can read and \
                     change the traffic; set ca_file instead",
                    endpoint.host
                );
                Trust::Unverified
            }
        };
        Client::new(&endpoint.host, trust, Arc::new(DefaultTimeProvider)).map(Some)
    }
}

fn file_roots(path: &Path) -> Result<Roots> {
    let file = format_args!("ca_file {}", path.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(tls: &Tls) -> Error {
        tls.client(&"https://h/b".parse().unwrap()).unwrap_err()
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let with_file = Tls { ca_file: Some(file.clone()), insecure: false };
        assert_eq!(refused(&with_file).kind(), Kind::File);
        std::fs::write(&file, "no certificate").unwrap();
        let error = refused(&with_file);
        assert!(error.kind() == Kind::Usage && error.to_string().contains("ca.pem"), "{error}");
        let error = refused(&Tls { insecure: true, ..with_file.clone() });
        assert!(error.kind() == Kind::Usage && error.to_string().contains("both"), "{error}");
        assert!(with_file.client(&"http://h/b".parse().unwrap()).unwrap().is_none(), "plain HTTP needs none of it");
    }
}
