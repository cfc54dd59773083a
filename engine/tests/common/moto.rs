//! moto as a test's server: the metadata service, the token service and S3 of AWS, as somebody else understood them.

use std::io::{Read, Write};
use std::net::TcpStream;
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

    /// Makes a bucket: nothing of ours does that.
    pub fn make_bucket(&self, name: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!("PUT /{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
