//! What connections share: the bucket's store, script, counters and known checksums, and their thread's buffers.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};

use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_64;

use super::pool::Pool;
use super::refusal::Refusal;
use crate::alarm::Alarm;
use crate::counters::Tally;
use crate::script::Act;
use crate::store::{Object, Store, Uploads};
use crate::tls::Terminator;

/// What all threads of a bucket share.
pub(crate) struct Site {
    pub(crate) bucket: String,
    pub(crate) store: Store,
    pub(crate) uploads: Uploads,
    pub(crate) tally: Tally,
    pub(crate) alarm: Alarm,
    pub(crate) checksums: Option<Checksums>,
    pub(crate) act: RwLock<Arc<Act>>,
    /// Set when the bucket speaks TLS.
    pub(crate) terminator: Option<Terminator>,
}

impl Site {
    pub(super) fn act(&self) -> Arc<Act> {
        Arc::clone(&self.act.read().expect("no act holder panics"))
    }
}

/// What the connections of one thread share.
pub(crate) struct Desk {
    pub(crate) site: Arc<Site>,
    pub(crate) pool: Rc<Pool>,
}

impl Desk {
    /// The object of this key, waited for where that may take a disk.
    pub(super) async fn find(&self, key: &str) -> Result<Object, Refusal> {
        if !self.site.store.blocks() {
            return self.site.store.find(key);
        }
        let (site, key) = (Arc::clone(&self.site), key.to_owned());
        spawn_blocking(move || site.store.find(&key)).await.unwrap_or_else(|_| Err(Refusal::internal()))
    }
}

/// CRC-32C of whole objects, remembered by entity tag and key.
#[derive(Default, Debug)]
pub(crate) struct Checksums {
    known: Mutex<HashMap<u64, u32>>,
}

/// Objects up to this size carry a checksum.
pub(super) const CHECKSUM_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Checksums remembered; beyond it all are forgotten and computed again.
const CHECKSUMS_MAX: usize = 1 << 20;

impl Checksums {
    pub(super) fn identity(key: &str, etag: &str) -> u64 {
        xxh3_64(key.as_bytes()) ^ xxh3_64(etag.as_bytes()).rotate_left(1)
    }

    pub(super) fn get(&self, identity: u64) -> Option<u32> {
        self.known.lock().expect("no checksum holder panics").get(&identity).copied()
    }

    pub(super) fn insert(&self, identity: u64, checksum: u32) {
        let mut known = self.known.lock().expect("no checksum holder panics");
        if known.len() >= CHECKSUMS_MAX {
            known.clear();
        }
        known.insert(identity, checksum);
    }
}
