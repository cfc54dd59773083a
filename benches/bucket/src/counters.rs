//! What a bucket counted: live atomics inside (`Tally`), a plain snapshot outside (`Counters`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::script::{FaultKind, Operation};

/// A snapshot of what the bucket counted since its start or since the last reset.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// `GET` requests for objects.
    pub get_requests: u64,
    /// `HEAD` requests.
    pub head_requests: u64,
    /// Listings.
    pub list_requests: u64,
    /// `PUT` requests.
    pub put_requests: u64,
    /// Everything else, answered with an error.
    pub other_requests: u64,
    /// Uploads in parts begun.
    #[serde(default)]
    pub create_requests: u64,
    /// Parts and blocks brought.
    #[serde(default)]
    pub part_requests: u64,
    /// Lists of parts and blocks, which make an object of them.
    #[serde(default)]
    pub complete_requests: u64,
    /// Uploads in parts given up.
    #[serde(default)]
    pub abort_requests: u64,
    /// Uploads in parts under way now. Not reset.
    #[serde(default)]
    pub uploads_open: u64,
    /// Bytes written to sockets: heads, bodies, garbage. Counted right after the write, so a client that has just received
    /// bytes may be ahead of it; every other counter is ahead of the client.
    pub sent_bytes: u64,
    /// Object bytes handed to connections. More than arrived where a fault or the client cut a body.
    pub body_bytes: u64,
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connections open now. Not reset.
    pub connections_open: u64,
    /// Largest number of connections open at once.
    pub connections_open_max: u64,
    /// TLS handshakes in full.
    pub tls_full: u64,
    /// TLS handshakes spared their certificates by a ticket.
    pub tls_resumed: u64,
    /// Injected faults by kind; kinds that never happened are absent.
    pub faults: BTreeMap<FaultKind, u64>,
}

impl Counters {
    /// All requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let plain = self.get_requests + self.head_requests + self.list_requests + self.put_requests;
        let in_parts = self.create_requests + self.part_requests + self.complete_requests + self.abort_requests;
        plain + in_parts + self.other_requests
    }

    /// How often faults of this kind were injected.
    #[must_use]
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.faults.get(&kind).copied().unwrap_or(0)
    }

    /// All injected faults.
    #[must_use]
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// The live counters.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    requests: [AtomicU64; Operation::COUNT],
    sent_bytes: AtomicU64,
    body_bytes: AtomicU64,
    opened: AtomicU64,
    open: AtomicU64,
    open_max: AtomicU64,
    tls_full: AtomicU64,
    tls_resumed: AtomicU64,
    faults: Mutex<BTreeMap<FaultKind, u64>>,
}

impl Tally {
    pub(crate) fn request(&self, operation: Operation) {
        self.requests[operation as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn body(&self, bytes: usize) {
        self.body_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn fault(&self, kind: FaultKind) {
        *self.faults.lock().expect("no tally holder panics").entry(kind).or_default() += 1;
    }

    pub(crate) fn connection_opened(&self) {
        self.opened.fetch_add(1, Relaxed);
        let open = self.open.fetch_add(1, Relaxed) + 1;
        self.open_max.fetch_max(open, Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    pub(crate) fn tls_handshake(&self, resumed: bool) {
        if resumed { &self.tls_resumed } else { &self.tls_full }.fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let requests = |operation: Operation| self.requests[operation as usize].load(Relaxed);
        Counters {
            get_requests: requests(Operation::Get),
            head_requests: requests(Operation::Head),
            list_requests: requests(Operation::List),
            put_requests: requests(Operation::Put),
            other_requests: requests(Operation::Other),
            create_requests: requests(Operation::Create),
            part_requests: requests(Operation::Part),
            complete_requests: requests(Operation::Complete),
            abort_requests: requests(Operation::Abort),
            // The uploads themselves know.
            uploads_open: 0,
            sent_bytes: self.sent_bytes.load(Relaxed),
            body_bytes: self.body_bytes.load(Relaxed),
            connections_opened: self.opened.load(Relaxed),
            connections_open: self.open.load(Relaxed),
            connections_open_max: self.open_max.load(Relaxed),
            tls_full: self.tls_full.load(Relaxed),
            tls_resumed: self.tls_resumed.load(Relaxed),
            faults: self.faults.lock().expect("no tally holder panics").clone(),
        }
    }

    /// Everything to zero but the gauge of open connections, which is also where its maximum restarts.
    pub(crate) fn reset(&self) {
        let rest = [&self.sent_bytes, &self.body_bytes, &self.opened, &self.tls_full, &self.tls_resumed];
        for counter in self.requests.iter().chain(rest) {
            counter.store(0, Relaxed);
        }
        self.open_max.store(self.open.load(Relaxed), Relaxed);
        self.faults.lock().expect("no tally holder panics").clear();
    }
}
