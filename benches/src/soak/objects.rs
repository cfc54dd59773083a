//! The objects of a soak: tiny, middling and of many MiB, as files in a folder of their own, with the hash of each.
//!
//! Owns the folder and removes it. What an object holds is the generator's; its hash is taken from the file that is served.

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail::{Error, Kind, Listed, Result};
use fuelrail_bucket::DataSet;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Objects of each kind at scale 1, and the least at any scale: some 280 MiB in all.
const DIGITS: (f64, u64) = (2000.0, 40);
const PHOTOS: (f64, u64) = (1000.0, 12);
const VOLUMES: (f64, u64) = (40.0, 4);
/// Volumes are 140 MiB on average as published; these are of 4 MiB, and some are longer than a block.
const VOLUME_SCALE: f64 = 0.03;

/// The folder in ours that is served: what is beside it is not listed.
const SERVED: &str = "served";

/// One object as it must arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) size: u64,
    pub(super) hash: u64,
}

/// The folder, and what is in it in the order of the keys: the order of sample ids.
#[derive(Debug)]
pub(super) struct Objects {
    folder: TempDir,
    all: Vec<Object>,
}

impl Objects {
    /// Writes the objects below `within`, or below the system's folder for temporary files.
    ///
    /// # Errors
    /// `File` when they cannot be written or read back.
    pub(super) fn write(within: Option<&Path>, scale: f64, seed: u64) -> Result<Objects> {
        let mut name = tempfile::Builder::new();
        name.prefix("fuelrail-soak-");
        let made = within.map_or_else(|| name.tempdir(), |within| name.tempdir_in(within));
        let folder = made.map_err(|error| failed(&format!("making a folder: {error}")))?;
        let count = |(full, least): (f64, u64)| ((full * scale) as u64).max(least);
        let sets = [
            ("digits", DataSet::digits(count(DIGITS), seed)),
            ("photos", DataSet::photos(count(PHOTOS), seed)),
            ("volumes", DataSet::volumes(count(VOLUMES), seed, VOLUME_SCALE * scale.min(1.0))),
        ];
        let mut all = Vec::new();
        for (name, set) in &sets {
            let below = folder.path().join(SERVED).join(name);
            set.write_to(&below, |_| {}).map_err(|error| failed(&error.to_string()))?;
            for index in 0..set.len() {
                let key = set.key(index);
                let path = below.join(&key);
                let bytes = fs::read(&path).map_err(|error| failed(&format!("reading {}: {error}", path.display())))?;
                all.push(Object { key: format!("{name}/{key}"), size: bytes.len() as u64, hash: xxh3_64(&bytes) });
            }
        }
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Objects { folder, all })
    }

    /// The folder to serve.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().join(SERVED)
    }

    pub(super) fn all(&self) -> &[Object] {
        &self.all
    }

    /// Expects something else of one object than what is served: for a canary.
    pub(super) fn spoil(&mut self) {
        self.all[0].hash ^= 1;
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.all.iter().map(|object| object.size).sum()
    }

    /// Whether a listing names just these.
    ///
    /// # Errors
    /// `Mismatch` that names the first difference.
    pub(super) fn check(&self, listing: &[Listed]) -> Result<()> {
        let same = |(object, listed): (&Object, &Listed)| object.key == listed.key && object.size == listed.size;
        if self.all.len() == listing.len() && self.all.iter().zip(listing).all(same) {
            return Ok(());
        }
        let cause = format!("{} objects were written, and {} listed otherwise", self.all.len(), listing.len());
        Err(Error::new(Kind::Mismatch, cause).cure("leave the soak's folder alone while it runs"))
    }
}

fn failed(why: &str) -> Error {
    Error::new(Kind::File, format!("the soak's objects: {why}")).cure("give another folder with --dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mixed_and_keys_ascend() {
        let objects = Objects::write(None, 0.01, 7).unwrap();
        let sizes: Vec<u64> = objects.all().iter().map(|object| object.size).collect();
        assert!(sizes.iter().any(|size| *size < 4096) && sizes.iter().any(|size| *size > 20_000), "{sizes:?}");
        assert!(objects.all().is_sorted_by(|a, b| a.key < b.key));
        assert_eq!(objects.total_bytes(), sizes.iter().sum::<u64>());
        let folder = objects.folder();
        assert!(objects.check(&[]).is_err());
        drop(objects);
        assert!(!folder.exists());
    }
}
