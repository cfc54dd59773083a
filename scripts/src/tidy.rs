//! `cargo x tidy`: what the compiler does not check about the house. Every check is a function from the tree to problems.
//!
//! Owns the list of the checks. Never changes a file, except the ratchet when asked to tighten it.

mod imports;
mod knots;
mod layout;
mod promises;
mod safety;
mod sizes;
mod words;

pub use sizes::{RATCHET, tightened};

use crate::house::{House, Problem};
use crate::tree::Tree;

/// All problems of a tree, sorted by file and line.
pub fn check(tree: Tree) -> (House, Vec<Problem>) {
    let (house, mut problems) = House::read(tree);
    for check in
        [layout::check, imports::check, knots::check, sizes::check, words::check, safety::check, promises::check]
    {
        problems.extend(check(&house));
    }
    problems.sort();
    problems.dedup();
    (house, problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sound_house_has_no_problems() {
        let ban = "disallowed-methods = [\"std::time::Instant::now\", \"std::time::SystemTime::now\", \
                   \"std::thread::spawn\"]\ndisallowed-types = [\"std::fs::File\", \"std::net::TcpStream\"]";
        let (_, problems) = check(Tree::of(&[
            ("Cargo.toml", "[workspace]"),
            ("README.md", "Fuelrail"),
            ("engine/base/Cargo.toml", "[package]\nname = \"fuelrail-base\""),
            ("engine/base/src/lib.rs", "#![forbid(unsafe_code)]\npub mod ids;\npub use ids::Id;"),
            ("engine/base/src/ids.rs", "pub struct Id;\n#[cfg(test)] mod tests { #[test] fn counts() {} }"),
            (
                "engine/plan/Cargo.toml",
                "[package]\nname = \"fuelrail-plan\"\n[dependencies]\nfuelrail-base.workspace = true",
            ),
            ("engine/plan/src/lib.rs", "#![forbid(unsafe_code)]\nuse fuelrail_base::Id;"),
            ("engine/plan/.clippy.toml", ban),
            ("engine/docs/SEMANTICS.md", "### Ids count\n\ntest: `fuelrail_base::ids::tests::counts`\n"),
        ]));
        assert_eq!(problems, []);
    }
}
