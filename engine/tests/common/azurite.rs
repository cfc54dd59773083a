//! Azurite as a test's server: Azure's Blob service, as its vendor emulates it. It checks signatures.

use super::process::Process;
use fuelrail::Environment;
use fuelrail_wire::sign::{Credential, Payload, Realm, Scope, Signer, Unsigned};

/// Its one account, which is publicly documented.
pub const ACCOUNT: &str = "devstoreaccount1";
/// And its key.
pub const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// A shared access signature of that account: reads, writes, lists and creates in its blobs until 2099. Made with Python's `hmac`
/// as "Create an account SAS" says.
pub const SIGNATURE: &str = "sv=2021-12-02&ss=b&srt=sco&sp=rwlc&se=2099-01-01T00%3A00%3A00Z&\
                             sig=NtW04tt7Yz%2BxLms2irm0KpdfVqi2QtkZN2jj%2Bhk6gow%3D";

/// A running Azurite; ended when dropped.
pub struct Azurite(Process);

impl Azurite {
    /// A server with one empty container, `bucket`. `None` where it is missing and `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<Azurite> {
        let server = Process::start("azurite-blob", "TEST_AZURITE", |port, _| {
            let port = port.to_string();
            let place = ["--blobHost", "127.0.0.1", "--blobPort", &port];
            let quiet = ["--inMemoryPersistence", "--silent", "--disableTelemetry"];
            place.into_iter().chain(quiet).map(String::from).collect()
        })?;
        let path = format!("/{ACCOUNT}/bucket?restype=container");
        let request = Unsigned { method: "PUT", host: "127.0.0.1", path_and_query: &path, headers: &[] };
        let scope = Scope { region: String::new(), service: "" };
        let key = Credential::azure_key(ACCOUNT, KEY).unwrap();
        let mut lines = Vec::new();
        Signer::new(Realm { scope, requester_pays: false })
            .sign(&key, (&request, Payload::Unsigned), fuelrail_io::wall_now(), &mut String::new(), &mut lines)
            .unwrap();
        server.ask(&format!("PUT {path}"), std::str::from_utf8(&lines).unwrap());
        Some(Azurite(server))
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.0.url()
    }
}

/// Azure's variables with the account's key.
pub fn key() -> Environment {
    Environment::given([("AZURE_STORAGE_KEY".to_string(), KEY.to_string())])
}

/// Azure's variables with the signature.
pub fn signature() -> Environment {
    Environment::given([("AZURE_STORAGE_SAS_TOKEN".to_string(), SIGNATURE.to_string())])
}
