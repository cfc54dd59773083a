//! `cache`: on a live directory and on a broken one; what is not a segment stays, and what a living job owns stays without `--force`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fuelrail::internal::list_cache;
use fuelrail::{ByteSize, Loader};

use super::*;

/// A loader that has read its set a few times, and kept some of it in `dir`.
fn loader_with_disk(bucket: &Bucket, dir: &Path) -> Loader {
    // A block is written when there is a segment for it, which takes a moment to make: on a busy machine more than a run.
    for _ in 0..30 {
        let mut loader = Loader::builder(bucket.url(""))
            .batch_size(16)
            .epochs(4)
            .shards(1)
            .pin(false)
            .memory_limit(ByteSize(64 << 20))
            .spill_dirs([dir])
            .spill_limit(ByteSize(100 << 20))
            .spill_floor(ByteSize(0))
            .build()
            .unwrap();
        while let Some(batch) = loader.next_batch() {
            batch.unwrap();
        }
        if list_cache(dir).unwrap().segments.iter().any(|segment| segment.blocks > 0) {
            return loader;
        }
    }
    panic!("no run writes a block");
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let own = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let all = std::fs::read_dir(own).unwrap().map(|item| item.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|ending| ending == "segment")).collect()
}

#[test]
fn a_cache_is_listed_verified_and_removed_while_it_lives_and_when_it_is_broken() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let bucket = bucket_of(&DataSet::photos(60, 4), "");
    let loader = loader_with_disk(&bucket, dir);
    let mine = segments(dir)[0].with_file_name("fuelrail-notes.segment");
    std::fs::write(&mine, "a text of mine").unwrap();
    let listed = || fuelrail(&["cache", "ls", "--json", utf8(dir)]).json();
    let states = |any: &[&str]| {
        let listed = listed();
        let mut segments = listed["directories"][0]["segments"].as_array().unwrap().iter();
        segments.all(|segment| any.iter().any(|state| segment["state"] == *state))
    };
    // What was read last is on its way still, and so may a further segment be: a living job is looked at as it is.
    assert!(!segments(dir).is_empty() && states(&["owned", "new"]));
    assert!(fuelrail(&["cache", "ls", utf8(dir)]).done().contains("owned"));
    let spared = fuelrail(&["cache", "rm", utf8(dir)]);
    assert!(spared.code == 1 && spared.err.contains("in use by running jobs"), "{}", spared.err);
    assert!(!segments(dir).is_empty());
    drop(loader);
    assert!(states(&["free"]));
    let verified = fuelrail(&["cache", "verify", "--json", utf8(dir)]).json();
    let sound = verified["sound"].as_u64().unwrap();
    assert!(sound > 0 && verified["rotten"] == 0, "{verified}");
    let segments_listed = listed()["directories"][0]["segments"].as_array().unwrap().clone();
    let blocks: u64 = segments_listed.iter().map(|segment| segment["blocks"].as_u64().unwrap()).sum();
    assert_eq!(blocks, sound);
    // A bit flips in a block, and a file is cut short that was a segment.
    let broken = segments(dir).into_iter().find(|segment| *segment != mine).unwrap();
    let file = File::options().read(true).write(true).open(&broken).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4_200).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 4_200).unwrap();
    let rotten = fuelrail(&["cache", "verify", utf8(dir)]);
    assert!(rotten.code == 1 && rotten.out.contains("1 corrupt"), "{}", rotten.out);
    file.set_len(10_000).unwrap();
    let text = fuelrail(&["cache", "ls", utf8(dir)]).done();
    assert!(text.contains("unfit") && text.contains("it has 10000 bytes of"), "{text}");
    assert_eq!(fuelrail(&["cache", "verify", utf8(dir)]).code, 1);
    fuelrail(&["cache", "rm", utf8(dir)]).done();
    assert_eq!(
        segments(dir),
        std::slice::from_ref(&mine),
        "what is not named as a segment is not removed, and a broken one is"
    );
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "a text of mine");
}

#[test]
fn what_is_no_directory_is_refused() {
    for what in ["ls", "verify", "rm"] {
        let refused = fuelrail(&["cache", what, "/no/such/directory"]);
        assert!(refused.code == 1 && refused.err.contains("is not a directory"), "{what}: {}", refused.err);
        assert_eq!(fuelrail(&["cache", what]).code, 2);
    }
}

#[test]
fn the_directory_that_messages_name_is_accepted_and_an_empty_one_has_nothing_to_remove() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    fuelrail(&["cache", "rm", utf8(dir)]).done();
    let empty = fuelrail(&["cache", "ls", utf8(dir)]);
    assert!(empty.code == 1 && empty.err.contains("contains no cache of this user"), "{}", empty.err);
    let bucket = bucket_of(&DataSet::photos(60, 4), "");
    drop(loader_with_disk(&bucket, dir));
    let own = segments(dir)[0].parent().unwrap().to_owned();
    let [by_parent, by_itself] = [dir, &*own].map(|path| fuelrail(&["cache", "ls", "--json", utf8(path)]).json());
    assert_eq!(by_itself["directories"][0]["segments"], by_parent["directories"][0]["segments"]);
    fuelrail(&["cache", "rm", utf8(&own)]).done();
    assert!(segments(dir).is_empty());
}
