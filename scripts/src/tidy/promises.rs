//! Every promise of `engine/docs/SEMANTICS.md` names a test that exists, and not only tests that may be skipped.
//!
//! A promise is a section under a third-level heading. It names its tests on lines of their own:
//! ``test: `fuelrail_plan::order::tests::is_a_bijection` `` or ``test: `engine/tests/faults.rs::survives_truncation` ``.

use super::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "engine/docs/SEMANTICS.md";
/// The function by which tests are skipped.
const SKIP: &str = "skip_or_fail";

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let (tests, mut problems) = (tests(workspace), Vec::new());
    let page = workspace.files.get(PAGE).map(String::as_str).unwrap_or_default();
    let promises: Vec<&str> = page.split("\n### ").skip(1).collect();
    if promises.is_empty() {
        problems.push(format!("{PAGE}: no promise found: each is a section under a ### heading"));
    }
    for promise in promises {
        let section = promise.split("\n#").next().unwrap_or_default();
        let title = section.lines().next().unwrap_or_default();
        let named =
            section.lines().filter_map(|line| line.trim_start_matches("- ").strip_prefix("test: `")?.split('`').next());
        let mut always = false;
        for name in named {
            match tests.get(name) {
                Some(Runs::Always) => always = true,
                Some(Runs::UnlessSkipped) => {}
                Some(Runs::Never) => problems.push(format!("{PAGE}: '{title}' names the ignored test '{name}'")),
                None => problems.push(format!("{PAGE}: '{title}' names '{name}', and there is no such test")),
            }
        }
        if !always {
            problems
                .push(format!("{PAGE}: '{title}' needs a test that runs everywhere, as a line \"test: `path::name`\""));
        }
    }
    problems
}

/// When a test runs.
#[derive(PartialEq)]
pub(super) enum Runs {
    Always,
    /// It calls [`SKIP`], itself or through what it calls.
    UnlessSkipped,
    /// It carries `#[ignore]`.
    Never,
}

/// All tests by both of their names.
pub(super) fn tests(workspace: &Workspace) -> BTreeMap<String, Runs> {
    let (skippable, mut all) = (skippable(workspace), BTreeMap::new());
    for (file, source) in &workspace.sources {
        let module = workspace.crates.iter().find_map(|krate| {
            let inside = file.strip_prefix(&format!("{}/src/", krate.folder))?.strip_suffix(".rs")?;
            let inside = if matches!(inside, "lib" | "main") { "" } else { inside.trim_end_matches("/mod") };
            Some(super::source::join(&krate.name.replace('-', "_"), &inside.replace('/', "::")))
        });
        for test in source.functions.iter().filter(|f| f.is_test) {
            for place in module.iter().chain([file]) {
                let runs = match test.is_ignored {
                    true => Runs::Never,
                    false if skippable.contains(&(file, &test.name)) => Runs::UnlessSkipped,
                    false => Runs::Always,
                };
                let inside = super::source::join(&test.module, &test.name);
                all.insert(format!("{place}::{inside}"), runs);
            }
        }
    }
    all
}

/// The functions, with their files, that call [`SKIP`] or a function that does. A method is known by `Type::name` in all files, a plain
/// function by its name in its own.
fn skippable(workspace: &Workspace) -> BTreeSet<(&str, &str)> {
    let mut found: BTreeSet<(&str, &str)> = BTreeSet::new();
    loop {
        let before = found.len();
        for (file, source) in &workspace.sources {
            for function in &source.functions {
                let skips = |call: &String| {
                    call.rsplit("::").next() == Some(SKIP)
                        || found.iter().any(|(place, name)| call == name && (name.contains("::") || place == file))
                };
                if function.calls.iter().any(skips) {
                    found.insert((file, &function.name));
                }
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        check(&Workspace::of(&[
            (
                "engine/src/state.rs",
                "mod tests { #[test] fn resumes() {} #[test] #[ignore] fn later() {} fn none() {} }",
            ),
            ("engine/tests/faults.rs", "#[test] fn survives() {}"),
            ("engine/tests/other.rs", "impl Nginx { fn start() { skip::skip_or_fail(1); } }"),
            ("engine/tests/nginx.rs", "#[test] fn serves() { helped(); } fn helped() { other::Nginx::start(); }"),
            (PAGE, page),
        ]))
    }

    #[test]
    fn promises_with_tests_that_run_are_kept() {
        let page = "# Page\n\n## Part\n\n### Resume\n\nIt does.\n\ntest: `fuelrail::state::tests::resumes`\n\
                    - test: `engine/tests/nginx.rs::serves`\n\n### Faults\ntest: `engine/tests/faults.rs::survives`\n## Closing words\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn promises_without_a_test_that_always_runs_are_found() {
        let names = |test: &str| {
            found(&format!("# Page\n### One\nwords\n{test}\n## Part\ntest: `engine/tests/faults.rs::survives`\n"))
        };
        for (test, complaint) in [
            ("", "'One' needs a test"),
            ("test: `fuelrail::state::tests::none`", "no such test"),
            ("test: `fuelrail::state::tests::later`", "names the ignored test"),
            ("test: `engine/tests/nginx.rs::serves`", "'One' needs a test that runs everywhere"),
        ] {
            assert!(names(test).iter().any(|problem| problem.contains(complaint)), "{test}: {:?}", names(test));
        }
        assert_eq!(found("# Nothing promised\n").len(), 1);
    }
}
