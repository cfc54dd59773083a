//! The current addresses of a bucket's host: one thread resolves the name again and writes, all shards read.
//!
//! Owns the list and its version. A shard reads the version before it connects, and takes the list only when it has changed.
//! Never resolves a name, never decides when to.

use fuelrail_base::sync::Mutex;
use fuelrail_base::sync::atomic::{AtomicU64, Ordering};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};

/// The addresses, and how often they have changed.
#[derive(Debug)]
pub struct AddressBook {
    /// Changed under the lock and looked at before it is taken: so the lock makes the list visible.
    version: AtomicU64,
    current: Mutex<Arc<[SocketAddr]>>,
    /// Dropped with the book, which ends the thread that resolves names.
    _open: Sender<()>,
}

/// Disconnected when the last reader of a book is gone.
pub type Closed = Receiver<()>;

impl AddressBook {
    /// A book with these addresses, and the receiver that is disconnected when the book is dropped.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>) -> (AddressBook, Closed) {
        let (open, closed) = channel();
        let book = AddressBook { version: AtomicU64::new(1), current: Mutex::new(addresses.into()), _open: open };
        (book, closed)
    }

    /// The addresses now.
    #[must_use]
    pub fn addresses(&self) -> Arc<[SocketAddr]> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them. An empty list is ignored: the old addresses may still work.
    pub fn set(&self, addresses: Vec<SocketAddr>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !addresses.is_empty() && **current != *addresses {
            *current = addresses.into();
            self.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Grows with every change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}
