//! Slots, the only way bytes travel, and the two states around being filled.
//!
//! A [`Slot`] is one owned piece of the arena. To be filled by several receives at once it becomes a [`Filling`], from
//! which [`Window`]s are carved: disjoint by construction, because a cursor only moves forward. A window may travel
//! into an operation of the ring; the bytes can be read again when every window is back and the filling is sealed.
//! A window's bytes can be pinned for reading ([`ReadPin`]); while they are, no byte of their slot can be written.
//!
//! Never copies on its own, never allocates, never frees: a dropped part returns to its region.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::arena::Mapping;
use crate::remote_free::{Hold, PinClaim, RemoteFreeList};

/// Unique owner of a piece of the arena, or borrower of a piece of another process's. Dropped on any thread, it returns to its region.
pub struct Slot {
    hold: Hold,
    ptr: NonNull<u8>,
    len: usize,
    /// It is mapped to be read only: a write would end the process.
    borrowed: bool,
}

// SAFETY: a slot is the only way to its bytes; `hold` keeps the mapping alive until the slot is dropped, on whatever
// thread that happens, and its count is atomic.
unsafe impl Send for Slot {}
// SAFETY: through a shared slot bytes can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) fn new(hold: Hold, ptr: NonNull<u8>, len: usize) -> Slot {
        Slot { hold, ptr, len, borrowed: false }
    }

    /// A slot of memory that another process lends.
    pub(crate) fn borrowed(hold: Hold, ptr: NonNull<u8>, len: usize) -> Slot {
        Slot { hold, ptr, len, borrowed: true }
    }

    /// Whether its bytes are another process's: they can be read, and neither written nor filled anew.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    /// Copies bytes of another process to memory of this one, which can be written, and gives the borrowed memory back.
    ///
    /// # Errors
    /// `Budget` when the system has no memory for that.
    pub fn own(&mut self) -> Result<()> {
        if !self.borrowed {
            return Ok(());
        }
        let mapping =
            Mapping::new(self.len.max(1), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None).map_err(|error| {
                Error::from_io(
                    Kind::Budget,
                    format_args!("copying a shared batch of {}", ByteSize(self.len as u64)),
                    error,
                )
            })?;
        let remote = Arc::new(RemoteFreeList::new(Arc::new(mapping), 1));
        let ptr = remote.at(0, self.len);
        // SAFETY: the new mapping has that many bytes and no other reference to it exists; the old bytes stay mapped as long as this slot's hold.
        unsafe { core::ptr::copy_nonoverlapping(self.ptr.as_ptr(), ptr.as_ptr(), self.len) };
        *self = Slot::new(remote.hand_out(0), ptr, self.len);
        Ok(())
    }

    /// Shortens the slot to `len` bytes. The memory after it stays reserved until the slot is dropped.
    ///
    /// # Panics
    /// When `len` is longer than the slot.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "a slot of {} bytes cannot be truncated to {len}", self.len);
        self.len = len;
    }

    /// Whether it has read pins: then it can be read, and not be written or filled anew.
    pub fn is_read_pinned(&self) -> bool {
        self.hold.read_pins() > 0
    }

    /// Starts filling from byte 0.
    ///
    /// # Panics
    /// While it is read-pinned, or borrowed.
    #[must_use]
    pub fn fill(self) -> Filling {
        self.assert_writable();
        Filling { slot: self, at: 0 }
    }

    fn assert_writable(&self) {
        assert!(!self.is_read_pinned(), "a slot is not written while it is read-pinned");
        assert!(!self.borrowed, "a slot of another process's memory is not written");
    }

    /// Where the kernel may write `len` bytes from `from` on, for operations of the ring only.
    pub(crate) fn target(&mut self, from: usize, len: usize) -> *mut u8 {
        assert!(from + len <= self.len, "a target lies inside its slot");
        self.assert_writable();
        self.ptr.as_ptr().wrapping_add(from)
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr..ptr+len` lies in the mapping, which the hold keeps alive until this slot is dropped; the bytes
        // are initialised (mappings start as zeroes) and not written meanwhile: no window or operation exists while the slot
        // is a slot, and a process that lends memory writes it again only after it was told that the slot is released.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Slot {
    /// # Panics
    /// While it is read-pinned, or borrowed.
    fn deref_mut(&mut self) -> &mut [u8] {
        self.assert_writable();
        // SAFETY: as for `deref`; `&mut self` makes this the only access, because there is no read pin, and only windows, of
        // which there are none while the slot is a slot, could make one.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes)", self.len)
    }
}

/// A slot being filled: its bytes cannot be read until it is sealed.
#[derive(Debug)]
pub struct Filling {
    slot: Slot,
    at: usize,
}

impl Filling {
    /// Takes the next `len` bytes as a window. `None` when fewer are left.
    pub fn carve(&mut self, len: usize) -> Option<Window> {
        self.carve_padded(len, len)
    }

    /// Takes the next `padded` bytes as a window of `len`. What follows `len` is padding for direct access to disks,
    /// where transfers are multiples of a unit: a read from a file may fill it, [`read_pin_padded`](Window::read_pin_padded) takes
    /// it along, and nothing else reads it. It is zeroes until a read fills it. `None` when fewer bytes are left.
    ///
    /// # Panics
    /// When `padded` is less than `len`.
    pub fn carve_padded(&mut self, len: usize, padded: usize) -> Option<Window> {
        assert!(len <= padded, "padding comes on top: {padded} bytes for a window of {len}");
        if padded > self.slot.len - self.at {
            return None;
        }
        // SAFETY: `at <= len of the slot`, so the pointer stays inside (or one past) the slot's memory, kept alive by
        // the clone of the hold until the window is dropped.
        let ptr = unsafe { self.slot.ptr.add(self.at) };
        // SAFETY: `padded` bytes from there on lie inside the slot; the cursor never was beyond them, so nobody else can
        // reach them, and no read pin covers them: a slot is not filled while it has any.
        unsafe { ptr.add(len).write_bytes(0, padded - len) };
        self.at += padded;
        Some(Window {
            hold: self.slot.hold.clone(),
            ptr,
            len,
            filled: 0,
            padding: padded - len,
            was_read_pinned: false,
        })
    }

    /// Skips the next `len` bytes (padding between samples).
    ///
    /// # Panics
    /// When fewer are left.
    pub fn skip(&mut self, len: usize) {
        assert!(len <= self.slot.len - self.at, "cannot skip {len} bytes at {} of {}", self.at, self.slot.len);
        self.at += len;
    }

    /// Skips to the next address that is a multiple of `unit`, as direct access to disks requires. False, and nothing is
    /// skipped, when fewer bytes are left.
    pub fn align(&mut self, unit: usize) -> bool {
        let address = self.slot.ptr.addr().get() + self.at;
        let by = address.next_multiple_of(unit) - address;
        let fits = by <= self.slot.len - self.at;
        if fits {
            self.at += by;
        }
        fits
    }

    /// The cursor: bytes carved or skipped so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Windows not yet dropped; read pins do not count.
    pub fn windows_out(&self) -> usize {
        self.slot.hold.others()
    }

    /// The slot again, with every byte its windows wrote visible to this thread. Read pins may go on.
    ///
    /// # Errors
    /// Gives the filling back while windows are out.
    pub fn seal(self) -> Result<Slot, Filling> {
        if self.windows_out() == 0 { Ok(self.slot) } else { Err(self) }
    }
}

/// The unique right to one part of a filling, with a cursor of how much of it is filled. Dropped on any thread.
///
/// While its slot is pinned ([`is_read_pinned`](Window::is_read_pinned)), every way to change one of them panics.
pub struct Window {
    hold: Hold,
    ptr: NonNull<u8>,
    len: usize,
    filled: usize,
    /// Bytes after `len` that are its own, too: see [`Filling::carve_padded`].
    padding: usize,
    /// Whether it may have read pins. A window without does not look at the count, which is the whole slot's.
    was_read_pinned: bool,
}

// SAFETY: windows of one filling are disjoint, so a window is the only way to its bytes; its hold keeps the mapping
// alive until the window is dropped, on whatever thread that happens.
unsafe impl Send for Window {}
// SAFETY: through a shared window bytes can only be read, and only the filled ones.
unsafe impl Sync for Window {}

impl Window {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes filled so far, from the start.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes still to fill.
    pub fn room(&self) -> usize {
        self.len - self.filled
    }

    /// The filled part.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes lie in the mapping, kept alive by the hold; this window is the only writer
        // of them and is borrowed shared. Read pins only read.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.filled) }
    }

    /// Whether its slot is read-pinned since it was pinned itself: then nothing of it may be changed.
    pub fn is_read_pinned(&self) -> bool {
        self.was_read_pinned && self.hold.read_pins() > 0
    }

    /// Ends its read pins if their readers are done: true when it may be changed, whatever pins its neighbours get from then on.
    pub fn try_unpin(&mut self) -> bool {
        // A slot without a read pin has none of this window, and only this window could make one.
        self.was_read_pinned = self.is_read_pinned();
        !self.was_read_pinned
    }

    /// Pins the filled part for reading, whatever becomes of this window meanwhile.
    #[must_use]
    pub fn read_pin(&mut self) -> ReadPin {
        self.was_read_pinned = true;
        ReadPin { _claim: self.hold.read_pin(), ptr: self.ptr, len: self.filled }
    }

    /// Pins the whole window for reading, rounded up to `unit` bytes by its padding: a direct write takes nothing else. `None` when
    /// its padding is shorter than that: copy the bytes to a place that has some.
    ///
    /// # Panics
    /// When the window is not full: the padding would be apart from what is filled.
    #[must_use]
    pub fn read_pin_padded(&mut self, unit: usize) -> Option<ReadPin> {
        assert!(self.room() == 0, "a window is pinned with its padding when it is full; {} bytes are not", self.room());
        let len = self.len.checked_next_multiple_of(unit).filter(|len| *len <= self.len + self.padding)?;
        self.was_read_pinned = true;
        // The padding lies inside the slot, after this window, and is initialised.
        Some(ReadPin { _claim: self.hold.read_pin(), ptr: self.ptr, len })
    }

    /// Copies from `bytes` with the CPU; returns how many fit.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.assert_not_read_pinned();
        let n = bytes.len().min(self.room());
        // SAFETY: `n` bytes from the cursor on lie inside this window, whose memory the hold keeps alive and which
        // nobody else can reach; `bytes` cannot overlap it, because a borrow of these bytes would borrow the window.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr().add(self.filled), n) };
        self.filled += n;
        n
    }

    /// The part still to fill, to be written by other means than a copy. Its content is undefined. Call
    /// [`fill`](Window::fill) for the bytes written.
    #[must_use]
    pub fn unfilled_mut(&mut self) -> &mut [u8] {
        self.assert_not_read_pinned();
        // SAFETY: `filled <= len`: the bytes lie inside this window, whose memory the hold keeps alive and which nobody
        // else can reach; they are initialised, because anonymous mappings start as zeroes. The borrow ends before the
        // window can travel into an operation.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr().add(self.filled), self.len - self.filled) }
    }

    /// Moves the cursor over the next `n` bytes, which were written through [`unfilled_mut`](Window::unfilled_mut) or by
    /// the kernel.
    ///
    /// # Panics
    /// When fewer are left.
    pub fn fill(&mut self, n: usize) {
        assert!(n <= self.room(), "cannot fill {n} bytes of {}", self.room());
        self.filled += n;
    }

    /// Moves the cursor back to `filled` bytes: what follows will be filled again.
    ///
    /// # Panics
    /// When the cursor is not that far yet.
    pub fn rewind(&mut self, filled: usize) {
        assert!(filled <= self.filled, "cannot rewind from {} to {filled}", self.filled);
        self.assert_not_read_pinned();
        self.filled = filled;
    }

    /// Splits in two at byte `at`: this window keeps `0..at`, the returned one is `at..len`, with the padding. The filled
    /// part is shared out accordingly.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use = "the part after `at` would be given up"]
    pub fn split_off(&mut self, at: usize) -> Window {
        assert!(at <= self.len, "cannot split a window of {} bytes at {at}", self.len);
        // SAFETY: `at <= len`: the pointer stays inside (or one past) this window's memory; the clone of the hold keeps
        // it alive until the second window is dropped.
        let ptr = unsafe { self.ptr.add(at) };
        let tail = Window {
            hold: self.hold.clone(),
            ptr,
            len: self.len - at,
            filled: self.filled.saturating_sub(at),
            padding: self.padding,
            was_read_pinned: self.was_read_pinned,
        };
        (self.len, self.filled, self.padding) = (at, self.filled.min(at), 0);
        tail
    }

    /// Makes one window of two neighbours.
    ///
    /// # Errors
    /// Gives both back unless `next` starts where this one ends, in the same slot, and this one is full (or nothing of
    /// `next` is filled: the cursor must stay one number).
    pub fn join(mut self, next: Window) -> Result<Window, (Window, Window)> {
        // No window starts inside this one's padding.
        let adjacent = self.hold.same(&next.hold) && self.ptr.as_ptr().wrapping_add(self.len) == next.ptr.as_ptr();
        if !adjacent || (self.room() > 0 && next.filled > 0) {
            return Err((self, next));
        }
        self.len += next.len;
        self.filled += next.filled;
        self.padding += next.padding;
        self.was_read_pinned |= next.was_read_pinned;
        Ok(self)
    }

    /// Where the kernel may write the next `len` bytes, for operations of the ring only.
    pub(crate) fn target(&mut self, len: usize) -> *mut u8 {
        assert!(len <= self.reach(), "a target lies inside its window");
        self.assert_not_read_pinned();
        self.ptr.as_ptr().wrapping_add(self.filled)
    }

    /// Bytes a read from a file may fill: the room, and the padding after it.
    pub(crate) fn reach(&self) -> usize {
        self.room() + self.padding
    }

    /// Writes the bytes of a read where the kernel would, padding included, without moving the cursor.
    pub(crate) fn read_in(&mut self, bytes: &[u8]) {
        let target = self.target(bytes.len());
        // SAFETY: that many bytes from the cursor on lie inside this window and its padding, which nobody else can reach
        // and of which there is no read pin; `bytes` cannot overlap them, because a borrow of these would borrow the window.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    fn assert_not_read_pinned(&mut self) {
        assert!(self.try_unpin(), "a window is not written while its slot is read-pinned");
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} of {} bytes)", self.filled, self.len)
    }
}

/// A read-only claim on bytes of a slot: what a write to a file takes along while their window travels on, is delivered or dropped.
/// The slot is neither returned nor written before this is dropped, on whatever thread that happens.
pub struct ReadPin {
    /// Keeps the memory.
    _claim: PinClaim,
    /// These bytes lie in the claimed slot and are initialised.
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the claim keeps the mapping alive until it is dropped, on whatever thread that happens, and its count is atomic;
// the bytes are only read.
unsafe impl Send for ReadPin {}
// SAFETY: as above.
unsafe impl Sync for ReadPin {}

impl ReadPin {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping, which the claim keeps alive; they are initialised, and not written
        // while their slot has a read pin: every function that writes checks first.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Deref for ReadPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for ReadPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadPin({} bytes)", self.len)
    }
}
