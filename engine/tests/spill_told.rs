//! What is told of the disk while a run goes on: damage, segments that somebody removes, and file systems without room.

use crate::common::said::Said;
use crate::common::{Delivered, bucket, drain, eventually, kept_in, listing, take};
use crate::peers::{ask, free_ports};
use crate::spill::{MIB, SmallDisk, disk, fill, set, spilling, take_until_hit};
use fuelrail::internal::{remove_cache, verify_cache};
use fuelrail_base::prng::Prng;
use std::path::{Path, PathBuf};

#[test]
fn bit_rot_is_found_and_fetched_again() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set));
    fill(&set, builder);
    let mut prng = Prng::new(8);
    for file in kept_in(dir.path()) {
        let mut bytes = std::fs::read(&file).unwrap();
        for _ in 0..10 {
            let at = 4096 + prng.below((bytes.len() as u64).saturating_sub(4096).max(1)) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << prng.below(8);
            }
        }
        std::fs::write(&file, bytes).unwrap();
    }
    let said = Said::default();
    let builder = || said.by(builder().epochs(2));
    let mut later = builder().build().unwrap();
    drain(&mut later, &set).unwrap();
    let facts = disk(&later.stats());
    assert!(facts.lost > 0 && facts.hits > facts.lost, "{facts:?}");
    drop(later);
    let lines = said.lines();
    assert!(lines.len() == 1 && lines[0].contains("is not what was written"), "{lines:?}");
    // What was found damaged is not on disk any more: no run finds it twice.
    let rotten = || {
        let mut rotten = 0;
        verify_cache(dir.path(), |verdict| {
            rotten += verdict.rotten;
            Ok(())
        })
        .unwrap();
        rotten
    };
    let mut runs = 0;
    while rotten() > 0 {
        // A disk that is slower than the bucket is read little.
        drain(&mut builder().build().unwrap(), &set).unwrap();
        runs += 1;
        assert!(runs < 30, "{} blocks stay damaged", rotten());
    }
}

/// Files below a directory that this process has open and nobody can see.
fn open_and_removed(dir: &Path) -> usize {
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let is_one = |path: &PathBuf| path.starts_with(dir) && path.to_string_lossy().ends_with("(deleted)");
    open.filter(is_one).count()
}

#[test]
fn a_cache_that_is_removed_beside_a_run_gives_its_room_back_and_is_made_anew() {
    let (set, dir, said) = (set(), tempfile::tempdir().unwrap(), Said::default());
    let bucket = bucket(&set, "");
    let builder = spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set)).epochs(100_000);
    let mut loader = said.by(builder).build().unwrap();
    take_until_hit(&mut loader, &set, 12);
    assert!(!remove_cache(dir.path(), true).unwrap().removed.is_empty());
    let mut delivered = Delivered::default();
    eventually("the loader lets go of it", || {
        take(&loader.next_batch().unwrap().unwrap(), &loader, &set, &mut delivered);
        !said.lines().is_empty() && open_and_removed(dir.path()) == 0
    });
    let lines = said.lines();
    assert!(lines.iter().any(|line| line.contains("segments of this run were removed")), "{lines:?}");
    let before = disk(&loader.stats());
    eventually("blocks come from disk again", || {
        take(&loader.next_batch().unwrap().unwrap(), &loader, &set, &mut delivered);
        disk(&loader.stats()).hits > before.hits
    });
    assert_eq!(before.directories_failed, 0, "{before:?}");
}

#[test]
fn a_disk_that_is_full_in_mid_run_is_told_of_once_also_among_the_notices() {
    let Some(small) = SmallDisk::mount(3 * MIB) else { return };
    let (set, said) = (set(), Said::default());
    let bucket = bucket(&set, "");
    let builder = spilling(&bucket, small.path(), 100 * MIB).listing(listing(&set)).epochs(100_000);
    let mut loader = said.by(builder).build().unwrap();
    let here = small.path().display().to_string();
    let tells =
        |line: &String| line.contains(&here) && line.contains("further blocks are kept only in the place of others");
    assert!(!loader.notices().iter().any(tells));
    let (mut delivered, epochs) = (Delivered::default(), 3);
    eventually("it is told", || {
        let batch = loader.next_batch().unwrap().unwrap();
        take(&batch, &loader, &set, &mut delivered);
        loader.notices().iter().any(tells) && batch.epoch() >= epochs
    });
    assert_eq!(said.lines().iter().filter(|line| tells(line)).count(), 1, "{:?}", said.lines());
    assert_eq!(loader.notices().iter().filter(|line| tells(line)).count(), 1, "{:?}", loader.notices());
}

#[test]
fn the_page_of_metrics_tells_how_the_disk_does() {
    let (set, dir) = (set(), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let builder = || spilling(&bucket, dir.path(), 100 * MIB).listing(listing(&set));
    fill(&set, builder);
    let own = fuelrail_io::OwnDirectory::open(dir.path()).unwrap();
    std::fs::write(own.path().join(format!("fuelrail-{:032x}.segment", 7)), "a text").unwrap();
    let address = free_ports(1)[0];
    let mut loader = builder().metrics_listen(address.to_string()).build().unwrap();
    drain(&mut loader, &set).unwrap();
    let page = String::from_utf8(ask(address, "/metrics", "").1).unwrap();
    let facts = disk(&loader.stats());
    assert!(facts.blocks > 0, "{facts:?}");
    for (name, value) in [("blocks", facts.blocks), ("lost_total", 0), ("failures_total", 1), ("directories_failed", 0)]
    {
        assert!(page.contains(&format!("\nfuelrail_disk_{name}{{rank=\"0\"}} {value}\n")), "{name} {value}: {page}");
    }
}
