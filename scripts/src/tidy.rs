//! `cargo x tidy`: what neither the compiler nor clippy checks. Every check is a function from the workspace to its problems, one a line.
//!
//! Lengths of functions are clippy's (`too_many_lines`), licences and sources of packages cargo-deny's. Not taken, because each would have to
//! be compiled in a cold run: cargo-machete (85 s; finds no more than `crates`), typos (225 s; 105 findings, no mistake among them) and
//! `cargo modules --acyclic` (not done after 28 minutes on a busy machine).

use crate::steps::{Outcome, say};
use std::collections::BTreeSet;
use std::path::Path;
use workspace::Workspace;

mod crates;
mod cycles;
mod figures;
mod links;
mod minimal;
mod promises;
mod snippets;
mod workspace;

pub(crate) use workspace::{minimal as minimal_packages, packages};

const TOP_LEVEL: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", "engine", "cuda", "bindings", "benches", "scripts", "README.md"];
const FILE_LINES_MAX: usize = 500;

/// What stands in no file, in halves, so that this one does not contain it.
const MISPLACED: [(&str, &str); 11] = [
    (concat!("FIX", "ME"), "do it, or open an issue"),
    (concat!("TO", "DO"), "do it, or open an issue"),
    (concat!("/ho", "me/"), "a private path"),
    (concat!("/Use", "rs/"), "a private path"),
    (concat!("/ro", "ot/"), "a private path"),
    (concat!("crates", ".io"), "a registry's address"),
    (concat!("pypi", ".org"), "a registry's address"),
    (concat!("pythonhosted", ".org"), "a registry's address"),
    (concat!("npmjs", "."), "a registry's address"),
    (concat!("registry", "+"), "a registry's address"),
    (concat!("sparse", "+"), "a registry's address"),
];
/// What lock files may say: the default registry, not a mirror.
const DEFAULT_REGISTRY: &str = concat!("registry", "+https://github.com/rust-lang/", "crates", ".io-index");

/// Runs all checks and prints their problems.
pub(crate) fn tidy(root: &Path) -> Outcome {
    let workspace = Workspace::read(root)?;
    let checks = [
        crates::check,
        cycles::check,
        minimal::check,
        promises::check,
        figures::check,
        links::check,
        snippets::check,
        check_texts,
    ];
    let problems: Vec<String> = checks.iter().flat_map(|check| check(&workspace)).collect();
    problems.iter().for_each(|problem| say(problem));
    let counts = format!("tidy: {} problems in {} packages", problems.len(), workspace.packages.len());
    if !problems.is_empty() {
        return Err(counts);
    }
    say(&counts);
    Ok(())
}

/// Places and lengths of files, and words that have no place in them.
fn check_texts(workspace: &Workspace) -> Vec<String> {
    let mut problems = BTreeSet::new();
    for (path, text) in &workspace.files {
        let top = path.split('/').next().unwrap_or_default();
        if !top.starts_with('.') && !TOP_LEVEL.contains(&top) {
            problems.insert(format!("{top}: the top level holds only {}", TOP_LEVEL.join(", ")));
        }
        let lines = text.lines().count();
        if path.ends_with(".rs") && lines > FILE_LINES_MAX {
            problems.insert(format!("{path}: {lines} lines, the limit is {FILE_LINES_MAX}: split it"));
        }
        // Corpora are bytes, not words.
        for (index, line) in text.lines().enumerate().filter(|_| !path.contains("/corpus/")) {
            let line = line.replace(DEFAULT_REGISTRY, "");
            for (word, why) in MISPLACED.iter().filter(|(word, _)| line.contains(word)) {
                problems.insert(format!("{path}:{}: '{word}': {why}", index + 1));
            }
        }
    }
    problems.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_files_and_words_are_found() {
        let found = |path: &str, text: &str| check_texts(&Workspace::of(&[(path, text)]));
        for (word, _) in MISPLACED {
            let found = found("engine/docs/notes.md", &format!("fine\nbad: {word} here\n"));
            assert!(
                found.len() == 1 && found[0].starts_with(&format!("engine/docs/notes.md:2: '{word}'")),
                "{found:?}"
            );
        }
        for (path, text) in [("notes/a.md", ""), ("deny.toml", ""), ("cuda/a.rs", &"//\n".repeat(501))] {
            assert_eq!(found(path, text).len(), 1, "{path}");
        }
        let fine = [
            (".ci/run", ""),
            ("Cargo.lock", DEFAULT_REGISTRY),
            ("cuda/b.rs", &"//\n".repeat(500)),
            ("engine/corpus/7", MISPLACED[0].0),
        ];
        for (path, text) in fine {
            assert_eq!(found(path, text), Vec::<String>::new());
        }
    }
}
