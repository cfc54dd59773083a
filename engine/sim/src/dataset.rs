//! The virtual data set: where it is, names, sizes and bytes, all a function of the seed.
//!
//! Owns the bytes of every object, so that the bucket and the checks compare against the same memory. Knows no HTTP.

use fuelrail_base::SampleId;
use fuelrail_base::prng::mix64;
use fuelrail_flow::Listed;
use std::collections::HashMap;

/// Where the data set is.
pub(crate) const URI: &str = "http://bucket.sim:9000/lake/set/";
/// What stands in front of a key on the request line.
pub(crate) const PATH: &str = "/lake/";
/// The `Host` line.
pub(crate) const AUTHORITY: &str = "bucket.sim:9000";
/// The host's address that never responds, when it has several.
pub(crate) const DEAD_ADDRESS: &str = "10.0.0.1:9000";
pub(crate) const LIVE_ADDRESS: &str = "10.0.0.2:9000";

/// All objects of a run.
pub(crate) struct DataSet {
    keys: Vec<String>,
    by_key: HashMap<String, SampleId>,
    bytes: Vec<Vec<u8>>,
    crc32c: Vec<u32>,
    etags: Vec<String>,
}

impl DataSet {
    pub(crate) fn new(seed: u64, sizes: &[u64]) -> DataSet {
        let keys: Vec<String> = (0..sizes.len()).map(key).collect();
        let bytes: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(at, &size)| content(seed, at as u64, size)).collect();
        DataSet {
            by_key: keys.iter().enumerate().map(|(at, key)| (key.clone(), SampleId(at as u64))).collect(),
            crc32c: bytes.iter().map(|bytes| crc32c::crc32c(bytes)).collect(),
            etags: (0..sizes.len()).map(|at| format!("\"{:016x}\"", mix64(seed ^ at as u64))).collect(),
            keys,
            bytes,
        }
    }

    /// As a listing names it, with or without entity tags.
    pub(crate) fn listing(&self, etags: bool) -> Vec<Listed> {
        let object = |(at, key): (usize, &String)| Listed {
            key: key.clone(),
            size: self.bytes[at].len() as u64,
            etag: etags.then(|| self.etags[at].clone()),
        };
        self.keys.iter().enumerate().map(object).collect()
    }

    pub(crate) fn sample(&self, key: &str) -> Option<SampleId> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn key(&self, sample: SampleId) -> &str {
        &self.keys[sample.0 as usize]
    }

    pub(crate) fn bytes(&self, sample: SampleId) -> &[u8] {
        &self.bytes[sample.0 as usize]
    }

    pub(crate) fn crc32c(&self, sample: SampleId) -> u32 {
        self.crc32c[sample.0 as usize]
    }

    /// The entity tag, with its quotes.
    pub(crate) fn etag(&self, sample: SampleId) -> &str {
        &self.etags[sample.0 as usize]
    }
}

/// Every seventh key needs escaping on the request line.
fn key(at: usize) -> String {
    match at % 7 {
        3 => format!("set/klasse {}/ü+{at:05}%.bin", at % 5),
        _ => format!("set/class{}/{at:05}.bin", at % 5),
    }
}

fn content(seed: u64, object: u64, size: u64) -> Vec<u8> {
    let base = mix64(seed ^ mix64(object));
    let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(|word| mix64(base ^ word).to_le_bytes()).collect();
    bytes.truncate(size as usize);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_seed_and_object_and_has_its_size() {
        let set = DataSet::new(1, &[0, 1, 9, 9]);
        let lens: Vec<usize> = (0..4).map(|at| set.bytes(SampleId(at)).len()).collect();
        assert_eq!(lens, [0, 1, 9, 9]);
        assert_ne!(set.bytes(SampleId(2)), set.bytes(SampleId(3)));
        assert_ne!(set.bytes(SampleId(3)), DataSet::new(2, &[0, 1, 9, 9]).bytes(SampleId(3)));
        assert_eq!(set.sample(set.key(SampleId(3))), Some(SampleId(3)));
        assert_eq!(set.listing(true)[2].size, 9);
        assert_eq!(set.listing(false)[2].etag, None);
    }
}
