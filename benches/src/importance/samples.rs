//! The harder set: the pictures of the clean one, fewer of some classes, some in the folder of a class they do not show.
//!
//! Owns which pictures those are. Never draws a picture.

use std::path::Path;

use fuelrail::{Error, Kind, Result};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::DataSet;

use super::options::Weighing;

/// Classes of digits.
const CLASSES: u64 = 10;

/// Writes it into `folder`, keys as the clean set has them; returns its bytes.
pub(super) fn write_harder(digits: &DataSet, weighing: &Weighing, folder: &Path) -> Result<u64> {
    let failed = |error: std::io::Error| Error::new(Kind::File, format!("writing the harder set: {error}"));
    for class in 0..CLASSES {
        std::fs::create_dir_all(folder.join(format!("training/{class}"))).map_err(failed)?;
    }
    let mut bytes = 0;
    for (index, class) in chosen(digits, weighing) {
        let content = digits.content(index);
        bytes += content.len() as u64;
        std::fs::write(folder.join(format!("training/{class}/{index:05}.png")), content).map_err(failed)?;
    }
    Ok(bytes)
}

/// Its pictures, and the class each is said to show.
fn chosen(digits: &DataSet, weighing: &Weighing) -> Vec<(u64, u64)> {
    let mut prng = Prng::new(digits.seed);
    let mut chosen = Vec::new();
    for index in 0..digits.len() {
        let class = digits.class(index);
        let (kept, wrong, other) = (prng.unit(), prng.unit(), prng.below(CLASSES - 1));
        if class >= CLASSES / 2 && kept >= weighing.rare_share {
            continue;
        }
        let said = if wrong < weighing.noise_share { (class + 1 + other) % CLASSES } else { class };
        chosen.push((index, said));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_classes_are_rare_and_some_labels_wrong() {
        let digits = DataSet::digits(4_000, 1);
        let chosen = chosen(&digits, &Weighing::default());
        let of = |class: u64| chosen.iter().filter(|(index, _)| digits.class(*index) == class).count();
        assert!((0..5).all(|class| of(class) == 400));
        assert!((5..10).all(|class| (15..70).contains(&of(class))));
        let wrong = chosen.iter().filter(|(index, said)| digits.class(*index) != *said).count() as f64;
        let share = wrong / chosen.len() as f64;
        assert!((0.07..0.13).contains(&share), "{share}");
    }
}
