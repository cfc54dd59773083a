//! The readiness of each socket: which operations wait for it, and whether a call on it may succeed.
//!
//! One entry per place in the ring's table, kept while sockets come and go, so that nothing is allocated after the start.

use std::collections::VecDeque;

use super::epoll::Event;
use crate::ring::table::Name;

/// One direction of a socket.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Operations, oldest first.
    pub(super) queue: VecDeque<Name>,
    /// A call may succeed.
    pub(super) ready: bool,
}

/// Readiness of a socket, and the operations that wait for it.
#[derive(Debug, Default)]
pub(super) struct SocketReadiness {
    /// Receives.
    inward: Direction,
    /// Connects and sends.
    outward: Direction,
    /// Registered with epoll: from then on an edge follows every `EAGAIN`.
    pub(super) watched: bool,
    /// The stream has ended or broken: no more edges follow, and calls return the state.
    pub(super) over: bool,
    /// On the list of those to be served.
    listed: bool,
}

impl SocketReadiness {
    pub(super) fn direction(&mut self, inward: bool) -> &mut Direction {
        if inward { &mut self.inward } else { &mut self.outward }
    }

    /// Whether an operation that moved fewer bytes than requested leaves the socket not ready: true where an edge follows
    /// when there is more. Saves the call that would return `EAGAIN`.
    pub(super) fn drained(&self) -> bool {
        self.watched && !self.over
    }
}

/// The readiness of all sockets, and which of them to serve.
#[derive(Debug)]
pub(super) struct ReadinessTable {
    sockets: Box<[SocketReadiness]>,
    due: Vec<u32>,
}

impl ReadinessTable {
    pub(super) fn new(places: u32) -> ReadinessTable {
        ReadinessTable {
            sockets: (0..places).map(|_| SocketReadiness::default()).collect(),
            due: Vec::with_capacity(places as usize),
        }
    }

    pub(super) fn socket(&mut self, index: u32) -> &mut SocketReadiness {
        &mut self.sockets[index as usize]
    }

    /// Starts the entry of a new socket: nothing is known of it, so both directions count as ready.
    pub(super) fn begin(&mut self, index: u32) {
        let socket = self.socket(index);
        debug_assert!(
            socket.inward.queue.is_empty() && socket.outward.queue.is_empty(),
            "the last socket's operations were removed with it"
        );
        (socket.inward.ready, socket.outward.ready, socket.watched, socket.over) = (true, true, false, false);
    }

    /// Notes an event.
    pub(super) fn note(&mut self, index: u32, event: Event) {
        let socket = self.socket(index);
        socket.inward.ready |= event.readable;
        socket.outward.ready |= event.writable;
        socket.over |= event.over;
        self.list(index);
    }

    /// Lists a socket that has a waiting operation in a ready direction.
    pub(super) fn list(&mut self, index: u32) {
        let socket = &mut self.sockets[index as usize];
        let has_work =
            [&socket.inward, &socket.outward].iter().any(|direction| direction.ready && !direction.queue.is_empty());
        if has_work && !socket.listed {
            socket.listed = true;
            self.due.push(index);
        }
    }

    /// Removes the next socket from the list.
    pub(super) fn next_due(&mut self) -> Option<u32> {
        let index = self.due.pop()?;
        self.socket(index).listed = false;
        Some(index)
    }

    /// Removes an operation from the queue it waits in.
    pub(super) fn give_up(&mut self, index: u32, name: Name) {
        let socket = self.socket(index);
        socket.inward.queue.retain(|waiting| *waiting != name);
        socket.outward.queue.retain(|waiting| *waiting != name);
    }
}
