//! A small HTTP server on a thread of its own: what serves other ranks, and the page of metrics.
//!
//! Owns the listener, the connections and the thread. hyper parses the requests; nothing here looks into them.

use crate::client::runtime;
use crate::system::spawn;
use core::fmt::Display;
use core::future::Future;
use fuelrail_base::{Error, Kind, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::{Error as IoError, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that wait to be accepted: what kernels allow by default.
const BACKLOG: i32 = 4096;
/// The longest head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is sent.
pub(crate) type Answer = Response<Full<Bytes>>;

/// TLS, and who is told of handshakes that failed for what either side showed the other.
pub(crate) type Tls = (TlsAcceptor, Arc<dyn Fn(IpAddr, &IoError) + Send + Sync>);

/// The server's thread; it ends with this.
pub(crate) struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Calls `answer` with the client's address and its request, over at most so many connections at a time, each of which may be idle for
    /// so long between two requests. `beside` runs on the same thread, and does not end. Its runtime is made here, so that what the system refuses is told.
    pub(crate) fn start<F: Future<Output = Answer> + Send + 'static>(
        name: &str,
        (socket, tls): (StdListener, Option<Tls>),
        limits: (usize, Duration),
        answer: impl Fn(IpAddr, Request<Incoming>) -> F + Clone + Send + 'static,
        beside: impl AsyncFnOnce() + Send + 'static,
    ) -> Result<HttpServer> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(socket).map_err(|e| Error::from_io(Kind::Environment, "listening", &e))?
        };
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    // Dropped with the server.
                    _ = stopped => {}
                    () = serve(listener, tls, limits, answer) => {}
                    () = beside() => {}
                }
            });
        };
        Ok(HttpServer { stop: Some(stop), thread: Some(spawn(name, work)?) })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed, and ended no more than the serving.
            let _ = thread.join();
        }
    }
}

async fn serve<F: Future<Output = Answer> + Send + 'static>(
    listener: TcpListener,
    tls: Option<Tls>,
    (connections, silence): (usize, Duration),
    answer: impl Fn(IpAddr, Request<Incoming>) -> F + Clone + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(connections));
    loop {
        let Ok((socket, from)) = listener.accept().await else {
            // No descriptor is left, say: one comes back.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Beyond the limit a connection is closed at once.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (tls, answer) = (tls.clone(), answer.clone());
        let answer = move |request| answer(from.ip(), request);
        tokio::spawn(async move {
            let _place = place;
            let _ = socket.set_nodelay(true);
            match tls {
                None => talk(socket, silence, answer).await,
                Some((tls, failed)) => match tokio::time::timeout(PATIENCE, tls.accept(socket)).await {
                    Ok(Ok(socket)) => talk(socket, silence, answer).await,
                    // Who only hangs up has shown nothing.
                    Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => failed(from.ip(), &error),
                    Ok(Err(_)) | Err(_) => {}
                },
            }
        });
    }
}

/// Serves one connection to its end. An error on it ends that connection only.
async fn talk<F: Future<Output = Answer> + Send + 'static>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    silence: Duration,
    answer: impl Fn(Request<Incoming>) -> F + Send,
) {
    let answer = service_fn(move |request| {
        let answer = answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(silence).max_buf_size(HEAD_BYTES_MAX);
    let _ = http.serve_connection(TokioIo::new(io), answer).await;
}

/// The address that a setting gives to listen at.
///
/// # Errors
/// `Usage` when it is none.
pub(crate) fn address_of(setting: &str, text: &str) -> Result<SocketAddr> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        let cause = format!("{setting}: '{text}' is not an address to listen at");
        Error::new(Kind::Usage, cause)
            .with_hint("write HOST:PORT, such as 127.0.0.1:7070, or 0.0.0.0:7070 for all interfaces")
    })
}

/// Listens there.
///
/// # Errors
/// `Environment` when the system refuses it.
pub(crate) fn listen(what: impl Display, address: SocketAddr, hint: &str) -> Result<StdListener> {
    let refused = |e: std::io::Error| {
        Error::from_io(Kind::Environment, format_args!("listening at {address} for {what}"), &e).with_hint(hint)
    };
    let socket = StdListener::bind(address).map_err(refused)?;
    socket.set_nonblocking(true).map_err(refused)?;
    // std asks for 128: a thousand ranks that connect at once would find no place, and try again a second later.
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| refused(errno.into()))?;
    Ok(socket)
}
