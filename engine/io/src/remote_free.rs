//! The remote free list: the part of a region that other threads touch, with the reference counts of its slot headers.
//!
//! Owns the headers, allocated once, and the lock-free list of those returned (push by exchange, taken whole by the
//! region's owner, so there is no ABA problem). Never looks at bytes and never knows which bytes a header stands for.

use core::ptr::NonNull;
use std::sync::Arc;

use fuelrail_base::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::arena::Mapping;
use crate::wake::{Waker, WakerCell};

/// End of the list of returned headers.
const NONE: u32 = u32::MAX;
/// One holder in a header's count.
const HOLDER: u64 = 1;
/// One read pin, which is a holder, too. Both counts are in one number, so that they change together.
const READ_PIN: u64 = 1 << 32 | HOLDER;

/// The part of a region other threads touch. Lives until the region and the last of its slots and windows are gone.
#[derive(Debug)]
pub(crate) struct RemoteFreeList {
    mapping: Arc<Mapping>,
    headers: Box<[Header]>,
    /// Head of the list of returned headers.
    returned: AtomicU32,
    /// Slots not yet returned.
    out: AtomicUsize,
    waker: WakerCell,
}

#[derive(Debug)]
struct Header {
    /// Holders of this slot, in the lower half: the slot or filling itself, its windows and its read pins. The read
    /// pins among them in the upper half.
    holders: AtomicU64,
    /// Next in the list of returned headers.
    next: AtomicU32,
}

impl RemoteFreeList {
    /// A list with so many headers, none of them handed out.
    pub(crate) fn new(mapping: Arc<Mapping>, slots: u32) -> RemoteFreeList {
        let header = || Header { holders: AtomicU64::new(0), next: AtomicU32::new(NONE) };
        RemoteFreeList {
            mapping,
            headers: (0..slots).map(|_| header()).collect(),
            returned: AtomicU32::new(NONE),
            out: AtomicUsize::new(0),
            waker: WakerCell::default(),
        }
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// As [`Mapping::at`].
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        self.mapping.at(offset, len)
    }

    /// The first hold on header `index`, which the region has just taken from its free ones.
    pub(crate) fn hand_out(self: &Arc<RemoteFreeList>, index: u32) -> Hold {
        self.headers[index as usize].holders.store(HOLDER, Ordering::Relaxed);
        self.out.fetch_add(1, Ordering::Relaxed);
        // One count of the list for the slot and all its windows together; the last claim's drop gives it back.
        let remote = NonNull::new(Arc::into_raw(self.clone()).cast_mut()).expect("an Arc is never null");
        Claim { remote, index }
    }

    /// Takes every returned header and shows it to `each`. Only the region's owner calls this.
    pub(crate) fn take_returned(&self, mut each: impl FnMut(u32)) {
        if self.returned.load(Ordering::Relaxed) == NONE {
            return;
        }
        // Acquire pairs with the release of every push in the list (a chain of exchanges is one release sequence).
        let mut index = self.returned.swap(NONE, Ordering::Acquire);
        while index != NONE {
            let next = self.headers[index as usize].next.load(Ordering::Relaxed);
            each(index);
            index = next;
        }
    }

    /// Sets the waker that each returned header wakes; false when it was set before.
    pub(crate) fn set_waker(&self, waker: Waker) -> bool {
        self.waker.set(waker)
    }

    /// Slots handed out and not returned. A number to report: it makes nothing else visible.
    pub(crate) fn outstanding(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    fn take_back(&self, index: u32) {
        self.out.fetch_sub(1, Ordering::Relaxed);
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            self.headers[index as usize].next.store(head, Ordering::Relaxed);
            // Release: the link above, and every byte written to the slot, happen before the owner reuses it.
            match self.returned.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.waker.wake();
    }
}

/// A counted claim on one slot's memory, which counts `WHAT`. When the last one is dropped, the slot is returned.
#[derive(Debug)]
pub(crate) struct Claim<const WHAT: u64> {
    /// Made by `Arc::into_raw` when the slot was handed out: that one count lives until the last claim is dropped.
    remote: NonNull<RemoteFreeList>,
    index: u32,
}

/// A claim of the slot itself or a window.
pub(crate) type Hold = Claim<HOLDER>;
/// A claim that only reads: neither a slot nor a window.
pub(crate) type PinClaim = Claim<READ_PIN>;

impl<const WHAT: u64> Claim<WHAT> {
    fn remote(&self) -> &RemoteFreeList {
        // SAFETY: the slot's share of the `Arc` (see the field) keeps the list alive until after the last claim's drop.
        unsafe { self.remote.as_ref() }
    }

    fn holders(&self) -> &AtomicU64 {
        &self.remote().headers[self.index as usize].holders
    }

    fn another<const OTHER: u64>(&self) -> Claim<OTHER> {
        let before = self.holders().fetch_add(OTHER, Ordering::Relaxed);
        assert!(holders(before) < u64::from(u32::MAX / 2), "windows and read pins of one slot are bounded");
        Claim { remote: self.remote, index: self.index }
    }
}

impl Hold {
    /// Holders besides this one that may write, which read pins may not. Zero means that everything they wrote is visible here.
    pub(crate) fn others(&self) -> usize {
        let now = self.holders().load(Ordering::Acquire);
        (holders(now) - read_pins(now)) as usize - 1
    }

    /// Read pins on the slot. Zero means that all reads through them are over.
    pub(crate) fn read_pins(&self) -> usize {
        read_pins(self.holders().load(Ordering::Acquire)) as usize
    }

    /// Whether both claim the same slot.
    pub(crate) fn same(&self, other: &Hold) -> bool {
        self.remote == other.remote && self.index == other.index
    }

    pub(crate) fn read_pin(&self) -> PinClaim {
        self.another()
    }
}

impl Clone for Hold {
    fn clone(&self) -> Hold {
        self.another()
    }
}

impl<const WHAT: u64> Drop for Claim<WHAT> {
    fn drop(&mut self) {
        // Release pairs with the fence below, with `others` and with `read_pins`: writes and reads through this claim come
        // before the slot's reuse.
        if holders(self.holders().fetch_sub(WHAT, Ordering::Release)) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        self.remote().take_back(self.index);
        // SAFETY: this was the last claim of the slot, so the one count leaked by `RemoteFreeList::hand_out` is given back here,
        // exactly once; `remote` is not used after this.
        unsafe { Arc::decrement_strong_count(self.remote.as_ptr()) };
    }
}

fn holders(count: u64) -> u64 {
    count & u64::from(u32::MAX)
}

fn read_pins(count: u64) -> u64 {
    count >> 32
}
