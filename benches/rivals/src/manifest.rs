//! What to read: the objects of a manifest (`key<TAB>size` lines) in an order drawn from a seed.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// One object of the data set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) size: usize,
}

/// Reads a manifest.
pub(crate) fn read(path: &Path) -> Result<Vec<Object>> {
    let named = || format!("manifest {}", path.display());
    parse(&std::fs::read_to_string(path).with_context(named)?).with_context(named)
}

fn parse(text: &str) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let object = line
            .split_once('\t')
            .filter(|(key, _)| !key.is_empty())
            .and_then(|(key, size)| Some(Object { key: key.to_owned(), size: size.parse().ok()? }));
        objects.push(object.with_context(|| format!("line {} is not key<TAB>size", index + 1))?);
    }
    ensure!(!objects.is_empty(), "it names no object");
    Ok(objects)
}

/// The order of one pass: a shuffle of `0..count` that is a function of its arguments.
pub(crate) fn order(count: usize, seed: u64, pass: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).take(count).collect();
    let mut state = seed ^ pass.wrapping_mul(0xA076_1D64_78BD_642F);
    for last in (1..count).rev() {
        // SplitMix64; the bias of the modulus does not matter to a reading order.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        order.swap(last, ((word ^ (word >> 31)) % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_objects_or_say_where_they_fail() {
        let two = parse("a/b.jpg\t5\n\nä\t0\n").unwrap();
        assert_eq!(two, [Object { key: "a/b.jpg".into(), size: 5 }, Object { key: "ä".into(), size: 0 }]);
        assert_eq!(parse("a\t1\nb 2\n").unwrap_err().to_string(), "line 2 is not key<TAB>size");
        assert_eq!(parse("a\t-1\n").unwrap_err().to_string(), "line 1 is not key<TAB>size");
        assert_eq!(parse("\n").unwrap_err().to_string(), "it names no object");
    }

    #[test]
    fn an_order_is_a_shuffle_and_every_pass_has_its_own() {
        let (first, second) = (order(100, 7, 0), order(100, 7, 1));
        assert_eq!(first, order(100, 7, 0));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..100));
        }
        assert_eq!(order(1, 7, 3), [0]);
    }
}
