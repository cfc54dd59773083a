//! Blocks go to a file and come back, on every ring of this build; a file that is not what was written is found out.

use crate::common::skip::skip_or_fail;
use fuelrail::{Backend, DiskPlan, DiskWay, Kind, RingChoice};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

fn plan(path: &Path, ring: Backend) -> DiskPlan {
    DiskPlan {
        path: path.to_owned(),
        ring: RingChoice::Only(ring),
        block_bytes: 16 << 10,
        depth: 4,
        bytes: 320 << 10,
        direct: false,
        register: true,
    }
}

#[test]
fn blocks_go_there_and_come_back_on_every_ring() {
    let folder = tempfile::tempdir().unwrap();
    for ring in Backend::ALL {
        for direct in [false, true] {
            let path = folder.path().join(format!("{ring}-{direct}"));
            let mut disk = match (DiskPlan { direct, ..plan(&path, *ring) }).open() {
                Ok(disk) => disk,
                // Not every file system offers direct access.
                Err(error) if direct && error.kind() == Kind::File => {
                    skip_or_fail("o_direct", error);
                    continue;
                }
                Err(error) => panic!("{ring}: {error}"),
            };
            assert!(disk.ring().starts_with(ring.name()), "{}", disk.ring());
            for way in [DiskWay::Write, DiskWay::Read, DiskWay::Read] {
                let pass = disk.pass(way).unwrap();
                assert_eq!((pass.bytes, pass.blocks), (320 << 10, 20), "{ring} {way:?}");
                let copies = u64::from(ring.name() == "glommio");
                assert_eq!(pass.copied_bytes, copies * pass.bytes, "{ring} {way:?}");
            }
            drop(disk);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 320 << 10);
        }
    }
}

#[test]
fn a_block_that_is_not_what_was_written_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocks");
    for ring in Backend::ALL {
        let mut disk = plan(&path, *ring).open().unwrap();
        disk.pass(DiskWay::Write).unwrap();
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(7 * (16 << 10) + 3)).unwrap();
        file.write_all(&[0xFF]).unwrap();
        let error = disk.pass(DiskWay::Read).unwrap_err();
        assert!(error.to_string().contains("block 7 "), "{ring}: {error}");
        file.set_len(100 << 10).unwrap();
        let error = plan(&path, *ring).open().unwrap().pass(DiskWay::Read).unwrap_err();
        assert!(error.to_string().contains("ends before") || error.to_string().contains("block 6 "), "{ring}: {error}");
        file.set_len(0).unwrap();
    }
}

#[test]
fn plans_that_cannot_be_followed_are_refused() {
    let good = plan(Path::new("/nowhere/blocks"), Backend::Uring);
    let bad = [
        DiskPlan { block_bytes: 5000, ..good.clone() },
        DiskPlan { block_bytes: 0, ..good.clone() },
        DiskPlan { depth: 0, ..good.clone() },
        DiskPlan { depth: 1 << 20, ..good.clone() },
        DiskPlan { bytes: 0, ..good.clone() },
        DiskPlan { bytes: (16 << 10) + 1, ..good.clone() },
    ];
    for plan in bad {
        let error = plan.open().err().expect("refused");
        assert_eq!(error.kind(), Kind::Usage, "{plan:?}: {error}");
        assert!(error.to_string().contains("give"), "no cure: {error}");
    }
    assert_eq!(good.open().err().expect("refused").kind(), Kind::File);
}
