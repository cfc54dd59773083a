//! Which ranks the runs before this one had, where homes of blocks follow the order of ranks.
//!
//! Each rank's disk keeps the lists of the last runs, beside the blocks. A wrong list costs requests that find nothing, and of those the planner
//! sends few. Owns one file. Never asks another rank.

use crate::spill::Directory;
use crate::system::replace_file;
use fuelrail_io::OwnDirectory;
use fuelrail_wire::ranks::{RunRanks, decode, encode};
use std::io::Read as _;
use std::sync::Arc;

/// Runs that are kept, this one among them.
const RUNS_MAX: usize = 3;
/// More than so many lists take.
const BYTES_MAX: u64 = 1 << 20;

/// The lists of this run and of those before it with others, the last one first.
pub(super) struct Lists {
    own: Arc<OwnDirectory>,
    name: String,
    /// The hash of its listing, as states have it.
    data_set: [u8; 16],
    runs: Vec<RunRanks>,
}

impl Lists {
    /// What a disk has of the runs before `present`. A notice where that cannot be read.
    pub(super) fn read(disk: &Directory, fingerprint: &str, present: RunRanks, notices: &mut Vec<String>) -> Lists {
        let (own, name) = (Arc::clone(&disk.own), format!("fuelrail-{fingerprint}.ranks"));
        let data_set: [u8; 16] = fingerprint.as_bytes().try_into().expect("16 hexadecimal digits");
        let mut bytes = Vec::new();
        let read = own.open_file(&name, false).map_err(|error| error.to_string()).and_then(|file| match file {
            None => Ok(Vec::new()),
            Some(file) => match file.take(BYTES_MAX).read_to_end(&mut bytes) {
                Ok(_) => decode(&bytes, data_set).map_err(|flaw| flaw.to_string()),
                Err(error) => Err(error.to_string()),
            },
        });
        let mut runs = read.unwrap_or_else(|why| {
            notices.push(format!("peers: {} is not used: {why}", own.path().join(&name).display()));
            Vec::new()
        });
        runs.retain(|run| *run != present);
        runs.insert(0, present);
        runs.truncate(RUNS_MAX);
        Lists { own, name, data_set, runs }
    }

    /// Of the runs before this one.
    pub(super) fn former(&self) -> &[RunRanks] {
        &self.runs[1..]
    }

    /// The same as another rank is told them.
    pub(super) fn told(&self) -> Vec<u8> {
        encode(self.data_set, self.former())
    }

    /// What another rank has told.
    pub(super) fn heard(&self, bytes: &[u8]) -> Option<Vec<RunRanks>> {
        let mut runs = decode(bytes, self.data_set).ok()?;
        runs.truncate(RUNS_MAX - 1);
        Some(runs)
    }

    /// Keeps them for the next run. A notice where the disk refuses.
    pub(super) fn keep(&self) -> Option<String> {
        let kept = replace_file(&self.own, &self.name, &encode(self.data_set, &self.runs));
        let path = self.own.path().join(&self.name);
        kept.err().map(|error| {
            format!("peers: the next run will not know which ranks this one had: writing {}: {error}", path.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_the_last_runs_are_kept_and_one_that_comes_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::open(dir.path(), &mut Vec::new()).unwrap();
        let mut notices = Vec::new();
        let mut begin = |seed: u64, names: &[u64]| {
            let lists = Lists::read(&disk, "0123456789abcdef", (seed, names.to_vec()), &mut notices);
            assert_eq!(lists.keep(), None);
            assert_eq!(lists.heard(&lists.told()).as_deref(), Some(lists.former()));
            lists.former().to_vec()
        };
        let (a, b, c): (RunRanks, RunRanks, RunRanks) = ((1, vec![1, 2]), (1, vec![1, 2, 3]), (2, vec![1, 2]));
        assert!(begin(1, &[1, 2]).is_empty());
        assert!(begin(1, &[1, 2]).is_empty(), "the same again");
        assert_eq!(begin(1, &[1, 2, 3]), std::slice::from_ref(&a));
        // One that had no time to move blocks begins anew.
        assert_eq!(begin(1, &[1, 2, 3]), std::slice::from_ref(&a));
        assert_eq!(begin(2, &[1, 2]), [b.clone(), a]);
        assert_eq!(begin(1, &[4]), [c.clone(), b]);
        assert_eq!(begin(2, &[1, 2]), [(1, vec![4]), (1, vec![1, 2, 3])]);
        let path = disk.own.path().join("fuelrail-0123456789abcdef.ranks");
        std::fs::write(&path, b"fuelrail ranks").unwrap();
        assert!(begin(1, &[1, 2]).is_empty());
        assert!(notices.len() == 1 && notices[0].contains("is not used: it is truncated"), "{notices:?}");
        assert!(crate::spill::list_cache(dir.path()).unwrap().segments.is_empty(), "it is no segment");
    }
}
