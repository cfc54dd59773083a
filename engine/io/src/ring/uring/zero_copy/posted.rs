//! Completions of a ring with mixed sizes. Most have 16 bytes; one with the flag `F_32` is followed by 16 bytes more, and
//! one with the flag `SKIP` only fills the end of the queue, because a long one does not wrap. Owns nothing.

use io_uring::cqueue::CompletionQueue;

const SKIP: u32 = 1 << 5;
const LONG: u32 = 1 << 15;

/// One completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Posted {
    /// The request's user data.
    pub(in super::super) bits: u64,
    pub(in super::super) result: i32,
    pub(in super::super) flags: u32,
    /// The first 8 of the bytes more, of a long one.
    pub(super) more: Option<u64>,
}

/// Takes all completions the kernel has posted, long and short.
pub(in super::super) struct Mixed<'a>(pub(in super::super) CompletionQueue<'a>);

impl Iterator for Mixed<'_> {
    type Item = Posted;

    fn next(&mut self) -> Option<Posted> {
        let entry = self.0.find(|entry| entry.flags() & SKIP == 0)?;
        let (bits, result, flags) = (entry.user_data(), entry.result(), entry.flags());
        let more = (flags & LONG != 0).then(|| {
            let Some(rest) = self.0.next() else { unreachable!("a completion is published whole") };
            // What is not a completion begins where a completion has its user data.
            rest.user_data()
        });
        Some(Posted { bits, result, flags, more })
    }
}
