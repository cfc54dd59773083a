//! Where one receive lands: pieces of heads into a connection's scratch memory, pieces of bodies into windows.
//!
//! Owns all the memory it names, so an operation that owns a scatter owns everything the kernel may write to. Only a
//! ring moves the counts of what was received.

use arrayvec::ArrayVec;
use fuelrail_base::limits::SCATTER_PIECES_MAX;

use crate::slot::{Slot, Window};

/// One piece of a receive, and how much of it arrived.
#[derive(Debug)]
pub enum Landed {
    /// Bytes `from..from+got` of the scratch memory were received, of `asked`.
    Head {
        /// Where in the scratch memory the piece starts.
        from: usize,
        /// Bytes asked for.
        asked: usize,
        /// Bytes received.
        got: usize,
    },
    /// The window's cursor moved over `got` bytes, of `asked`.
    Body {
        /// The window, given back.
        window: Window,
        /// Bytes asked for.
        asked: usize,
        /// Bytes received.
        got: usize,
    },
}

/// The list of places one receive fills, in order.
#[derive(Debug)]
pub struct Scatter {
    scratch: Slot,
    /// Where in the scratch memory the next head piece goes.
    next_head: usize,
    asked: usize,
    pieces: ArrayVec<Landed, SCATTER_PIECES_MAX>,
}

impl Scatter {
    /// An empty list over this scratch memory; head pieces fill it from byte 0.
    #[must_use]
    pub fn new(scratch: Slot) -> Scatter {
        Scatter::starting_at(scratch, 0)
    }

    /// The same, with the first `from` bytes of the scratch memory kept (the start of a head received earlier).
    ///
    /// # Panics
    /// When the scratch memory is shorter than `from`.
    #[must_use]
    pub fn starting_at(scratch: Slot, from: usize) -> Scatter {
        assert!(from <= scratch.len(), "the kept part lies inside the scratch memory");
        Scatter { scratch, next_head: from, asked: 0, pieces: ArrayVec::new() }
    }

    /// Adds the next `len` bytes of the scratch memory. False, and nothing is added, when it has no such room, when the
    /// list is full, or when `len` is zero.
    pub fn push_head(&mut self, len: usize) -> bool {
        if len == 0 || len > self.scratch.len() - self.next_head || self.pieces.is_full() {
            return false;
        }
        self.pieces.push(Landed::Head { from: self.next_head, asked: len, got: 0 });
        self.next_head += len;
        self.asked += len;
        true
    }

    /// Adds at most `at_most` bytes of the window, from its cursor on.
    ///
    /// # Errors
    /// Gives the window back when the list is full or there would be nothing to fill.
    pub fn push_body(&mut self, window: Window, at_most: usize) -> Result<(), Window> {
        let asked = at_most.min(window.room());
        if asked == 0 || self.pieces.is_full() {
            return Err(window);
        }
        self.pieces.push(Landed::Body { window, asked, got: 0 });
        self.asked += asked;
        Ok(())
    }

    /// Bytes asked for in all.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Number of pieces.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Takes it apart: the scratch memory, and the pieces in the order they were pushed.
    #[must_use]
    pub fn finish(self) -> (Slot, ArrayVec<Landed, SCATTER_PIECES_MAX>) {
        (self.scratch, self.pieces)
    }

    /// Where the kernel may write, piece by piece: address and length. The memory stays alive and unread as long as
    /// this scatter is kept untouched.
    pub(crate) fn targets(&mut self) -> impl Iterator<Item = (*mut u8, usize)> {
        let scratch = &mut self.scratch;
        self.pieces.iter_mut().map(move |piece| match piece {
            Landed::Head { from, asked, .. } => (scratch.target(*from, *asked), *asked),
            Landed::Body { window, asked, .. } => (window.target(*asked), *asked),
        })
    }

    /// Whether the whole list is one piece of a window (no scratch memory).
    pub(crate) fn is_one_body(&self) -> bool {
        matches!(self.pieces.as_slice(), [Landed::Body { .. }])
    }

    /// Shares out `n` received bytes over the pieces, in order.
    pub(crate) fn advance(&mut self, mut n: usize) {
        assert!(n <= self.asked, "received {n} bytes of {} asked for", self.asked);
        for piece in &mut self.pieces {
            let (asked, got) = match piece {
                Landed::Head { asked, got, .. } | Landed::Body { asked, got, .. } => (*asked, got),
            };
            *got = n.min(asked);
            n -= *got;
            let got = *got;
            if let Landed::Body { window, .. } = piece {
                window.advance(got);
            }
        }
    }

    /// Copies `bytes` to where the kernel would put them, in order, without accounting; returns how many fitted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for piece in &mut self.pieces {
            let asked = match piece {
                Landed::Head { asked, .. } | Landed::Body { asked, .. } => *asked,
            };
            let (now, later) = rest.split_at(rest.len().min(asked));
            match piece {
                Landed::Head { from, .. } => self.scratch[*from..*from + now.len()].copy_from_slice(now),
                Landed::Body { window, .. } => {
                    let filled = window.filled();
                    window.put(now);
                    window.rewind(filled);
                }
            }
            rest = later;
        }
        bytes.len() - rest.len()
    }
}
