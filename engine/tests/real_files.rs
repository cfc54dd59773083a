//! Third-party files, served and read back: SHA-256 of every one is equal, whatever their names and lengths.

use crate::common::{folder, loader, loader_at};
use fuelrail::{ByteSize, Loader};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Sum = [u8; 32];

const FILES_MAX: usize = 2000;
const BYTES_MAX: u64 = 40 << 20;

/// Where other people's files are: the sources this project was built from, then what any system has.
fn origins() -> Vec<PathBuf> {
    let home = |name: &str, below: &str| std::env::var_os(name).map(|home| PathBuf::from(home).join(below));
    let places = [
        home("CARGO_HOME", "registry/src"),
        home("HOME", ".cargo/registry/src"),
        Some("/usr/share".into()),
        Some("/usr/lib".into()),
    ];
    places.into_iter().flatten().filter(|place| place.is_dir()).collect()
}

/// Copies regular files below `origin` into `to`, under the same names; stops at the limits. `image` chooses images, which
/// are few, or everything else.
fn gather(origin: &Path, to: &Path, image: bool, files_max: usize, sums: &mut BTreeMap<String, Sum>) {
    let (mut bytes, mut files) = (0, 0);
    let mut open = vec![origin.to_owned()];
    while let Some(place) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        entries.sort_unstable();
        // The last one pushed is looked into first.
        for path in entries.into_iter().rev() {
            let Ok(seen) = path.symlink_metadata() else { continue };
            let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let is_image = matches!(ending, "png" | "jpg" | "jpeg" | "gif" | "svg" | "webp" | "ico");
            if seen.is_dir() {
                open.push(path);
            } else if seen.is_file() && is_image == image && seen.len() <= 4 << 20 && files < files_max {
                let key = path.strip_prefix(origin).expect("walked from there").to_str().map(str::to_owned);
                // Bucket keys are UTF-8.
                let (Some(key), Ok(content)) = (key, std::fs::read(&path)) else { continue };
                if bytes + seen.len() > BYTES_MAX {
                    return;
                }
                bytes += content.len() as u64;
                files += 1;
                let place = to.join(&key);
                std::fs::create_dir_all(place.parent().expect("a file has a folder")).unwrap();
                std::fs::write(place, &content).unwrap();
                sums.insert(key, Sha256::digest(&content).into());
            }
        }
        if files >= files_max {
            return;
        }
    }
}

/// Reads a loader to its end: the sum of every key.
fn sums_of(loader: &mut Loader) -> BTreeMap<String, Sum> {
    let mut found = BTreeMap::new();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for sample in batch.samples() {
            let before = found.insert(loader.key(sample.id).to_owned(), Sha256::digest(sample.bytes).into());
            assert!(before.is_none(), "'{}' came twice", loader.key(sample.id));
        }
    }
    found
}

#[test]
fn real_files_come_back_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let mut sums = BTreeMap::new();
    // Images from everywhere (packages of the system have them, sources hardly), and one tree of other files.
    for origin in origins() {
        gather(&origin, place.path(), true, 200, &mut sums);
    }
    gather(&origins()[0], place.path(), false, FILES_MAX - sums.len(), &mut sums);
    assert!(sums.len() > 100, "this system has no files to speak of");
    let bucket = folder(place.path(), "");
    let listed: Vec<String> = fuelrail::list(&bucket.url(""), |_| {}).unwrap().into_iter().map(|o| o.key).collect();
    assert_eq!(listed, sums.keys().cloned().collect::<Vec<_>>(), "the listing is the folder, in key order");
    for (shards, cache, faults) in [(1, 0, ""), (2, 8 << 20, "reset=0.02,truncate=0.02,chunked=0.1,error=0.02")] {
        bucket.set_script(faults.parse().unwrap()).unwrap();
        let builder = loader(&bucket).batch_size(50).shards(shards).memory_limit(ByteSize(512 << 20));
        let builder = builder.cache_limit(ByteSize(cache)).block_size("64KiB".parse().unwrap());
        assert_eq!(sums_of(&mut builder.build().unwrap()), sums);
    }
    bucket.set_script("reset=0.1,per_key_max=2".parse().unwrap()).unwrap();
    for (key, sum) in sums.iter().step_by(1 + sums.len() / 60) {
        let mut content = Vec::new();
        let len = fuelrail::get(&bucket.url(key), &mut content).unwrap();
        assert_eq!((len as usize, Sum::from(Sha256::digest(&content))), (content.len(), *sum), "{key}");
    }
}

/// A manifest made from the listing gives the same data set, and a run goes on from one to the other.
#[test]
fn a_manifest_stands_for_the_listing() {
    let place = tempfile::tempdir().unwrap();
    let mut sums = BTreeMap::new();
    gather(&origins()[0], place.path(), false, 150, &mut sums);
    let bucket = folder(place.path(), "");
    let manifest = tempfile::tempdir().unwrap();
    let manifest = manifest.path().join("manifest.jsonl");
    fuelrail::write_manifest(&manifest, &fuelrail::list(&bucket.url(""), |_| {}).unwrap()).unwrap();
    let builder = || loader(&bucket).batch_size(10);
    let mut first = builder().build().unwrap();
    first.next_batch().unwrap().unwrap();
    let mut rest = loader_at(&bucket.url("")).batch_size(10).manifest(manifest).resume(first.state()).build().unwrap();
    assert_eq!(sums_of(&mut rest).len() + 10, sums.len());
    drop(first);
    assert_eq!(sums_of(&mut builder().build().unwrap()), sums);
}
