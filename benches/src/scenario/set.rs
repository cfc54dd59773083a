//! The objects of a bucket: a generated set, or a harder one of its digits: fewer of some classes, some in the folder of another class.
//!
//! Owns which digits those are. Never draws one.

use std::path::Path;

use fuelrail::{Error, Kind, Result};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::Source;

use super::BucketPlan;

const CLASSES: u64 = 10;

/// The objects and their bytes. A harder set is written into `folder`.
pub(super) fn source(plan: &BucketPlan, folder: &Path) -> Result<(Source, u64)> {
    let set = &plan.set;
    if plan.missing == 0.0 && plan.wrong == 0.0 {
        return Ok((Source::Generated(set.clone()), set.total_bytes()));
    }
    let mut bytes = 0;
    for (index, class) in chosen(plan) {
        let path = folder.join(format!("training/{class}/{index:05}.png"));
        let content = set.content(index);
        let written = std::fs::create_dir_all(path.with_file_name("")).and_then(|()| std::fs::write(&path, &content));
        written.map_err(|error| Error::new(Kind::File, format!("writing {}: {error}", path.display())))?;
        bytes += content.len() as u64;
    }
    Ok((Source::Directory(folder.to_owned()), bytes))
}

/// Indices of its digits, and the class each is labelled with.
pub(super) fn chosen(plan: &BucketPlan) -> Vec<(u64, u64)> {
    let mut prng = Prng::new(plan.set.seed);
    let draws = (0..plan.set.len()).map(|index| (index, prng.unit(), prng.unit(), prng.below(CLASSES - 1)));
    let kept = draws.filter(|(index, kept, ..)| plan.set.class(*index) < CLASSES / 2 || *kept >= plan.missing);
    let label = |(index, _, wrong, other)| {
        let class = plan.set.class(index);
        (index, if wrong < plan.wrong { (class + 1 + other) % CLASSES } else { class })
    };
    kept.map(label).collect()
}
