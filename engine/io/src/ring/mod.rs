//! The ring: owned operations in, owned operations and results out.
//!
//! An operation owns its memory from [`Ring::push`] until it comes back from [`Ring::pop`], exactly once, whatever
//! happens to it in between. Completions are queued by [`Ring::wait`] and acted on by the caller, never inside the reap.

use std::net::SocketAddr;
use std::path::Path;

use fuelrail_base::{Instant, Result};

use self::file::{FileFacts, FileOptions, Opening};
use self::table::Name;
pub use self::table::{FileId, OpId, SockId};
use crate::directory::OwnDirectory;
use crate::scatter::Scatter;
use crate::slot::{ReadPin, Window};
use crate::wake::Waker;

mod calls;
pub(crate) mod choice;
pub(crate) mod file;
#[cfg(feature = "glommio")]
pub(crate) mod glommio;
mod kernel;
mod op_table;
pub(crate) mod poll;
mod requests;
pub(crate) mod sim;
mod table;
#[cfg(feature = "tokio-uring")]
pub(crate) mod tokio_uring;
pub(crate) mod uring;
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
mod wake_bridge;

/// An operation for the kernel, with everything it needs.
#[derive(Debug)]
pub enum Op {
    /// Connects the socket. Result: zero.
    Connect {
        /// The socket, unconnected.
        sock: SockId,
        /// The peer.
        addr: SocketAddr,
    },
    /// Sends `bytes[from..]`. Result: bytes taken, at least one; the rest is for another operation.
    Send {
        /// The socket, connected.
        sock: SockId,
        /// The message.
        bytes: Vec<u8>,
        /// Bytes of it sent before.
        from: usize,
    },
    /// Receives into the scatter's pieces, in order. Result: bytes received; zero means the peer has finished.
    Recv {
        /// The socket, connected.
        sock: SockId,
        /// Where the bytes go.
        into: Scatter,
    },
    /// Reads from a file into the window's room, from its cursor on. Where the window is padded, the read goes on into the
    /// padding, so that a direct one is aligned. Result: bytes read into the room, which the cursor has moved over; zero
    /// means the end of the file.
    ReadAt {
        /// The file.
        file: FileId,
        /// Where in the file the bytes begin.
        offset: u64,
        /// Where they go.
        into: Window,
    },
    /// Writes `from.bytes()[start..]` to a file. Result: bytes taken, at least one; the rest is for another
    /// operation. The window under the read pin may be delivered, read and dropped meanwhile.
    WriteAt {
        /// The file, open for writing.
        file: FileId,
        /// Where in the file the bytes go.
        offset: u64,
        /// The bytes.
        from: ReadPin,
        /// How many of them to leave out.
        start: usize,
    },
    /// Opens an existing file for reading, without waiting where it is no regular file: check its facts before reading.
    /// Result: zero; [`Opening::file`] is its name then. `EMFILE` also when the ring's table of files is full, `EAGAIN` when the ring
    /// can start no thread for it.
    Open(Opening),
    /// Reads the facts of an open file. Result: zero; `facts` are those of the time it was done.
    Stat {
        /// The file.
        file: FileId,
        /// Its facts.
        facts: FileFacts,
    },
    /// Makes what was written before it was submitted survive a power cut, and the file's length with it. Result: zero.
    SyncData {
        /// The file.
        file: FileId,
    },
}

impl Op {
    /// The socket this is about. `None` for operations on files.
    pub fn sock(&self) -> Option<SockId> {
        match self {
            Op::Connect { sock, .. } | Op::Send { sock, .. } | Op::Recv { sock, .. } => Some(*sock),
            _ => None,
        }
    }

    /// The file this is about. `None` for operations on sockets, and for one that opens a file.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Op::ReadAt { file, .. } | Op::WriteAt { file, .. } | Op::Stat { file, .. } | Op::SyncData { file } => {
                Some(*file)
            }
            _ => None,
        }
    }

    /// The socket or file this is about, by its name in the ring's one table of both; [`Name::NONE`] where one is to be opened.
    pub(crate) fn holding(&self) -> Name {
        match self {
            Op::Connect { sock, .. } | Op::Send { sock, .. } | Op::Recv { sock, .. } => Name::from(*sock),
            Op::ReadAt { file, .. } | Op::WriteAt { file, .. } | Op::Stat { file, .. } | Op::SyncData { file } => {
                Name::from(*file)
            }
            Op::Open(_) => Name::NONE,
        }
    }

    /// Checks what every ring requires of an operation. A transfer of zero bytes has the result of the end of the stream or
    /// file, so it is a bug of the caller.
    pub(crate) fn check(&self) {
        // Beyond this the kernel would take the offset for "where the file's own cursor is".
        let within = |offset: u64| assert!(offset <= i64::MAX as u64, "an offset has at most 63 bits");
        match self {
            Op::Connect { .. } | Op::Open(_) | Op::Stat { .. } | Op::SyncData { .. } => {}
            Op::Send { bytes, from, .. } => assert!(*from < bytes.len(), "a send has at least one byte to send"),
            Op::Recv { into, .. } => assert!(into.asked() > 0, "a receive has at least one byte to fill"),
            Op::ReadAt { into, offset, .. } => {
                within(*offset);
                assert!(into.room() > 0, "a read has at least one byte to fill");
                assert!(!into.is_read_pinned(), "a read fills no window while its slot is read-pinned");
            }
            Op::WriteAt { from, start, offset, .. } => {
                within(*offset);
                assert!(*start < from.len(), "a write has at least one byte to write");
            }
        }
    }
}

/// A completed operation.
#[derive(Debug)]
pub struct Done {
    /// The caller's number, as given to [`Ring::push`].
    pub token: u64,
    /// The operation with all it owns; received bytes are accounted for in its scatter.
    pub op: Op,
    /// Bytes moved (zero where none are to be), or the error number. A cancelled operation ends with `ECANCELED`, unless
    /// it was done before the cancellation reached it; an operation on a stale socket or file ends with `EBADF`.
    pub result: Result<usize, i32>,
}

/// The ring has no room: the operation is returned unchanged. [`Ring::pop`] makes room.
#[derive(Debug)]
pub struct Full(pub Op);

/// Counters of a ring since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingCounts {
    /// System calls that entered the kernel to submit or wait.
    pub enters: u64,
    /// Waits that may have put the thread to sleep.
    pub sleeps: u64,
    /// Operations taken by `push`.
    pub ops: u64,
    /// Operations returned by `pop`.
    pub completions: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Bytes of files that the CPU copied, where a runtime transfers only to memory of its own.
    pub copied_bytes: u64,
}

/// Identity and counters of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingFacts {
    /// Name of the back-end: `uring`, `poll`, `sim`, …
    pub backend: &'static str,
    /// Kernel abilities in use.
    pub abilities: Vec<&'static str>,
    /// Abilities that were requested and refused, with cause and cure. Print these at start.
    pub refusals: Vec<String>,
    /// Counters.
    pub counts: RingCounts,
}

/// One shard's interface to the kernel. Belongs to the thread that made it.
///
/// Dropping a ring cancels everything, waits until the kernel owns nothing, and closes its sockets and files.
pub trait Ring {
    /// The clock of this ring.
    fn now(&self) -> Instant;

    /// A new TCP socket of the address's family, with Nagle's algorithm off.
    ///
    /// # Errors
    /// `Environment` when the process has no file descriptor left or the family is not supported, `Budget` when the
    /// ring's socket table is full.
    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId>;

    /// Closes a socket. Operations still on it are cancelled and complete through [`pop`](Ring::pop); the descriptor
    /// is freed when the last of them is reaped. A stale id is ignored.
    fn close(&mut self, sock: SockId);

    /// Opens a file, at most [`RING_FILES_MAX`](fuelrail_base::limits::RING_FILES_MAX) at a time. Synchronous, for files
    /// that are opened rarely and kept; for others there is [`Op::Open`].
    ///
    /// # Errors
    /// As [`FileOptions::validate`]; `File` when it cannot be opened or preallocated, or when its file system offers no
    /// direct access and `direct` asks for it; `Environment` when the process has no file descriptor left; `Budget` when
    /// the ring's table is full.
    fn open(&mut self, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.open_in(None, path, options)
    }

    /// The same; of a file that exists and that `directory` has under the last name of the path, if one is given: it is
    /// opened through the directory's descriptor, no link is followed, and it is this user's.
    ///
    /// # Errors
    /// As [`Ring::open`]; `File` when it is no regular file, belongs to another user or has several names.
    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId>;

    /// Closes a file, as [`close`](Ring::close) closes a socket. What was not synced may be lost in a power cut.
    fn close_file(&mut self, file: FileId);

    /// Queues an operation; it is submitted by the next [`wait`](Ring::wait).
    ///
    /// # Errors
    /// [`Full`] gives the operation back when the ring has no room.
    ///
    /// # Panics
    /// When a transfer is of zero bytes, when a window to be filled is read-pinned, or an offset is beyond 2^63 - 1.
    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full>;

    /// Cancels an operation, best effort: it still completes exactly once. A stale id is ignored.
    fn cancel(&mut self, op: OpId);

    /// Submits what is queued, then returns when at least one completion can be popped, a waker was woken, or `until`
    /// has passed (`None`: no limit; an instant that has passed: submit and look, without sleeping). May return early.
    /// Look at all queues after it.
    ///
    /// # Errors
    /// `Environment` when the kernel refuses the ring itself, or after a fork.
    fn wait(&mut self, until: Option<Instant>) -> Result<()>;

    /// The next completed operation.
    fn pop(&mut self) -> Option<Done>;

    /// Operations pushed whose completion [`wait`](Ring::wait) has not seen yet.
    fn in_flight(&self) -> usize;

    /// A handle that ends this ring's sleep from any thread.
    fn waker(&self) -> Waker;

    /// Identity and counters of this ring.
    fn facts(&self) -> RingFacts;
}
