//! What is known of each socket: who waits for it, and whether a call on it would be in vain.
//!
//! One line per place in the ring's table, kept while sockets come and go, so that nothing is allocated after the start.

use std::collections::VecDeque;

use super::epoll::Event;
use crate::ring::table::Name;

/// One direction of a socket.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Operations, oldest first.
    pub(super) queue: VecDeque<Name>,
    /// A call may succeed.
    pub(super) open: bool,
}

/// A socket.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Receives.
    inward: Way,
    /// Connects and sends.
    outward: Way,
    /// Announced to epoll: from then on an edge follows whatever was found wanting.
    pub(super) watched: bool,
    /// The stream has ended or broken: no more edges follow, and calls say how it is.
    pub(super) over: bool,
    /// On the list of those to be served.
    listed: bool,
}

impl Line {
    pub(super) fn way(&mut self, inward: bool) -> &mut Way {
        if inward { &mut self.inward } else { &mut self.outward }
    }

    /// An operation that moved fewer bytes than it asked for has found the end of what there was. That is believed where
    /// an edge follows when there is more, and saves the call that would say so.
    pub(super) fn drained(&self) -> bool {
        self.watched && !self.over
    }
}

/// All lines, and which of them to serve.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Box<[Line]>,
    due: Vec<u32>,
}

impl Lines {
    pub(super) fn new(places: u32) -> Lines {
        Lines { lines: (0..places).map(|_| Line::default()).collect(), due: Vec::with_capacity(places as usize) }
    }

    pub(super) fn line(&mut self, index: u32) -> &mut Line {
        &mut self.lines[index as usize]
    }

    /// A new socket takes this place: nothing is known of it, so everything is worth a try.
    pub(super) fn begin(&mut self, index: u32) {
        let line = self.line(index);
        debug_assert!(line.inward.queue.is_empty() && line.outward.queue.is_empty(), "the last socket's went with it");
        (line.inward.open, line.outward.open, line.watched, line.over) = (true, true, false, false);
    }

    /// Notes an event.
    pub(super) fn note(&mut self, index: u32, event: Event) {
        let line = self.line(index);
        line.inward.open |= event.readable;
        line.outward.open |= event.writable;
        line.over |= event.over;
        self.list(index);
    }

    /// Puts a line on the list when there is something to try on it.
    pub(super) fn list(&mut self, index: u32) {
        let line = &mut self.lines[index as usize];
        let worth_it = [&line.inward, &line.outward].iter().any(|way| way.open && !way.queue.is_empty());
        if worth_it && !line.listed {
            line.listed = true;
            self.due.push(index);
        }
    }

    /// Takes the next line off the list.
    pub(super) fn next_due(&mut self) -> Option<u32> {
        let index = self.due.pop()?;
        self.line(index).listed = false;
        Some(index)
    }

    /// Takes an operation out of the queue it waits in.
    pub(super) fn give_up(&mut self, index: u32, name: Name) {
        let line = self.line(index);
        line.inward.queue.retain(|waiting| *waiting != name);
        line.outward.queue.retain(|waiting| *waiting != name);
    }
}
