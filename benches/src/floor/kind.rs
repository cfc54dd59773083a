//! The kinds of floor: which loop, and where the bytes go.
//!
//! Owns the names.

/// Where the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// Through an arena of the task's size, from end to end and round again.
    Arena,
    /// Into the same mebibyte over and over: it stays in cache.
    Hot,
    /// Nowhere: the kernel drops them (`MSG_TRUNC`). All of a receive but its copy.
    Nowhere,
}

/// Which loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loop {
    /// Blocking `recv` on one connection.
    Recv,
    /// `epoll` over so many connections; none tries 1, 8 and 32 before it is ready and keeps the cheapest.
    Epoll(Option<usize>),
    /// `memcpy` of as many bytes, without any network.
    Copy,
}

/// Bytes asked for by one system call.
pub(super) const RECEIVE_BYTES: usize = 1 << 20;
