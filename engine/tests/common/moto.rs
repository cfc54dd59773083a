//! moto as a test's server: the metadata service, the token service and S3 of AWS, in an independent implementation.

use super::process::Process;

/// A running moto; ended when dropped.
pub struct Moto(Process);

impl Moto {
    /// A server without anything in it. `None` where it is missing and `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<Moto> {
        let arguments = |port: u16| ["-H", "127.0.0.1", "-p", &port.to_string()].map(String::from).to_vec();
        Process::start("moto_server", "TEST_MOTO", |port, _| arguments(port)).map(Moto)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Makes a bucket.
    pub fn make_bucket(&self, name: &str) {
        self.0.ask(&format!("PUT /{name}"), "");
    }
}
