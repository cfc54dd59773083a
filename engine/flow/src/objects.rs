//! The listed objects: where the bucket is, the name of every object and its ETag, and in which object each sample lies. Read-only,
//! shared by all shards.
//!
//! Owns the keys, packed in one string, and 12 bytes a sample where samples are parts of objects. Never fetches anything.

use crate::addresses::AddressBook;
use crate::conn::{Secure, Tunnel};
use crate::credential::{Authority, Signatory};
use crate::listing::{Listed, Listing};
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::catalog::{Catalog, Chunk};
use fuelrail_plan::order::Order;
use fuelrail_wire::block::Fingerprint;
use fuelrail_wire::tls::{Client, Session};
use fuelrail_wire::{Endpoint, Etag, Proxy, Scheme};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

/// A server that blocks come from: the bucket's, or another rank's.
#[derive(Clone, Debug)]
pub struct Server {
    endpoint: Endpoint,
    addresses: Arc<AddressBook>,
    tls: Option<Client>,
    proxy: Option<Arc<Proxy>>,
}

impl Server {
    /// A server at this endpoint, reached at these addresses, over TLS with this configuration where there is one.
    pub fn new(endpoint: Endpoint, addresses: Arc<AddressBook>, tls: Option<Client>) -> Server {
        Server { endpoint, addresses, tls, proxy: None }
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
                Err(Error::new(Kind::Usage, "the server uses TLS, but no TLS configuration was given"))
            }
        }
    }

    /// The proxy that requests are sent to in place of the server; `None` over TLS, where the proxy only tunnels.
    pub(crate) fn go_between(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.endpoint.scheme == Scheme::Http)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Its addresses, or those of the proxy before it, tried in turn.
    pub(crate) fn addresses(&self) -> &Arc<AddressBook> {
        &self.addresses
    }
}

/// The data set's names and sizes.
#[derive(Debug)]
pub struct Objects {
    server: Server,
    authority: Option<Arc<Authority>>,
    catalog: Arc<Catalog>,
    /// Keys and tags; the lengths of objects that are samples are the catalog's.
    names: Listing,
    /// Where samples are parts of objects.
    ranges: Option<Ranges>,
}

/// A sample that is a part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The object's place in the listing.
    pub object: u32,
    /// First byte in the object.
    pub first: u64,
    /// Length, bytes.
    pub len: u64,
}

impl ByteRange {
    /// All of an object of `len` bytes, in pieces of `piece_len`; the last may be shorter.
    pub fn pieces(object: u32, len: u64, piece_len: u64) -> impl Iterator<Item = ByteRange> {
        (0..len.div_ceil(piece_len)).map(move |n| {
            let first = n * piece_len;
            ByteRange { object, first, len: piece_len.min(len - first) }
        })
    }
}

const CHUNK_BYTES_MAX: u64 = 64 << 20;
/// Bytes between the samples of a chunk are at most one in so many of theirs: they are fetched for nothing.
const GAP_SHARE: u64 = 4;

/// Where the samples lie; their lengths are the catalog's.
#[derive(Debug)]
struct Ranges {
    objects: Vec<u32>,
    firsts: Vec<u64>,
    /// Lengths of the objects, bytes.
    object_lens: Vec<u64>,
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
        let server = Server::new(endpoint, addresses, None);
        Ok(Objects { server, authority: None, catalog, names, ranges: None })
    }

    /// The same objects with other samples: each is a range of bytes of one of them, in the order given.
    ///
    /// # Errors
    /// `Usage` when there is none, or more than a catalog holds; `Mismatch` for a range that its object does not have.
    pub fn cut(self, ranges: &[ByteRange]) -> Result<Objects> {
        let object_lens: Vec<u64> = (0..self.catalog.samples()).map(|at| self.catalog.size(SampleId(at))).collect();
        for ByteRange { object, first, len } in ranges {
            let object_len = object_lens.get(*object as usize).copied().unwrap_or(0);
            if first.checked_add(*len).is_none_or(|end| end > object_len) {
                let cause =
                    format!("the index names {len} bytes from byte {first} on, and the object has {object_len}");
                let error = Error::new(Kind::Mismatch, cause).with_hint("make the index anew: the object has changed");
                return Err(error.with_object(self.names.key(*object as usize)));
            }
        }
        self.sampled(ranges, object_lens)
    }

    /// The same objects with other samples: each is a range of what a part of one of them is unpacked to. No block of theirs is fetched.
    ///
    /// # Errors
    /// `Usage` when there is none, or more than a catalog holds.
    pub fn unpacked(self, ranges: &[ByteRange]) -> Result<Objects> {
        // Of no sample does what a server says of the object hold.
        let object_lens = vec![u64::MAX; self.names.len()];
        self.sampled(ranges, object_lens)
    }

    fn sampled(mut self, ranges: &[ByteRange], object_lens: Vec<u64>) -> Result<Objects> {
        let lens = ranges.iter().map(|range| range.len).collect();
        self.catalog = Arc::new(Catalog::new(lens, self.catalog.block_bytes())?);
        let (objects, firsts) = ranges.iter().map(|range| (range.object, range.first)).unzip();
        self.ranges = Some(Ranges { objects, firsts, object_lens });
        Ok(self)
    }

    /// The same, with samples that the order has near each other read together, as far as they are near each other in an object, too.
    #[must_use]
    pub fn chunked(mut self, order: &Order) -> Objects {
        let (catalog, samples) = (Arc::clone(&self.catalog), self.catalog.samples());
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut at = 0;
        while at < samples {
            let end = order.chunk_of(SampleId(at)).map_or(at + 1, |chunk| chunk.end);
            // The chunk that the sample before ends, and the bytes of its samples.
            let mut open: Option<(Chunk, u64)> = None;
            for sample in (at..end).map(SampleId) {
                let len = catalog.size(sample);
                let is_short = catalog.blocks(sample) == 1 && len <= CHUNK_BYTES_MAX;
                let joined = open.filter(|_| is_short);
                let joined = joined.and_then(|(chunk, held)| Some((self.joined(chunk, held, sample)?, held + len)));
                if joined.is_none() {
                    chunks.extend(open.map(|(chunk, _)| chunk));
                }
                let alone = Chunk { first: sample, samples: 1, bytes: len as u32 };
                open = joined.or(is_short.then_some((alone, len)));
            }
            chunks.extend(open.map(|(chunk, _)| chunk));
            at = end;
        }
        chunks.retain(|chunk| chunk.samples > 1);
        chunks.shrink_to_fit();
        self.catalog = Arc::new(Catalog::clone(&catalog).chunked(chunks));
        self
    }

    /// The place in the listing of the object that a sample lies in.
    pub(crate) fn object_of(&self, sample: SampleId) -> usize {
        self.ranges.as_ref().map_or(sample.0 as usize, |ranges| ranges.objects[sample.0 as usize] as usize)
    }

    /// First byte of a sample in its object, or in what a part of that is unpacked to.
    pub fn first(&self, sample: SampleId) -> u64 {
        self.ranges.as_ref().map_or(0, |ranges| ranges.firsts[sample.0 as usize])
    }

    /// Length of the object that a sample lies in, bytes.
    pub(crate) fn object_len(&self, sample: SampleId) -> u64 {
        let own = |ranges: &Ranges| ranges.object_lens[ranges.objects[sample.0 as usize] as usize];
        self.ranges.as_ref().map_or_else(|| self.catalog.size(sample), own)
    }

    /// Whether a sample is all of its object, so that what a server says of the object holds for it.
    pub(crate) fn is_whole(&self, sample: SampleId) -> bool {
        self.ranges.is_none() || self.catalog.size(sample) == self.object_len(sample)
    }

    /// A chunk, whose samples have so many bytes, with the sample after its last, if that is near enough in the same object.
    fn joined(&self, chunk: Chunk, held: u64, sample: SampleId) -> Option<Chunk> {
        let (last, begin) = (SampleId(sample.0 - 1), self.first(chunk.first));
        let (first, len) = (self.first(sample), self.catalog.size(sample));
        let is_behind = self.object_of(sample) == self.object_of(last) && first >= self.first(last);
        // Windows over tokens overlap.
        let bytes = u64::from(chunk.bytes).max((first + len).saturating_sub(begin));
        let is_near = bytes <= CHUNK_BYTES_MAX && bytes.saturating_sub(held + len) <= held / GAP_SHARE;
        (is_behind && is_near).then_some(Chunk { samples: chunk.samples + 1, bytes: bytes as u32, ..chunk })
    }

    /// Whether samples are objects, and not parts of some.
    pub fn are_whole(&self) -> bool {
        self.ranges.is_none()
    }

    /// The same, over TLS with this configuration, which all connections share.
    #[must_use]
    pub fn over(mut self, tls: Option<Client>) -> Objects {
        self.server.tls = tls;
        self
    }

    /// The same, through a proxy, whose addresses these then are.
    #[must_use]
    pub fn through(mut self, proxy: Option<Arc<Proxy>>) -> Objects {
        self.server.proxy = proxy;
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

    /// The fingerprint of a sample's content, which names it on disk across runs: `None` where the listing gave no ETag.
    pub fn fingerprint(&self, sample: SampleId) -> Option<Fingerprint> {
        let etag = self.etag(sample)?;
        let verified = self.server.tls.as_ref().is_none_or(Client::verifies);
        let whole = Fingerprint::of(&self.server.endpoint, self.key(sample), etag, self.object_len(sample), verified);
        let (first, len) = (self.first(sample), self.catalog.size(sample));
        Some(if self.is_whole(sample) { whole } else { whole.of_range(first, len) })
    }

    /// The same, with long samples laid out for direct transfers to a disk in multiples of `unit` bytes.
    ///
    /// # Errors
    /// As [`Catalog::direct`].
    pub fn direct(mut self, unit: u64) -> Result<Objects> {
        self.catalog = Arc::new(Catalog::clone(&self.catalog).direct(unit)?);
        Ok(self)
    }

    /// The bucket's server.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Where the bucket is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.server.endpoint
    }

    /// The bucket's addresses, or those of the proxy before it, tried in turn.
    pub fn addresses(&self) -> &Arc<AddressBook> {
        &self.server.addresses
    }

    /// Bytes of memory that keys, ETags and sizes take.
    pub fn memory_bytes(&self) -> u64 {
        let each = if self.ranges.is_some() { size_of::<(u32, u64)>() - 4 } else { 0 };
        self.names.memory_bytes() + self.catalog.memory_bytes() + self.catalog.samples() * each as u64
    }

    /// Sizes and blocks.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The key of the object that a sample lies in.
    ///
    /// # Panics
    /// When the id is not of this data set.
    pub fn key(&self, sample: SampleId) -> &str {
        self.names.key(self.object_of(sample))
    }

    /// A sample in a message: its object's key, and its bytes there where it is a part.
    pub fn name(&self, sample: SampleId) -> Cow<'_, str> {
        let (key, first, len) = (self.key(sample), self.first(sample), self.catalog.size(sample));
        if self.is_whole(sample) { key.into() } else { format!("{key} ({len} bytes from byte {first})").into() }
    }

    /// Appends the listed ETag in the form of `If-Match`; nothing where none could match.
    pub(crate) fn push_strong_etag(&self, sample: SampleId, out: &mut String) {
        self.names.push_strong(self.object_of(sample), out);
    }

    /// The listed ETag of the object that a sample lies in, as it stands in `If-Match`; empty where none could match.
    pub fn strong_etag(&self, sample: SampleId) -> String {
        let mut tag = String::new();
        self.push_strong_etag(sample, &mut tag);
        if tag.is_empty() || tag.starts_with('"') { tag } else { format!("\"{tag}\"") }
    }

    /// The listed ETag of the object that a sample lies in.
    pub fn etag(&self, sample: SampleId) -> Option<Etag> {
        self.names.compared(self.object_of(sample))
    }
}
