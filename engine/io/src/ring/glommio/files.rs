//! Files on glommio: direct ones through its `DmaFile`, others through its `BufferedFile`. Both transfer only to and from
//! memory of their own, so every byte is copied once, and counted. And the guard against its misjudgement of disks.

use core::future::Future;
use core::pin::Pin;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuelrail_base::{Error, Kind, Result};
use glommio::io::{BufferedFile, DmaFile, OpenOptions, ReadResult};
use glommio::{GlommioError, LocalExecutor};

use crate::ring::Op;
use crate::ring::file::{FileFacts, FileOptions, OPEN_FLAGS, Opening, patient};
use crate::scatter::TRANSFER_BYTES_MAX;

/// An open file. Jobs keep a clone while they run.
#[derive(Clone)]
pub enum FileHandle {
    Direct(Rc<DmaFile>),
    Buffered(Rc<BufferedFile>),
}

pub(super) enum JobOutput {
    /// Bytes of the file, in memory of glommio's.
    Bytes(ReadResult),
    /// How many bytes were written; zero for a sync.
    Count(usize),
    Opened(FileHandle),
    /// Facts, and the result of reading them: zero, or a negative error number.
    Facts(FileFacts, i32),
}

/// An operation on a file under way. It owns all the memory it uses, none of which is the operation's: the error number
/// or what came of it.
pub(super) type Job = Pin<Box<dyn Future<Output = Result<JobOutput, i32>>>>;

impl FileHandle {
    /// Opens a file that is there. In the executor's context.
    pub(super) async fn open(path: &Path, options: &FileOptions) -> Result<FileHandle, GlommioError<()>> {
        let mut how = OpenOptions::new();
        how.read(true).write(options.write);
        Ok(match options.direct {
            true => FileHandle::Direct(Rc::new(how.dma_open(path).await?)),
            false => FileHandle::Buffered(Rc::new(how.buffered_open(path).await?)),
        })
    }

    fn raw_fd(&self) -> RawFd {
        match self {
            FileHandle::Direct(file) => file.as_raw_fd(),
            FileHandle::Buffered(file) => file.as_raw_fd(),
        }
    }

    /// Starts opening a file. In the executor's context.
    pub(super) fn start_open(opening: &Opening) -> Job {
        let path = opening.path().to_owned();
        Box::pin(async move {
            let mut how = OpenOptions::new();
            how.read(true).custom_flags(OPEN_FLAGS);
            let file = how.buffered_open(&path).await.map_err(|error| errno(&error))?;
            // SAFETY: the descriptor is glommio's, which keeps it open as long as the file lives.
            patient(unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) });
            Ok(JobOutput::Opened(FileHandle::Buffered(Rc::new(file))))
        })
    }

    /// Starts an operation, and copies what it writes; an error number when it cannot start. In the executor's context.
    pub(super) fn start(&self, op: &Op) -> Result<Job, i32> {
        let handle = self.clone();
        match op {
            Op::ReadAt { offset, into, .. } => {
                let (offset, len) = (*offset, into.reach().min(TRANSFER_BYTES_MAX));
                self.check_aligned(offset, len)?;
                Ok(Box::pin(async move {
                    let result = match handle {
                        FileHandle::Direct(file) => file.read_at_aligned(offset, len).await,
                        FileHandle::Buffered(file) => file.read_at(offset, len).await,
                    };
                    result.map(JobOutput::Bytes).map_err(|error| errno(&error))
                }))
            }
            Op::WriteAt { offset, from, start, .. } => {
                let bytes = &from.bytes()[*start..];
                let (offset, bytes) = (*offset, &bytes[..bytes.len().min(TRANSFER_BYTES_MAX)]);
                self.check_aligned(offset, bytes.len())?;
                Ok(match handle {
                    FileHandle::Direct(file) => {
                        let mut copy = file.alloc_dma_buffer(bytes.len());
                        copy.as_bytes_mut()[..bytes.len()].copy_from_slice(bytes);
                        written(async move { file.write_at(copy, offset).await })
                    }
                    FileHandle::Buffered(file) => {
                        let copy = bytes.to_vec();
                        written(async move { file.write_at(copy, offset).await })
                    }
                })
            }
            Op::SyncData { .. } => Ok(Box::pin(async move {
                let result = match handle {
                    FileHandle::Direct(file) => file.fdatasync().await,
                    FileHandle::Buffered(file) => file.fdatasync().await,
                };
                result.map(|()| JobOutput::Count(0)).map_err(|error| errno(&error))
            })),
            Op::Stat { .. } => Ok(Box::pin(async move {
                let fd = handle.raw_fd();
                let facts = glommio::executor().spawn_blocking(move || {
                    let mut facts = FileFacts::default();
                    let result = facts.run(fd);
                    (facts, result)
                });
                let (facts, result) = facts.await;
                // Open until here.
                drop(handle);
                Ok(JobOutput::Facts(facts, result))
            })),
            Op::Connect { .. } | Op::Send { .. } | Op::Recv { .. } | Op::Open(_) => {
                unreachable!("{op:?} is not about an open file")
            }
        }
    }

    /// The kernel's error for an unaligned direct transfer. glommio's own memory is always aligned.
    fn check_aligned(&self, offset: u64, len: usize) -> Result<(), i32> {
        match self {
            FileHandle::Direct(file) if !(offset | len as u64).is_multiple_of(file.alignment()) => Err(libc::EINVAL),
            FileHandle::Direct(_) | FileHandle::Buffered(_) => Ok(()),
        }
    }

    /// Closes it, when no job holds a clone.
    pub(super) async fn close(self) {
        // An error of a close was reported by the last sync already, or no sync was requested.
        match self {
            FileHandle::Direct(file) => drop(file.close_rc().await),
            FileHandle::Buffered(file) => {
                if let Ok(file) = Rc::try_unwrap(file) {
                    drop(file.close().await);
                }
            }
        }
    }
}

fn written(write: impl Future<Output = Result<usize, GlommioError<()>>> + 'static) -> Job {
    Box::pin(async move { write.await.map(JobOutput::Count).map_err(|error| errno(&error)) })
}

pub(super) fn errno(error: &GlommioError<()>) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The largest block size of direct access.
const BYTES: usize = 4096;
const CURE: &str = "use the ring uring, or a directory this user may write to";

/// Devices that glommio has judged by a sample file. Valid for one thread, as its judgements are.
///
/// glommio decides once per device and thread whether the disk can be polled for completions (`IOPOLL`): by a read of the first file that
/// is opened there. A read of an empty file, or of a hole, is served without the disk, and then every later read from a disk that
/// cannot be polled fails with `EOPNOTSUPP`. So the first file it sees on a device is a sample file with bytes on the disk.
#[derive(Debug, Default)]
pub(super) struct Judged(Vec<u64>);

impl Judged {
    /// Makes sure that glommio has judged the device of this open file, before it sees the file at `path`.
    ///
    /// # Errors
    /// `File` when no file can be written beside it, and it has no bytes on the disk itself; `Environment` when glommio
    /// has judged wrongly all the same.
    pub(super) fn judge(&mut self, executor: &LocalExecutor, path: &Path, file: impl AsFd) -> Result<()> {
        let about = || format!("judging the disk of {} for glommio", path.display());
        let failed = |error: io::Error| Error::from_io(Kind::File, about(), error).with_hint(CURE);
        let facts = file.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata()).map_err(failed)?;
        if self.0.contains(&facts.dev()) {
            return Ok(());
        }
        let beside = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let sample = match Sample::write(beside) {
            Ok(sample) => Some(sample),
            // No empty file can be created here, either: a file that has its bytes on the disk will do.
            Err(_) if facts.len() >= BYTES as u64 && facts.blocks() * 512 >= facts.len() => None,
            Err(error) => return Err(failed(error)),
        };
        let judged_by = sample.as_ref().map_or(path, |sample| &sample.path);
        executor
            .run(read_first_block(judged_by))
            .map_err(|errno| Error::from_errno(Kind::Environment, &about(), errno).with_hint("use the ring uring"))?;
        self.0.push(facts.dev());
        Ok(())
    }
}

async fn read_first_block(path: &Path) -> core::result::Result<(), i32> {
    let file = glommio::io::DmaFile::open(path).await.map_err(|error| errno(&error))?;
    let read = file.read_at_aligned(0, BYTES).await.map_err(|error| errno(&error));
    file.close().await.map_err(|error| errno(&error))?;
    if read?.len() == BYTES { Ok(()) } else { Err(libc::EIO) }
}

/// A short file with bytes on the disk. Gone when dropped.
struct Sample {
    path: PathBuf,
}

impl Sample {
    fn write(folder: &Path) -> io::Result<Sample> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!(".fuelrail-sample-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let sample = Sample { path };
        file.write_all(&[0x5A; BYTES])?;
        file.sync_data()?;
        Ok(sample)
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // Fails only when it was removed meanwhile.
        let _ = std::fs::remove_file(&self.path);
    }
}
