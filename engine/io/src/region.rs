//! One shard's share of the arena: hands out slots, takes them back from any thread.
//!
//! A region belongs to one thread. Its slots travel: the last holder pushes the slot's header on the region's
//! [`RemoteFreeList`], and the owner frees the extent when it next looks. Headers are allocated once; no slot or
//! window costs a heap allocation.

use core::cell::Cell;
use core::marker::PhantomData;
use std::sync::Arc;

use crate::arena::Mapping;
use crate::extent::Extents;
use crate::remote_free::RemoteFreeList;
use crate::slot::Slot;
use crate::wake::Waker;

/// One shard's share of the arena. Belongs to one thread at a time; its slots may go anywhere.
#[derive(Debug)]
pub struct Region {
    remote: Arc<RemoteFreeList>,
    /// Offset of this region in the mapping.
    start: u64,
    extents: Extents,
    /// What each header in use has reserved: offset in the region and length.
    reserved: Vec<(u64, u64)>,
    free_headers: Vec<u32>,
    not_sync: PhantomData<Cell<()>>,
}

impl Region {
    pub(crate) fn new(mapping: Arc<Mapping>, start: u64, bytes: u64, slots: u32) -> Region {
        Region {
            remote: Arc::new(RemoteFreeList::new(mapping, slots)),
            start,
            extents: Extents::with_pieces(bytes, slots as usize + 1),
            reserved: vec![(0, 0); slots as usize],
            free_headers: (0..slots).rev().collect(),
            not_sync: PhantomData,
        }
    }

    pub(crate) fn remote(&self) -> Arc<RemoteFreeList> {
        self.remote.clone()
    }

    /// A slot of exactly `len` bytes (zero is allowed), 64-byte aligned, at the lowest free address: memory used last
    /// is used again first. Its content is undefined. `None` when no free piece is long enough or all slot
    /// headers are in use.
    pub fn alloc(&mut self, len: usize) -> Option<Slot> {
        self.collect();
        let index = *self.free_headers.last()?;
        let offset = if len == 0 { 0 } else { self.extents.alloc(len as u64)? };
        self.free_headers.pop();
        self.reserved[index as usize] = (offset, len as u64);
        let ptr = self.remote.at(self.start + offset, len);
        Some(Slot::new(self.remote.hand_out(index), ptr, len))
    }

    /// Frees what was dropped, here or on other threads. [`alloc`](Region::alloc) does so by itself.
    pub fn collect(&mut self) {
        let Region { remote, extents, reserved, free_headers, .. } = self;
        remote.take_returned(|index| {
            let (offset, len) = reserved[index as usize];
            if len > 0 {
                extents.free(offset, len);
            }
            free_headers.push(index);
        });
    }

    /// Bytes in this region.
    pub fn capacity(&self) -> u64 {
        self.extents.capacity()
    }

    /// Bytes free, as of the last [`collect`](Region::collect).
    pub fn free_bytes(&self) -> u64 {
        self.extents.free_bytes()
    }

    /// Slots (or fillings, or windows of a dropped filling) that are still held.
    pub fn outstanding(&self) -> usize {
        self.remote.outstanding()
    }

    /// Sets the waker that each returned slot wakes, so that a shard waiting for memory need not poll.
    ///
    /// # Panics
    /// When it was set before: a region serves one shard for life.
    pub fn set_waker(&self, waker: Waker) {
        assert!(self.remote.set_waker(waker), "a region's waker is set once");
    }
}
