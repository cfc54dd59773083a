//! The requests of a pass, written before it starts.
//!
//! Owns their text. The order is the one a loader with the same seed would take, so that all see the same file sizes in the
//! same order.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};

use fuelrail::{Error, Kind, Result, read_manifest};
use fuelrail_plan::order::Order;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::harness::Task;

/// What stays as it is in a path.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

#[derive(Debug)]
pub(super) struct Requests {
    address: SocketAddr,
    all: Vec<Request>,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) text: Vec<u8>,
    pub(super) body_bytes: u64,
}

/// A trial is this long: tenths of a second, whatever the size of objects.
const TRIAL_BYTES: u64 = 512 << 20;
const TRIAL_REQUESTS_MAX: usize = 8192;

impl Requests {
    pub(super) fn new(task: &Task) -> Result<Requests> {
        let bad = |why: &str| {
            Error::new(Kind::Usage, format!("{}: {why}", task.uri)).with_hint("give http://HOST[:PORT]/PREFIX/")
        };
        let rest = task.uri.strip_prefix("http://").ok_or_else(|| bad("a floor reads plain http"))?;
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let mut found = with_port.to_socket_addrs().map_err(|error| bad(&error.to_string()))?;
        let address = found.next().ok_or_else(|| bad("the host has no address"))?;
        let listing = read_manifest(&task.manifest)?;
        if listing.is_empty() {
            return Err(Error::new(Kind::Usage, format!("the manifest {} is empty", task.manifest.display())));
        }
        let order = Order::new(listing.len() as u64, task.seed, true).epoch(0);
        let request = |position: u64| {
            let object = &listing[order.sample_at(position).0 as usize];
            let key = utf8_percent_encode(&object.key, &PLAIN);
            let text = format!("GET /{prefix}{key} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            Request { text: text.into_bytes(), body_bytes: object.size }
        };
        Ok(Requests { address, all: (0..listing.len() as u64).map(request).collect() })
    }

    /// The first of them: enough to tell one number of connections from another.
    pub(super) fn trial(&self) -> Requests {
        let mut left = TRIAL_BYTES;
        let enough = |request: &&Request| {
            let wanted = left > 0;
            left = left.saturating_sub(request.body_bytes);
            wanted
        };
        let all = self.all.iter().take(TRIAL_REQUESTS_MAX).take_while(enough).cloned().collect();
        Requests { address: self.address, all }
    }

    pub(super) fn all(&self) -> &[Request] {
        &self.all
    }

    pub(super) fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        stream.map_err(|error| Error::new(Kind::Network, format!("connecting to {}: {error}", self.address)))
    }
}
