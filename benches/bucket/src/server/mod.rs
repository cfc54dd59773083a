//! The server: HTTP/1.1 by hyper on one single-threaded runtime per thread, faults below HTTP by writing to the socket
//! directly.
//!
//! ```text
//! connection ── polls hyper, sends what `pipe` held back, takes the socket over for `raw` faults
//!   service ─── one request: script, answer, fault
//!     target, conditions ── what is asked          answer, list, reply, payload ── what is answered
//! ```

mod answer;
mod conditions;
mod connection;
mod list;
mod payload;
mod pipe;
mod raw;
mod reply;
mod service;
mod target;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};

use xxhash_rust::xxh3::xxh3_64;

use crate::alarm::Alarm;
use crate::counters::Tally;
use crate::script::Act;
use crate::store::Store;

pub(crate) use connection::serve;
pub(crate) use list::{After, Entry, ListQuery, Page, page};
pub(crate) use payload::Pool;
pub(crate) use reply::Refusal;

/// What all threads of a bucket share.
pub(crate) struct Site {
    pub(crate) bucket: String,
    pub(crate) store: Store,
    pub(crate) tally: Tally,
    pub(crate) alarm: Alarm,
    pub(crate) checksums: Option<Checksums>,
    pub(crate) act: RwLock<Arc<Act>>,
}

impl Site {
    fn act(&self) -> Arc<Act> {
        Arc::clone(&self.act.read().expect("no act holder panics"))
    }
}

/// What the connections of one thread share.
pub(crate) struct Desk {
    pub(crate) site: Arc<Site>,
    pub(crate) pool: Rc<Pool>,
}

/// CRC-32C of whole objects, remembered by entity tag and key.
#[derive(Default, Debug)]
pub(crate) struct Checksums {
    known: Mutex<HashMap<u64, u32>>,
}

/// Objects up to this size carry a checksum.
const CHECKSUM_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Checksums remembered; beyond it all are forgotten and computed again.
const CHECKSUMS_MAX: usize = 1 << 20;

impl Checksums {
    fn identity(key: &str, etag: &str) -> u64 {
        xxh3_64(key.as_bytes()) ^ xxh3_64(etag.as_bytes()).rotate_left(1)
    }

    fn get(&self, identity: u64) -> Option<u32> {
        self.known.lock().expect("no checksum holder panics").get(&identity).copied()
    }

    fn insert(&self, identity: u64, checksum: u32) {
        let mut known = self.known.lock().expect("no checksum holder panics");
        if known.len() >= CHECKSUMS_MAX {
            known.clear();
        }
        known.insert(identity, checksum);
    }
}
