//! A folder into a prefix of a bucket.

use super::job::{Job, Root};
use crate::failure::{Outcome, file};
use fuelrail::{Access, Kind, Listed};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Files that are sent at once.
const SENDERS: usize = 8;

pub(super) fn copy(job: &Job<'_>, access: &Access, root: &Root) -> Outcome<()> {
    let folder = Path::new(job.from);
    let mut files = fuelrail::list(&format!("{}/", job.from.trim_end_matches('/')), |_| {})?;
    if job.resume {
        let there = match fuelrail::list_with(access, &root.uri, |_| {}) {
            Err(error) if error.kind() == Kind::NotFound => Vec::new(),
            listed => listed?,
        };
        let there: HashMap<&str, u64> = there.iter().map(|object| (root.below(&object.key), object.size)).collect();
        let all = files.len();
        files.retain(|file| there.get(file.key.as_str()) != Some(&file.size));
        job.skipped(all - files.len());
    }
    job.bar.total(files.iter().map(|file| file.size).sum());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..SENDERS.min(files.len()) {
            scope.spawn(|| {
                while let Some(object) = files.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| job.goes_on()) {
                    job.ended(&object.key, send(access, folder, root, object));
                }
            });
        }
    });
    Ok(())
}

fn send(access: &Access, folder: &Path, root: &Root, object: &Listed) -> Outcome<u64> {
    let path = folder.join(&object.key);
    let mut source = File::open(&path).map_err(|error| file("reading", &path, &error))?;
    Ok(fuelrail::put_with(access, &root.uri_of(&object.key), &mut source, |_| {})?.bytes)
}
