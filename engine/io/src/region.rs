//! One shard's share of the arena: hands out slots, takes them home from any thread.
//!
//! A region belongs to one thread. Its slots travel: the last holder pushes the slot's header on a lock-free list of
//! the region (push by exchange, taken whole by the owner, so there is no ABA problem), and the owner frees the
//! extent when it next looks. Headers are allocated once; no slot or window costs a heap allocation.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crate::arena::Mapping;
use crate::extent::Extents;
use crate::slot::Slot;
use crate::wake::Waker;

/// End of the list of returned headers.
const NONE: u32 = u32::MAX;

/// The part of a region other threads touch. Lives until the region and the last of its slots and windows are gone.
#[derive(Debug)]
pub(crate) struct Home {
    mapping: Arc<Mapping>,
    headers: Box<[Header]>,
    /// Head of the list of returned headers.
    returned: AtomicU32,
    /// Slots not yet returned.
    out: AtomicUsize,
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct Header {
    /// Holders of this slot: the slot or filling itself and its windows.
    holders: AtomicU32,
    /// Next in the list of returned headers.
    next: AtomicU32,
}

impl Home {
    pub(crate) fn outstanding(&self) -> usize {
        self.out.load(Ordering::Acquire)
    }

    fn take_back(&self, index: u32) {
        self.out.fetch_sub(1, Ordering::Release);
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            self.headers[index as usize].next.store(head, Ordering::Relaxed);
            // Release: the link above, and every byte written to the slot, happen before the owner reuses it.
            match self.returned.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// A counted claim on one slot's memory. The last one to go sends the slot home.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Made by `Arc::into_raw` when the slot was handed out: that one count lives until the last holder is gone.
    home: NonNull<Home>,
    index: u32,
}

impl Hold {
    fn home(&self) -> &Home {
        // SAFETY: the slot's share of the `Arc` (see the field) keeps the home alive until after the last hold's drop.
        unsafe { self.home.as_ref() }
    }

    fn holders(&self) -> &AtomicU32 {
        &self.home().headers[self.index as usize].holders
    }

    /// Holders besides this one. Zero means that everything they wrote is visible here.
    pub(crate) fn others(&self) -> usize {
        self.holders().load(Ordering::Acquire) as usize - 1
    }

    /// Whether both claim the same slot.
    pub(crate) fn same(&self, other: &Hold) -> bool {
        self.home == other.home && self.index == other.index
    }
}

impl Clone for Hold {
    fn clone(&self) -> Hold {
        let before = self.holders().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "windows of one slot are bounded by its bytes");
        Hold { home: self.home, index: self.index }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Release pairs with the fence below and with `others`: writes through this hold come before the slot's reuse.
        if self.holders().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        self.home().take_back(self.index);
        // SAFETY: this was the last hold of the slot, so the one count leaked by `Region::alloc` is given back here,
        // exactly once; `home` is not used after this.
        unsafe { Arc::decrement_strong_count(self.home.as_ptr()) };
    }
}

/// One shard's share of the arena. Belongs to one thread at a time; its slots may go anywhere.
#[derive(Debug)]
pub struct Region {
    home: Arc<Home>,
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
        let header = || Header { holders: AtomicU32::new(0), next: AtomicU32::new(NONE) };
        let home = Home {
            mapping,
            headers: (0..slots).map(|_| header()).collect(),
            returned: AtomicU32::new(NONE),
            out: AtomicUsize::new(0),
            waker: OnceLock::new(),
        };
        Region {
            home: Arc::new(home),
            start,
            extents: Extents::with_pieces(bytes, slots as usize + 1),
            reserved: vec![(0, 0); slots as usize],
            free_headers: (0..slots).rev().collect(),
            not_sync: PhantomData,
        }
    }

    pub(crate) fn home(&self) -> Arc<Home> {
        self.home.clone()
    }

    /// A slot of exactly `len` bytes (zero is allowed), 64-byte aligned, at the lowest free address: memory used last
    /// is used again first. Its content is whatever was there. `None` when no free piece is long enough or all slot
    /// headers are in use.
    pub fn alloc(&mut self, len: usize) -> Option<Slot> {
        self.collect();
        let index = *self.free_headers.last()?;
        let offset = if len == 0 { 0 } else { self.extents.alloc(len as u64)? };
        self.free_headers.pop();
        self.reserved[index as usize] = (offset, len as u64);
        let ptr = self.home.mapping.at(self.start + offset, len);
        self.home.headers[index as usize].holders.store(1, Ordering::Relaxed);
        self.home.out.fetch_add(1, Ordering::Relaxed);
        // One count of the home for the slot and all its windows together; `Hold::drop` gives it back.
        let home = NonNull::new(Arc::into_raw(self.home.clone()).cast_mut()).expect("an Arc is never null");
        Some(Slot::new(Hold { home, index }, ptr, len))
    }

    /// Takes home what was dropped, here or on other threads. [`alloc`](Region::alloc) does so by itself.
    pub fn collect(&mut self) {
        if self.home.returned.load(Ordering::Relaxed) == NONE {
            return;
        }
        // Acquire pairs with the release of every push in the list (a chain of exchanges is one release sequence).
        let mut index = self.home.returned.swap(NONE, Ordering::Acquire);
        while index != NONE {
            let next = self.home.headers[index as usize].next.load(Ordering::Relaxed);
            let (offset, len) = self.reserved[index as usize];
            if len > 0 {
                self.extents.free(offset, len);
            }
            self.free_headers.push(index);
            index = next;
        }
    }

    /// Bytes in this region.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.extents.capacity()
    }

    /// Bytes free, as of the last [`collect`](Region::collect).
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.extents.free_bytes()
    }

    /// Length of the longest free piece, as of the last [`collect`](Region::collect).
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.extents.largest()
    }

    /// Slots (or fillings, or windows of a dropped filling) that are still held by someone.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.home.outstanding()
    }

    /// Sets whom each returned slot wakes, so that a shard waiting for memory need not poll.
    ///
    /// # Panics
    /// When it was set before: a region serves one shard for life.
    pub fn set_waker(&self, waker: Waker) {
        assert!(self.home.waker.set(waker).is_ok(), "a region's waker is set once");
    }
}
