//! Resolves the bucket's host name periodically while a loader runs: clouds return a few of many addresses each time, and withdraw
//! addresses.
//!
//! Owns the thread and the addresses seen lately. Only new connections go to new addresses; open ones stay.

use crate::system::{no_more_files, spawn};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{AddressBook, Closed};
use fuelrail_wire::{Endpoint, Proxy, Scheme};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Between two lookups. Clouds use a TTL of 5 to 300 s.
const EVERY: Duration = Duration::from_secs(30);
/// With many names at least this for each of them: a thousand ranks that look for each other must not overload a cluster's name server.
const EVERY_EACH: Duration = Duration::from_secs(1);
/// An address is used for as long after it was last seen: many addresses share the load, and a failed lookup does no harm.
const KEPT: Duration = Duration::from_secs(300);
/// Most addresses of one host.
const ADDRESSES_MAX: usize = 64;

/// The addresses that connections to `endpoint` go to, looked up now, and again for as long as they are in use if the host is a
/// name: the endpoint's own, or those of its proxy.
pub(crate) fn addresses_of(endpoint: &Endpoint, proxy: Option<&Proxy>) -> Result<Arc<AddressBook>> {
    let mut names = Names::default();
    let book = names.addresses_of(endpoint, proxy)?;
    names.keep()?;
    Ok(book)
}

/// Host names that one thread looks up again, for as long as the addresses of any of them are in use.
#[derive(Default)]
pub(crate) struct Names(Vec<Name>);

struct Name {
    book: Weak<AddressBook>,
    closed: Closed,
    seen: Seen,
    look: Look,
}

type Look = Box<dyn Fn() -> Result<Vec<SocketAddr>> + Send>;

impl Names {
    /// As [`addresses_of`]; they are looked up again from [`Names::keep`] on.
    pub(crate) fn addresses_of(&mut self, endpoint: &Endpoint, proxy: Option<&Proxy>) -> Result<Arc<AddressBook>> {
        if endpoint.scheme == Scheme::File {
            return Ok(Arc::new(AddressBook::new(Vec::new()).0));
        }
        let (name, port, given_by) = match proxy {
            Some(proxy) => (proxy.host.clone(), proxy.port, proxy.variable.clone()),
            None => (endpoint.host.clone(), endpoint.port, "the host name in the URI".into()),
        };
        let is_name = name.parse::<IpAddr>().is_err();
        let look = move || {
            let failed = |why: &dyn std::fmt::Display| {
                let error = Error::new(Kind::Network, format!("cannot resolve '{name}': {why}"));
                error.with_hint(format!("check {given_by}"))
            };
            let refused = |error: std::io::Error| {
                no_more_files(format_args!("resolving '{name}'"), &error).unwrap_or_else(|| failed(&error))
            };
            let found: Vec<_> = (name.as_str(), port).to_socket_addrs().map_err(refused)?.collect();
            if found.is_empty() { Err(failed(&"it has no address")) } else { Ok(found) }
        };
        let found = look()?;
        Ok(if is_name { self.add(found, Box::new(look)) } else { Arc::new(AddressBook::new(found).0) })
    }

    /// Takes in those of another list.
    pub(crate) fn join(&mut self, mut others: Names) {
        self.0.append(&mut others.0);
    }

    fn add(&mut self, found: Vec<SocketAddr>, look: Look) -> Arc<AddressBook> {
        let (book, closed) = AddressBook::new(found.clone());
        let book = Arc::new(book);
        self.0.push(Name { book: Arc::downgrade(&book), closed, seen: Seen::new(found, Instant::now()), look });
        book
    }

    /// Starts the thread, where there is a name.
    pub(crate) fn keep(self) -> Result<()> {
        if !self.0.is_empty() {
            let every = EVERY.max(EVERY_EACH * u32::try_from(self.0.len()).unwrap_or(u32::MAX));
            spawn("fuelrail-names", move || self.look_every(every))?;
        }
        Ok(())
    }

    fn look_every(mut self, every: Duration) {
        while let Some(first) = self.0.first() {
            if first.closed.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                self.0.remove(0);
                continue;
            }
            for Name { book, seen, look, .. } in &mut self.0 {
                // A failed lookup keeps the old addresses: connecting fails soon enough if they are stale.
                if let (Some(book), Ok(found)) = (book.upgrade(), look()) {
                    book.set(seen.add(found, Instant::now()));
                }
            }
        }
    }
}

/// Addresses seen lately.
struct Seen(Vec<(SocketAddr, Instant)>);

impl Seen {
    fn new(found: Vec<SocketAddr>, now: Instant) -> Seen {
        Seen(found.into_iter().map(|addr| (addr, now)).collect())
    }

    /// All that are to be used: the ones of this look first, then those seen lately.
    fn add(&mut self, found: Vec<SocketAddr>, now: Instant) -> Vec<SocketAddr> {
        self.0.retain(|(addr, at)| !found.contains(addr) && now.duration_since(*at) < KEPT);
        let mut all: Vec<(SocketAddr, Instant)> = found.into_iter().map(|addr| (addr, now)).collect();
        all.append(&mut self.0);
        all.dedup_by_key(|(addr, _)| *addr);
        all.truncate(ADDRESSES_MAX);
        self.0 = all;
        let mut addresses: Vec<SocketAddr> = self.0.iter().map(|(addr, _)| *addr).collect();
        // Sorted: the order of a name server's response is no change.
        addresses.sort_unstable();
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn addr(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 443))
    }

    #[test]
    fn addresses_are_used_for_a_while_after_they_were_last_seen() {
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        let mut seen = Seen::new(vec![addr(1), addr(2)], begun);
        assert_eq!(seen.add(vec![addr(3), addr(2)], at(30)), [addr(1), addr(2), addr(3)]);
        assert_eq!(seen.add(vec![addr(3)], at(299)), [addr(1), addr(2), addr(3)]);
        assert_eq!(seen.add(vec![addr(3)], at(300)), [addr(2), addr(3)], "the first was seen at the start alone");
        assert_eq!(seen.add(vec![addr(4)], at(1_000)), [addr(4)]);
        let many = (0..100).map(addr).collect();
        assert_eq!(seen.add(many, at(1_001)).len(), ADDRESSES_MAX);
    }

    #[test]
    fn names_are_looked_up_while_any_is_in_use_and_failures_change_nothing() {
        let (mut names, looks) = (Names::default(), [0, 1].map(|_| Arc::new(AtomicUsize::new(0))));
        let [one, other] = [0, 1].map(|at| {
            let counted = Arc::clone(&looks[at]);
            let look = move || match counted.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Error::new(Kind::Network, "no answer")),
                1 => Ok(Vec::new()),
                _ => Ok(vec![addr(2)]),
            };
            names.add(vec![addr(1)], Box::new(look))
        });
        let thread = std::thread::spawn(move || names.look_every(Duration::from_millis(1)));
        let until = |at: usize, count| {
            while looks[at].load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
        };
        until(1, 5);
        assert_eq!((&*one.addresses(), &*other.addresses()), (&[addr(1), addr(2)][..], &[addr(1), addr(2)][..]));
        drop(one);
        until(1, looks[1].load(Ordering::SeqCst) + 5);
        drop(other);
        thread.join().unwrap();
    }
}
