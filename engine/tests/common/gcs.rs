//! gcp-storage-emulator as a test's server: Google's Cloud Storage, in an independent implementation. It asks for no credentials.

use super::process::Process;

/// A running emulator; ended when dropped.
pub struct Gcs(Process);

impl Gcs {
    /// A server with one empty bucket, `bucket`. `None` where it is missing and `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<Gcs> {
        let server = Process::start("gcp-storage-emulator", "TEST_GCS_EMULATOR", |port, _| {
            let place = ["start", "--host=127.0.0.1", "--in-memory", "--default-bucket=bucket"];
            place.map(String::from).into_iter().chain([format!("--port={port}")]).collect()
        });
        server.map(Gcs)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.0.url()
    }
}
