//! The listed objects: where the bucket is, the name of every sample and its ETag. Read-only, shared by all shards.
//!
//! Owns the keys, packed in one string. Never fetches anything.

use crate::addresses::AddressBook;
use crate::conn::{Secure, Tunnel};
use crate::credential::{Authority, Signatory};
use crate::listing::{Listed, Listing};
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::catalog::Catalog;
use fuelrail_wire::block::Fingerprint;
use fuelrail_wire::tls::{Client, Session};
use fuelrail_wire::{Endpoint, Etag, Proxy, Scheme};
use std::net::SocketAddr;
use std::sync::Arc;

/// The data set's names and sizes.
#[derive(Debug)]
pub struct Objects {
    endpoint: Endpoint,
    addresses: Arc<AddressBook>,
    tls: Option<Client>,
    proxy: Option<Arc<Proxy>>,
    authority: Option<Arc<Authority>>,
    catalog: Arc<Catalog>,
    /// Keys and tags; the lengths are the catalog's.
    names: Listing,
}

impl Objects {
    /// Packs a listing, in the order given: the place in it is the sample's id.
    ///
    /// # Errors
    /// `Usage` when the listing is empty or out of limits (see [`Catalog::new`]), `Network` when `addresses` is empty.
    pub fn new(endpoint: Endpoint, addresses: Vec<SocketAddr>, listed: &[Listed], block_bytes: u64) -> Result<Objects> {
        let book = Arc::new(AddressBook::new(addresses).0);
        Objects::of(endpoint, book, listed.iter().collect(), block_bytes)
    }

    /// The same, of a listing that is packed already, at addresses that another thread keeps up to date.
    ///
    /// # Errors
    /// As [`Objects::new`].
    pub fn of(
        endpoint: Endpoint,
        addresses: Arc<AddressBook>,
        mut names: Listing,
        block_bytes: u64,
    ) -> Result<Objects> {
        if addresses.addresses().is_empty() && endpoint.scheme != Scheme::File {
            return Err(Error::new(Kind::Network, "the bucket's host has no address"));
        }
        let catalog = Arc::new(Catalog::new(names.take_sizes(), block_bytes)?);
        Ok(Objects { endpoint, addresses, tls: None, proxy: None, authority: None, catalog, names })
    }

    /// The same, over TLS with this configuration, which all connections share.
    #[must_use]
    pub fn over(mut self, tls: Option<Client>) -> Objects {
        self.tls = tls;
        self
    }

    /// The same, through a proxy, whose addresses these then are.
    #[must_use]
    pub fn through(mut self, proxy: Option<Arc<Proxy>>) -> Objects {
        self.proxy = proxy;
        self
    }

    /// The same, with signed requests.
    #[must_use]
    pub fn signed_by(mut self, authority: Option<Arc<Authority>>) -> Objects {
        self.authority = authority;
        self
    }

    /// The signer of one shard's requests, where they are signed.
    pub(crate) fn signatory(&self) -> Option<Signatory> {
        self.authority.clone().map(Signatory::new)
    }

    /// The fingerprint of an object's content, which names it on disk across runs: `None` where the listing gave no ETag.
    #[must_use]
    pub fn fingerprint(&self, sample: SampleId) -> Option<Fingerprint> {
        let etag = self.etag(sample)?;
        let verified = self.tls.as_ref().is_none_or(Client::verifies);
        Some(Fingerprint::of(&self.endpoint, self.key(sample), etag, self.catalog.size(sample), verified))
    }

    /// The same, with long samples laid out for direct transfers to a disk in multiples of `unit` bytes.
    ///
    /// # Errors
    /// As [`Catalog::direct`].
    pub fn direct(mut self, unit: u64) -> Result<Objects> {
        self.catalog = Arc::new(Catalog::clone(&self.catalog).direct(unit)?);
        Ok(self)
    }

    /// The TLS session of a new connection; `None` over plain HTTP.
    ///
    /// # Errors
    /// `Usage` when it uses TLS and no TLS configuration was given; `Environment` when the system has no randomness.
    pub(crate) fn secure(&self) -> Result<Option<Secure>> {
        match (self.endpoint.scheme, &self.tls) {
            (Scheme::Http | Scheme::File, _) => Ok(None),
            (Scheme::Https, Some(client)) => {
                let tunnel = self.proxy.as_ref().map(|proxy| Tunnel::new(Arc::clone(proxy), &self.endpoint));
                Ok(Some(Secure::new(Session::new(client)?, tunnel)))
            }
            (Scheme::Https, None) => {
                Err(Error::new(Kind::Usage, "the bucket uses TLS, but no TLS configuration was given"))
            }
        }
    }

    /// The proxy that requests are sent to in place of the bucket's host; `None` over TLS, where the proxy only tunnels.
    pub(crate) fn go_between(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.endpoint.scheme == Scheme::Http)
    }

    /// Where the bucket is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The bucket's addresses, or those of the proxy before it, tried in turn.
    #[must_use]
    pub fn addresses(&self) -> &Arc<AddressBook> {
        &self.addresses
    }

    /// Bytes of memory that keys, ETags and sizes take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.names.memory_bytes() + self.catalog.samples() * size_of::<u64>() as u64
    }

    /// Sizes and blocks.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The key of a sample.
    ///
    /// # Panics
    /// When the id is not of this data set.
    #[must_use]
    pub fn key(&self, sample: SampleId) -> &str {
        self.names.key(sample.0 as usize)
    }

    /// Appends the listed ETag in the form of `If-Match`; nothing where none could match.
    pub(crate) fn push_strong_etag(&self, sample: SampleId, out: &mut String) {
        self.names.push_strong(sample.0 as usize, out);
    }

    /// The listed ETag of a sample.
    #[must_use]
    pub fn etag(&self, sample: SampleId) -> Option<Etag> {
        self.names.compared(sample.0 as usize)
    }
}
