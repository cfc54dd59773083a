//! A server that refuses everything and repeats, in the document that says why, all it was sent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Ends when dropped.
pub(crate) struct Echo {
    port: u16,
    over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Echo {
    /// Answers with this status, and an error document of this code.
    pub(crate) fn start(status: u16, code: &'static str) -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                std::thread::spawn(move || answer(stream, status, code));
            }
        });
        Echo { port, over, acceptor: Some(acceptor) }
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// One request of at most what is read at once, and its answer.
fn answer(mut stream: TcpStream, status: u16, code: &str) -> Option<()> {
    let mut asked = Vec::new();
    let mut piece = [0; 4096];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut piece).ok().filter(|len| *len > 0)?;
        asked.extend_from_slice(&piece[..len]);
    }
    // What is left of a body: a client that is still sending would be reset.
    stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).ok()?;
    while let Ok(len) = stream.read(&mut piece) {
        if len == 0 {
            break;
        }
        asked.extend_from_slice(&piece[..len]);
    }
    let said = String::from_utf8_lossy(&asked).replace('&', "&amp;").replace('<', "&lt;");
    let said = said.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let body = format!("<Error><Code>{code}</Code><Message>{said}</Message></Error>");
    let len = body.len();
    let head = format!("HTTP/1.1 {status} No\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).ok()?;
    stream.shutdown(Shutdown::Write).ok()
}
