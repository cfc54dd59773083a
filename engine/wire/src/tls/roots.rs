//! Whose signatures on certificates are believed.

use fuelrail_base::{Error, Kind, Result};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Certificates of authorities.
#[derive(Clone, Debug)]
pub struct Roots {
    pub(super) store: RootCertStore,
}

impl Roots {
    /// From certificates as systems store them. Those that are no authority's (some systems carry a few) are left out.
    ///
    /// # Errors
    /// `Usage` when none is left.
    pub fn new<'a>(certificates: impl IntoIterator<Item = CertificateDer<'a>>) -> Result<Roots> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(certificates);
        if store.is_empty() {
            return Err(Error::new(Kind::Usage, "it holds no certificate of an authority"));
        }
        Ok(Roots { store })
    }

    /// From a file's text: one or more `BEGIN CERTIFICATE` sections.
    ///
    /// # Errors
    /// `Usage` when a section is broken, or none is an authority's certificate.
    pub fn from_pem(text: &[u8]) -> Result<Roots> {
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let certificates = parsed.map_err(|why| Error::new(Kind::Usage, format!("it is no PEM text: {why}")))?;
        if certificates.is_empty() {
            return Err(Error::new(Kind::Usage, "it has no BEGIN CERTIFICATE section")
                .cure("give the certificate of the authority, in PEM"));
        }
        Roots::new(certificates)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.store.len()
    }
}
