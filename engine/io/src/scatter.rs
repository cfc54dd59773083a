//! The destinations of one receive: pieces of heads go into a connection's scratch memory, pieces of bodies into windows.
//!
//! Owns all the memory it names, so an operation that owns a scatter owns everything the kernel may write to. Only a
//! ring moves the counts of what was received.

use arrayvec::ArrayVec;
use fuelrail_base::limits::SCATTER_PIECES_MAX;

use crate::slot::{Slot, Window};

/// Longest single transfer handed to the kernel; it may be cut short anyway.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// One piece of a receive, and how much of it arrived.
#[derive(Debug)]
pub enum Landed {
    /// Bytes `from..from+got` of the scratch memory were received, of `asked`.
    Head {
        /// Where in the scratch memory the piece starts.
        from: usize,
        /// Bytes requested.
        asked: usize,
        /// Bytes received.
        got: usize,
    },
    /// The window's cursor moved over `got` bytes, of `asked`.
    Body {
        /// The window, given back.
        window: Window,
        /// Bytes requested.
        asked: usize,
        /// Bytes received.
        got: usize,
    },
}

/// The list of pieces one receive fills, in order. Allocated once: an operation moves a pointer to it, and the next receive
/// fills the same list anew.
#[derive(Debug)]
pub struct Scatter(Box<Inner>);

#[derive(Debug)]
struct Inner {
    scratch: Slot,
    /// Scratch bytes that no head piece may take.
    kept: usize,
    /// Where in the scratch memory the next head piece goes.
    next_head: usize,
    asked: usize,
    /// The low-water mark in bytes; zero: any.
    step: usize,
    pieces: ArrayVec<Landed, SCATTER_PIECES_MAX>,
}

impl Scatter {
    /// An empty list over this scratch memory; head pieces fill it from byte 0.
    ///
    /// # Panics
    /// When the scratch memory is read-pinned.
    pub fn new(scratch: Slot) -> Scatter {
        assert!(!scratch.is_read_pinned(), "no receive goes into scratch memory that is read-pinned");
        Scatter(Box::new(Inner { scratch, kept: 0, next_head: 0, asked: 0, step: 0, pieces: ArrayVec::new() }))
    }

    /// Adds the next `len` bytes of the scratch memory. False, and nothing is added, when it has no such room, when the
    /// list is full, or when `len` is zero.
    pub fn push_head(&mut self, len: usize) -> bool {
        if len == 0 || len > self.0.scratch.len() - self.0.next_head || self.0.pieces.is_full() {
            return false;
        }
        self.0.pieces.push(Landed::Head { from: self.0.next_head, asked: len, got: 0 });
        self.0.next_head += len;
        self.0.asked += len;
        true
    }

    /// Adds at most `at_most` bytes of the window, from its cursor on.
    ///
    /// # Errors
    /// Gives the window back when the list is full or there would be nothing to fill.
    ///
    /// # Panics
    /// When the window is read-pinned.
    pub fn push_body(&mut self, mut window: Window, at_most: usize) -> Result<(), Window> {
        assert!(window.try_unpin(), "a receive fills no window while its slot is read-pinned");
        let asked = at_most.min(window.room());
        if asked == 0 || self.0.pieces.is_full() {
            return Err(window);
        }
        self.0.pieces.push(Landed::Body { window, asked, got: 0 });
        self.0.asked += asked;
        Ok(())
    }

    /// Makes the receive end only when all requested bytes have arrived (or the stream ends, or it is cancelled), with a wake
    /// only for `step_bytes` or more: on a link slower than the core, waking for every few segments costs as much as copying
    /// them. At least `step_bytes` must follow in the stream after the requested bytes, or the end wakes no receiver. A ring
    /// may end it earlier.
    pub fn be_patient(&mut self, step_bytes: usize) {
        self.0.step = step_bytes;
    }

    /// The low-water mark in bytes; zero: any.
    pub fn patience_bytes(&self) -> usize {
        self.0.step
    }

    /// Bytes requested in all.
    pub fn asked(&self) -> usize {
        self.0.asked
    }

    /// Number of pieces.
    pub fn pieces(&self) -> usize {
        self.0.pieces.len()
    }

    /// The scratch memory.
    pub fn scratch(&self) -> &[u8] {
        &self.0.scratch
    }

    /// The scratch memory, to change what was received into it.
    pub fn scratch_mut(&mut self) -> &mut [u8] {
        &mut self.0.scratch
    }

    /// From the next piece on, the first `bytes` bytes of the scratch memory are kept: they hold what was received
    /// earlier and is not used up.
    ///
    /// # Panics
    /// When the scratch memory is shorter, or the list is not empty.
    pub fn keep(&mut self, bytes: usize) {
        assert!(self.0.pieces.is_empty(), "what is kept changes between receives");
        assert!(bytes <= self.0.scratch.len(), "the kept part lies inside the scratch memory");
        (self.0.kept, self.0.next_head) = (bytes, bytes);
    }

    /// Empties the list for the next receive: yields the pieces in the order they were pushed.
    pub fn landed(&mut self) -> impl Iterator<Item = Landed> + '_ {
        let Inner { kept, next_head, asked, step, pieces, .. } = &mut *self.0;
        (*next_head, *asked, *step) = (*kept, 0, 0);
        pieces.drain(..)
    }

    /// Takes it apart: the scratch memory, and the pieces in the order they were pushed.
    #[must_use]
    pub fn finish(self) -> (Slot, ArrayVec<Landed, SCATTER_PIECES_MAX>) {
        let Inner { scratch, pieces, .. } = *self.0;
        (scratch, pieces)
    }

    /// Where the kernel may write, piece by piece: address and length. The memory stays alive and unread as long as
    /// this scatter is kept untouched.
    pub(crate) fn targets(&mut self) -> impl Iterator<Item = (*mut u8, usize)> {
        let Inner { scratch, pieces, .. } = &mut *self.0;
        pieces.iter_mut().map(move |piece| match piece {
            Landed::Head { from, asked, .. } => (scratch.target(*from, *asked), *asked),
            Landed::Body { window, asked, .. } => (window.target(*asked), *asked),
        })
    }

    /// The first target, cut to the longest transfer. The list must not be empty.
    pub(crate) fn first_target(&mut self) -> (*mut u8, usize) {
        let (target, len) = self.targets().next().expect("a receive asks for at least one byte");
        (target, len.min(TRANSFER_BYTES_MAX))
    }

    /// Whether the whole list is one piece of a window (no scratch memory).
    pub(crate) fn is_one_body(&self) -> bool {
        matches!(self.0.pieces.as_slice(), [Landed::Body { .. }])
    }

    /// Distributes `n` received bytes over the pieces, in order.
    pub(crate) fn advance(&mut self, mut n: usize) {
        assert!(n <= self.0.asked, "received {n} bytes of {} asked for", self.0.asked);
        for piece in &mut self.0.pieces {
            let (asked, got) = match piece {
                Landed::Head { asked, got, .. } | Landed::Body { asked, got, .. } => (*asked, got),
            };
            *got = n.min(asked);
            n -= *got;
            let got = *got;
            if let Landed::Body { window, .. } = piece {
                window.fill(got);
            }
        }
    }

    /// Copies `bytes` to where the kernel would put them, in order, without accounting; returns how many fitted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        let Inner { scratch, pieces, .. } = &mut *self.0;
        for piece in pieces {
            let asked = match piece {
                Landed::Head { asked, .. } | Landed::Body { asked, .. } => *asked,
            };
            let (now, later) = rest.split_at(rest.len().min(asked));
            match piece {
                Landed::Head { from, .. } => scratch[*from..][..now.len()].copy_from_slice(now),
                Landed::Body { window, .. } => window.unfilled_mut()[..now.len()].copy_from_slice(now),
            }
            rest = later;
        }
        bytes.len() - rest.len()
    }
}
