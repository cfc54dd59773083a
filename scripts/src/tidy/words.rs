//! Words that have no place in the tree: unfinished-work marks, debugging left-overs, names that say nothing, private paths and
//! the hosts of package registries. The list is built from halves, so that this file does not trip over itself.

use crate::house::{House, Problem};

const LOCK: &str = "Cargo.lock";
/// What every package in the lock file must come from: the default registry, not a mirror of somebody's network.
const DEFAULT_REGISTRY: &str = concat!("registry+https://github.com/rust-lang/", "crates", ".io-index");

/// Marks that must stand as whole words.
const MARKS: &[(&str, &str)] = &[
    (concat!("FIX", "ME"), "fix it or open an issue"),
    (concat!("XX", "X"), "say what is meant"),
    (concat!("dbg", "!"), "a debugging left-over"),
];
/// The mark that needs an owner behind it, in parentheses.
const OWNED_MARK: &str = concat!("TO", "DO");

const FRAGMENTS: &[(&str, &str)] = &[
    (concat!("/ho", "me/"), "a private path: use a relative one"),
    (concat!("/Use", "rs/"), "a private path: use a relative one"),
    (concat!("/ro", "ot/"), "a private path: use a relative one"),
    (concat!("\\Use", "rs\\"), "a private path: use a relative one"),
    (concat!("crates", ".io"), "a registry host: cargo knows where packages are"),
    (concat!("pypi", ".org"), "a registry host: the package tool knows where packages are"),
    (concat!("pythonhosted", ".org"), "a registry host: the package tool knows where packages are"),
    (concat!("npmjs", ".org"), "a registry host: the package tool knows where packages are"),
    (concat!("npmjs", ".com"), "a registry host: the package tool knows where packages are"),
];

/// Names that say nothing about what they name: module and file names, and endings of type names.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "manager", "managers", "data"];
const EMPTY_ENDINGS: &[&str] = &["Util", "Utils", "Helper", "Helpers", "Manager"];

pub(super) fn check(house: &House) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in house.tree.texts() {
        check_name(path, &mut problems);
        if path.rsplit('/').next() == Some(LOCK) {
            check_lock(text, &mut problems);
        } else if !path.contains("/corpus/") {
            check_text(path, text, &mut problems);
        }
    }
    for (path, source) in &house.sources {
        for module in source.modules.iter().filter(|m| EMPTY_NAMES.contains(&m.name.as_str())) {
            problems.push(empty_name(path, module.line, &module.name));
        }
        for (name, line) in &source.types {
            if EMPTY_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                problems.push(empty_name(path, *line, name));
            }
        }
    }
    problems
}

fn check_name(path: &str, problems: &mut Vec<Problem>) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.split('.').next().unwrap_or(name);
    if EMPTY_NAMES.contains(&stem) {
        problems.push(empty_name(path, 0, stem));
    }
}

fn empty_name(path: &str, line: usize, name: &str) -> Problem {
    Problem::new(path, line, "words", format!("'{name}' says nothing: name it after what it holds or does"))
}

fn check_lock(text: &str, problems: &mut Vec<Problem>) {
    for (index, line) in text.lines().enumerate() {
        if let Some(source) = line.strip_prefix("source = ")
            && source.trim_matches('"') != DEFAULT_REGISTRY
        {
            let text = format!("packages come from the default registry, not from {source}");
            problems.push(Problem::new(LOCK, index + 1, "words", text));
        }
    }
}

fn check_text(path: &str, text: &str, problems: &mut Vec<Problem>) {
    for (index, line) in text.lines().enumerate() {
        let mut complain = |word: &str, why: &str| {
            problems.push(Problem::new(path, index + 1, "words", format!("'{word}': {why}")));
        };
        for (word, why) in MARKS {
            if whole_words(line, word).next().is_some() {
                complain(word, why);
            }
        }
        if whole_words(line, OWNED_MARK).any(|after| !has_owner(after)) {
            complain(OWNED_MARK, "unfinished work needs an owner, in parentheses right behind it, or doing");
        }
        for (fragment, why) in FRAGMENTS {
            if line.contains(fragment) {
                complain(fragment, why);
            }
        }
    }
}

/// What follows each place where `word` stands by itself.
fn whole_words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).filter_map(move |(at, _)| {
        let after = &line[at + word.len()..];
        let free = !line[..at].ends_with(letter) && !after.starts_with(letter);
        free.then_some(after)
    })
}

/// Whether the mark is followed by `(name)`.
fn has_owner(after: &str) -> bool {
    after.strip_prefix('(').and_then(|rest| rest.split_once(')')).is_some_and(|(owner, _)| !owner.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    fn found(path: &str, text: &str) -> Vec<String> {
        lines(&check(&house(&[(path, text)])))
    }

    #[test]
    fn every_mark_and_fragment_is_found_in_any_text() {
        for (word, _) in MARKS.iter().chain(FRAGMENTS) {
            let text = format!("fine\nbad: {word} here\n");
            let found = found("engine/docs/notes.md", &text);
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].starts_with("engine/docs/notes.md:2: [words]"), "{found:?}");
        }
    }

    #[test]
    fn unfinished_work_needs_an_owner() {
        assert_eq!(found("a.sh", &format!("# {OWNED_MARK}(ada): sort\n")), Vec::<String>::new());
        assert_eq!(found("a.sh", &format!("# {OWNED_MARK}: sort\n")).len(), 1);
        assert_eq!(found("a.sh", &format!("# {OWNED_MARK}(): sort\n")).len(), 1);
    }

    #[test]
    fn marks_inside_longer_words_are_no_marks() {
        let text = format!("mktemp /tmp/run.{}{}; {OWNED_MARK}S\n", MARKS[1].0, MARKS[1].0);
        assert_eq!(found("a.sh", &text), Vec::<String>::new());
    }

    #[test]
    fn names_that_say_nothing_are_refused() {
        assert_eq!(found("engine/src/utils.rs", "").len(), 1);
        assert_eq!(found("engine/src/lib.rs", "mod helper { }").len(), 1);
        assert_eq!(found("engine/src/lib.rs", "pub struct BufferManager;").len(), 1);
        assert_eq!(found("engine/src/lib.rs", "pub struct Slab; mod metadata {}"), Vec::<String>::new());
    }

    #[test]
    fn the_lock_file_knows_one_registry() {
        let good = format!("source = \"{DEFAULT_REGISTRY}\"\n");
        assert_eq!(found(LOCK, &good), Vec::<String>::new());
        assert_eq!(found(LOCK, "version = 4\nsource = \"sparse+https://mirror.example/\"\n").len(), 1);
    }

    #[test]
    fn corpora_are_bytes_not_words() {
        assert_eq!(found("engine/fuzz/corpus/head/7", MARKS[0].0), Vec::<String>::new());
    }
}
