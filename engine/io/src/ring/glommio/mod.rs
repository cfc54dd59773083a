//! The back-end on the glommio executor, for programs that use that executor, and for comparison.
//!
//! The executor is entered by each wait and left after an event. Sockets are tried without blocking and polled
//! for readiness when there is nothing, so the kernel never keeps an address of ours. Files are read into glommio's
//! own memory, the only one it supports, and copied once; the counters report the bytes.

mod files;
mod inside;

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use fuelrail_base::{Duration, Error, Kind, Result};
use glommio::{GlommioError, LocalExecutor, LocalExecutorBuilder, Placement};

use self::files::{FileHandle, Judged, errno};
use self::inside::{Holding, Inside};
use super::file::FileOptions;
use super::kernel::{Abilities, Backend, Blocking, KernelRing};
use super::op_table::OpTable;
use super::table::Name;
use super::uring::{Mode, UringConfig, refusal};
use crate::directory::OwnDirectory;
use crate::wake::Waker;

/// Bounds of the executor's ring depth: it panics when a ring has no room for its own timers. Further requests wait in its queues.
const RING_DEPTH_MIN: u32 = 128;
const RING_DEPTH_MAX: u32 = 4096;

/// A ring on glommio. Must be made on the thread that uses it, outside every other executor of glommio.
pub type GlommioRing = KernelRing<Glommio>;

/// The way to the kernel through glommio.
pub struct Glommio {
    inside: Inside,
    judged: Judged,
    /// Dropped after the sockets and jobs, which refer to it.
    executor: LocalExecutor,
}

impl GlommioRing {
    /// Opens an executor for the calling thread. It has 10 MiB of memory for files besides the arena.
    ///
    /// # Errors
    /// As [`UringConfig::validate`]; `Environment`, with cause and cure, when the kernel refuses.
    pub fn new(config: &UringConfig) -> Result<GlommioRing> {
        config.validate()?;
        // glommio does not probe the kernel before it builds its rings, and panics on some refusals.
        Mode::Plain.build(8, 16).map_err(|error| refusal(error.raw_os_error().unwrap_or(0)))?;
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .ring_depth(config.entries.next_power_of_two().clamp(RING_DEPTH_MIN, RING_DEPTH_MAX) as usize)
            .make()
            .map_err(|error| not_built(&error))?;
        let (ours, theirs) = UnixStream::pair()
            .and_then(|(ours, theirs)| ours.set_nonblocking(true).map(|()| (ours, theirs)))
            .and_then(|(ours, theirs)| theirs.set_nonblocking(true).map(|()| (ours.into(), theirs.into())))
            .map_err(|error| {
                Error::from_io(Kind::Environment, "opening a pair of sockets", error)
                    .with_hint("raise the limit of open files (ulimit -n)")
            })?;
        let inside = executor.run(async { Inside::new(config, ours) });
        let mut refusals =
            vec!["files are read and written with one copy each: glommio reaches only its own memory".into()];
        if config.register.is_some() {
            refusals
                .push("the arena is not registered: glommio registers only its own memory; the ring uring does".into());
        }
        let glommio = Glommio { inside, judged: Judged::default(), executor };
        Ok(KernelRing::over(
            glommio,
            Waker::writing(theirs),
            Abilities { used: vec!["readiness by io_uring"], refusals },
        ))
    }
}

fn not_built(error: &GlommioError<()>) -> Error {
    match error.raw_os_error() {
        Some(errno) => refusal(errno),
        None => Error::new(Kind::Environment, format!("opening an executor of glommio: {error}")).with_hint(
            "raise the locked-memory limit to 512 KiB or more (ulimit -l, LimitMEMLOCK=), or use another ring",
        ),
    }
}

impl Backend for Glommio {
    type Held = Holding;
    const NAME: &'static str = "glommio";
    const BLOCKING: Blocking = Blocking::No;

    fn ops(&self) -> &OpTable<Holding> {
        &self.inside.ops
    }

    fn ops_mut(&mut self) -> &mut OpTable<Holding> {
        &mut self.inside.ops
    }

    /// Opens the file once more, through glommio.
    fn hold_file(
        &mut self,
        file: OwnedFd,
        directory: Option<&OwnDirectory>,
        path: &Path,
        options: &FileOptions,
    ) -> Result<Holding> {
        // Through descriptors, which refer to the checked file.
        let through = |fd: RawFd| PathBuf::from(format!("/proc/self/fd/{fd}"));
        let own = directory
            .map(|directory| through(directory.as_fd().as_raw_fd()).join(path.file_name().unwrap_or_default()));
        if options.direct {
            self.judged.judge(&self.executor, own.as_deref().unwrap_or(path), &file)?;
        }
        let opened = own.map(|_| through(file.as_raw_fd()));
        let there = opened.as_deref().unwrap_or(path);
        let opened = self.executor.run(FileHandle::open(there, options)).map_err(|error| {
            let doing = format!("opening {} with glommio", path.display());
            Error::from_errno(Kind::File, &doing, errno(&error)).with_hint("use the ring uring")
        });
        opened.map(Holding::File)
    }

    fn end(&mut self, index: u32, held: Holding) {
        self.inside.end_at(index, held);
    }

    fn start(&mut self, name: Name) {
        self.inside.backlog.push(name);
    }

    fn request_cancel(&mut self, name: Name) {
        self.inside.request_cancel(name);
    }

    /// Submits what is queued and reaps completions.
    fn enter(&mut self, sleep: bool, limit: Option<Duration>) -> Result<()> {
        let inside = &mut self.inside;
        inside.ops.counts.enters += 1;
        self.executor.run(async {
            // The executor has polled its rings when it was entered.
            inside.submit();
            let came = inside.collect();
            if sleep && !came && !inside.ops.has_ready() {
                inside.ops.counts.sleeps += 1;
                inside.stay(limit).await;
            }
            inside.unlisten();
            inside.close_ended().await;
        });
        Ok(())
    }
}

impl Drop for Glommio {
    fn drop(&mut self) {
        self.executor.run(self.inside.close_all());
    }
}
