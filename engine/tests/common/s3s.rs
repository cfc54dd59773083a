//! s3s-fs as a test's server: an S3 that checks signatures.

use super::process::Process;
use fuelrail::Environment;
use std::path::PathBuf;

/// A running s3s-fs over a folder; ended when dropped.
pub struct S3s(Process);

/// What it lets in.
pub const KEY_ID: &str = "AKIAFUELRAILTEST";
/// And its secret.
pub const SECRET: &str = "tests/secret+key";

impl S3s {
    /// A server with one empty bucket, `bucket`. `None` where it is missing and `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<S3s> {
        let server = Process::start("s3s-fs", "TEST_S3S_FS", |port, folder| {
            let root = folder.join("root");
            std::fs::create_dir_all(root.join("bucket")).unwrap();
            let port = port.to_string();
            let options = ["--host", "127.0.0.1", "--port", &port, "--access-key", KEY_ID, "--secret-key", SECRET];
            options.into_iter().chain(root.to_str()).map(String::from).collect()
        });
        server.map(S3s)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn server(&self) -> String {
        self.0.url()
    }

    /// `http://127.0.0.1:PORT/bucket/PREFIX`.
    pub fn url(&self, prefix: &str) -> String {
        format!("{}/bucket/{prefix}", self.0.url())
    }

    /// The folder behind the bucket.
    pub fn root(&self) -> PathBuf {
        self.0.folder().join("root/bucket")
    }
}

/// AWS's variables with these keys.
pub fn keys(id: &str, secret: &str) -> Environment {
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    Environment::given([pair("AWS_ACCESS_KEY_ID", id), pair("AWS_SECRET_ACCESS_KEY", secret)])
}
