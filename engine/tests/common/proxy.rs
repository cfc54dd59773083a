//! Proxies for tests: one of our own, which misbehaves on command, and tinyproxy.

use super::process::Process;
use super::services::head;
use fuelrail::Environment;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Where a server of this machine stands for tests that reach it through a proxy alone: no name server knows it.
pub const NAME: &str = "bucket.test";

/// What a proxy does with the next connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It serves.
    Serve,
    /// It serves, and says that the way is open byte by byte.
    Slowly,
    /// It answers so, and closes.
    Say(&'static str),
    /// It hangs up instead of an answer.
    HangUp,
    /// It never answers.
    Silence,
    /// It serves until so many bytes came back, and hangs up.
    Cut(u64),
}

/// A proxy that takes every host for this machine; ends when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    addr: SocketAddr,
    /// What requests have to bring.
    authorization: Option<&'static str>,
    turns: Box<dyn Fn(u64) -> Turn + Send + Sync>,
    connections: AtomicU64,
    /// First lines of requests that were let through.
    lines: Mutex<Vec<String>>,
    open: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl Proxy {
    /// One that accepts every client.
    pub fn start() -> Proxy {
        Proxy::run(None, |_| Turn::Serve)
    }

    /// One that lets through who brings `Basic …`, this.
    pub fn known(authorization: &'static str) -> Proxy {
        Proxy::run(Some(authorization), |_| Turn::Serve)
    }

    /// One that does with its n-th connection what `turns` says.
    pub fn misbehaving(turns: impl Fn(u64) -> Turn + Send + Sync + 'static) -> Proxy {
        Proxy::run(None, turns)
    }

    fn run(authorization: Option<&'static str>, turns: impl Fn(u64) -> Turn + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            addr: listener.local_addr().unwrap(),
            authorization,
            turns: Box::new(turns),
            connections: AtomicU64::new(0),
            lines: Mutex::default(),
            open: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&accepting)) else { continue };
                shared.open.lock().unwrap().push(stream.try_clone().unwrap());
                std::thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Proxy { shared, acceptor: Some(acceptor) }
    }

    /// `127.0.0.1:PORT`.
    pub fn authority(&self) -> String {
        self.shared.addr.to_string()
    }

    /// The variables that name it, for servers with TLS and without; `user` is `USER:PASSWORD@`, or nothing.
    pub fn environment(&self, user: &str) -> Environment {
        environment(&format!("http://{user}{}", self.shared.addr))
    }

    /// Connections that came.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// First lines of the requests that were let through.
    pub fn lines(&self) -> Vec<String> {
        self.shared.lines.lock().unwrap().clone()
    }
}

/// The variables that name this proxy.
pub fn environment(proxy: &str) -> Environment {
    Environment::given(["https_proxy", "http_proxy"].map(|name| (name.to_owned(), proxy.to_owned())))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.shared.addr));
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Shared {
    /// One connection, to its end.
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let turn = (self.turns)(self.connections.fetch_add(1, Ordering::Relaxed));
        let mut requests = BufReader::new(stream.try_clone()?);
        let mut behind: Option<TcpStream> = None;
        while let Some(head) = head(&mut requests) {
            let head = std::str::from_utf8(&head).expect("a head is text").trim_end();
            match turn {
                Turn::HangUp => return stream.shutdown(Shutdown::Both),
                Turn::Silence => return requests.read_to_end(&mut Vec::new()).map(drop),
                Turn::Say(answer) => return refuse(&mut stream, answer),
                Turn::Serve | Turn::Slowly | Turn::Cut(_) => {}
            }
            let brought = head.lines().find_map(|line| line.strip_prefix("proxy-authorization: "));
            let brought = brought.or_else(|| head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: ")));
            if self.authorization.is_some() && brought != self.authorization {
                return refuse(&mut stream, "HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n");
            }
            let line = head.lines().next().unwrap_or_default().to_owned();
            self.lines.lock().unwrap().push(line.clone());
            let mut words = line.split(' ');
            let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if method == "CONNECT" {
                let server = connect(target)?;
                let answer = b"HTTP/1.1 200 Connection established\r\n\r\n";
                for piece in answer.chunks(if turn == Turn::Slowly { 1 } else { answer.len() }) {
                    stream.set_nodelay(true)?;
                    stream.write_all(piece)?;
                }
                let (mut up, back) = (server.try_clone()?, stream.try_clone()?);
                std::thread::spawn(move || pump(server, back, turn));
                std::io::copy(&mut requests, &mut up)?;
                return up.shutdown(Shutdown::Write);
            }
            let (host, path) =
                target.strip_prefix("http://").and_then(|rest| Some(rest.split_at(rest.find('/')?))).unwrap();
            if behind.is_none() {
                let server = connect(host)?;
                behind = Some(server.try_clone()?);
                let back = stream.try_clone()?;
                std::thread::spawn(move || pump(server, back, turn));
            }
            let up = behind.as_mut().expect("just connected");
            let kept = |line: &&str| !line.to_ascii_lowercase().starts_with("proxy-");
            let rest: Vec<&str> = head.lines().skip(1).filter(kept).collect();
            up.write_all(format!("{method} {path} HTTP/1.1\r\n{}\r\n\r\n", rest.join("\r\n")).as_bytes())?;
            let len = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<u64>().ok();
            let body = head.lines().find_map(len).unwrap_or(0);
            std::io::copy(&mut requests.by_ref().take(body), up)?;
        }
        behind.map_or(Ok(()), |up| up.shutdown(Shutdown::Write))
    }
}

fn refuse(stream: &mut TcpStream, answer: &str) -> std::io::Result<()> {
    stream.write_all(answer.as_bytes())?;
    stream.shutdown(Shutdown::Both)
}

fn connect(authority: &str) -> std::io::Result<TcpStream> {
    let port = authority.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(80);
    TcpStream::connect(("127.0.0.1", port))
}

/// What the server says, on its way back.
fn pump(mut server: TcpStream, mut back: TcpStream, turn: Turn) {
    let copied = match turn {
        Turn::Cut(most) => std::io::copy(&mut server.take(most), &mut back).map(|_| back.shutdown(Shutdown::Both)),
        _ => std::io::copy(&mut server, &mut back).map(|_| back.shutdown(Shutdown::Write)),
    };
    drop(copied);
}

/// A running tinyproxy that wants `user` and `marked`; ended when dropped. It reaches this machine as `0.0.0.0`.
pub struct Tinyproxy(Process);

impl Tinyproxy {
    /// `None` where it is missing and `FUELRAIL_SKIP` allows that.
    pub fn start() -> Option<Tinyproxy> {
        let server = Process::start("tinyproxy", "TEST_TINYPROXY", |port, folder| {
            let config = folder.join("tinyproxy.conf");
            let text = format!("Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 200\nBasicAuth user marked\n");
            std::fs::write(&config, text).unwrap();
            vec!["-d".into(), "-c".into(), config.display().to_string()]
        });
        server.map(Tinyproxy)
    }

    /// The variables that name it.
    pub fn environment(&self, user: &str) -> Environment {
        environment(&self.0.url().replace("http://", &format!("http://{user}")))
    }
}
