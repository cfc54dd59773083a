//! Where slots go home to: the part of a region that other threads touch, and the counted holds on its headers.
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
/// One more holder, in a header's count.
const HOLDER: u64 = 1;
/// One more loan, which is a holder, too. Both are in one number, so that nobody sees the one without the other.
const LOAN: u64 = 1 << 32 | HOLDER;

/// The part of a region other threads touch. Lives until the region and the last of its slots and windows are gone.
#[derive(Debug)]
pub(crate) struct Home {
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
    /// Holders of this slot, in the lower half: the slot or filling itself, its windows and its loans. The loans among
    /// them in the upper half.
    holders: AtomicU64,
    /// Next in the list of returned headers.
    next: AtomicU32,
}

impl Home {
    /// A home of so many headers, none of them handed out.
    pub(crate) fn new(mapping: Arc<Mapping>, slots: u32) -> Home {
        let header = || Header { holders: AtomicU64::new(0), next: AtomicU32::new(NONE) };
        Home {
            mapping,
            headers: (0..slots).map(|_| header()).collect(),
            returned: AtomicU32::new(NONE),
            out: AtomicUsize::new(0),
            waker: WakerCell::default(),
        }
    }

    /// As [`Mapping::at`].
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        self.mapping.at(offset, len)
    }

    /// The first hold of header `index`, which the region has just taken from its free ones.
    pub(crate) fn hand_out(self: &Arc<Home>, index: u32) -> Hold {
        self.headers[index as usize].holders.store(HOLDER, Ordering::Relaxed);
        self.out.fetch_add(1, Ordering::Relaxed);
        // One count of the home for the slot and all its windows together; the last claim's drop gives it back.
        let home = NonNull::new(Arc::into_raw(self.clone()).cast_mut()).expect("an Arc is never null");
        Claim { home, index }
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

    /// Sets whom each returned header wakes; false when that was set before.
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

/// A counted claim on one slot's memory, which counts `WHAT`. The last one to go sends the slot home.
#[derive(Debug)]
pub(crate) struct Claim<const WHAT: u64> {
    /// Made by `Arc::into_raw` when the slot was handed out: that one count lives until the last claim is gone.
    home: NonNull<Home>,
    index: u32,
}

/// A claim of the slot itself or a window.
pub(crate) type Hold = Claim<HOLDER>;
/// A claim that only reads: neither a slot nor a window.
pub(crate) type Loan = Claim<LOAN>;

impl<const WHAT: u64> Claim<WHAT> {
    fn home(&self) -> &Home {
        // SAFETY: the slot's share of the `Arc` (see the field) keeps the home alive until after the last claim's drop.
        unsafe { self.home.as_ref() }
    }

    fn holders(&self) -> &AtomicU64 {
        &self.home().headers[self.index as usize].holders
    }

    fn another<const OTHER: u64>(&self) -> Claim<OTHER> {
        let before = self.holders().fetch_add(OTHER, Ordering::Relaxed);
        assert!(holders(before) < u64::from(u32::MAX / 2), "windows and loans of one slot are bounded");
        Claim { home: self.home, index: self.index }
    }
}

impl Hold {
    /// Holders besides this one that may write, which loans may not. Zero means that everything they wrote is visible here.
    pub(crate) fn others(&self) -> usize {
        let now = self.holders().load(Ordering::Acquire);
        (holders(now) - loans(now)) as usize - 1
    }

    /// Loans of the slot's bytes. Zero means that whoever had one reads no more.
    pub(crate) fn loans(&self) -> usize {
        loans(self.holders().load(Ordering::Acquire)) as usize
    }

    /// Whether both claim the same slot.
    pub(crate) fn same(&self, other: &Hold) -> bool {
        self.home == other.home && self.index == other.index
    }

    pub(crate) fn lend(&self) -> Loan {
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
        // Release pairs with the fence below, with `others` and with `loans`: writes and reads through this claim come
        // before the slot's reuse.
        if holders(self.holders().fetch_sub(WHAT, Ordering::Release)) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        self.home().take_back(self.index);
        // SAFETY: this was the last claim of the slot, so the one count leaked by `Home::hand_out` is given back here,
        // exactly once; `home` is not used after this.
        unsafe { Arc::decrement_strong_count(self.home.as_ptr()) };
    }
}

fn holders(count: u64) -> u64 {
    count & u64::from(u32::MAX)
}

fn loans(count: u64) -> u64 {
    count >> 32
}
