//! The guard against glommio's misjudgement of disks.
//!
//! glommio decides once per device and thread whether the disk can be polled for completions (`IOPOLL`): by a read of
//! the first file that is opened there. A read of an empty file, or of a hole, is served without the disk, and then
//! every later read from a disk that cannot be polled fails with `EOPNOTSUPP`. So the first file it sees on a device
//! is a sample file with bytes on the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fuelrail_base::{Error, Kind, Result};
use glommio::LocalExecutor;

use super::files::errno;

/// The largest block size of direct access.
const BYTES: usize = 4096;
const CURE: &str = "use the ring uring, or a directory this user may write to";

/// Devices that glommio has judged by a sample file. Valid for one thread, as its judgements are.
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
        let failed = |error: io::Error| {
            Error::from_errno(Kind::File, &about(), error.raw_os_error().unwrap_or(libc::EIO)).with_hint(CURE)
        };
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
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
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
