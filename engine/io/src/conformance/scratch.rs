//! A directory of files that live no longer than a check.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct ScratchFiles {
    dir: PathBuf,
    given: u32,
}

impl Default for ScratchFiles {
    /// A new directory, in the one for temporary files.
    ///
    /// # Panics
    /// When it cannot be made.
    fn default() -> ScratchFiles {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fuelrail-ring-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory for temporary files");
        ScratchFiles { dir, given: 0 }
    }
}

impl ScratchFiles {
    /// The path of a file that does not exist, each time another.
    pub fn path(&mut self) -> PathBuf {
        self.given += 1;
        self.dir.join(self.given.to_string())
    }
}

impl Drop for ScratchFiles {
    fn drop(&mut self) {
        // What cannot be removed is the owner's of the directory to find; the check has its verdict.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
