//! Shared words on file systems of their own: one that is full, and one that cannot reserve blocks.

use crate::skip::skip_or_fail;
use fuelrail_base::Kind;
use fuelrail_io::{Division, OwnDirectory, SharedWords};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;

const DIVISION: Division = Division { words: 512, from: 24, slot: 8 };

/// A file system in memory, taken down when dropped.
struct Mount(PathBuf);

impl Mount {
    /// `None` where mounting is not allowed and `FUELRAIL_SKIP` names `root`.
    fn new(name: &str, kind: &str, options: &str) -> Option<Mount> {
        let path = std::env::temp_dir().join(format!("fuelrail-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let mount = Mount(path);
        let done = Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(&mount.0).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(mount);
        }
        skip_or_fail("root", "mounting a file system needs CAP_SYS_ADMIN");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// How a child ends that opens the words and stores into one: 0 when it could, 1 when opening was refused for want of room.
fn child_stores(directory: &OwnDirectory, name: &str) -> i32 {
    // SAFETY: the child opens a file, maps it, stores into it and leaves by `_exit`; no other thread of this test holds a lock
    // it needs.
    let child = unsafe {
        match libc::fork() {
            0 => libc::_exit(match SharedWords::open(directory, name, DIVISION) {
                Ok(words) => {
                    words.as_ref()[300].store(7, Ordering::Relaxed);
                    0
                }
                Err(error) => i32::from(error.to_string().contains("No space left")),
            }),
            child => child,
        }
    };
    let mut status = 0;
    // SAFETY: the status lives during the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

#[test]
fn a_full_disk_refuses_the_words_and_later_takes_them() {
    let Some(disk) = Mount::new("full", "tmpfs", "size=64k") else { return };
    let (own, filler) = (OwnDirectory::open(&disk.0).unwrap(), disk.0.join("filler"));
    let full = std::fs::write(&filler, vec![7; 128 << 10]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // A file without blocks, as an earlier version made it.
    own.make_file("sparse").unwrap().set_len(4096).unwrap();
    assert_eq!((child_stores(&own, "pace"), child_stores(&own, "sparse")), (1, 1));
    let error = SharedWords::open(&own, "pace", DIVISION).unwrap_err();
    assert!(error.kind() == Kind::File && error.to_string().contains("free some space"), "{error}");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!((child_stores(&own, "pace"), child_stores(&own, "sparse")), (0, 0));
    assert_eq!(SharedWords::open(&own, "pace", DIVISION).unwrap().as_ref()[300].load(Ordering::Relaxed), 7);
}

#[test]
fn a_file_system_that_cannot_reserve_blocks_gets_them_written() {
    let Some(disk) = Mount::new("ramfs", "ramfs", "mode=700") else { return };
    let own = OwnDirectory::open(&disk.0).unwrap();
    let [one, two] = [(); 2].map(|()| SharedWords::open(&own, "pace", DIVISION).unwrap());
    one.as_ref()[300].store(7, Ordering::Relaxed);
    assert_eq!((two.slot(), two.as_ref()[300].load(Ordering::Relaxed)), (1, 7));
    assert_eq!(std::fs::metadata(own.path().join("pace")).unwrap().len(), 4096);
}
