//! The current addresses of a bucket's host, and which of them the next connection goes to: in turn, but not to one that failed lately.
//!
//! An address whose connects fail, or take long while another is known to be no worse, is shunned for a while that doubles. When all
//! are, the one that is free first is tried. Never connects, never resolves a name.

use fuelrail_base::sync::Mutex;
use fuelrail_base::sync::atomic::{AtomicU64, Ordering};
use fuelrail_base::{Duration, Instant};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};

/// How long an address is shunned after its first failure in a row, …
const SHUNNED_MIN: Duration = Duration::from_secs(1);
/// … and at most.
const SHUNNED_MAX: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Place {
    addr: SocketAddr,
    /// Failures since it last connected.
    failures: u32,
    until: Instant,
}

pub(crate) struct Addresses {
    book: Arc<AddressBook>,
    version: u64,
    places: Vec<Place>,
    next: usize,
}

impl Addresses {
    pub(crate) fn new(book: Arc<AddressBook>) -> Addresses {
        let mut addresses = Addresses { book, version: 0, places: Vec::new(), next: 0 };
        addresses.look();
        addresses
    }

    /// Takes the addresses as they are now. What is known of those that stay is kept.
    fn look(&mut self) {
        let version = self.book.version();
        if version == self.version {
            return;
        }
        self.version = version;
        let known = core::mem::take(&mut self.places);
        let place = |addr: &SocketAddr| {
            let known = known.iter().find(|place| place.addr == *addr);
            known.map_or(Place { addr: *addr, failures: 0, until: Instant::ZERO }, Place::clone)
        };
        self.places = self.book.addresses().iter().map(place).collect();
        self.next %= self.places.len().max(1);
    }

    /// The address of the next connection, preferably not `slow`.
    pub(crate) fn choose(&mut self, now: Instant, slow: Option<SocketAddr>) -> SocketAddr {
        self.look();
        let count = self.places.len();
        let in_turn = (0..count).map(|n| (self.next + n) % count);
        let worth = |at: &usize| {
            let place = &self.places[*at];
            (place.until.max(now), Some(place.addr) == slow)
        };
        let at = in_turn.min_by_key(worth).expect("a bucket has an address");
        self.next = (at + 1) % count;
        self.places[at].addr
    }

    /// A connect to this address succeeded.
    pub(crate) fn connected(&mut self, addr: SocketAddr) {
        if let Some(place) = self.place(addr) {
            (place.failures, place.until) = (0, Instant::ZERO);
        }
    }

    /// A connect to this address failed. Failures at the same time count once.
    pub(crate) fn failed(&mut self, addr: SocketAddr, now: Instant) {
        let Some(place) = self.place(addr).filter(|place| place.until <= now) else { return };
        place.until = now.after((SHUNNED_MIN * (1 << place.failures.min(6))).min(SHUNNED_MAX));
        place.failures += 1;
    }

    /// The machine has no sockets for this address. Whether it may have some for another one.
    pub(crate) fn refused(&mut self, addr: SocketAddr) -> bool {
        let never = Instant::ZERO.after(Duration::MAX);
        if let Some(place) = self.place(addr) {
            place.until = never;
        }
        self.places.iter().any(|place| place.until < never)
    }

    /// Whether there is another address than this one that is not shunned.
    pub(crate) fn has_other(&self, addr: SocketAddr, now: Instant) -> bool {
        self.places.iter().any(|place| place.addr != addr && place.until <= now)
    }

    pub(crate) fn shunned(&self, now: Instant) -> usize {
        self.places.iter().filter(|place| place.until > now).count()
    }

    fn place(&mut self, addr: SocketAddr) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.addr == addr)
    }
}

/// The addresses, and how often they have changed.
///
/// The current addresses of a bucket's host: one thread resolves the name again and writes, all shards read. A shard reads the version
/// before it connects, and takes the list only when it has changed.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(addresses: &[SocketAddr]) -> Addresses {
        Addresses::new(Arc::new(AddressBook::new(addresses.to_vec()).0))
    }

    fn three() -> ([SocketAddr; 3], Addresses) {
        let all = ["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"].map(|text| text.parse().unwrap());
        (all, of(&all))
    }

    fn at(secs: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(secs))
    }

    #[test]
    fn connections_are_spread_over_all_addresses() {
        let ([a, b, c], mut addresses) = three();
        let chosen: Vec<_> = (0..6).map(|_| addresses.choose(at(0), None)).collect();
        assert_eq!(chosen, [a, b, c, a, b, c]);
        assert_eq!(addresses.choose(at(0), Some(a)), b, "rather another than the slow one");
        let mut only = of(&[a]);
        assert_eq!(only.choose(at(0), Some(a)), a);
        assert!(!only.has_other(a, at(0)));
    }

    #[test]
    fn one_that_fails_is_shunned_for_a_while_that_doubles_and_ends_when_it_connects() {
        let ([a, b, c], mut addresses) = three();
        addresses.failed(b, at(10));
        addresses.failed(b, at(10));
        let chosen: Vec<_> = (0..4).map(|_| addresses.choose(at(10), None)).collect();
        assert_eq!((chosen, addresses.shunned(at(10))), (vec![a, c, a, c], 1));
        assert_eq!(addresses.shunned(at(11)), 0, "two failures at a time are one");
        addresses.failed(b, at(11));
        assert_eq!((addresses.shunned(at(12)), addresses.shunned(at(13))), (1, 0));
        for n in 0..20 {
            addresses.failed(b, at(100 * n + 13));
        }
        assert_eq!((addresses.shunned(at(1972)), addresses.shunned(at(1973))), (1, 0), "a minute at most");
        addresses.connected(b);
        addresses.failed(b, at(3_000));
        assert_eq!(addresses.shunned(at(3_001)), 0, "it starts anew");
    }

    #[test]
    fn when_all_are_shunned_the_one_that_is_free_first_is_tried() {
        let ([a, b, c], mut addresses) = three();
        addresses.failed(a, at(0));
        addresses.failed(a, at(5));
        addresses.failed(c, at(5));
        addresses.failed(b, at(6));
        assert_eq!(addresses.choose(at(5), None), c, "until 6; a and b until 7");
        assert!(!addresses.has_other(c, at(5)));
    }

    #[test]
    fn new_addresses_are_used_and_what_is_known_of_the_others_is_kept() {
        let ([a, b, c], mut addresses) = three();
        addresses.failed(b, at(10));
        let d: SocketAddr = "10.0.0.4:80".parse().unwrap();
        addresses.book.set(vec![b, c, d]);
        let chosen: Vec<_> = (0..4).map(|_| addresses.choose(at(10), None)).collect();
        assert!(chosen.iter().all(|addr| [c, d].contains(addr)) && chosen.contains(&d), "{chosen:?}");
        addresses.failed(a, at(10));
        assert_eq!(addresses.shunned(at(10)), 1, "nothing is known of one that is gone");
        addresses.book.set(Vec::new());
        assert!([c, d].contains(&addresses.choose(at(10), None)), "none is no answer");
    }
}
