//! moto as a test's server: the metadata service, the token service and S3 of AWS, as somebody else understood them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A running moto; ended when dropped.
pub struct Moto {
    process: Child,
    port: u16,
}

/// Where `scripts/test` put it, or where it is installed.
fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("TEST_MOTO") {
        let path = PathBuf::from(path);
        assert!(path.exists(), "moto is required here and not installed");
        return Some(path);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("moto_server")).find(|file| file.exists())
}

impl Moto {
    /// A server without anything in it. `None`, said loudly, on a machine that has no moto.
    pub fn start() -> Option<Moto> {
        let Some(program) = program() else {
            eprintln!("skipped: this machine has no moto");
            return None;
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut process = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for _ in 0..6_000 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(Moto { process, port });
            }
            assert!(process.try_wait().unwrap().is_none(), "moto ended before it listened");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("moto did not start listening");
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
