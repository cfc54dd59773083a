//! The bucket as its users hold it: configuration, start, stop. Owns the threads.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::counters::{Counters, Tally};
use crate::dataset::DataSet;
use crate::pace::Alarm;
use crate::script::{Act, Script};
use crate::server::{AccessKey, Hosted, Site, Worker, serve};
use crate::store::{Source, Store, UploadLimits};
use crate::tls::Tls;
use crate::{Error, Result};

/// Most threads a bucket serves with.
const THREADS_MAX: usize = 256;
/// Connections the kernel keeps for us before they are accepted: with fewer, a loader that opens many at once has some of them tried
/// again after a second.
const BACKLOG: u32 = 1024;
/// This process has no descriptor left, …
const EMFILE: i32 = 24;
/// … or the system has none.
const ENFILE: i32 = 23;
/// Accepted connections waiting for a thread to take them.
const HANDED_OVER_MAX: usize = 1024;

/// What to serve and how.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BucketConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The bucket's name: the first part of every path. Not empty, no `/`.
    pub bucket: String,
    /// The objects.
    pub source: Source,
    /// Further buckets of the same server, by name.
    pub others: BTreeMap<String, Source>,
    /// How it misbehaves.
    pub script: Script,
    /// Serving threads, 1 to 256. Connections are dealt to them in turn.
    pub threads: usize,
    /// Whether a folder accepts `PUT` and `DELETE`. A generated set always does, into memory (1 GiB in all).
    pub writable: bool,
    /// What it takes of objects that come in parts, where it is writable.
    pub uploads: UploadLimits,
    /// Whether and how it speaks TLS.
    pub tls: Option<Tls>,
    /// Whether objects up to 1 MiB carry `x-amz-checksum-crc32c` of the whole object.
    pub checksums: bool,
    /// The key that requests must be signed with (AWS version 4); without one, signatures are not looked at. Never serialized.
    #[serde(skip)]
    pub key: Option<AccessKey>,
}

impl Default for BucketConfig {
    /// A thousand digits as bucket `bucket` on a free port of 127.0.0.1, two threads, no script.
    fn default() -> BucketConfig {
        BucketConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            bucket: "bucket".to_owned(),
            source: Source::Generated(DataSet::digits(1000, 0)),
            script: Script::default(),
            threads: 2,
            writable: false,
            uploads: UploadLimits::default(),
            tls: None,
            checksums: true,
            others: BTreeMap::new(),
            key: None,
        }
    }
}

impl BucketConfig {
    /// Whether the fields make sense. Whether the folder exists and the address is free shows at the start.
    ///
    /// # Errors
    /// `Usage` that names the field, its value and its bounds.
    pub fn validate(&self) -> Result<()> {
        for name in self.others.keys().chain([&self.bucket]) {
            if name.is_empty() || name.contains('/') || (name == &self.bucket && self.others.contains_key(name)) {
                let cause = format!("bucket name `{name}` is empty, has a slash or is given twice");
                return Err(Error::usage(cause).cure("use a plain name such as `bucket`"));
            }
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(Error::usage(format!("threads = {} is outside 1 to {THREADS_MAX}", self.threads)));
        }
        for source in self.others.values().chain([&self.source]) {
            if let Source::Generated(set) = source {
                set.validate()?;
            }
        }
        self.uploads.validate()?;
        self.script.validate()
    }
}

/// A running bucket. Dropping it stops it: connections are cut and its threads joined.
pub struct Bucket {
    addr: SocketAddr,
    name: String,
    site: Arc<Site>,
    /// The threads stop when it is dropped.
    stop: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Bucket {
    /// Starts the threads and returns when the socket listens.
    ///
    /// # Errors
    /// `Usage` for a configuration that makes no sense; `System` when the folder or a certificate cannot be read, the address cannot be
    /// bound or a thread cannot be started.
    pub fn start(config: BucketConfig) -> Result<Bucket> {
        config.validate()?;
        let mut buckets = BTreeMap::new();
        for (name, source) in config.others.into_iter().chain([(config.bucket.clone(), config.source)]) {
            let store = Store::open(source, config.writable)?;
            let uploads = store.uploads(config.uploads.clone());
            buckets.insert(name.clone(), Arc::new(Hosted { name, store, uploads }));
        }
        let site = Arc::new(Site {
            buckets,
            tally: Tally::default(),
            alarm: Alarm::start()?,
            checksums: config.checksums.then(Default::default),
            act: RwLock::new(Arc::new(Act::new(config.script))),
            terminator: config.tls.map(|tls| tls.terminator(config.listen.ip())).transpose()?,
            key: config.key,
        });
        let (stop, stopped) = watch::channel(());
        let mut runtimes = Vec::with_capacity(config.threads);
        for _ in 0..config.threads {
            runtimes.push(runtime()?);
        }
        let listener = listen(config.listen, &runtimes[0])?;
        let addr = listener.local_addr().map_err(|e| Error::system("asking for the port", &e))?;
        let (senders, receivers): (Vec<_>, Vec<_>) = runtimes.iter().map(|_| mpsc::channel(HANDED_OVER_MAX)).unzip();
        let mut dealer = Some(deal(listener, senders, Arc::clone(&site)));
        let mut bucket = Bucket { addr, name: config.bucket, site, stop: Some(stop), threads: Vec::new() };
        for (number, (runtime, connections)) in runtimes.into_iter().zip(receivers).enumerate() {
            let (site, stopped, dealer) = (Arc::clone(&bucket.site), stopped.clone(), dealer.take());
            // On failure the bucket is dropped here, which stops the threads that did start.
            let thread = std::thread::Builder::new()
                .name(format!("bucket-{number}"))
                .spawn(move || work(&runtime, site, connections, dealer, stopped))
                .map_err(|e| Error::system("starting a bucket thread", &e))?;
            bucket.threads.push(thread);
        }
        Ok(bucket)
    }

    /// Where it listens, with the port that was taken.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// URL of a key or prefix, percent-encoded; `""` is the bucket itself. A bucket that listens on every address is
    /// reached through the loopback one.
    pub fn url(&self, prefix: &str) -> String {
        const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
        let mut addr = self.addr;
        match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let encode = |text| utf8_percent_encode(text, &PLAIN);
        let scheme = if self.site.terminator.is_some() { "https" } else { "http" };
        format!("{scheme}://{addr}/{}/{}", encode(&self.name), encode(prefix))
    }

    /// The certificate a client must trust, in PEM, when the bucket made it itself.
    pub fn authority(&self) -> Option<&str> {
        self.site.terminator.as_ref()?.authority.as_deref()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        let uploads_open = self.site.buckets.values().map(|bucket| bucket.uploads.count() as u64).sum();
        Counters { uploads_open, ..self.site.tally.snapshot() }
    }

    /// Counts from zero again.
    pub fn reset_counters(&self) {
        self.site.tally.reset();
    }

    /// Plays another script from the next request on; attempts per key start anew. Requests under way keep the old one.
    ///
    /// # Errors
    /// `Usage` for a script that makes no sense; the old one stays.
    pub fn set_script(&self, script: Script) -> Result<()> {
        script.validate()?;
        *self.site.act.write().expect("no act holder panics") = Arc::new(Act::new(script));
        Ok(())
    }

    /// Stops listening, cuts every connection and joins the threads.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.stop.take();
        for thread in self.threads.drain(..) {
            // A panic there has already printed itself; there is nothing left to undo here.
            let _ = thread.join();
        }
    }
}

impl core::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bucket").field("addr", &self.addr).field("bucket", &self.name).finish_non_exhaustive()
    }
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|e| Error::system("starting a runtime", &e))
}

fn listen(addr: SocketAddr, runtime: &Runtime) -> Result<TcpListener> {
    let _inside = runtime.enter();
    let listening = || {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)
    };
    listening().map_err(|e| Error::system(format!("listening on {addr}"), &e).cure("use port 0 for a free one"))
}

/// Accepts connections and deals them to the threads in turn.
async fn deal(listener: TcpListener, threads: Vec<mpsc::Sender<std::net::TcpStream>>, site: Arc<Site>) {
    for thread in threads.iter().cycle() {
        let socket = loop {
            match listener.accept().await.and_then(|(socket, _)| socket.into_std()) {
                Ok(socket) => break socket,
                // Out of descriptors, or the client has gone: what is open must end first.
                Err(error) => {
                    if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
                        site.tally.count(|counters| counters.accepts_failed += 1);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        if thread.send(socket).await.is_err() {
            return;
        }
    }
}

/// One serving thread, until stopped. Dropping the local set cuts its connections.
fn work(
    runtime: &Runtime,
    site: Arc<Site>,
    mut connections: mpsc::Receiver<std::net::TcpStream>,
    dealer: Option<impl Future<Output = ()> + 'static>,
    mut stopped: watch::Receiver<()>,
) {
    let (worker, local) = (Worker::new(site), LocalSet::new());
    if let Some(dealer) = dealer {
        local.spawn_local(dealer);
    }
    let serving = local.run_until(async {
        while let Some(socket) = connections.recv().await {
            // It was a socket a moment ago in the dealer's runtime; if it fails here it was closed meanwhile.
            if let Ok(socket) = TcpStream::from_std(socket) {
                tokio::task::spawn_local(serve(socket, Rc::clone(&worker)));
            }
        }
    });
    runtime.block_on(async {
        tokio::select! {
            () = serving => {}
            _ = stopped.changed() => {}
        }
    });
}
