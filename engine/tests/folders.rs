//! Data sets in folders of this machine: through the same engine, on every ring, with the same errors.

use crate::common::loader_at;
use fuelrail::internal::list_folder;
use fuelrail::{
    Access, Backend, Kind, Listed, Loader, LoaderBuilder, PutOptions, PutOver, Result, get, list, put, put_as,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the file of this number holds: none, some, and one of several blocks.
fn content(n: usize) -> Vec<u8> {
    let len = match n {
        0 => 0,
        1 => 300_001,
        _ => n * 37 % 5_000 + 1,
    };
    (0..len).map(|i| ((i * (n + 3)) >> 3) as u8).collect()
}

/// A folder of two classes with so many files.
fn folder(files: usize) -> (tempfile::TempDir, BTreeMap<String, Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let named = |n: usize| (format!("{}/deep/{n:04}", if n.is_multiple_of(2) { "cat" } else { "dog" }), content(n));
    let all: BTreeMap<String, Vec<u8>> = (0..files).map(named).collect();
    for (key, bytes) in &all {
        let path = dir.path().join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    (dir, all)
}

fn builder(dir: &Path) -> LoaderBuilder {
    loader_at(dir.to_str().unwrap()).batch_size(7).block_size("65536".parse().unwrap())
}

/// Reads to the end and counts what comes of each file.
fn read(loader: &mut Loader, all: &BTreeMap<String, Vec<u8>>) -> Result<BTreeMap<String, u32>> {
    let mut seen = BTreeMap::new();
    while let Some(batch) = loader.next_batch() {
        for sample in batch?.samples() {
            let key = loader.key(sample.id).to_owned();
            assert!(sample.bytes == all[&key], "{key}");
            *seen.entry(key).or_default() += 1;
        }
    }
    Ok(seen)
}

#[test]
fn a_folder_is_read_as_a_bucket_is_on_every_ring() {
    let (dir, all) = folder(200);
    for (ring, epochs) in Backend::ALL.iter().flat_map(|ring| [(ring, 1), (ring, 3)]) {
        let mut loader = builder(dir.path()).ring(*ring).shards(2).epochs(epochs).build().unwrap();
        let seen = read(&mut loader, &all).unwrap();
        assert!(seen.len() == 200 && seen.values().all(|times| u64::from(*times) == epochs), "{ring}: {seen:?}");
        assert_eq!(loader.classes(), ["cat", "dog"], "{ring}");
        let stats = loader.stats();
        // Where epochs meet, a file may be wanted twice at once.
        assert!(
            stats.copied_bytes == 0 || epochs > 1 || ring.name() == "glommio",
            "{ring}: the kernel copies, and nobody else"
        );
        let remains = loader.close();
        assert_eq!((remains.operations, remains.slots), (0, 0), "{ring}");
    }
}

#[test]
fn a_cache_in_memory_serves_a_folder_and_a_disk_is_left_out() {
    let (dir, all) = folder(60);
    let beside = tempfile::tempdir().unwrap();
    let spill = vec![beside.path().join("spill")];
    let mut loader =
        builder(dir.path()).cache_limit("8MB".parse().unwrap()).spill_dirs(spill.clone()).epochs(2).build().unwrap();
    assert!(loader.notices().iter().any(|line| line.starts_with("spill_dirs: nothing is kept there")));
    assert!(read(&mut loader, &all).unwrap().values().all(|times| *times == 2));
    assert!(!spill[0].exists() && loader.stats().hits > 0);
}

#[test]
fn keys_are_paths_within_and_braces_links_and_prefixes_work() {
    let (dir, all) = folder(20);
    let root = dir.path();
    symlink("../cat/deep/0002", root.join("dog/link")).unwrap();
    symlink("..", root.join("dog/deep/loop")).unwrap();
    symlink("cat", root.join("other")).unwrap();
    std::os::unix::net::UnixListener::bind(root.join("cat/socket")).unwrap();
    fs::write(root.join("cat/.fuelrail-new-1-0"), "half").unwrap();
    fs::write(root.join("cat/.fuelrail-Ab0cde.part"), "half").unwrap();
    let keys = |uri: &str| list(uri, |_| {}).unwrap().into_iter().map(|o| o.key).collect::<Vec<_>>();
    let at = |rest: &str| format!("{}{rest}", root.display());
    assert_eq!(keys(&at("/cat")), keys(&at("/cat/")));
    assert!(keys(&at("/cat")).iter().all(|key| key.starts_with("deep/")) && keys(&at("/cat")).len() == 10);
    assert_eq!(keys(&at("/dog/l")), ["link"]);
    assert_eq!(keys(&at("/{cat,dog}")).len(), 21);
    assert_eq!(keys(&at("/{cat,dog}"))[0], "cat/deep/0000");
    assert_eq!(keys(&at("/cat/deep/000")).len(), 5);
    assert_eq!(keys(&at("")).len(), 31, "those of the linked folder, too");
    for missing in ["/nothing", "/nothing/", "/cat/thing", "/{cat,nothing}/"] {
        let error = list(&at(missing), |_| {}).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
        assert!(error.cause().contains(&at("/")) && error.cause().contains("thing"), "{error}");
    }
    fs::create_dir(root.join("hollow")).unwrap();
    assert!(keys(&at("/hollow/")).is_empty(), "a folder may be empty");
    let error = loader_at(&at("/hollow/")).build().unwrap_err().to_string();
    assert!(error.contains("there is no file in") && !error.contains("bucket"), "{error}");
    let mut got = Vec::new();
    get(&at("/dog/link"), &mut got).unwrap();
    assert!(got == all["cat/deep/0002"]);
    assert_eq!(get(&at("/dog"), &mut got).unwrap_err().kind(), Kind::NotFound);
    put(&at("/new/er/x"), b"one").unwrap();
    assert_eq!(put(&at("/new/er/x"), b"three").unwrap().bytes, 5);
    let only_new = PutOptions { over: PutOver::Nothing, ..PutOptions::default() };
    let put_new = |key: &str| put_as(&only_new, Access::default(), &at(key), &mut Cursor::new(b"new"), |_| {});
    assert_eq!(put_new("/new/er/x").unwrap_err().kind(), Kind::Exists);
    assert_eq!(put_new("/new/y").unwrap().bytes, 3);
    assert_eq!(fs::read_dir(root.join("new")).unwrap().count(), 2);
    assert_eq!(fs::read(root.join("new/er/x")).unwrap(), b"three");
    assert_eq!(fs::read_dir(root.join("new/er")).unwrap().count(), 1, "nothing is left beside it");
}

/// A container that was killed while it saved leaves such files, of a process id that its successor has, too.
#[test]
fn a_file_is_put_beside_what_another_process_of_the_same_id_left() {
    let dir = tempfile::tempdir().unwrap();
    let left = |n: u32| dir.path().join(format!(".fuelrail-new-{}-{n}", std::process::id()));
    (0..64).for_each(|n| fs::write(left(n), "half").unwrap());
    let uri = dir.path().join("x").display().to_string();
    assert_eq!(put(&uri, b"whole").unwrap().bytes, 5);
    assert!((0..64).all(|n| fs::read(left(n)).unwrap() == b"half"), "they may be another's that still writes");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 65);
}

#[test]
fn what_cannot_be_named_or_followed_is_an_error_that_says_so() {
    for (name, target, says) in [(&b"\xFF"[..], None, "is not UTF-8"), (b"link", Some("nowhere"), "following")] {
        let (dir, _) = folder(3);
        let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
        match target {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, "x").unwrap(),
        }
        let error = list(dir.path().to_str().unwrap(), |_| {}).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_walk_that_goes_on_tells_what_is_no_object() {
    let (dir, all) = folder(3);
    symlink("nowhere", dir.path().join("dog/link")).unwrap();
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"cat/\xFF")), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("cat/socket")).unwrap();
    let (listed, mut left_out) = list_folder(dir.path().to_str().unwrap()).unwrap();
    assert!(listed.iter().map(|object| &object.key).eq(all.keys()), "{listed:?}");
    left_out.sort_by(|a, b| a.0.cmp(&b.0));
    let hint = |error: &Option<fuelrail::Error>| error.as_ref().map(|error| error.hint().unwrap().to_owned());
    let said: Vec<_> = left_out.iter().map(|(path, error)| (path.as_str(), hint(error))).collect();
    let [("cat/socket", None), ("cat/\u{FFFD}", Some(odd)), ("dog/link", Some(dangling))] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(odd.contains("rename it") && dangling.contains("the link leads nowhere"), "{said:?}");
}

/// Breaks one file of a folder that is listed, and returns what reading it says.
fn broken(how: impl FnOnce(&Path)) -> (Kind, String) {
    let (dir, all) = folder(20);
    let listing = list(dir.path().to_str().unwrap(), |_| {}).unwrap();
    how(&dir.path().join("dog/deep/0001"));
    let mut loader = builder(dir.path()).listing(listing).build().unwrap();
    let error = read(&mut loader, &all).unwrap_err();
    assert_eq!(error.object(), Some("dog/deep/0001"), "{error}");
    (error.kind(), error.to_string())
}

#[test]
fn a_file_that_is_not_as_listed_is_an_error() {
    assert_eq!(broken(|path| fs::remove_file(path).unwrap()).0, Kind::NotFound);
    let (kind, text) = broken(|path| fs::write(path, "short").unwrap());
    assert!(kind == Kind::Changed && text.contains("5 bytes long, and was listed with 300001"), "{text}");
    let (kind, text) = broken(|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[7] ^= 1;
        fs::write(path, bytes).unwrap();
    });
    assert!(kind == Kind::Changed && text.contains("written to after it was listed"), "{text}");
    let (kind, text) = broken(|path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path.with_extension("new"), bytes).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
    assert_eq!(kind, Kind::Changed, "another file in its place: {text}");
    let (kind, text) = broken(|path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    });
    assert!(matches!(kind, Kind::File | Kind::Changed), "{text}");
}

/// A pipe without a writer: a reader that waits for it is released after a while, and this tells.
fn pipe(path: &Path) -> Arc<AtomicBool> {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let (path, released) = (path.to_owned(), Arc::new(AtomicBool::new(false)));
    let tells = Arc::clone(&released);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(30));
        tells.store(true, Ordering::SeqCst);
        // Opened for both, it needs no other side.
        let both = fs::File::options().read(true).write(true).open(&path);
        std::thread::sleep(Duration::from_secs(60));
        drop(both);
    });
    released
}

#[test]
fn a_pipe_ends_in_an_error_at_once() {
    let (dir, _) = folder(3);
    let released = pipe(&dir.path().join("pipe"));
    let listed = Listed { key: "pipe".into(), size: 100, etag: None };
    for ring in Backend::ALL {
        let mut loader = builder(dir.path()).ring(*ring).listing(vec![listed.clone()]).build().unwrap();
        let error = loader.next_batch().unwrap().unwrap_err();
        assert!(error.kind() == Kind::File && error.to_string().contains("not a regular file"), "{ring}: {error}");
        assert!(!released.load(Ordering::SeqCst), "{ring}: it waited for the pipe");
    }
    let error = get(dir.path().join("pipe").to_str().unwrap(), &mut Vec::new()).unwrap_err();
    assert!(error.kind() == Kind::File && error.to_string().contains("not a regular file"), "{error}");
    assert!(!released.load(Ordering::SeqCst), "it waited for the pipe");
}
