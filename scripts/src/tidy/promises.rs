//! Every promise of `engine/docs/SEMANTICS.md` names a test, and the test exists and runs.
//!
//! A promise is a section under a third-level heading. It names its tests on lines of their own:
//! ``test: `fuelrail_plan::order::tests::is_a_bijection` `` or ``test: `engine/tests/faults.rs::survives_truncation` ``.

use crate::house::{House, Problem};
use std::collections::BTreeMap;

const PAGE: &str = "engine/docs/SEMANTICS.md";

pub(super) fn check(house: &House) -> Vec<Problem> {
    let Some(text) = house.tree.text(PAGE) else {
        return vec![Problem::new(PAGE, 0, "promises", "the page of promises is missing")];
    };
    let tests = tests(house);
    let mut problems = Vec::new();
    let mut open: Option<(usize, &str, usize)> = None;
    let mut promises = 0;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            close(open.take(), &mut problems);
            if let Some(title) = line.strip_prefix("### ") {
                open = Some((index + 1, title, 0));
                promises += 1;
            }
        } else if let Some(name) = named_test(line) {
            if let Some((_, _, count)) = &mut open {
                *count += 1;
            }
            let text = match tests.get(name) {
                None => format!("no test is called '{name}': write it, or withdraw the promise"),
                Some(true) => format!("the test '{name}' is ignored: a promise needs one that runs"),
                Some(false) => continue,
            };
            problems.push(Problem::new(PAGE, index + 1, "promises", text));
        }
    }
    close(open, &mut problems);
    if promises == 0 {
        problems.push(Problem::new(PAGE, 0, "promises", "no promise found: each is a section under a ### heading"));
    }
    problems
}

fn close(open: Option<(usize, &str, usize)>, problems: &mut Vec<Problem>) {
    if let Some((line, title, 0)) = open {
        let text = format!("the promise '{title}' names no test: add a line \"test: `path::name`\"");
        problems.push(Problem::new(PAGE, line, "promises", text));
    }
}

fn named_test(line: &str) -> Option<&str> {
    let rest = line.trim().trim_start_matches("- ").strip_prefix("test: `")?;
    Some(rest.split_once('`')?.0)
}

/// All tests by both of their names, and whether each is ignored.
fn tests(house: &House) -> BTreeMap<String, bool> {
    let mut all = BTreeMap::new();
    for krate in &house.crates {
        for (path, source) in house.sources_of(krate) {
            let module = module_of(&krate.library(), &krate.path("src/"), path);
            for test in &source.tests {
                let inside = if test.module.is_empty() { String::new() } else { format!("{}::", test.module) };
                all.insert(format!("{path}::{inside}{}", test.name), test.ignored);
                if let Some(module) = &module {
                    all.insert(format!("{module}::{inside}{}", test.name), test.ignored);
                }
            }
        }
    }
    all
}

/// The module path of a file below `src`, with the crate's name in front.
fn module_of(library: &str, src: &str, path: &str) -> Option<String> {
    let inside = path.strip_prefix(src)?.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    if matches!(inside, "lib" | "main") {
        return Some(library.to_owned());
    }
    Some(format!("{library}::{}", inside.replace('/', "::")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::fixture::{house, lines};

    const CRATE: (&str, &str) = ("engine/Cargo.toml", "[package]\nname = \"fuelrail\"");

    fn found(page: &str) -> Vec<String> {
        lines(&check(&house(&[
            CRATE,
            (
                "engine/src/state.rs",
                "mod tests { #[test] fn resumes() {} #[test] #[ignore] fn later() {} fn none() {} }",
            ),
            ("engine/tests/faults.rs", "#[test] fn survives() {}"),
            (PAGE, page),
        ])))
    }

    #[test]
    fn promises_with_tests_that_run_are_kept() {
        let page = "# Page\n\n## Part\n\n### Resume\n\nIt does.\n\ntest: `fuelrail::state::tests::resumes`\n\
                    - test: `engine/tests/faults.rs::survives`\n\n## Closing words\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn promises_without_a_running_test_are_found() {
        let page = "### One\nwords\n### Two\ntest: `fuelrail::state::tests::none`\n### Three\n\
                    test: `fuelrail::state::tests::later`\n";
        let found = found(page);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().any(|l| l.contains("SEMANTICS.md:1:") && l.contains("'One' names no test")), "{found:?}");
        assert!(found.iter().any(|l| l.contains(":4:") && l.contains("no test is called")), "{found:?}");
        assert!(found.iter().any(|l| l.contains(":6:") && l.contains("is ignored")), "{found:?}");
    }

    #[test]
    fn a_missing_or_empty_page_is_found() {
        assert_eq!(check(&house(&[CRATE])).len(), 1);
        assert_eq!(found("# Nothing promised\n").len(), 1);
    }
}
