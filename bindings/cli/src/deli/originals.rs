//! What the generator says every object is: keys, sizes and bytes, made once before anything is timed.
//!
//! Owns the bytes that deliveries are compared with and local files are written from.

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail::Listed;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_bucket::DataSet;

use crate::failure::of_bucket;

/// A generated data set, whole.
#[derive(Debug)]
pub(super) struct Originals {
    set: DataSet,
    keys: Vec<String>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Originals {
    pub(super) fn new(set: DataSet) -> Originals {
        let mut originals = Originals { keys: Vec::new(), bytes: Vec::new(), ends: Vec::new(), set };
        for index in 0..originals.set.len() {
            originals.keys.push(originals.set.key(index));
            originals.bytes.extend_from_slice(&originals.set.content(index));
            originals.ends.push(originals.bytes.len());
        }
        originals
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Sum of all sizes.
    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The key of a sample.
    pub(super) fn key(&self, id: SampleId) -> &str {
        &self.keys[id.0 as usize]
    }

    /// The bytes of a sample.
    pub(super) fn of(&self, id: SampleId) -> &[u8] {
        let index = id.0 as usize;
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from..self.ends[index]]
    }

    /// Checks that `delivered` is the sample, whole.
    ///
    /// # Errors
    /// `Mismatch` that names the object and the first wrong byte or the lengths.
    pub(super) fn check(&self, id: SampleId, delivered: &[u8]) -> Result<()> {
        if self.of(id) == delivered {
            return Ok(());
        }
        let key = self.key(id);
        let said = self.set.verify(key, delivered).err().map(|e| of_bucket(&e).object(key));
        Err(said.unwrap_or_else(|| Error::new(Kind::Mismatch, "the generator contradicts itself").object(key)))
    }

    /// Keys and sizes, as a listing would give them.
    pub(super) fn listing(&self) -> Vec<Listed> {
        let ids = (0..).map(SampleId).zip(&self.keys);
        ids.map(|(id, key)| Listed { key: key.clone(), size: self.of(id).len() as u64, etag: None }).collect()
    }

    /// Writes every sample as a file of its own below `folder`.
    ///
    /// # Errors
    /// `File` with the path that could not be written.
    pub(super) fn write_files(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::with_capacity(self.len());
        for (id, key) in (0..).map(SampleId).zip(&self.keys) {
            let path = folder.join(key);
            let failed = |e| Error::new(Kind::File, format!("writing {}: {e}", path.display()));
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            fs::write(&path, self.of(id)).map_err(failed)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_named() {
        let originals = Originals::new(DataSet::digits(20, 1));
        let mut bytes = originals.of(SampleId(7)).to_vec();
        originals.check(SampleId(7), &bytes).unwrap();
        assert_eq!(originals.set.content(7), bytes);
        bytes[100] ^= 1;
        let error = originals.check(SampleId(7), &bytes).unwrap_err();
        assert_eq!((error.kind(), error.object_key()), (Kind::Mismatch, Some(originals.key(SampleId(7)))));
        assert!(error.to_string().contains("byte 100"), "{error}");
        assert_eq!(originals.check(SampleId(7), &bytes[..50]).unwrap_err().kind(), Kind::Mismatch);
    }

    #[test]
    fn files_hold_the_samples() {
        let originals = Originals::new(DataSet::digits(15, 2));
        let folder = tempfile::tempdir().unwrap();
        let paths = originals.write_files(folder.path()).unwrap();
        for (id, path) in (0..).map(SampleId).zip(&paths) {
            originals.check(id, &fs::read(path).unwrap()).unwrap();
        }
        assert_eq!(paths.len(), originals.len());
        assert_eq!(originals.total_bytes(), originals.listing().iter().map(|o| o.size).sum::<u64>());
    }
}
