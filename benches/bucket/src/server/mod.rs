//! The server: HTTP/1.1 on one single-threaded runtime per thread. Heads are parsed by `httparse`; responses are written
//! here, because a script may ask for bytes that no HTTP library sends.
//!
//! ```text
//! service ─── the requests of one connection: script, answer, fault
//!   target, auth, conditions ── what is asked       answer, list ── what is answered
//!     writing, sums ── what is brought: bodies, parts, their checksums
//!       request, reply ── the connection: what comes in, what goes out
//!         here ── what connections share         refusal ── S3's errors and notation
//! ```

mod answer;
mod auth;
mod conditions;
mod list;
mod refusal;
mod reply;
mod request;
mod service;
mod sums;
mod target;
mod writing;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;

use self::refusal::http_date;
use crate::counters::Tally;
use crate::pace::Alarm;
use crate::script::Act;
use crate::store::{Store, Uploads};
use crate::tls::Terminator;

pub use auth::AccessKey;
pub(crate) use conditions::PutCondition;
pub(crate) use list::{Keys, ListQuery, Page, page};
pub(crate) use refusal::Refusal;
pub(crate) use service::serve;
pub(crate) use sums::Summed;

/// Bytes of a full frame of a body, and size of the buffers for frames.
const FRAME_BYTES: usize = 256 << 10;
/// Buffers that a thread keeps for reuse.
const BUFFERS_MAX: usize = 64;

/// State shared by all threads of a server.
pub(crate) struct Site {
    pub(crate) buckets: BTreeMap<String, Arc<Hosted>>,
    pub(crate) tally: Tally,
    pub(crate) alarm: Alarm,
    /// CRC-32C of whole objects, by key and entity tag; `None` when checksums are off.
    pub(crate) checksums: Option<Mutex<HashMap<u64, u32>>>,
    pub(crate) act: RwLock<Arc<Act>>,
    /// Set when the server speaks TLS.
    pub(crate) terminator: Option<Terminator>,
    /// The key that requests must be signed with, if any.
    pub(crate) key: Option<AccessKey>,
}

impl Site {
    fn act(&self) -> Arc<Act> {
        Arc::clone(&self.act.read().expect("no act holder panics"))
    }
}

/// One bucket of a server.
pub(crate) struct Hosted {
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) uploads: Uploads,
}

/// State shared by the connections of one thread.
pub(crate) struct Worker {
    pub(crate) site: Arc<Site>,
    /// Last in, first out, so that the next frame uses a buffer that is still in the CPU cache.
    buffers: RefCell<Vec<Vec<u8>>>,
    /// The second of the last response, and its HTTP date.
    date: RefCell<(u64, String)>,
}

impl Worker {
    pub(crate) fn new(site: Arc<Site>) -> Rc<Worker> {
        Rc::new(Worker { site, buffers: RefCell::default(), date: RefCell::default() })
    }

    /// Runs `work`, which may block on a bucket's disk: on another thread where the bucket has one.
    async fn on<T: Send + 'static>(
        &self,
        bucket: &Arc<Hosted>,
        work: impl FnOnce(&Hosted) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if !bucket.store.blocks() {
            return work(bucket);
        }
        let bucket = Arc::clone(bucket);
        spawn_blocking(move || work(&bucket)).await.unwrap_or_else(|_| Err(Refusal::internal()))
    }

    /// Returns the current time as an HTTP date.
    fn date(&self) -> core::cell::Ref<'_, String> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if self.date.borrow().0 != now_s {
            *self.date.borrow_mut() = (now_s, http_date(now_s));
        }
        core::cell::Ref::map(self.date.borrow(), |(_, date)| date)
    }

    /// Returns a buffer of at least `bytes` bytes with arbitrary content.
    fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.buffers.borrow_mut().pop().unwrap_or_default();
        if buffer.len() < bytes {
            buffer.resize(FRAME_BYTES.max(bytes), 0);
        }
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffer.len() >= FRAME_BYTES && buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
    }
}
