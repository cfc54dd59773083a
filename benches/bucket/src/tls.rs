//! TLS for the bucket: its certificate, and the authority a client must trust.
//!
//! Owns the set-up only; connections are accepted by `server`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};

use crate::{Error, Result};

/// How the bucket speaks TLS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tls {
    /// With a certificate made at the start for `localhost` and the addresses it is reached at, signed by an authority
    /// made at the start too: [`Bucket::authority`](crate::Bucket::authority) is its certificate.
    SelfSigned,
    /// With a certificate and its key from files, in PEM.
    Files {
        /// The certificate, and those that lead from it to its authority.
        certificate: PathBuf,
        /// The certificate's private key.
        key: PathBuf,
    },
}

/// What a bucket that speaks TLS runs with.
pub(crate) struct Terminator {
    pub(crate) acceptor: TlsAcceptor,
    /// The authority's certificate in PEM, when it was made here.
    pub(crate) authority: Option<String>,
}

impl Tls {
    /// Makes or reads the certificate for a bucket that listens on `address`.
    ///
    /// # Errors
    /// `System` when a file cannot be read, `Usage` when it does not hold what it must or key and certificate do not fit.
    pub(crate) fn terminator(&self, address: IpAddr) -> Result<Terminator> {
        let (chain, key, authority) = match self {
            Tls::SelfSigned => {
                let made = Certificate::new(address)?;
                let of = |pem: String| ("what was made here".to_owned(), pem.into_bytes());
                (of(made.chain), of(made.key), Some(made.authority))
            }
            Tls::Files { certificate, key } => (read(certificate)?, read(key)?, None),
        };
        let lacks = |name, what| Error::usage(format!("{name} holds no {what}")).cure("give one in PEM");
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain.1).collect();
        let certificates = certificates.ok().filter(|found| !found.is_empty());
        let certificates = certificates.ok_or_else(|| lacks(chain.0, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&key.1).map_err(|_| lacks(key.0, "private key"))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::usage(format!("TLS cannot be set up: {e}")))?;
        let mut config = builder.with_no_client_auth().with_single_cert(certificates, key).map_err(|e| {
            Error::usage(format!("the TLS certificate cannot be used: {e}")).cure("give a certificate and its own key")
        })?;
        config.ticketer =
            aws_lc_rs::Ticketer::new().map_err(|e| Error::usage(format!("TLS tickets cannot be set up: {e}")))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Terminator { acceptor: TlsAcceptor::from(Arc::new(config)), authority })
    }
}

/// A certificate for a server, signed by an authority that was made for it alone: PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The authority's certificate, for clients to trust.
    pub authority: String,
    /// The server's certificate.
    pub chain: String,
    /// The server's private key.
    pub key: String,
}

impl Certificate {
    /// Makes one for `localhost`, the loopback addresses and `address`.
    ///
    /// # Errors
    /// `Usage` when it cannot be made.
    pub fn new(address: IpAddr) -> Result<Certificate> {
        let made = || -> Result<Certificate, rcgen::Error> {
            let mut authority = CertificateParams::new(Vec::new())?;
            authority.distinguished_name.push(DnType::CommonName, "fuelrail embedded bucket");
            authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            let authority_key = KeyPair::generate()?;
            let root = authority.self_signed(&authority_key)?;
            let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
            if !address.is_loopback() && !address.is_unspecified() {
                names.push(address.to_string());
            }
            let key = KeyPair::generate()?;
            let issuer = Issuer::new(authority, authority_key);
            let chain = CertificateParams::new(names)?.signed_by(&key, &issuer)?.pem();
            Ok(Certificate { authority: root.pem(), chain, key: key.serialize_pem() })
        };
        made().map_err(|e| Error::usage(format!("no TLS certificate could be made: {e}")))
    }
}

/// A file's name and content.
fn read(path: &Path) -> Result<(String, Vec<u8>)> {
    let bytes = std::fs::read(path).map_err(|e| Error::system(format_args!("reading {}", path.display()), &e))?;
    Ok((path.display().to_string(), bytes))
}
