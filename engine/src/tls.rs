//! Loads the certificate authorities that servers are verified against: the system's, those of a file, or, with a warning, none.
//!
//! Verification itself is in `wire`.

#[cfg_attr(not(feature = "tls"), path = "tls/absent.rs")]
mod client;

#[cfg(feature = "clouds")]
pub(crate) use client::file_roots;

use fuelrail_base::Result;
use fuelrail_wire::tls::Client;
use fuelrail_wire::{Endpoint, Scheme};
use std::path::PathBuf;

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
        client::client(self.ca_file.as_deref(), self.insecure, &endpoint.host).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::{Error, Kind};

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
