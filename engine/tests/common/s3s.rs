//! s3s-fs as a test's server: an S3 that checks signatures.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running s3s-fs over a folder; ended when dropped.
pub struct S3s {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

/// What it lets in.
pub const KEY_ID: &str = "AKIAFUELRAILTEST";
/// And its secret.
pub const SECRET: &str = "tests/secret+key";

/// Where `scripts/test` put it, or where it is installed.
fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("TEST_S3S_FS") {
        let path = PathBuf::from(path);
        assert!(path.exists(), "s3s-fs is required here and not installed");
        return Some(path);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("s3s-fs")).find(|file| file.exists())
}

impl S3s {
    /// A server with one empty bucket, `bucket`. `None`, said loudly, on a machine that has no s3s-fs.
    pub fn start() -> Option<S3s> {
        let Some(program) = program() else {
            eprintln!("skipped: this machine has no s3s-fs");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let process = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--access-key", KEY_ID, "--secret-key", SECRET])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = S3s { process, port, folder };
        for _ in 0..3_000 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("s3s-fs did not start listening");
    }

    /// `http://127.0.0.1:PORT/bucket/PREFIX`.
    pub fn url(&self, prefix: &str) -> String {
        format!("http://127.0.0.1:{}/bucket/{prefix}", self.port)
    }

    /// The folder behind the bucket.
    pub fn root(&self) -> PathBuf {
        Path::join(self.folder.path(), "bucket")
    }
}

impl Drop for S3s {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
