//! A prefix of a bucket into a folder.

use super::job::{Job, Root};
use crate::failure::{Failure, Outcome, file};
use crate::screen::{Bar, note};
use crate::settings::{given, load};
use crate::whole::WholeFile;
use fuelrail::{Access, BadSamples, Batch, Error, Kind, Listed, LoaderBuilder};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Objects longer than this do not go through batches.
const LONG_BYTES: u64 = 64 << 20;
/// A batch holds about so much, and at most so many objects.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_OBJECTS_MAX: u64 = 256;
/// Threads that write files, and batches that wait for them.
const WRITERS: usize = 4;

pub(super) fn copy(job: &Job<'_>, access: &Access, root: &Root) -> Outcome<()> {
    let folder = Path::new(job.to);
    let bar = Bar::new(None, "objects listed");
    let listed = fuelrail::list_with(access, job.from, |count| bar.at(count, String::new))?;
    drop(bar);
    fs::create_dir_all(folder).map_err(|error| file("making", folder, &error))?;
    let mut wanted = Vec::with_capacity(listed.len());
    for object in listed {
        match place(folder, root, &object.key) {
            // What a console shows as an empty folder.
            Ok(_) if object.size == 0 && object.key.ends_with('/') => {}
            Ok(path) if job.resume && is_there(&path, object.size) => job.skipped(1),
            Ok(_) => wanted.push(object),
            Err(error) => job.ended(&object.key, Err(error.into())),
        }
    }
    job.bar.total(wanted.iter().map(|object| object.size).sum());
    let (short, long): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|object| object.size <= LONG_BYTES);
    if !short.is_empty() {
        batches(job, folder, root, short)?;
    }
    for object in long {
        if !job.goes_on() {
            break;
        }
        job.ended(&object.key, one(access, folder, root, &object));
    }
    Ok(())
}

fn is_there(path: &Path, size: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_file() && there.len() == size)
}

/// The file of a key. Only names that stay below the folder, and that no two keys share.
fn place(folder: &Path, root: &Root, key: &str) -> fuelrail::Result<PathBuf> {
    let below = root.below(key);
    let names = below.strip_suffix('/').unwrap_or(below).split('/');
    if names.clone().any(|name| matches!(name, "" | "." | "..") || name.contains('\0')) {
        return Err(Error::new(Kind::Usage, "its key is not a valid path inside a folder")
            .with_hint("copy this object by itself, to a file name"));
    }
    Ok(folder.join(names.collect::<PathBuf>()))
}

/// Copies objects through a loader, several files at once.
fn batches(job: &Job<'_>, folder: &Path, root: &Root, objects: Vec<Listed>) -> Outcome<()> {
    let longest = objects.iter().map(|object| object.size).max().unwrap_or(0);
    let batch_size = (BATCH_BYTES / longest.max(1)).clamp(1, BATCH_OBJECTS_MAX) as u32;
    let mut settings = given(job.trust);
    settings.push(("uri".into(), job.from.to_owned()));
    let builder = LoaderBuilder::new(load(None, &settings)?).listing(objects).batch_size(batch_size);
    let mut loader = builder.epochs(1).shuffle(false).rank(0).world(1).bad_samples(BadSamples::Skip).build()?;
    loader.notices().iter().for_each(|notice| note(notice));
    let (to_writers, from_loader) = sync_channel::<Taken>(WRITERS);
    let from_loader = Mutex::new(from_loader);
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| write_batches(&from_loader, folder, root, job));
        }
        // Gone before the scope ends: writers end with it.
        let to_writers = to_writers;
        while let Some(batch) = loader.next_batch().filter(|_| job.goes_on()) {
            let batch = batch?;
            for (sample, error) in batch.left_out() {
                job.ended(loader.key(*sample), Err(error.clone().into()));
            }
            let keys = batch.ids().iter().map(|sample| loader.key(*sample).to_owned()).collect();
            to_writers.send(Taken { batch, keys }).expect("writers end after their source");
        }
        Ok(())
    })
}

struct Taken {
    batch: Batch,
    keys: Vec<String>,
}

fn write_batches(source: &Mutex<Receiver<Taken>>, folder: &Path, root: &Root, job: &Job<'_>) {
    let next = || source.lock().expect("a writer does not panic").recv();
    while let Ok(Taken { batch, keys }) = next() {
        for (sample, key) in batch.samples().zip(&keys) {
            // Once it has failed for good, what is left is drained.
            if job.goes_on() {
                let written =
                    place(folder, root, key).map_err(Failure::from).and_then(|path| write(&path, sample.bytes));
                job.ended(key, written.map(|()| sample.bytes.len() as u64));
            }
        }
    }
}

/// Fetches an object that is too long for a batch.
fn one(access: &Access, folder: &Path, root: &Root, object: &Listed) -> Outcome<u64> {
    let uri = root.uri_of(root.below(&object.key));
    let mut whole = create(&place(folder, root, &object.key)?)?;
    let bytes = fuelrail::get_with(access, &uri, &mut whole)?;
    whole.finish()?;
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let mut whole = create(path)?;
    whole.write_all(bytes).map_err(|error| file("writing", path, &error))?;
    whole.finish()
}

fn create(path: &Path) -> Outcome<WholeFile> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| file("making", parent, &error))?;
    }
    WholeFile::create(path)
}
