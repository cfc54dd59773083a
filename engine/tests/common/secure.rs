//! Certificates and buckets over TLS.

use super::loader_at;
use fuelrail::LoaderBuilder;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

/// An authority, its certificate in a file, and the folder of what it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), folder }
    }

    /// What a loader's `ca_file` is set to.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate and writes it and its key into `folder`.
    pub fn sign(&self, params: &CertificateParams, folder: &Path) -> Tls {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&at.0, certificate.pem()).unwrap();
        std::fs::write(&at.1, key.serialize_pem()).unwrap();
        Tls::Files { certificate: at.0, key: at.1 }
    }

    /// Certificate and key of a host, in files.
    pub fn certify(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let Tls::Files { certificate, key } = self.sign_as(name, &named(&[host])) else {
            unreachable!("it signs files")
        };
        (certificate, key)
    }

    /// The same into a folder of its own inside this authority's.
    pub fn sign_as(&self, name: &str, params: &CertificateParams) -> Tls {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        self.sign(params, &folder)
    }
}

/// An authority and a bucket's certificate by it, for this name or address.
pub fn signed_for(name: &str) -> (Authority, Tls) {
    let authority = Authority::new("an authority of a test");
    let tls = authority.sign_as("bucket", &named(&[name]));
    (authority, tls)
}

/// A certificate's content for these names.
pub fn named(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// A bucket over TLS that makes its own certificate, and a file with its authority's.
pub struct Secured {
    pub bucket: Bucket,
    folder: tempfile::TempDir,
}

impl Secured {
    pub fn start(set: &DataSet, script: &str) -> Secured {
        let bucket = shown(set, script, Tls::SelfSigned);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), bucket.authority().expect("it made one")).unwrap();
        Secured { bucket, folder }
    }

    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// As [`loader_at`], of this bucket.
    pub fn loader(&self) -> LoaderBuilder {
        loader_at(&self.bucket.url("")).ca_file(self.ca_file())
    }
}

/// A bucket that shows this certificate.
pub fn shown(set: &DataSet, script: &str, tls: Tls) -> Bucket {
    let script = script.parse().expect("the test's script parses");
    let config =
        BucketConfig { source: Source::Generated(set.clone()), script, tls: Some(tls), ..BucketConfig::default() };
    Bucket::start(config).expect("loopback can be listened on")
}
