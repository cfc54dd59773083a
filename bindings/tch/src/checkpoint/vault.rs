//! The places of checkpoints: a folder, a bucket, or both. A checkpoint is there whole or not at all.
//!
//! In a folder it is written beside its name, synced, renamed, and the folder synced: a power cut leaves the last one as it was. In a bucket an
//! upload is whole or nothing by itself. Only files with names of checkpoints are ever touched, and what was not whole yet when its process was
//! killed. A thread writes while training goes on.

use super::Checkpoint;
use fuelrail::Access;
use fuelrail::internal::forget_unfinished;
use fuelrail_base::{Error, Kind, Result};
use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ENDING: &str = ".safetensors";

/// Keeps checkpoints.
#[derive(Clone, Debug, Default)]
pub struct Vault {
    /// Its path, with a slash at its end. The engine takes a folder for a bucket.
    folder: Option<String>,
    /// `s3://BUCKET/PREFIX/`, `http://HOST:PORT/BUCKET/PREFIX/` ….
    bucket: Option<String>,
    access: Access,
    keep: usize,
}

/// A checkpoint found, and the newer ones that were skipped.
#[derive(Debug, Default)]
pub struct Found {
    /// Its bytes, checked.
    pub bytes: Option<Vec<u8>>,
    /// Errors of newer ones.
    pub notices: Vec<String>,
}

fn name_of(step: u64) -> String {
    format!("step-{step:012}{ENDING}")
}

/// The step in the name of a checkpoint file.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?.strip_suffix(ENDING)?;
    (digits.len() == 12).then(|| digits.parse().ok())?
}

impl Vault {
    /// Checkpoints in `places`: a folder, a bucket's prefix (`s3://…`, `gs://…`, `az://…`, `https://…`), or both. The newest `keep` are kept
    /// in a folder, or for 0 the one that was written last, whatever its step; in a bucket all are.
    ///
    /// # Errors
    /// `File` when the folder cannot be made; `Usage` for two folders or two buckets.
    pub fn open(places: &[String], keep: usize) -> Result<Vault> {
        let mut vault = Vault { keep, ..Vault::default() };
        for place in places {
            let is_bucket = place.contains("://");
            if let Some(first) = if is_bucket { &vault.bucket } else { &vault.folder } {
                let kind = if is_bucket { "buckets" } else { "folders" };
                let cause = format!("checkpoints in two {kind}: {first} and {place}");
                return Err(Error::new(Kind::Usage, cause).with_hint("give one folder, one bucket, or one of each"));
            }
            if is_bucket {
                vault.bucket = Some(format!("{}/", place.trim_end_matches('/')));
            } else {
                let made = fs::create_dir_all(place);
                made.map_err(|e| with_room(Error::from_io(Kind::File, format_args!("cannot make {place}"), e)))?;
                let here = if Path::new(place).is_absolute() { "" } else { "./" };
                vault.folder = Some(format!("{here}{}/", place.trim_end_matches('/')));
            }
        }
        Ok(vault)
    }

    /// Sets the access to the bucket: endpoint, certificate authorities and credentials, as for a loader.
    #[must_use]
    pub fn reached(mut self, access: Access) -> Vault {
        self.access = access;
        self
    }

    /// Whether it has any place.
    pub fn is_somewhere(&self) -> bool {
        self.folder.is_some() || self.bucket.is_some()
    }

    /// Whether both have a place in common: each would take the other's checkpoints for its own.
    pub(crate) fn shares(&self, other: &Vault) -> bool {
        let folder = |vault: &Vault| fs::canonicalize(vault.folder.as_deref()?).ok();
        folder(self).is_some_and(|own| folder(other) == Some(own))
            || (self.bucket.is_some() && self.bucket == other.bucket)
    }

    /// Writes a checkpoint to all places. Returns those that have it, and notices of those that refused.
    ///
    /// # Errors
    /// Where no place takes it: `File` when the disk is full, `Network`, `Denied` … for the bucket. Earlier checkpoints stay.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<(Vec<String>, Vec<String>)> {
        let (bytes, name) = (checkpoint.to_bytes()?, name_of(checkpoint.about.step));
        let (mut places, mut refused) = (Vec::new(), Vec::new());
        for place in self.folder.iter().chain(&self.bucket) {
            let uri = format!("{place}{name}");
            match fuelrail::put_with(&self.access, &uri, &mut Cursor::new(&bytes), |_| {}) {
                Ok(_) => places.push(uri),
                Err(error) => refused.push((uri, with_room(error))),
            }
        }
        if places.is_empty() && !refused.is_empty() {
            return Err(refused.swap_remove(0).1);
        }
        if self.folder.as_ref().is_some_and(|folder| places.iter().any(|place| place.starts_with(folder))) {
            self.forget_old(checkpoint.about.step);
        }
        Ok((places, refused.iter().map(|(uri, error)| format!("there is no checkpoint {uri}: {error}")).collect()))
    }

    /// Removes older checkpoints of the folder. One that cannot be removed stays: that does not fail the run.
    fn forget_old(&self, newest: u64) {
        let is_old = |step: &u64| if self.keep == 0 { *step != newest } else { *step <= newest };
        let mut steps: Vec<u64> = self.steps_in_folder().filter(is_old).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        for step in steps.into_iter().skip(self.keep) {
            let _ = fs::remove_file(format!("{}{}", self.folder.as_deref().unwrap_or_default(), name_of(step)));
        }
    }

    fn steps_in_folder(&self) -> impl Iterator<Item = u64> {
        let entries = self.folder.iter().filter_map(|folder| fs::read_dir(folder).ok());
        let files = entries.flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        files.filter_map(|entry| step_of(entry.file_name().to_str()?))
    }

    /// The newest checkpoint that is whole. Broken ones are skipped, with a notice. Removes what killed processes were writing to the folder:
    /// for a process that saves nothing there yet.
    ///
    /// # Errors
    /// `Network`, `Denied`, `File` … when a place cannot be listed or read: an older checkpoint, or none, would silently take the place of the
    /// newest. `File` when all are broken, `Usage` for one of another version.
    pub fn newest(&self) -> Result<Found> {
        self.folder.iter().for_each(|folder| forget_unfinished(folder, false));
        let mut steps: Vec<(u64, bool)> = self.steps_in_folder().map(|step| (step, true)).collect();
        if let Some(bucket) = &self.bucket {
            let listed = fuelrail::list_with(&self.access, bucket, |_| {})?;
            let prefix = self.access.cloud.endpoint(bucket)?.prefix;
            // Not those of another run, or of a best model, below it.
            steps.extend(listed.iter().filter_map(|o| Some((step_of(o.key.strip_prefix(&prefix)?)?, false))));
        }
        // The newest first; of two alike the one on disk.
        steps.sort_unstable_by(|a, b| b.cmp(a));
        let mut found = Found::default();
        for (step, on_disk) in steps {
            let place = if on_disk { &self.folder } else { &self.bucket };
            let (uri, mut bytes) = (format!("{}{}", place.as_deref().unwrap_or_default(), name_of(step)), Vec::new());
            if let Err(error) = fuelrail::get_with(&self.access, &uri, &mut bytes) {
                if error.kind() == Kind::NotFound {
                    // Removed since it was listed.
                    continue;
                }
                return Err(error.with_hint("mend that, or name another --checkpoint to begin anew"));
            }
            match Checkpoint::check(&bytes) {
                Ok(()) => return Ok(Found { bytes: Some(bytes), ..found }),
                Err(error) if error.kind() == Kind::File => {
                    found.notices.push(format!("{uri} is passed over: {error}"))
                }
                Err(error) => return Err(error.within(uri)),
            }
        }
        if found.notices.is_empty() {
            return Ok(found);
        }
        let cause = format!("none of {} checkpoints is whole; the newest: {}", found.notices.len(), found.notices[0]);
        Err(Error::new(Kind::File, cause).with_hint("remove them, or name another --checkpoint, to begin anew"))
    }
}

/// With what helps when a folder cannot be written to.
fn with_room(error: Error) -> Error {
    match error.kind() {
        Kind::File => error.with_hint("make room, or name a folder that can be written (--checkpoint)"),
        _ => error,
    }
}

/// The places that have a checkpoint, and notices of those that refused.
pub(crate) type Written = Result<(Vec<String>, Vec<String>)>;

/// Writes, or reads, one checkpoint at a time.
#[derive(Debug, Default)]
pub(crate) struct Writer<T = (Vec<String>, Vec<String>)>(Option<(JoinHandle<()>, Receiver<Result<T>>, Instant)>);

impl<T> Writer<T> {
    pub(crate) fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// Begins to write. Only when it is not busy.
    pub(crate) fn begin(&mut self, write: impl FnOnce() -> Result<T> + Send + 'static) -> Result<()>
    where
        T: Send + 'static,
    {
        debug_assert!(!self.is_busy(), "one at a time");
        let (begun, (tell, told)) = (Instant::now(), channel());
        let thread = std::thread::Builder::new().name("fuelrail-vault".into()).spawn(move || drop(tell.send(write())));
        let thread = thread.map_err(|e| Error::from_io(Kind::Environment, "starting a thread for checkpoints", e))?;
        self.0 = Some((thread, told, begun));
        Ok(())
    }

    /// What became of the one under way, and how long it took. `None` where there is none, or it has not ended within `patience`.
    pub(crate) fn ended(&mut self, patience: Duration) -> Option<(Result<T>, Duration)> {
        let (_, told, begun) = self.0.as_ref()?;
        let (written, took) = match told.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return None,
            written => (written.ok(), begun.elapsed()),
        };
        let (thread, ..) = self.0.take()?;
        let _ = thread.join();
        let written = written.unwrap_or_else(|| Err(Error::new(Kind::Program, "the thread for checkpoints panicked")));
        Some((written, took))
    }

    /// Leaves the one under way to itself.
    pub(crate) fn abandon(&mut self) {
        self.0 = None;
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        drop(self.ended(Duration::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use fuelrail_bucket::{Bucket, BucketConfig, Source};

    fn vault(folder: &Path) -> Vault {
        Vault::open(&[folder.display().to_string()], 2).unwrap()
    }

    #[test]
    fn the_newest_whole_one_is_found_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine.safetensors"), "not yours").unwrap();
        let vault = vault(folder.path());
        assert!(vault.newest().unwrap().bytes.is_none());
        for step in [5, 10, 15] {
            vault.save(&sample(step)).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["mine.safetensors", "step-000000000010.safetensors", "step-000000000015.safetensors"]);
        let torn = folder.path().join(name_of(15));
        let bytes = fs::read(&torn).unwrap();
        fs::write(&torn, &bytes[..bytes.len() - 100]).unwrap();
        fs::write(folder.path().join("step-000000000020.safetensors.part"), "cut off").unwrap();
        let found = vault.newest().unwrap();
        assert_eq!(Checkpoint::about(&found.bytes.unwrap()).unwrap().step, 10);
        assert!(found.notices.len() == 1 && found.notices[0].contains("000015"), "{:?}", found.notices);
    }

    #[test]
    fn what_lies_below_its_prefix_is_another_vaults() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::Directory(folder.path().to_owned());
        let bucket = Bucket::start(BucketConfig { source, writable: true, ..BucketConfig::default() }).unwrap();
        let vault = |prefix: &str| Vault::open(&[bucket.url(prefix)], 1).unwrap();
        vault("run/best/").save(&sample(7)).unwrap();
        let found = vault("run/").newest().unwrap();
        assert!(found.bytes.is_none() && found.notices.is_empty(), "{:?}", found.notices);
        vault("run/").save(&sample(5)).unwrap();
        let step = |prefix| Checkpoint::about(&vault(prefix).newest().unwrap().bytes.unwrap()).unwrap().step;
        assert_eq!(["run/", "run/best/"].map(step), [5, 7]);
    }

    #[test]
    fn a_full_disk_leaves_the_last_one_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let vault = vault(folder.path());
        vault.save(&sample(5)).unwrap();
        // A folder where the new file should be: its rename fails, as a full disk's write does.
        fs::create_dir(folder.path().join(name_of(6))).unwrap();
        let error = vault.save(&sample(6)).unwrap_err();
        assert!(error.kind() == Kind::File && error.to_string().contains("make room"), "{error}");
        assert!(!folder.path().join("step-000000000006.safetensors.part").exists());
        assert_eq!(Checkpoint::about(&vault.newest().unwrap().bytes.unwrap()).unwrap().step, 5);
    }
}
