//! Mixtures as a setting: data sets, by the beginnings of their keys, and how much of a run each is.

use crate::folder::named_by;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use fuelrail_base::search::first_wanted;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_flow::Objects;
use fuelrail_plan::order::{self, MixtureEpoch, Weights};
use std::sync::Arc;

/// Data sets and their weights, from the first sample of a run on, and from later ones.
///
/// As text `PREFIX=WEIGHT, PREFIX=WEIGHT`, and after semicolons what the weights change to: `en/=7, code/=3; from 1000000: en/=1, code/=1`.
/// A prefix is the beginning of keys below the URI's folder, with or without that folder's last slash; a weight is any number, and what
/// counts is its share of all. The samples of a run are counted over all epochs and ranks. A data set that is left out after a semicolon has the weight 0 from there on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mixture {
    /// Beginnings of keys.
    prefixes: Vec<String>,
    /// In millionths.
    weights: Vec<Weights>,
}

/// What a weight of 1 is, and the greatest one.
const ONE: f64 = 1e6;
const WEIGHT_MAX: f64 = 1e6;

impl FromStr for Mixture {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mixture> {
        let wrong = |part: &str| {
            Error::new(Kind::Usage, format!("a mixture with '{}'", part.trim().escape_debug())).with_hint(
                "write PREFIX=WEIGHT with commas between, such as en/=7, code/=3; what weights change to follows a semicolon: \
                 from 1000000: en/=1, code/=1",
            )
        };
        let mut mixture = Mixture { prefixes: Vec::new(), weights: Vec::new() };
        for (at, change) in text.split(';').enumerate() {
            let (from, shares) = match change.trim().strip_prefix("from ").and_then(|rest| rest.split_once(':')) {
                Some((from, shares)) => (from.trim().parse().map_err(|_| wrong(change))?, shares),
                None if at == 0 => (0, change),
                None => return Err(wrong(change)),
            };
            let (mut of, mut named) = (vec![0; mixture.prefixes.len()], Vec::new());
            for share in shares.split(',') {
                let (prefix, weight) = share.trim().rsplit_once('=').ok_or_else(|| wrong(share))?;
                let weight: f64 = weight.trim().parse().map_err(|_| wrong(share))?;
                if !(0.0..=WEIGHT_MAX).contains(&weight) {
                    return Err(wrong(share));
                }
                if named.contains(&prefix) {
                    let cause = format!("a mixture that names '{}' twice", prefix.escape_debug());
                    return Err(Error::new(Kind::Usage, cause).with_hint("write one PREFIX=WEIGHT for each data set"));
                }
                named.push(prefix);
                let known = mixture.prefixes.iter().position(|known| known == prefix);
                let set = known.unwrap_or_else(|| {
                    mixture.prefixes.push(prefix.to_owned());
                    mixture.weights.iter_mut().for_each(|earlier| earlier.of.push(0));
                    of.push(0);
                    of.len() - 1
                });
                of[set] = (weight * ONE).round() as u64;
            }
            mixture.weights.push(Weights { from, of });
        }
        Ok(mixture)
    }
}

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Weights { from, of }) in self.weights.iter().enumerate() {
            if at > 0 {
                write!(f, "; from {from}: ")?;
            }
            for (set, (prefix, weight)) in self.prefixes.iter().zip(of).enumerate() {
                write!(f, "{}{prefix}={}", if set > 0 { ", " } else { "" }, *weight as f64 / ONE)?;
            }
        }
        Ok(())
    }
}

/// The mixture of these objects, with the length of an epoch and of a window, the seed, and whether the data sets are shuffled.
pub(crate) fn mixed(
    mixture: &Mixture,
    objects: &Objects,
    (epoch, window): (MixtureEpoch, u32),
    random: (u64, bool),
) -> Result<Arc<order::Mixture>> {
    let (folder, samples) = (&objects.endpoint().prefix, objects.catalog().samples());
    let keys = || (0..samples).map(move |sample| objects.key(SampleId(sample)));
    // Objects come in the order of their keys; records of shards too, but for those that a file lists.
    if !objects.are_whole() && !keys().is_sorted() {
        return Err(Error::new(Kind::Usage, "a mixture of records that are not in the order of their objects' keys")
            .with_hint("sort the lines of record_file by key"));
    }
    // Samples whose keys go on with a prefix after so many bytes.
    let begun = |base: usize, prefix: &str| -> Range<u64> {
        let key = |sample| objects.key(SampleId(sample)).get(base..).unwrap_or_default();
        let first = first_wanted(0..samples, |sample| key(sample) >= prefix);
        first..first_wanted(first..samples, |sample| !key(sample).starts_with(prefix))
    };
    // As with classes, a URI without its last slash may name a folder. Behind the slash before it, its name belongs to the prefixes.
    let fits = |base: &usize| mixture.prefixes.iter().all(|prefix| !begun(*base, prefix).is_empty());
    let base = named_by(folder, keys()).filter(fits).unwrap_or_else(|| folder.rfind('/').map_or(0, |at| at + 1));
    let mut sets: Vec<Range<u64>> = Vec::new();
    for prefix in &mixture.prefixes {
        let Range { start: first, end } = begun(base, prefix);
        if first == end {
            let cause = format!("mixture: no object begins with '{}'", prefix.escape_debug());
            return Err(Error::new(Kind::Usage, cause).with_hint(
                "a data set of a mixture is named by the beginning of its keys below the folder of the URI",
            ));
        }
        if let Some(other) = sets.iter().position(|other| other.start < end && first < other.end) {
            let cause = format!("mixture: '{prefix}' and '{}' begin the same keys", mixture.prefixes[other]);
            return Err(Error::new(Kind::Usage, cause).with_hint("name every object by one data set at most"));
        }
        sets.push(first..end);
    }
    let mixed = order::Mixture::new(sets, mixture.weights.clone(), (epoch, u64::from(window)), random)?;
    Ok(Arc::new(mixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_read_back_and_wrong_ones_are_refused_with_an_example() {
        for (text, shown) in [
            ("a/=1", "a/=1"),
            (
                " en/=0.7,code/=.3 ; from 10 : code/=1, new=2",
                "en/=0.7, code/=0.3, new=0; from 10: en/=0, code/=1, new=2",
            ),
            ("a=b/=2", "a=b/=2"),
        ] {
            let mixture: Mixture = text.parse().unwrap();
            assert_eq!(mixture.to_string(), shown);
            assert_eq!(shown.parse::<Mixture>().unwrap(), mixture);
        }
        for bad in
            ["", "a", "a=", "a=-1", "a=nan", "a=inf", "a=1e9", "a=1;", "a=1; b=2", "a=1; from x: b=2", "a=1,,b=2"]
        {
            let error = bad.parse::<Mixture>().unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains("PREFIX=WEIGHT"), "{bad}: {error}");
        }
        for twice in ["en/=9,code/=1,en/=1", "en/=0,en/=1", "code/=1; from 5: en/=1, en/=1"] {
            let error = twice.parse::<Mixture>().unwrap_err();
            assert!(error.to_string().contains("names 'en/' twice") && error.hint().is_some(), "{twice}: {error}");
        }
    }
}
