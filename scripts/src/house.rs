//! The tree with its crates and Rust files read, and the form in which every check complains about it.
//!
//! Owns `House` and `Problem`. Never judges: that is what the checks of `tidy` do.

use crate::rooms::{self, Krate};
use crate::source::{self, Source};
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::fmt;

/// Something that is not as the house wants it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// File, from the root.
    pub path: String,
    /// Line in it; zero when the whole file is meant.
    pub line: usize,
    /// The check that complains, in one word.
    pub check: &'static str,
    /// What is wrong and what to do about it.
    pub text: String,
}

impl Problem {
    /// A problem of this check.
    #[must_use]
    pub fn new(path: &str, line: usize, check: &'static str, text: impl Into<String>) -> Problem {
        Problem { path: path.to_owned(), line, check, text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": [{}] {}", self.check, self.text)
    }
}

/// The tree with its crates and its Rust files read.
#[derive(Debug)]
pub struct House {
    /// All files.
    pub tree: Tree,
    /// All crates.
    pub crates: Vec<Krate>,
    /// All Rust files that parse.
    pub sources: BTreeMap<String, Source>,
}

impl House {
    /// Reads manifests and sources. What cannot be read is a problem of its own, and the rest is checked all the same.
    #[must_use]
    pub fn read(tree: Tree) -> (House, Vec<Problem>) {
        let mut problems = Vec::new();
        let crates = rooms::crates(&tree).unwrap_or_else(|(path, complaint)| {
            problems.push(Problem::new(&path, 0, "parse", format!("not a valid manifest: {complaint}")));
            Vec::new()
        });
        let mut sources = BTreeMap::new();
        for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs")) {
            match source::parse(text) {
                Ok(source) => {
                    sources.insert(path.to_owned(), source);
                }
                Err((line, complaint)) => {
                    problems.push(Problem::new(path, line, "parse", format!("not valid Rust: {complaint}")));
                }
            }
        }
        (House { tree, crates, sources }, problems)
    }

    /// The Rust files of one crate, without those of crates inside its folder.
    pub fn sources_of<'a>(&'a self, krate: &'a Krate) -> impl Iterator<Item = (&'a str, &'a Source)> {
        self.sources
            .iter()
            .filter(|(path, _)| rooms::owner(&self.crates, path).is_some_and(|k| k.folder == krate.folder))
            .map(|(path, source)| (path.as_str(), source))
    }

    /// The roots of the crate's targets that ship: `src/lib.rs`, `src/main.rs`, `src/bin/*.rs`, where they exist.
    #[must_use]
    pub fn roots_of(&self, krate: &Krate) -> Vec<String> {
        let bins = krate.path("src/bin/");
        let mut roots: Vec<String> = ["src/lib.rs", "src/main.rs"].iter().map(|r| krate.path(r)).collect();
        roots.retain(|path| self.tree.has(path));
        roots.extend(
            self.tree
                .paths()
                .filter(|p| p.strip_prefix(&bins).is_some_and(|rest| rest.ends_with(".rs") && !rest.contains('/')))
                .map(str::to_owned),
        );
        roots
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use super::*;

    /// A house made of these files, which must all parse.
    pub(crate) fn house(files: &[(&str, &str)]) -> House {
        let (house, problems) = House::read(Tree::of(files));
        assert_eq!(problems, [], "fixtures parse");
        house
    }

    /// The problems, one line each.
    pub(crate) fn lines(problems: &[Problem]) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_files_are_problems_not_panics() {
        let (house, problems) =
            House::read(Tree::of(&[("engine/Cargo.toml", "package = ["), ("engine/src/lib.rs", "fn (")]));
        assert!(house.crates.is_empty() && house.sources.is_empty());
        assert_eq!(
            problems.iter().map(|p| p.path.as_str()).collect::<Vec<_>>(),
            ["engine/Cargo.toml", "engine/src/lib.rs"]
        );
    }

    #[test]
    fn a_problem_prints_as_editors_expect() {
        assert_eq!(Problem::new("a.rs", 3, "words", "no").to_string(), "a.rs:3: [words] no");
        assert_eq!(Problem::new("a.rs", 0, "words", "no").to_string(), "a.rs: [words] no");
    }
}
