//! Other users: neither their directories nor their files are used, and no link of theirs is followed.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use fuelrail_io::{FileOptions, PollRing, Ring, UringConfig};
use tempfile::tempdir;

use super::keeping::left_behind;
use super::skip::skip_or_fail;
use super::*;
use crate::tls::Tls;

/// A user that is not this one.
const OTHER: u32 = 54_321;

/// Gives a file to another user. False where that is not allowed and `FUELRAIL_SKIP` names `root`.
fn give_away(path: &Path) -> bool {
    let given = chown(path, Some(OTHER), None);
    if let Err(error) = &given {
        skip_or_fail("root", format!("chown {}: {error}", path.display()));
    }
    given.is_ok()
}

#[test]
fn a_directory_of_another_user_is_refused_with_owner_and_mode() {
    let scratch = tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    if !give_away(scratch.path()) {
        return;
    }
    let error = Directory::open(scratch.path(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("user 54321") && error.contains("mode 1777"), "{error}");
}

#[test]
fn in_a_directory_that_everybody_may_write_to_there_is_one_of_our_own() {
    let scratch = tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let directory = open(scratch.path());
    let facts = fs::metadata(directory.make(MIB).unwrap().unwrap().0.named.path().parent().unwrap()).unwrap();
    assert_eq!((facts.mode() & 0o7777, facts.uid()), (0o700, fs::metadata(scratch.path()).unwrap().uid()));
}

#[test]
fn a_segment_of_another_user_is_not_read() {
    let (scratch, objects, told) = (tempdir().unwrap(), objects("e"), Told::default());
    let path = left_behind(scratch.path(), &objects, 0..20);
    if !give_away(&path) {
        return;
    }
    let mut work = work(&[scratch.path()], 1, 0, &told);
    assert_eq!(recovered(&mut work, &objects, 1)[0].len(), 0);
    assert!(told.lines().len() == 1 && told.lines()[0].contains("user 54321"), "{:?}", told.lines());
}

#[test]
fn a_link_in_a_segments_place_is_neither_read_nor_written() {
    let (scratch, told) = (tempdir().unwrap(), Told::default());
    let elsewhere = scratch.path().join("elsewhere");
    fs::write(&elsewhere, "a text").unwrap();
    let segment = work(&[scratch.path()], 1, 0, &told).another(true).unwrap();
    fs::remove_file(&segment.path).unwrap();
    symlink(&elsewhere, &segment.path).unwrap();
    let mut ring = PollRing::new(&UringConfig::default()).unwrap();
    for write in [true, false] {
        let options = FileOptions { write, ..FileOptions::default() };
        let error = ring.open_in(segment.directory.as_deref(), &segment.path, &options).unwrap_err();
        assert!(error.to_string().contains("symbolic links"), "{error}");
    }
}

/// A data set over TLS, its server judged in this way.
fn over_tls(tls: &Tls) -> Objects {
    let object = |n: u64| Listed { key: format!("o/{n:02}"), size: 1_000 * n, etag: Some(format!("\"e{n}\"")) };
    let listed: Vec<Listed> = (1..=40).map(object).collect();
    let (endpoint, address) = ("https://host/bucket/".parse().unwrap(), "127.0.0.1:443".parse().unwrap());
    let client = tls.client(&endpoint).unwrap();
    Objects::new(endpoint, vec![address], &listed, 10_000).unwrap().over(client)
}

/// Whoever is on the way may have written what came under `tls_insecure`.
#[test]
fn blocks_that_came_unverified_are_not_served_to_a_verified_run() {
    let (scratch, told) = (tempdir().unwrap(), Told::default());
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = authority.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let ca_file = scratch.path().join("ca.pem");
    fs::write(&ca_file, authority.pem()).unwrap();
    let verified = over_tls(&Tls { ca_file: Some(ca_file), insecure: false });
    let insecure = over_tls(&Tls { ca_file: None, insecure: true });
    left_behind(scratch.path(), &insecure, 0..20);
    let mut work = work(&[scratch.path()], 1, 0, &told);
    assert_eq!(recovered(&mut work, &verified, 1)[0].len(), 0, "blocks that anybody may have written");
    assert_eq!(recovered(&mut work, &insecure, 1)[0].len(), 1, "its own blocks are found again");
}
