//! Listings that are kept: used again while the bucket is as it was, resumed after an interruption, and never used when
//! they are damaged or another user's.

use crate::common::skip::skip_or_fail;
use crate::common::{eventually, kept_in, loader};
use fuelrail::{Access, Error, Format, KeptListing, Kind, Listed, ListingDir, Result, list_kept, put};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Script, Source};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// More than are asked for as a whole: 40 pages.
const OBJECTS: u64 = 40_000;
const AT: &str = "LISTING_TEST_BUCKET";
const IN: &str = "LISTING_TEST_DIR";
const MOST: &str = "LISTING_TEST_PAGES";

fn set() -> DataSet {
    DataSet::digits(OBJECTS, 5)
}

fn bucket(script: &str) -> Bucket {
    bucket_of(set(), script)
}

fn bucket_of(set: DataSet, script: &str) -> Bucket {
    let script: Script = script.parse().unwrap();
    Bucket::start(BucketConfig { source: Source::Generated(set), script, ..BucketConfig::default() }).unwrap()
}

fn kept_at(uri: &str, dir: &Path, max_age_s: u64, progress: impl FnMut(u64) + Send) -> Result<KeptListing> {
    list_kept(
        Access::default(),
        uri,
        &ListingDir { path: dir.to_owned(), max_age: std::time::Duration::from_secs(max_age_s) },
        progress,
    )
}

fn kept(bucket: &Bucket, dir: &Path) -> KeptListing {
    kept_at(&bucket.url(""), dir, 3600, |_| {}).unwrap()
}

fn is_whole(kept: &KeptListing) {
    assert!(kept.listing.iter().eq(crate::common::listing(&set())), "{:?}", kept.notices);
}

fn says(kept: &KeptListing, what: &str) {
    assert!(kept.notices.iter().any(|line| line.contains(what)), "'{what}' is not in {:#?}", kept.notices);
}

/// The file of a directory with this ending.
fn file(dir: &Path, ending: &str) -> PathBuf {
    kept_in(dir).into_iter().find(|path| path.to_str().unwrap().ends_with(ending)).unwrap()
}

#[test]
fn a_listing_is_used_again_while_the_bucket_is_as_it_was() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let first = kept(&bucket, dir.path());
    is_whole(&first);
    assert!(!first.reused && first.file() == Some(&file(dir.path(), ".listing")));
    says(&first, "40000 objects saved in");
    assert_eq!(fs::metadata(file(dir.path(), ".journal")).unwrap().len(), 0, "it is not interrupted");
    let bytes = fs::metadata(first.file().unwrap()).unwrap().len();
    let keys: u64 = first.listing.iter().map(|object| object.key.len() as u64).sum();
    assert!(bytes <= keys + 34 * OBJECTS + 100, "{bytes} bytes");

    bucket.reset_counters();
    let again = kept(&bucket, dir.path());
    is_whole(&again);
    assert!(again.reused && bucket.counters().list_requests == 32, "{:?}", bucket.counters());
    says(&again, "40000 objects, listed");
    let old = kept_at(&bucket.url(""), dir.path(), 0, |_| {}).unwrap();
    is_whole(&old);
    says(&old, "listing the bucket again");
    assert!(!old.reused);
    assert!(kept(&bucket, dir.path()).reused);
    let other = kept_at(&bucket.url("training/3/"), dir.path(), 3600, |_| {}).unwrap();
    assert!(!other.reused && other.listing.iter().all(|object| object.key.starts_with("training/3/")));
    assert_eq!(other.file(), None, "what is short is asked for as a whole");

    for key in ["a", "training/zzz"] {
        put(&bucket.url(key), b"new").unwrap();
        let changed = kept(&bucket, dir.path());
        assert!(!changed.reused && changed.listing.iter().any(|object| object.key == key));
        says(&changed, &format!("'{key}' changed since the listing of"));
    }
    assert!(kept(&bucket, dir.path()).reused);
}

/// Its keys may be confidential, and another user's file would be used.
#[test]
fn neither_directories_nor_listings_of_other_users_are_used() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let path = kept(&bucket, dir.path()).file().unwrap().to_owned();
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o700);
    for path in [&*path, dir.path()] {
        if let Err(error) = chown(path, Some(54_321), None) {
            return skip_or_fail("root", error);
        }
        let anew = kept(&bucket, dir.path());
        is_whole(&anew);
        assert!(!anew.reused);
        says(&anew, "user 54321 (mode 0");
    }
}

#[test]
fn damaged_files_are_not_used() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let path = kept(&bucket, dir.path()).file().unwrap().to_owned();
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let cases: [(Vec<u8>, &str); 6] = [
        (Vec::new(), "is truncated"),
        (good[..good.len() / 3].to_vec(), "is truncated"),
        ([&good[..], b"x"].concat(), "contains invalid values"),
        (flipped, "is damaged"),
        ([b"something", &good[..]].concat(), "another kind of file"),
        ([&good[..16], b"\x03", &good[17..]].concat(), "version 3"),
    ];
    for (bytes, why) in cases {
        fs::write(&path, bytes).unwrap();
        let anew = kept(&bucket, dir.path());
        is_whole(&anew);
        assert!(!anew.reused);
        says(&anew, why);
        assert!(fs::read(&path).unwrap() == good || kept(&bucket, dir.path()).reused, "it is saved again");
    }
    let refused = kept(&bucket, &path);
    is_whole(&refused);
    says(&refused, "listing_dir: ");
}

/// The bucket refuses everything from the twelfth page on: the error, and the pages and objects that came.
fn broken_off(bucket: &Bucket, dir: &Path) -> (Error, u64, u64) {
    let (mut pages, mut objects) = (0, 0);
    let error = kept_at(&bucket.url(""), dir, 3600, |count| {
        (pages, objects) = (pages + 1, count);
        if pages == 12 {
            bucket.set_script("slowdown=1,per_key_max=1000000".parse().unwrap()).unwrap();
        }
    });
    bucket.set_script(Script::default()).unwrap();
    (error.unwrap_err(), pages, objects)
}

#[test]
fn a_listing_that_is_interrupted_asks_for_what_is_missing_and_for_nothing_else() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let (error, taken, objects) = broken_off(&bucket, dir.path());
    assert_eq!(error.kind(), Kind::Throttled, "{error}");
    assert!(error.to_string().contains("resumes after them"), "{error}");
    bucket.reset_counters();
    let mut told = Vec::new();
    let listed = kept_at(&bucket.url(""), dir.path(), 3600, |count| told.push(count)).unwrap();
    is_whole(&listed);
    says(&listed, &format!("{taken} pages come from a listing that was started"));
    let asked = bucket.counters().list_requests;
    assert_eq!(told[0], objects, "{told:?}");
    // Every page that was asked for came, and was told: none that was there already.
    assert_eq!(asked, told.len() as u64 - 1, "{told:?}");
    // A page for every thousand keys, at worst one more for each of twenty stretches, and guesses that bring nothing.
    assert!(asked + taken <= OBJECTS / 1000 + 20 + 13, "{asked} pages after {taken}");
    assert!(kept(&bucket, dir.path()).reused);
}

#[test]
fn a_torn_journal_costs_pages_and_nothing_else() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let (_, taken, _) = broken_off(&bucket, dir.path());
    let path = file(dir.path(), ".journal");
    let good = fs::read(&path).unwrap();
    for part in 0..12 {
        let mut bytes = good[..good.len() * part / 12].to_vec();
        if part % 2 == 1 {
            let at = bytes.len() / 2;
            bytes[at] ^= 16;
            bytes.extend_from_slice(b"and something else");
        }
        fs::write(&path, bytes).unwrap();
        bucket.reset_counters();
        let listed = kept_at(&bucket.url(""), dir.path(), 0, |_| {}).unwrap();
        is_whole(&listed);
        let asked = bucket.counters().list_requests;
        assert!(asked + taken > OBJECTS / 1000, "{asked}");
    }
}

/// A process that lists what the environment says, and stands still after so many pages.
#[test]
#[ignore = "what the tests beside it run, and kill"]
fn lists_in_a_process_of_its_own() {
    let (Ok(uri), Ok(dir), Ok(most)) = (std::env::var(AT), std::env::var(IN), std::env::var(MOST)) else { return };
    let (most, mut pages): (usize, usize) = (most.parse().unwrap(), 0);
    let mut page = |count| {
        tell(&format!("listed {count}"));
        pages += 1;
        if pages == most {
            loop {
                std::thread::park();
            }
        }
    };
    let listed = kept_at(&uri, Path::new(&dir), 3600, &mut page).unwrap();
    tell(&format!("whole {} {:?}", listed.listing.len(), listed.notices));
}

/// To the process that started this one, on a line of its own.
fn tell(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

fn process(bucket: &Bucket, dir: &Path, most: usize) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "listing_dir::lists_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(AT, bucket.url(""))
        .env(IN, dir)
        .env(MOST, most.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out.lines().map(Result::unwrap).filter(|line| line.starts_with("listed") || line.starts_with("whole")))
}

#[test]
fn a_process_that_is_killed_leaves_what_the_next_one_goes_on_from() {
    let (bucket, dir) = (bucket("latency=fixed:20ms"), tempfile::tempdir().unwrap());
    let mut counted = 0;
    for pages in [7, 9] {
        let (mut child, lines) = process(&bucket, dir.path(), pages);
        let told = lines.take(pages).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let now: u64 = told.strip_prefix("listed ").unwrap().parse().unwrap();
        assert!(now > counted, "{told}");
        counted = now;
    }
    bucket.set_script(Script::default()).unwrap();
    // What the killed process had sent may be read after its end.
    eventually("the bucket has nothing more to answer", || bucket.counters().connections_open == 0);
    bucket.reset_counters();
    let mut told = Vec::new();
    let listed = kept_at(&bucket.url(""), dir.path(), 3600, |count| told.push(count)).unwrap();
    is_whole(&listed);
    assert!(told[0] >= counted, "{counted} objects were told of, and {told:?} come");
    assert_eq!(bucket.counters().list_requests, told.len() as u64 - 1);
}

#[test]
fn processes_that_start_together_list_a_bucket_once() {
    let (bucket, dir) = (bucket("latency=fixed:300ms"), tempfile::tempdir().unwrap());
    let (mut child, mut lines) = process(&bucket, dir.path(), usize::MAX);
    lines.next().unwrap();
    let beside = kept(&bucket, dir.path());
    is_whole(&beside);
    assert!(beside.reused, "{:?}", beside.notices);
    says(&beside, "waited for another process");
    let last = lines.last().unwrap();
    assert!(last.starts_with("whole 40000") && last.contains("objects saved in"), "{last}");
    assert!(child.wait().unwrap().success());
    assert_eq!(beside.file(), Some(&*file(dir.path(), ".listing")));
}

#[test]
fn where_one_that_lists_is_killed_one_that_waits_goes_on() {
    let set = DataSet::digits(2 * OBJECTS, 5);
    let (bucket, dir) = (bucket_of(set.clone(), "latency=fixed:500ms"), tempfile::tempdir().unwrap());
    let (mut child, mut lines) = process(&bucket, dir.path(), usize::MAX);
    lines.next().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| kept(&bucket, dir.path()));
        // After the 32 pages that the other one asks for by itself, and far from the end.
        let long = lines.any(|line| line.strip_prefix("listed ").and_then(|n| n.parse::<u64>().ok()) >= Some(48_000));
        assert!(long, "it was over before");
        child.kill().unwrap();
        child.wait().unwrap();
        bucket.set_script(Script::default()).unwrap();
        let listed = waits.join().unwrap();
        assert!(listed.listing.iter().eq(crate::common::listing(&set)), "{:?}", listed.notices);
        assert!(!listed.reused, "{:?}", listed.notices);
        says(&listed, "objects saved in");
    });
    let again = |max_age_s| kept_at(&bucket.url(""), dir.path(), max_age_s, |_| {}).unwrap();
    assert!(!again(0).reused && again(60).reused);
}

#[test]
fn an_object_that_is_not_as_listed_drops_the_listing() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    let build = || loader(&bucket).listing_dir(dir.path().to_owned()).shuffle(false).build().unwrap();
    let listed = |loader: &fuelrail::Loader, what: &str| loader.notices().iter().any(|line| line.contains(what));
    let first = build();
    assert!(listed(&first, "40000 objects saved in"), "{:?}", first.notices());
    drop(first);
    let Listed { key, .. } = crate::common::listing(&set()).remove(3);
    bucket.set_script(format!("changed_keys={key}").parse().unwrap()).unwrap();
    let mut again = build();
    assert!(listed(&again, "objects, listed"), "{:?}", again.notices());
    let error = again.next_batch().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(error.to_string().contains("is dropped: the next start lists the bucket again"), "{error}");
    drop(again);
    bucket.set_script(Script::default()).unwrap();
    let mut anew = build();
    assert!(listed(&anew, "40000 objects saved in"), "{:?}", anew.notices());
    assert!(anew.next_batch().unwrap().is_ok());
}

/// What reads the parts of shards is a loader inside another.
#[cfg(feature = "parquet")]
#[test]
fn a_shard_that_changes_while_its_parts_are_read_drops_the_listing() {
    use fuelrail_format::write::{Value, Writer};
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    for file in ["a.parquet", "b.parquet"] {
        let mut writer = Writer::new(Format::Parquet, 1 << 30, None).unwrap();
        (0..400).for_each(|n| assert!(writer.push(None, &[("n", Value::Int(n))]).unwrap()));
        put(&bucket.url(file), writer.finish()).unwrap();
    }
    let builder = || loader(&bucket).listing_dir(dir.path().to_owned()).format(Format::Parquet).batch_size(16);
    // In order, so that parts are let go of and read again in each epoch.
    let build = || builder().shuffle(false).epochs(1_000_000).build().unwrap();
    let mut loader = build();
    assert!(loader.next_batch().unwrap().is_ok());
    bucket.set_script("changed_keys=a.parquet".parse().unwrap()).unwrap();
    let error = loader.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(error.to_string().contains("is dropped: the next start lists the bucket again"), "{error}");
    assert!(error.to_string().contains("a.parquet"), "{error}");
    bucket.set_script(Script::default()).unwrap();
    let anew = build();
    assert!(anew.notices().iter().any(|line| line.contains("40002 objects saved in")), "{:?}", anew.notices());
}

/// Side-cars are read before there is a loader.
#[test]
fn a_side_car_that_is_not_as_listed_drops_the_listing() {
    let (bucket, dir) = (bucket(""), tempfile::tempdir().unwrap());
    put(&bucket.url("a.cls"), b"1").unwrap();
    let plain = || loader(&bucket).listing_dir(dir.path().to_owned());
    let build = || plain().format(Format::Objects).side_cars(["cls"]).build();
    drop(plain().build().unwrap());
    bucket.set_script("changed_keys=a.cls".parse().unwrap()).unwrap();
    let error = build().unwrap_err();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
    assert!(error.to_string().contains("is dropped: the next start lists the bucket again"), "{error}");
    bucket.set_script(Script::default()).unwrap();
    let anew = build().unwrap();
    assert!(anew.notices().iter().any(|line| line.contains("40001 objects saved in")), "{:?}", anew.notices());
}
