//! TLS configuration shared by all connections to one server: its name, the trusted authorities, and session tickets.

use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, ServerConfig, SignatureScheme};
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
        Client::showing(host, trust, None, clock)
    }

    /// The same, which shows the server a certificate of its own, where there is one.
    ///
    /// # Errors
    /// As [`Client::new`]; `Usage` for a key that is not the certificate's.
    pub fn showing(
        host: &str,
        trust: Trust,
        identity: Option<&Identity>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Client> {
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
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { chain, key }) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|why| unusable(&why))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // What the record layer is made from once the handshake is over.
        config.enable_secret_extraction = true;
        Ok(Client { config: Arc::new(config), name, verifies })
    }

    /// Whether the server's certificate is verified: false for [`Trust::Unverified`].
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// The server's name, as its certificate must have it.
    pub fn server_name(&self) -> ServerName<'static> {
        self.name.clone()
    }

    /// The same settings for a client of rustls' own kind, without protocols to negotiate and without shared tickets.
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

/// A certificate, with those that lead to its authority, and its key, which never prints.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// From the texts of two files.
    ///
    /// # Errors
    /// `Usage` when they hold no certificate or no key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Identity> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|why| Error::new(Kind::Usage, format!("not PEM: {why}")))?;
        let key = PrivateKeyDer::from_pem_slice(key).ok().filter(|_| !chain.is_empty());
        let key = key.ok_or_else(|| {
            Error::new(Kind::Usage, "no certificate and key in PEM")
                .with_hint("give BEGIN CERTIFICATE and BEGIN PRIVATE KEY")
        })?;
        Ok(Identity { chain, key })
    }

    /// The configuration of a server that shows it, and serves only who shows a certificate of one of these authorities.
    ///
    /// # Errors
    /// `Usage` for a key that is not the certificate's.
    pub fn server(&self, clients: &Roots) -> Result<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(clients.store.clone());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|why| Error::new(Kind::Usage, format!("no clients can be verified: {why}")))?;
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_client_cert_verifier(verifier).with_single_cert(self.chain.clone(), self.key.clone_key())
            })
            .map_err(|why| unusable(&why))
    }
}

fn unusable(why: &TlsError) -> Error {
    Error::new(Kind::Usage, format!("certificate and key cannot be used: {why}"))
        .with_hint("give the certificate's own key")
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
