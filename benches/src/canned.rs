//! A server of canned answers: every object is the same bytes from one page-cached buffer, sent without a copy, so that as
//! little as possible of a measurement is the server's.
//!
//! Owns its listener and a thread per connection. Understands GET with and without a byte range over keep-alive connections,
//! pipelined or not, and nothing else: it serves measurements on this machine, not people.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use fuelrail::{Error, Kind, Listed, Result};
use rustix::net::SendFlags;

/// Bytes of the buffer that all bodies are made of. It stays in the processor's cache.
const BUFFER_BYTES: u64 = 1 << 20;
/// Longest head of a request.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The server. Dropping it closes its port; connections end when their clients do.
#[derive(Debug)]
pub struct Canned {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Canned {
    /// Starts serving objects of `object_bytes` on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// `Environment` when a port, a thread or the buffer cannot be had.
    pub fn start(object_bytes: u64) -> Result<Canned> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(Kind::Environment, format!("the canned server: {what}: {error}"))
        };
        let buffer = Arc::new(buffer().map_err(|error| failed("its buffer", &error))?);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| failed("a port", &error))?;
        let address = listener.local_addr().map_err(|error| failed("a port", &error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accept = move || {
            while let Ok((socket, _)) = listener.accept() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let buffer = Arc::clone(&buffer);
                // Ends with its connection. A client that cannot be given a thread sees its connection closed.
                let _ = std::thread::Builder::new()
                    .name("canned".into())
                    .spawn(move || serve(socket, &buffer, object_bytes));
            }
        };
        let thread = std::thread::Builder::new().name("canned-accept".into()).spawn(accept);
        let thread = thread.map_err(|error| failed("a thread", &error))?;
        Ok(Canned { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the accepting thread, which then sees that it shall end.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// A canned server to read from, in this process or in one of its own. Dropping it ends it.
#[derive(Debug)]
pub enum CannedServer {
    /// In this process.
    Here(Canned),
    /// In a process of its own.
    Apart {
        /// The process.
        child: Child,
        /// Where it listens.
        address: SocketAddr,
    },
}

impl CannedServer {
    /// Starts one: `program bench canned --object-bytes N`, or in this process when there is no program.
    ///
    /// # Errors
    /// As [`Canned::start`]; `Environment` when the program does not say where it listens.
    pub fn start(object_bytes: u64, program: Option<&Path>) -> Result<CannedServer> {
        let Some(program) = program else { return Canned::start(object_bytes).map(CannedServer::Here) };
        let failed = |why: String| Error::new(Kind::Environment, format!("starting the canned server: {why}"));
        let mut command = Command::new(program);
        command.args(["canned", "--object-bytes", &object_bytes.to_string()]);
        // It ends when its input does, so also when this process dies.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        match line.trim().parse() {
            Ok(address) => Ok(CannedServer::Apart { child, address }),
            Err(_) => {
                let _ = (child.kill(), child.wait());
                Err(failed(format!("it said '{}' instead of its address ({read:?})", line.trim())))
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            CannedServer::Here(canned) => canned.address(),
            CannedServer::Apart { address, .. } => *address,
        }
    }

    /// Processor time of its process so far, s; `None` when it has none of its own.
    #[must_use]
    pub fn cpu_s(&self) -> Option<f64> {
        const TICKS_PER_S: f64 = 100.0;
        let CannedServer::Apart { child, .. } = self else { return None };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
        // The name, in parentheses, may hold blanks: fields are counted behind it.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<f64>().ok();
        Some((ticks()? + ticks()?) / TICKS_PER_S)
    }
}

impl Drop for CannedServer {
    fn drop(&mut self) {
        if let CannedServer::Apart { child, .. } = self {
            // It may have ended by itself.
            let _ = (child.kill(), child.wait());
        }
    }
}

/// The listing of `count` canned objects, and the URI they are under.
#[must_use]
pub fn objects(address: SocketAddr, count: u64, object_bytes: u64) -> (String, Vec<Listed>) {
    let listed = |n| Listed { key: format!("canned-{n:06}"), size: object_bytes, etag: None };
    (format!("http://{address}/canned/"), (0..count).map(listed).collect())
}

fn buffer() -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("canned", rustix::fs::MemfdFlags::CLOEXEC)?);
    let text: Vec<u8> = (0..BUFFER_BYTES).map(|n| (n % 251) as u8).collect();
    file.write_all(&text)?;
    Ok(file)
}

/// One connection, until its client closes it or says something that is not understood.
fn serve(mut socket: TcpStream, buffer: &File, object_bytes: u64) {
    let _ = socket.set_nodelay(true); // slower without, but not wrong
    let mut text = Vec::with_capacity(4096);
    let mut chunk = [0u8; 4096];
    loop {
        while let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let answered = answer(&socket, buffer, &text[..end + 2], object_bytes);
            if answered.is_err() {
                return;
            }
            text.drain(..end + 4);
        }
        match socket.read(&mut chunk) {
            Ok(len) if len > 0 && text.len() < REQUEST_BYTES_MAX => text.extend_from_slice(&chunk[..len]),
            _ => return,
        }
    }
}

fn answer(socket: &TcpStream, buffer: &File, head: &[u8], object_bytes: u64) -> std::io::Result<()> {
    let (status, mut left) = match range(head, object_bytes) {
        None => ("200 OK".to_owned(), object_bytes),
        Some((first, last)) => {
            let line = format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{object_bytes}");
            (line, last + 1 - first)
        }
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {left}\r\n\r\n");
    send_all(socket, head.as_bytes())?;
    while left > 0 {
        let mut offset = 0;
        let sent = rustix::fs::sendfile(socket, buffer, Some(&mut offset), left.min(BUFFER_BYTES) as usize)?;
        if sent == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        left -= sent as u64;
    }
    Ok(())
}

/// Sends the head so that it leaves together with the body that follows.
fn send_all(socket: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let sent = rustix::net::send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// First and last byte asked for, when a range is asked for and lies in the object.
fn range(head: &[u8], object_bytes: u64) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(head).ok()?;
    let line = text.lines().find(|line| line.get(..6).is_some_and(|name| name.eq_ignore_ascii_case("range:")))?;
    let (first, last) = line[6..].trim().strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last =
        if last.is_empty() { object_bytes.checked_sub(1)? } else { last.parse::<u64>().ok()?.min(object_bytes - 1) };
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_understood_and_others_are_not() {
        for (head, wanted) in [
            ("GET /x HTTP/1.1\r\nRange: bytes=5-9\r\n", Some((5, 9))),
            ("GET /x HTTP/1.1\r\nrange: bytes=90-\r\n", Some((90, 99))),
            ("GET /x HTTP/1.1\r\nrange: bytes=90-500\r\n", Some((90, 99))),
            ("GET /x HTTP/1.1\r\nrange: bytes=9-5\r\n", None),
            ("GET /x HTTP/1.1\r\nhost: h\r\n", None),
        ] {
            assert_eq!(range(head.as_bytes(), 100), wanted, "{head}");
        }
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let server = Canned::start(3 << 20).unwrap();
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nRange: bytes=10-29\r\n\r\n").unwrap();
        let first = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 3 << 20);
        let mut seen = vec![0; first.len() + (3 << 20)];
        socket.read_exact(&mut seen).unwrap();
        assert!(seen.starts_with(first.as_bytes()));
        let second = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-29/{}\r\nContent-Length: 20\r\n\r\n",
            3 << 20
        );
        let mut seen = vec![0; second.len() + 20];
        socket.read_exact(&mut seen).unwrap();
        assert!(seen.starts_with(second.as_bytes()), "{}", String::from_utf8_lossy(&seen));
    }
}
