//! The back-end on the glommio executor, for programs that live in that executor, and to compare with.
//!
//! The executor is entered by each wait and left when something happened. Sockets are tried without blocking and polled
//! for readiness when there is nothing, so the kernel never keeps an address of ours. Files are read into memory of
//! glommio's and copied once, because it knows no other; the counts say how much.

mod conn;
mod files;
mod inside;
mod polling;

use core::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use glommio::{GlommioError, LocalExecutor, LocalExecutorBuilder, Placement};

use self::files::errno;
use self::inside::Inside;
use self::polling::Judged;
use super::file::{FileOptions, files_open, open_file};
use super::socket::{Blocking, sockets_open, tcp_socket};
use super::uring::{UringConfig, refusal};
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::clock::monotonic_now;
use crate::directory::OwnDirectory;
use crate::fork::ForkGuard;
use crate::wake::Waker;

/// Requests the executor's rings hold: it panics when one has no room for its own timers. More wait in its queues.
const RING_DEPTH_MIN: u32 = 128;
const RING_DEPTH_MAX: u32 = 4096;

/// How long a dropped ring waits for its file operations.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// A ring on glommio. Must be made on the thread that uses it, outside every other executor of glommio.
pub struct GlommioRing {
    executor: ManuallyDrop<LocalExecutor>,
    inside: ManuallyDrop<Inside>,
    judged: Judged,
    waker: Waker,
    guard: ForkGuard,
    refusals: Vec<String>,
}

impl GlommioRing {
    /// Opens an executor for the calling thread. It has 10 MiB of memory for files besides the arena.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment`, with cause and cure, when the kernel refuses.
    pub fn new(config: &UringConfig) -> Result<GlommioRing> {
        config.validate()?;
        // glommio asks nobody before it builds its rings, and some of its refusals are panics.
        super::uring::setup::Mode::Plain.build(8, 16).map_err(|error| refusal(error.raw_os_error().unwrap_or(0)))?;
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .ring_depth(config.entries.next_power_of_two().clamp(RING_DEPTH_MIN, RING_DEPTH_MAX) as usize)
            .make()
            .map_err(|error| not_built(&error))?;
        let (ours, theirs) = UnixStream::pair()
            .and_then(|(ours, theirs)| {
                ours.set_nonblocking(true)?;
                theirs.set_nonblocking(true)?;
                Ok((OwnedFd::from(ours), OwnedFd::from(theirs)))
            })
            .map_err(|error| {
                Error::from_errno(
                    Kind::Environment,
                    "opening a pair of sockets",
                    error.raw_os_error().unwrap_or(libc::EIO),
                )
                .cure("raise the limit of open files (ulimit -n)")
            })?;
        let inside = executor.run(async { Inside::new(config, ours) });
        let mut refusals =
            vec!["files are read and written with one copy each: glommio reaches only its own memory".into()];
        if config.register.is_some() {
            refusals
                .push("the arena is not registered: glommio registers only its own memory; the ring uring does".into());
        }
        Ok(GlommioRing {
            executor: ManuallyDrop::new(executor),
            inside: ManuallyDrop::new(inside),
            judged: Judged::default(),
            waker: Waker::writing(theirs),
            guard: ForkGuard::new(),
            refusals,
        })
    }

    /// Enters the executor: works on what is queued and looks at what came back; stays until something did when `sleep`,
    /// at most for `limit`.
    fn turn(&mut self, sleep: bool, limit: Option<Duration>) {
        let inside = &mut *self.inside;
        inside.desk.counts.enters += 1;
        self.executor.run(async {
            // The executor has looked at its rings on the way in.
            inside.submit();
            let came = inside.collect();
            if sleep && !came && !inside.desk.has_ready() {
                inside.desk.counts.sleeps += 1;
                inside.stay(limit).await;
            }
            inside.unlisten();
            inside.end_idle();
            inside.close_ended().await;
        });
    }

    /// Cancels everything and waits until nothing is under way, within limits. Returns whether that is so.
    fn drain(&mut self) -> bool {
        let deadline = monotonic_now().after(DRAIN_PATIENCE);
        self.inside.ask_all_back();
        while self.inside.desk.in_flight > 0 {
            if monotonic_now() > deadline {
                return false;
            }
            self.turn(true, Some(Duration::from_millis(50)));
        }
        true
    }
}

fn not_built(error: &GlommioError<()>) -> Error {
    match error.raw_os_error() {
        Some(errno) => refusal(errno),
        None => Error::new(Kind::Environment, format!("opening an executor of glommio: {error}"))
            .cure("raise the locked-memory limit to 512 KiB or more (ulimit -l, LimitMEMLOCK=), or use another ring"),
    }
}

impl Ring for GlommioRing {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.guard.check()?;
        self.inside.take_in_socket(tcp_socket(addr, Blocking::No)?).ok_or_else(sockets_open)
    }

    fn close(&mut self, sock: SockId) {
        self.inside.put_away(sock.into());
    }

    fn open_in(&mut self, directory: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.guard.check()?;
        // Made, preallocated and checked as by every ring; then glommio opens it for itself.
        let file = open_file(directory, path, options)?;
        // Through descriptors, which lead to what was checked.
        let through = |fd: RawFd| PathBuf::from(format!("/proc/self/fd/{fd}"));
        let own = directory
            .map(|directory| through(directory.as_fd().as_raw_fd()).join(path.file_name().unwrap_or_default()));
        if options.direct {
            self.judged.judge(&self.executor, own.as_deref().unwrap_or(path), &file)?;
        }
        let opened = own.map(|_| through(file.as_raw_fd()));
        let there = opened.as_deref().unwrap_or(path);
        let inside = &mut *self.inside;
        let opened = self.executor.run(async {
            match files::Paper::open(there, options).await {
                Ok(paper) => Ok(inside.take_in_file(paper)),
                Err(error) => Err(errno(&error)),
            }
        });
        let doing = || format!("opening {} with glommio", path.display());
        opened
            .map_err(|errno| Error::from_errno(Kind::File, &doing(), errno).cure("use the ring uring"))?
            .ok_or_else(files_open)
    }

    fn close_file(&mut self, file: FileId) {
        self.inside.put_away(file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        self.inside.push(op, token)
    }

    fn cancel(&mut self, op: OpId) {
        self.inside.ask_back(op.into());
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.guard.check()?;
        let limit = until.map(|until| until.since(monotonic_now()));
        let wants_sleep = !self.inside.desk.has_ready() && limit != Some(Duration::ZERO);
        let sleep = wants_sleep && self.waker.arm();
        self.turn(sleep, limit);
        if wants_sleep {
            self.waker.disarm();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        self.inside.desk.pop()
    }

    fn in_flight(&self) -> usize {
        self.inside.desk.in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: "glommio",
            abilities: vec!["readiness by io_uring"],
            refusals: self.refusals.clone(),
            counts: self.inside.desk.counts,
        }
    }
}

impl Drop for GlommioRing {
    fn drop(&mut self) {
        // In a forked child the executor's rings are the parent's: even taking them apart would disturb it.
        if !self.guard.holds() {
            return;
        }
        if !self.drain() {
            tracing::warn!(
                "glommio gave {} operations not back within {DRAIN_PATIENCE:?}; its executor is leaked, \
                 because the kernel may still write to its memory",
                self.inside.desk.in_flight
            );
            return;
        }
        let inside = &mut *self.inside;
        self.executor.run(inside.close_all());
        // SAFETY: no operation is under way and every file is closed. Sockets and jobs refer to the executor, so they go
        // first; neither is used after this.
        unsafe {
            ManuallyDrop::drop(&mut self.inside);
            ManuallyDrop::drop(&mut self.executor);
        }
    }
}
