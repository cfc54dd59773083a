//! What a bucket counts, and the lock it is counted under.

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
    /// Objects deleted.
    #[serde(default)]
    pub delete_requests: u64,
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
    /// Times a connection had to wait because no file descriptor was left for it.
    #[serde(default)]
    pub accepts_failed: u64,
    /// TLS handshakes in full.
    pub tls_full: u64,
    /// TLS handshakes spared their certificates by a ticket.
    pub tls_resumed: u64,
    /// Injected faults by kind; kinds that never happened are absent.
    pub faults: BTreeMap<FaultKind, u64>,
}

impl Counters {
    /// All requests.
    pub fn requests(&self) -> u64 {
        let plain = self.get_requests + self.head_requests + self.list_requests + self.put_requests;
        let in_parts = self.create_requests + self.part_requests + self.complete_requests + self.abort_requests;
        plain + in_parts + self.delete_requests + self.other_requests
    }

    /// How often faults of this kind were injected.
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.faults.get(&kind).copied().unwrap_or(0)
    }

    /// All injected faults.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// The live counters.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    counters: Mutex<Counters>,
}

impl Tally {
    pub(crate) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.counters.lock().expect("no tally holder panics"));
    }

    pub(crate) fn request(&self, operation: Operation) {
        self.count(|counters| {
            *match operation {
                Operation::Get => &mut counters.get_requests,
                Operation::Head => &mut counters.head_requests,
                Operation::List => &mut counters.list_requests,
                Operation::Put => &mut counters.put_requests,
                Operation::Other => &mut counters.other_requests,
                Operation::Create => &mut counters.create_requests,
                Operation::Part => &mut counters.part_requests,
                Operation::Complete => &mut counters.complete_requests,
                Operation::Abort => &mut counters.abort_requests,
                Operation::Delete => &mut counters.delete_requests,
            } += 1;
        });
    }

    pub(crate) fn fault(&self, kind: FaultKind) {
        self.count(|counters| *counters.faults.entry(kind).or_default() += 1);
    }

    pub(crate) fn connection_opened(&self) {
        self.count(|counters| {
            counters.connections_opened += 1;
            counters.connections_open += 1;
            counters.connections_open_max = counters.connections_open_max.max(counters.connections_open);
        });
    }

    pub(crate) fn snapshot(&self) -> Counters {
        self.counters.lock().expect("no tally holder panics").clone()
    }

    /// Everything to zero but the gauge of open connections, which is also where its maximum restarts.
    pub(crate) fn reset(&self) {
        self.count(|counters| {
            let connections_open = counters.connections_open;
            *counters = Counters { connections_open, connections_open_max: connections_open, ..Counters::default() };
        });
    }
}
