//! A data set as real files, for other servers and for runs on a local disk.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::DataSet;
use crate::error::{Error, Result};

/// Bytes generated and written at once.
const STEP_BYTES: u64 = 1 << 20;

/// How far [`DataSet::write_to`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Written {
    /// Objects completely written.
    pub objects: u64,
    /// Bytes written.
    pub bytes: u64,
}

impl DataSet {
    /// Writes every object to the file `dir/<key>`, making folders as needed and overwriting files that exist;
    /// `progress` is called at least once per MiB and after every object.
    ///
    /// # Errors
    /// `Usage` for a set that is not valid, `System` when a file cannot be written. Files already written stay.
    pub fn write_to(&self, dir: &Path, mut progress: impl FnMut(Written)) -> Result<Written> {
        self.validate()?;
        let mut written = Written::default();
        let mut made = None;
        let mut step = Vec::new();
        for index in 0..self.count {
            let path = dir.join(self.key(index));
            let folder = path.parent().unwrap_or(dir).to_path_buf();
            if made.as_ref() != Some(&folder) {
                fs::create_dir_all(&folder).map_err(|e| Error::system(format!("making {}", folder.display()), &e))?;
                made = Some(folder);
            }
            let failed = |e: &std::io::Error| Error::system(format!("writing {}", path.display()), e);
            let mut file = fs::File::create(&path).map_err(|e| failed(&e))?;
            let item = self.item(index);
            let mut at = 0;
            while at < item.size() {
                step.resize((item.size() - at).min(STEP_BYTES) as usize, 0);
                self.fill_item(&item, 0, at, &mut step);
                file.write_all(&step).map_err(|e| failed(&e))?;
                at += step.len() as u64;
                written.bytes += step.len() as u64;
                if at < item.size() {
                    progress(written);
                }
            }
            written.objects += 1;
            progress(written);
        }
        Ok(written)
    }
}
