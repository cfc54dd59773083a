//! The kernel interface: memory the kernel may write to, the ring that makes it write, and probes of the kernel's abilities.
//!
//! Owns the [`Arena`] (one mapping, a hard byte budget), its [`Slot`]s and [`Window`]s, the [`Ring`] trait with its
//! back-ends ([`UringRing`] on io_uring, [`PollRing`] on epoll, [`SimRing`] in virtual time), wakers, inter-shard channels, and the probes
//! of kernel, cgroup and processor. Knows nothing of HTTP, of blocks or of batches. It is the only crate of the engine
//! with `unsafe`; every such block states what keeps the memory alive, and until which event.

mod arena;
mod cgroup;
mod channel;
#[doc(hidden)]
pub mod conformance;
mod directory;
mod extent;
mod ledger;
mod lent;
mod local;
mod mapped;
#[cfg(all(test, loom))]
mod models;
mod probe;
mod process;
mod region;
mod remote_free;
mod ring;
mod scatter;
mod slot;
mod topology;
#[cfg(test)]
mod tree;
mod volume;
mod wake;

pub use arena::{Arena, ArenaConfig, ArenaReport, Huge, HugePages};
pub use cgroup::{Budget, default_budget};
pub use channel::{Receiver, Sender, channel};
pub use directory::OwnDirectory;
pub use extent::{EXTENT_GRANULE, Extents};
pub use ledger::{Division, SharedWords};
pub use lent::{BorrowedMemory, BorrowedSpan};
pub use local::{LocalListener, LocalSocket, Received, wait_for};
pub use mapped::MappedFile;
pub use probe::{Finding, Grade, Nic, Probe, ProbeConfig, probe, probe_under};
#[doc(hidden)]
pub use process::{
    ForkGuard, MemoryUse, ThreadMeter, ThreadUse, file_bytes_max, give_back_freed, may_write, memory_use,
    monotonic_now, open_files_max, process_cpu, thread_cpu, trim_heap, wall_now,
};
pub use region::Region;
pub use ring::choice::{Backend, RingChoice};
pub use ring::file::{FileFacts, FileMark, FileOptions, Opening, not_regular, open_refusal, open_regular};
#[cfg(feature = "glommio")]
pub use ring::glommio::GlommioRing;
pub use ring::poll::PollRing;
pub use ring::sim::{Host, Replies, SimCounts, SimDisk, SimDiskFailure, SimFaults, SimRing, SimWorld};
#[cfg(feature = "tokio-uring")]
pub use ring::tokio_uring::TokioUringRing;
pub use ring::uring::{Kernel, UringConfig, UringRing, io_uring_refusal};
pub use ring::{Done, FileId, Full, Op, OpId, Ring, RingCounts, RingFacts, SockId};
pub use scatter::{Landed, Scatter};
pub use slot::{Filling, ReadPin, Slot, Window};
pub use topology::{Core, CpuQuota, Topology, allowed_cores, pin_current_thread};
pub use volume::{DIRECT_UNIT_BYTES_MIN, VolumeRoom, direct_unit, is_locked, next_written, preallocate, try_lock};
pub use wake::{Waker, WakerCell};
