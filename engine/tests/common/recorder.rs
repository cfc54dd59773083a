//! A server that records which credential each request showed to whom. It is every host at once: requests come to it as to a
//! proxy, or straight, and after `CONNECT` it ends TLS itself, under whichever name was asked for.

use super::secure::{Authority, named};
use super::services::{Answer, Heard};
use fuelrail_bucket::Tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A request as the server it was for saw it; a `CONNECT` is for the proxy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shown {
    /// `http://HOST[:PORT]` or `https://…`.
    pub server: String,
    /// Its path and query, or the authority of a `CONNECT`.
    pub path: String,
    /// `none`, `aws REGION`, `bearer`, `shared key ACCOUNT` or `sas`.
    pub credential: String,
}

type Script = dyn Fn(&Shown) -> Answer + Send + Sync;

struct Shared {
    addr: SocketAddr,
    tls: Arc<ServerConfig>,
    script: Mutex<Arc<Script>>,
    shown: Mutex<Vec<Shown>>,
    open: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

/// The server; ends when dropped.
pub struct Recorder {
    shared: Arc<Shared>,
    authority: Authority,
    acceptor: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Speaks TLS as any of `names`.
    pub fn start(names: &[&str]) -> Recorder {
        let authority = Authority::new("an authority of a test");
        let Tls::Files { certificate, key } = authority.sign_as("all", &named(names)) else {
            panic!("the authority writes files");
        };
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            addr: listener.local_addr().unwrap(),
            tls: Arc::new(config.unwrap()),
            script: Mutex::new(Arc::new(|_: &Shown| Answer::ok("bytes"))),
            shown: Mutex::default(),
            open: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.over.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&accepting)) else { continue };
                shared.open.lock().unwrap().extend(stream.try_clone());
                std::thread::spawn(move || shared.attend(stream));
            }
        });
        Recorder { shared, authority, acceptor: Some(acceptor) }
    }

    /// `http://127.0.0.1:PORT`: to ask it straight, or as a proxy.
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.addr)
    }

    /// Who signs its certificates.
    pub fn ca_file(&self) -> PathBuf {
        self.authority.file()
    }

    /// Answers from here on what `script` makes of a request.
    pub fn answer(&self, script: impl Fn(&Shown) -> Answer + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
    }

    /// Everything shown since this was last asked.
    pub fn take(&self) -> Vec<Shown> {
        std::mem::take(&mut self.shared.shown.lock().unwrap())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        drop(TcpStream::connect(self.shared.addr));
        drop(self.acceptor.take().map(JoinHandle::join));
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    /// One connection, to its end or to a `CONNECT`.
    fn attend(&self, stream: TcpStream) -> Option<()> {
        let _ = stream.set_nodelay(true);
        let mut requests = BufReader::new(stream);
        while let Some((heard, _)) = Heard::read(&mut requests) {
            if let Some(authority) = heard.line.strip_prefix("CONNECT ") {
                self.note(&heard, &format!("proxy {}", self.addr), authority);
                requests.get_mut().write_all(b"HTTP/1.1 200 x\r\n\r\n").ok()?;
                let tls = ServerConnection::new(Arc::clone(&self.tls)).unwrap();
                let host = authority.strip_suffix(":443").unwrap_or(authority);
                let mut inside = BufReader::new(StreamOwned::new(tls, requests.into_inner()));
                while let Some((heard, _)) = Heard::read(&mut inside) {
                    self.serve(&heard, &format!("https://{host}"), inside.get_mut())?;
                }
                return None;
            }
            let target = heard.line.split(' ').nth(1)?.strip_prefix("http://");
            let host = target.map_or(heard.header("host"), |rest| rest.split('/').next().unwrap_or_default());
            self.serve(&heard, &format!("http://{host}"), requests.get_mut())?;
        }
        None
    }

    fn serve(&self, heard: &Heard, server: &str, to: &mut (impl Read + Write)) -> Option<()> {
        let target = heard.line.split(' ').nth(1)?;
        let shown = self.note(heard, server, target.strip_prefix(server).unwrap_or(target));
        let script = Arc::clone(&self.script.lock().unwrap());
        let answer = script(&shown);
        let mut bytes = answer.bytes();
        if heard.line.starts_with("HEAD ") {
            bytes.truncate(bytes.len() - answer.2.len());
        }
        to.write_all(&bytes).and_then(|()| to.flush()).ok()
    }

    fn note(&self, heard: &Heard, server: &str, path: &str) -> Shown {
        let shown = Shown { server: server.into(), path: path.into(), credential: credential(heard) };
        self.shown.lock().unwrap().push(shown.clone());
        shown
    }
}

fn credential(heard: &Heard) -> String {
    let authorization = heard.header("authorization");
    let after = |start: &str| authorization.strip_prefix(start);
    if let Some(scope) = after("AWS4-HMAC-SHA256 Credential=") {
        return format!("aws {}", scope.split('/').nth(2).unwrap_or_default());
    }
    if let Some(account) = after("SharedKey ") {
        return format!("shared key {}", account.split(':').next().unwrap_or_default());
    }
    match () {
        () if after("Bearer ").is_some() => "bearer".into(),
        () if heard.line.contains("sig=") => "sas".into(),
        () if authorization.is_empty() && heard.header("x-amz-security-token").is_empty() => "none".into(),
        () => format!("another: {authorization}"),
    }
}
