//! TLS configuration shared by all connections to one server: its name, the trusted authorities, and session tickets.

use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Which server certificates are accepted.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those signed by one of these authorities, directly or through intermediates, and issued for the server's name.
    Roots(Roots),
    /// All: a man in the middle can read and change everything.
    Unverified,
}

/// The TLS configuration for one server. Clones share session tickets, which shorten later handshakes.
#[derive(Clone)]
pub struct Client {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    verifies: bool,
}

impl Client {
    /// A client of the server `host` (a name or an address), for certificates valid at the time `clock` tells.
    ///
    /// # Errors
    /// `Usage` when no certificate can be issued for such a host.
    pub fn new(host: &str, trust: Trust, clock: Arc<dyn TimeProvider>) -> Result<Client> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::new(Kind::Usage, format!("'{}' is not a valid name for a TLS certificate", host.escape_debug()))
                .with_hint("write a DNS name or an address")
        })?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_details(Arc::clone(&provider), clock)
            .with_safe_default_protocol_versions()
            .map_err(|why| Error::new(Kind::Environment, format!("TLS cannot be set up: {why}")))?;
        let verifies = matches!(trust, Trust::Roots(_));
        let builder = match trust {
            Trust::Roots(roots) => builder.with_root_certificates(roots.store),
            Trust::Unverified => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAll(Arc::clone(&provider))))
            }
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // What the record layer is made from once the handshake is over.
        config.enable_secret_extraction = true;
        Ok(Client { config: Arc::new(config), name, verifies })
    }

    /// Whether the server's certificate is verified: false for [`Trust::Unverified`].
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// The server's name, as its certificate must have it.
    #[must_use]
    pub fn server_name(&self) -> ServerName<'static> {
        self.name.clone()
    }

    /// The same settings for a client of rustls' own kind, without protocols to negotiate and without shared tickets.
    #[must_use]
    pub fn plain_config(&self) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols.clear();
        config.enable_secret_extraction = false;
        config.resumption = rustls::client::Resumption::in_memory_sessions(1);
        config
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Certificates of authorities.
#[derive(Clone, Debug)]
pub struct Roots {
    store: RootCertStore,
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
            return Err(Error::new(Kind::Usage, "it contains no CA certificate"));
        }
        Ok(Roots { store })
    }

    /// From a file's text: one or more `BEGIN CERTIFICATE` sections.
    ///
    /// # Errors
    /// `Usage` when a section is broken, or none is an authority's certificate.
    pub fn from_pem(text: &[u8]) -> Result<Roots> {
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let certificates = parsed.map_err(|why| Error::new(Kind::Usage, format!("not PEM: {why}")))?;
        if certificates.is_empty() {
            return Err(Error::new(Kind::Usage, "it has no BEGIN CERTIFICATE section")
                .with_hint("give the authority's certificate, in PEM"));
        }
        Roots::new(certificates)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.store.len()
    }
}

/// Accepts every certificate. The handshake's signature is still checked: the peer holds the key of the certificate it shows.
#[derive(Debug)]
struct AcceptAll(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
