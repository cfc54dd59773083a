//! The shapes that loaders are measured with: how many objects of which size, in batches of how many, in how much memory.
//!
//! Owns the shapes and writes them as files with a manifest, for any server to serve. Every byte is the generator's, so the
//! hash over a whole shape is known.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fuelrail::{ByteSize, Error, Kind, Listed, Result, read_manifest, write_manifest};
use fuelrail_bucket::DataSet;
use serde::{Deserialize, Serialize};

use super::protocol::SetHash;
use super::tool::{self, unwritable};
use fuelrail_cli::failure::Stop;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShapeName {
    /// 32 objects of 64 MiB.
    Large,
    /// 14 NumPy volumes, 140 MiB in the mean.
    Volumes,
    /// 20 000 photos, log-normal around 110 KiB.
    Mid,
    /// 60 000 objects of 0.8 to 3 KB.
    Tiny,
    /// 8 photos: one batch, for the time to the first one.
    First,
}

impl ShapeName {
    /// The shape as one word, as the command line has it.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The shape with `scale` times its objects (and, of the large ones, `scale` times their bytes), at least one of each
    /// part. 1 is what results are published for.
    pub fn shape(self, scale: f64) -> Result<Shape> {
        if !(scale > 0.0 && scale <= 16.0) {
            return Err(Error::new(Kind::Usage, format!("scale = {scale} is outside 0 < scale <= 16")));
        }
        let count = |full: u64| ((full as f64 * scale).round() as u64).max(1);
        let bytes = |full: u64| (((full as f64 * scale.min(1.0)) as u64) & !1).max(2);
        let (parts, batch_size, arena) = match self {
            ShapeName::Large => {
                let set = DataSet::tokens(count(32).max(8), SEED, bytes(64 << 20));
                (vec![("".to_owned(), set)], 1, bytes(512 << 20))
            }
            ShapeName::Volumes => {
                let set = DataSet::volumes(count(14).max(4), SEED, scale.min(1.0));
                (vec![("".to_owned(), set)], 1, bytes(2 << 30))
            }
            ShapeName::Mid => (vec![("".to_owned(), DataSet::photos(count(20_000), SEED))], 64, 512 << 20),
            ShapeName::Tiny => (tiny(count(60_000)), 512, 512 << 20),
            ShapeName::First => (vec![("".to_owned(), DataSet::photos(8, SEED))], 8, 64 << 20),
        };
        // Batches and look-ahead need a little room whatever the scale.
        let arena_bytes = arena.max(64 << 20);
        Ok(Shape { name: self, scale, batch_size, arena_bytes, parts })
    }
}

/// Content of all shapes comes from this seed.
const SEED: u64 = 3;
/// Sizes of tiny objects: from, to, and the step between.
const TINY_BYTES: (u64, u64, u64) = (800, 3_000, 50);

/// Equal numbers of objects of every tiny size.
fn tiny(count: u64) -> Vec<(String, DataSet)> {
    let (from, to, step) = TINY_BYTES;
    let sizes: Vec<u64> = (from..=to).step_by(step as usize).collect();
    let each = count.div_ceil(sizes.len() as u64);
    let parts = sizes.into_iter().map(|size| (format!("{size:04}/"), DataSet::tokens(each, SEED ^ size, size)));
    parts.collect()
}

#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    pub name: ShapeName,
    /// Its scale; 1 is full.
    pub scale: f64,
    pub batch_size: u32,
    pub arena_bytes: u64,
    parts: Vec<(String, DataSet)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laid {
    /// The folder below the root that its keys are in, with a `/` at its end.
    pub prefix: String,
    /// Its manifest, which lies beside the root.
    pub manifest: PathBuf,
    /// Objects, under all their names.
    pub objects: u64,
    pub bytes: u64,
    /// The [`SetHash`] over all of them.
    pub hash: String,
}

impl Shape {
    pub fn objects(&self) -> u64 {
        self.parts.iter().map(|(_, set)| set.len()).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, set)| set.total_bytes()).sum()
    }

    /// Writes the shape below `folder`: the objects under `root/<shape>/`, beside it the manifest, and a note of what was
    /// laid, by which a later call knows that everything is there already. `watch` hears of bytes written. Every object has
    /// `repeats` names: a set as many times as large that takes no more room. A pass over it is long enough for starts and
    /// ends to weigh little, and no object is asked for twice by one name.
    pub fn lay(&self, folder: &Path, repeats: u32, stop: &Stop, watch: &mut dyn FnMut(u64)) -> Result<Laid> {
        let word = self.name.word();
        let note = folder.join(format!("{word}.json"));
        let (mut listing, hash) = match self.laid_before(&note) {
            Some(Note { manifest, hash, .. }) => (read_manifest(&folder.join(manifest))?, hash),
            None => self.write(folder, &note, stop, watch)?,
        };
        let (mut manifest, mut total) = (folder.join(format!("{word}.tsv")), hash);
        if repeats > 1 {
            total = hash.times(repeats);
            manifest = folder.join(format!("{word}-{repeats}-times.tsv"));
            listing = repeated(&folder.join("root").join(&word), &listing, repeats)?;
            write_manifest(&manifest, &listing)?;
        }
        Ok(Laid {
            prefix: format!("{word}/"),
            manifest,
            objects: listing.len() as u64,
            bytes: listing.iter().map(|object| object.size).sum(),
            hash: total.to_string(),
        })
    }

    /// Writes objects, manifest and note; returns the listing and the hash.
    fn write(
        &self,
        folder: &Path,
        note: &Path,
        stop: &Stop,
        watch: &mut dyn FnMut(u64),
    ) -> Result<(Vec<Listed>, SetHash)> {
        room(folder, self.bytes())?;
        let word = self.name.word();
        let root = folder.join("root").join(&word);
        match fs::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unwritable(&root, &error)),
            _ => {}
        }
        let (mut listing, mut hash, mut written) = (Vec::new(), SetHash::default(), 0);
        for (prefix, set) in &self.parts {
            for index in 0..set.len() {
                stop.check()?;
                let (key, content) = (format!("{prefix}{}", set.key(index)), set.content(index));
                tool::write(&root.join(&key), &content)?;
                hash.add(&content);
                written += content.len() as u64;
                listing.push(Listed { key, size: content.len() as u64, etag: None });
                watch(written);
            }
        }
        listing.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let manifest = format!("{word}.tsv");
        write_manifest(&folder.join(&manifest), &listing)?;
        let text = serde_json::to_string(&Note { scale: self.scale, objects: listing.len() as u64, manifest, hash });
        tool::write(note, text.expect("a plain structure"))?;
        Ok((listing, hash))
    }

    fn laid_before(&self, path: &Path) -> Option<Note> {
        let note: Note = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let same = note.scale == self.scale && note.objects == self.objects();
        (same && path.with_file_name(&note.manifest).exists()).then_some(note)
    }
}

#[derive(Serialize, Deserialize)]
struct Note {
    scale: f64,
    objects: u64,
    manifest: String,
    hash: SetHash,
}

/// The listing with every object under more names: a link in `root` to itself stands for each repeat.
fn repeated(root: &Path, once: &[Listed], repeats: u32) -> Result<Vec<Listed>> {
    let mut all = once.to_vec();
    for repeat in 1..repeats {
        let name = format!("again-{repeat}");
        let link = root.join(&name);
        match std::os::unix::fs::symlink(".", &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(unwritable(&link, &error)),
            _ => {}
        }
        all.extend(once.iter().map(|object| Listed { key: format!("{name}/{}", object.key), ..object.clone() }));
    }
    all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(all)
}

/// What must stay free beside the objects: folders, manifest, logs, and other programs.
const SPARE_BYTES: u64 = 256 << 20;

/// Whether so many bytes fit into the folder's file system, which must exist.
fn room(folder: &Path, bytes: u64) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let Ok(facts) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let (free, need) = (facts.f_bavail * facts.f_frsize, bytes + SPARE_BYTES);
    if free >= need {
        return Ok(());
    }
    let (need, free) = (ByteSize(need), ByteSize(free));
    Err(Error::new(Kind::Environment, format!("{} has {free} free, and the objects need {need}", folder.display()))
        .with_hint("give another folder with --dir, or a smaller --scale"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_shapes_are_those_that_results_are_published_for() {
        let shape = |name: ShapeName| name.shape(1.0).unwrap();
        let large = shape(ShapeName::Large);
        assert_eq!((large.objects(), large.bytes(), large.arena_bytes), (32, 2 << 30, 512 << 20));
        assert_eq!(shape(ShapeName::Mid).objects(), 20_000);
        let tiny = shape(ShapeName::Tiny);
        assert!((60_000..60_100).contains(&tiny.objects()), "{}", tiny.objects());
        assert_eq!(tiny.bytes() / tiny.objects(), 1_900);
        let volumes = shape(ShapeName::Volumes);
        let mean = volumes.bytes() as f64 / volumes.objects() as f64 / f64::from(1 << 20);
        assert!((100.0..180.0).contains(&mean), "{mean}");
        for bad in [0.0, -1.0, f64::NAN, 17.0] {
            assert_eq!(ShapeName::Mid.shape(bad).unwrap_err().kind(), Kind::Usage);
        }
    }

    #[test]
    fn a_shape_is_laid_once() {
        let folder = tempfile::tempdir().unwrap();
        let shape = ShapeName::Tiny.shape(0.002).unwrap();
        let mut told = 0;
        let laid = shape.lay(folder.path(), 1, &Stop::default(), &mut |written| told = written).unwrap();
        assert_eq!((laid.objects, laid.bytes, told), (shape.objects(), shape.bytes(), shape.bytes()));
        let again = shape.lay(folder.path(), 1, &Stop::default(), &mut |_| panic!("nothing is written twice")).unwrap();
        assert_eq!(again, laid);
        let thrice = shape.lay(folder.path(), 3, &Stop::default(), &mut |_| panic!("written anew")).unwrap();
        assert_eq!((thrice.objects, thrice.bytes), (3 * laid.objects, 3 * laid.bytes));
        let last = fuelrail::read_manifest(&thrice.manifest).unwrap().pop().unwrap();
        let path = folder.path().join("root").join(&thrice.prefix).join(&last.key);
        assert_eq!(fs::metadata(&path).unwrap().len(), last.size, "{}", path.display());
        let stop = Stop::default();
        stop.ask();
        let other = ShapeName::Tiny.shape(0.004).unwrap();
        assert_eq!(other.lay(folder.path(), 1, &stop, &mut |_| {}).unwrap_err().kind(), Kind::Cancelled);
    }

    #[test]
    fn a_full_disk_is_said_before_it_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let error = room(folder.path(), 1 << 60).unwrap_err();
        assert!(error.kind() == Kind::Environment && error.to_string().contains("--scale"), "{error}");
    }
}
