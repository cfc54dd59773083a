//! A third-party program as a test's server: found, started on a free port, waited for, and ended with the test.

use super::skip::skip_or_fail;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server and the folder it may write in; both end when it is dropped.
pub struct Process {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

/// Another program may take a port between its being found free and the server's listening there.
pub const PORTS_TRIED_MAX: usize = 5;

/// Where `scripts/test` put it, or where it is installed.
fn find(program: &str, variable: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        assert!(path.exists(), "{variable} names {}, which does not exist", path.display());
        return Some(path);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.exists())
}

impl Process {
    /// Starts `program` with the arguments for a port and its folder, and waits until it listens. `None` on a machine that
    /// has none, if `FUELRAIL_SKIP` allows that; one that `variable` names has to be there.
    pub fn start(program: &str, variable: &str, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Option<Process> {
        let Some(path) = find(program, variable) else {
            skip_or_fail(program, "it is not installed");
            return None;
        };
        for _ in 0..PORTS_TRIED_MAX {
            let folder = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let mut command = Command::new(&path);
            command.args(arguments(port, folder.path())).current_dir(folder.path());
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let mut process = Process { child, port, folder };
            if process.listens() {
                return Some(process);
            }
        }
        panic!("{program} ended before it listened, on {PORTS_TRIED_MAX} ports");
    }

    /// Waits until it does; false when it ends instead.
    fn listens(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < super::PATIENCE {
            let connected = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if connected {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it runs and does not listen");
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The folder that was made for it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends `METHOD /path` and these header lines, without our own client. Panics unless the answer is a good one.
    pub fn ask(&self, request: &str, lines: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = format!("Host: 127.0.0.1:{}", self.port);
        let text = format!("{request} HTTP/1.1\r\n{host}\r\nContent-Length: 0\r\nConnection: close\r\n{lines}\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{request}: {answer}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
