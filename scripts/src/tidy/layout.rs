//! The top level holds what the user fixed and nothing else; everything more is dot-hidden.

use crate::house::{House, Problem};
use std::collections::BTreeSet;

const TOP_LEVEL: &[&str] =
    &["Cargo.toml", "Cargo.lock", "engine", "cuda", "bindings", "benches", "scripts", "README.md"];

pub(super) fn check(house: &House) -> Vec<Problem> {
    let names: BTreeSet<&str> = house.tree.paths().filter_map(|path| path.split('/').next()).collect();
    names
        .into_iter()
        .filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(name))
        .map(|name| {
            let text = format!("the top level holds only {}: move it into a room or hide it", TOP_LEVEL.join(", "));
            Problem::new(name, 0, "layout", text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    #[test]
    fn strangers_at_the_top_are_named() {
        let house =
            house(&[(".ci/run", ""), ("README.md", ""), ("engine/x.txt", ""), ("notes/a.md", ""), ("deny.toml", "")]);
        let found = lines(&check(&house));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("deny.toml: [layout]") && found[1].starts_with("notes: [layout]"), "{found:?}");
    }
}
