//! The suite against third-party servers.
//!
//! `scripts/test` installs them and names them in `TEST_…` variables; one that is missing fails its test, see `common::skip`.

use super::suite::{Server, conforms};
use crate::common::azurite::{self, Azurite};
use crate::common::gcs::Gcs;
use crate::common::moto::Moto;
use crate::common::nginx::Nginx;
use crate::common::s3s::{KEY_ID, S3s, SECRET, keys};
use crate::common::secure::{Authority, named};
use fuelrail::{Access, Cloud, Credentials, Environment, Kind, Tls, list_with};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// One of them, reached as a cloud.
struct Emulator {
    name: &'static str,
    /// What the URI of every object begins with.
    bucket: &'static str,
    endpoint: String,
    /// `None`: anonymous.
    credentials: Option<Environment>,
}

impl Server for Emulator {
    fn name(&self) -> String {
        self.name.into()
    }

    fn uri(&self, key: &str) -> String {
        format!("{}{key}", self.bucket)
    }

    fn access(&self) -> Access {
        let anonymous = Some(self.credentials.is_none());
        let environment = self.credentials.clone().unwrap_or_default();
        let credentials = Credentials { anonymous, environment, ..Credentials::default() };
        Access {
            cloud: Cloud { endpoint: self.endpoint.clone(), ..Cloud::default() },
            credentials,
            ..Access::default()
        }
    }
}

#[test]
fn s3s_fs_that_checks_signatures() {
    let Some(server) = S3s::start() else { return };
    let (endpoint, credentials) = (server.server(), Some(keys(KEY_ID, SECRET)));
    conforms(&Emulator { name: "s3s-fs", bucket: "s3://bucket/", endpoint, credentials });
}

#[test]
fn moto() {
    let Some(server) = Moto::start() else { return };
    server.make_bucket("bucket");
    let (endpoint, credentials) = (server.url(), Some(keys("AKIAANY", "any")));
    conforms(&Emulator { name: "moto", bucket: "s3://bucket/", endpoint, credentials });
}

#[test]
fn azurite_with_the_accounts_key() {
    azurite(azurite::key());
}

#[test]
fn azurite_with_a_shared_access_signature() {
    azurite(azurite::signature());
}

fn azurite(credentials: Environment) {
    let Some(server) = Azurite::start() else { return };
    let (endpoint, credentials) = (server.url(), Some(credentials));
    conforms(&Emulator { name: "azurite", bucket: "az://devstoreaccount1/bucket/", endpoint, credentials });
}

/// What s3s-fs says to wrong keys, `signed.rs` shows.
#[test]
fn azurite_names_a_wrong_key_and_shows_none() {
    let Some(server) = Azurite::start() else { return };
    let wrong = "d3Jvbmc=";
    let (key, old) =
        (("AZURE_STORAGE_KEY", wrong), ("AZURE_STORAGE_SAS_TOKEN", azurite::SIGNATURE.replace("2099", "2019")));
    for (name, secret) in [key, (old.0, &old.1)] {
        let credentials = Environment::given([(name.to_string(), secret.to_string())]);
        let (endpoint, credentials) = (server.url(), Some(credentials));
        let stranger = Emulator { name: "azurite", bucket: "az://devstoreaccount1/bucket/", endpoint, credentials };
        let error = list_with(stranger.access(), &stranger.uri(""), |_| {}).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        let signature = secret.rsplit('=').next().filter(|text| !text.is_empty()).unwrap_or(wrong);
        assert!(!error.to_string().contains(signature), "{error}");
    }
}

#[test]
fn gcp_storage_emulator() {
    let Some(server) = Gcs::start() else { return };
    let endpoint = server.url();
    conforms(&Emulator { name: "gcp-storage-emulator", bucket: "gs://bucket/", endpoint, credentials: None });
}

/// A web server over TLS, with an authority of its own.
struct Secured {
    server: Nginx,
    authority: PathBuf,
}

impl Server for Secured {
    fn name(&self) -> String {
        "nginx".into()
    }

    fn uri(&self, key: &str) -> String {
        format!("https://localhost:{}/bucket/{key}", self.server.port())
    }

    fn access(&self) -> Access {
        Access::from(&Tls { ca_file: Some(self.authority.clone()), insecure: false })
    }

    /// Each a second younger than the one before it: the entity tag is made of time and length.
    fn lay(&self, key: &str, bytes: &[u8]) -> Option<String> {
        let path = self.server.root().join("bucket").join(key);
        std::fs::create_dir_all(path.parent()?).unwrap();
        let second = std::fs::metadata(&path).map_or(1_700_000_000, |_| 1_700_000_001);
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        Some(format!("\"{second:x}-{:x}\"", bytes.len()))
    }
}

#[test]
fn nginx_over_tls() {
    let authority = Authority::new("an authority of a store");
    let server = Nginx::start_with("ssl", |folder| {
        authority.sign(&named(&["localhost"]), folder);
        let folder = folder.display();
        Ok(format!("ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;"))
    });
    let Some(server) = server else { return };
    conforms(&Secured { server, authority: authority.file() });
}
