//! The kernel's table of descriptors, and those on their way into it.
//!
//! Owns descriptors that operations have opened, until the ring's books know them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use fuelrail_base::{Error, Kind, Result};
use io_uring::IoUring;

use crate::ring::desk::Desk;
use crate::ring::opening::patient;
use crate::ring::table::Name;

pub(super) struct Descriptors {
    /// The kernel has a table for them, in which each has the place it has in the books.
    pub(super) fixed: bool,
    opened: Vec<(Name, OwnedFd)>,
}

impl Descriptors {
    pub(super) fn new(fixed: bool, entries: u32) -> Descriptors {
        Descriptors { fixed, opened: Vec::with_capacity(entries as usize) }
    }

    /// The kernel says how an operation went: what it has opened is kept until [`take_in`](Descriptors::take_in).
    pub(super) fn land(&mut self, desk: &mut Desk<OwnedFd>, name: Name, result: i32) {
        if result < 0 || desk.opening(name).is_none() {
            return desk.land(name, result);
        }
        // SAFETY: the kernel has opened it for this request, and nobody else knows of it.
        self.opened.push((name, unsafe { OwnedFd::from_raw_fd(result) }));
    }

    /// Takes the files in that operations have opened.
    pub(super) fn take_in(&mut self, ring: &IoUring, desk: &mut Desk<OwnedFd>) {
        while let Some((name, fd)) = self.opened.pop() {
            patient(&fd);
            let raw = fd.as_raw_fd();
            let opened = desk.opened(name, fd).is_ok_and(|file| self.register(ring, desk, file.into(), raw).is_ok());
            if !opened && let Some(opening) = desk.opening(name) {
                opening.file = None;
            }
            desk.land(name, if opened { 0 } else { -libc::EMFILE });
        }
    }

    /// Registers the descriptor just taken in; takes it out again when refused.
    pub(super) fn register(&self, ring: &IoUring, desk: &mut Desk<OwnedFd>, id: Name, raw: RawFd) -> Result<()> {
        if self.fixed
            && let Err(error) = ring.submitter().register_files_update(id.index, &[raw])
        {
            desk.discard(id);
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            return Err(Error::from_errno(Kind::Environment, "registering a descriptor with io_uring", errno));
        }
        Ok(())
    }

    /// Clears a place: the table's reference would keep the connection open.
    pub(super) fn clear(&self, ring: &IoUring, index: u32) {
        if self.fixed {
            // Refused only if the index were out of range.
            let cleared = ring.submitter().register_files_update(index, &[-1]);
            debug_assert!(cleared.is_ok(), "{cleared:?}");
        }
    }
}
