//! Labels from keys: the class of a sample is the first directory of its key below the prefix.

use fuelrail_base::Result;
use fuelrail_wire::Cloud;
use std::collections::BTreeMap;

/// The label of a sample whose key has no directory below the prefix.
pub const NO_LABEL: u32 = u32::MAX;

/// The classes of the samples under `uri`, in order: what a loader over it will number its labels by.
///
/// # Errors
/// `Usage` for a bad URI.
pub fn classes_of<'a>(uri: &str, keys: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<String>> {
    let source = Cloud::default().source(uri)?;
    Ok(Labels::new(&source.endpoint.prefix, keys).classes)
}

/// Class names in order, and every sample's class.
#[derive(Debug)]
pub(crate) struct Labels {
    pub classes: Vec<String>,
    pub of: Vec<u32>,
}

impl Labels {
    /// Classes are numbered by name.
    pub(crate) fn new<'a>(prefix: &str, keys: impl Iterator<Item = &'a str> + Clone) -> Labels {
        let base = prefix.rfind('/').map_or(0, |at| at + 1);
        let class = |key: &'a str| key.get(base..).and_then(|rest| rest.split_once('/')).map(|(class, _)| class);
        let mut numbers: BTreeMap<&str, u32> = keys.clone().filter_map(class).map(|name| (name, 0)).collect();
        for (n, number) in (0..).zip(numbers.values_mut()) {
            *number = n;
        }
        let of = keys.map(|key| class(key).map_or(NO_LABEL, |name| numbers[name])).collect();
        Labels { classes: numbers.keys().map(ToString::to_string).collect(), of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_directory_below_the_prefix() {
        let keys = ["training/b/1.png", "training/a/2.png", "training/loose.png", "training/b/c/3.png"];
        let labels = Labels::new("training/", keys.into_iter());
        assert_eq!(labels.classes, ["a", "b"]);
        assert_eq!(labels.of, [1, 0, NO_LABEL, 1]);
        assert_eq!(classes_of("http://h:1/bucket/training/", keys.into_iter()).unwrap(), labels.classes);
        assert_eq!(classes_of("http://h:1/bucket/training/{a,b}/", keys.into_iter()).unwrap(), labels.classes);
        assert_eq!(Labels::new("", keys.into_iter()).classes, ["training"]);
        assert_eq!(Labels::new("train", keys.into_iter()).classes, ["training"]);
    }
}
