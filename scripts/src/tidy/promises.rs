//! Every promise of `engine/docs/SEMANTICS.md` names a test that exists and is not ignored, and not only tests that may be skipped.
//!
//! A promise is a section under a third-level heading. It names its tests on lines of their own:
//! ``test: `fuelrail_plan::order::tests::is_a_bijection` `` or ``test: `engine/tests/faults.rs::survives_truncation` ``.

use super::workspace::Workspace;
use std::collections::BTreeSet;

const PAGE: &str = "engine/docs/SEMANTICS.md";
/// The function by which tests are skipped.
const SKIP: &str = "skip_or_fail";

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let page = workspace.files.get(PAGE).map(String::as_str).unwrap_or_default();
    let (skipping, mut problems) = (skipping(workspace), Vec::new());
    for promise in page.split("\n### ").skip(1) {
        let section = promise.split("\n#").next().unwrap_or_default();
        let title = section.lines().next().unwrap_or_default();
        let tests = section.lines().filter_map(|line| line.trim_start_matches("- ").strip_prefix("test: `"));
        let tests: Vec<&str> = tests.filter_map(|rest| rest.split('`').next()).collect();
        if tests.is_empty() {
            problems.push(format!("{PAGE}: '{title}' needs a test, as a line \"test: `path::name`\""));
        }
        let may_be_skipped = |test: &&str| {
            // A test within a package's sources needs no server.
            test.rsplit_once("::").is_some_and(|(file, name)| skipping.contains(&(file.to_owned(), name.to_owned())))
        };
        if !tests.is_empty() && tests.iter().all(may_be_skipped) {
            problems.push(format!("{PAGE}: '{title}' needs a test that runs everywhere: those named may be skipped"));
        }
        let missing = tests.iter().filter(|test| !runs(workspace, test));
        problems.extend(missing.map(|test| format!("{PAGE}: '{title}' names '{test}', and no such test runs")));
    }
    if !page.contains("\n### ") {
        problems.push(format!("{PAGE}: no promise found: each is a section under a ### heading"));
    }
    problems
}

/// Whether there is a test of this name, `file::name` or `crate::module::name`, that is not ignored.
pub(super) fn runs(workspace: &Workspace, test: &str) -> bool {
    let function = test.rsplit("::").next().unwrap_or_default();
    workspace.packages.iter().any(|package| {
        let module = |path: &str| {
            let inside = path.strip_prefix(package.folder())?.strip_prefix("/src/")?.strip_suffix(".rs")?;
            let inside = if matches!(inside, "lib" | "main") { "" } else { inside.trim_end_matches("/mod") };
            Some(format!("{}::{inside}", package.name.replace('-', "_")).replace('/', "::"))
        };
        workspace.sources(package).any(|(path, text)| {
            let is_here = |place: &str| {
                test.strip_prefix(place.trim_end_matches("::")).is_some_and(|rest| rest.starts_with("::"))
            };
            (is_here(path) || module(path).is_some_and(|module| is_here(&module))) && has_test(text, function)
        })
    })
}

/// The functions that call [`SKIP`], themselves or through others, each with its file. A method, `Type::name`, is known in all files, a
/// plain function in its own.
fn skipping(workspace: &Workspace) -> BTreeSet<(String, String)> {
    let sources = workspace.files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let functions: Vec<_> =
        sources.flat_map(|(path, text)| functions(text).map(move |(name, body)| (path, name, body))).collect();
    let mut found = BTreeSet::new();
    loop {
        let before = found.len();
        for (path, name, body) in &functions {
            let calls = |(place, called): &(String, String)| {
                (called.contains("::") || place == *path) && body.contains(&format!("{called}("))
            };
            if body.contains(&format!("{SKIP}(")) || found.iter().any(calls) {
                found.insert(((*path).clone(), name.clone()));
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The functions of a file, as rustfmt leaves it, with their bodies; those of an `impl` as `Type::name`.
fn functions(text: &str) -> impl Iterator<Item = (String, String)> {
    let mut owner = String::new();
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).filter_map(move |at| {
        let (line, code) = (lines[at], lines[at].trim_start());
        if let Some(head) = line.strip_prefix("impl") {
            let named =
                head.rsplit(" for ").next().unwrap_or_default().trim_start_matches(|c: char| !c.is_alphabetic());
            owner = named.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned() + "::";
        } else if line.starts_with('}') {
            owner.clear();
        }
        let name = code.split_once("fn ").filter(|(before, _)| before.is_empty() || before.ends_with(' '))?.1;
        let name = &name[..name.find(['(', '<'])?];
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let body = lines[at..].iter().take_while(|line| **line != end).copied().collect::<Vec<_>>().join("\n");
        let body = if code.ends_with('}') { line.to_owned() } else { body };
        Some((format!("{owner}{name}"), body))
    })
}

/// Whether the attributes above a function of this name make it a test that is not ignored.
fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {function}(");
    let is_head = |line: &str| line.starts_with(&head) || line.starts_with(&format!("async {head}"));
    lines.iter().enumerate().filter(|(_, line)| is_head(line)).any(|(at, _)| {
        let mut above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.clone().any(|line| line.ends_with("test]") || line.contains("::test("))
            && !above.any(|line| line.starts_with("#[ignore"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        check(&Workspace::of(&[
            (
                "engine/src/state.rs",
                "mod tests {\n#[test]\nfn resumes() {}\n#[test]\n#[ignore]\nfn later() {}\nfn none() {}\n}",
            ),
            ("engine/tests/other.rs", "impl Nginx {\n    fn start() {\n        skip::skip_or_fail(1);\n    }\n}\n"),
            (
                "engine/tests/nginx.rs",
                "#[test]\nfn serves() {\n    helped();\n}\n\nfn helped() {\n    other::Nginx::start();\n}\n",
            ),
            ("engine/tests/faults.rs", "proptest! {\n#[test]\n/// Why.\nfn survives(x in 0..3) {}\n}"),
            (PAGE, page),
        ]))
    }

    #[test]
    fn promises_with_tests_that_run_are_kept() {
        let page = "# Page\n\n## Part\n\n### Resume\n\nIt does.\n\ntest: `fuelrail::state::tests::resumes`\n\
                    ### Faults\n- test: `engine/tests/faults.rs::survives`\n## Closing words\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn promises_without_a_test_that_runs_are_found() {
        let names = |test: &str| found(&format!("# Page\n### One\nwords\n{test}\n## Part\n"));
        for (test, complaint) in [
            ("", "'One' needs a test"),
            ("test: `fuelrail::state::tests::none`", "no such test runs"),
            ("test: `fuelrail::state::tests::later`", "no such test runs"),
            ("test: `fuelrail::other::tests::resumes`", "no such test runs"),
            ("test: `engine/tests/nginx.rs::serves`", "'One' needs a test that runs everywhere"),
        ] {
            assert!(names(test).len() == 1 && names(test)[0].contains(complaint), "{test}: {:?}", names(test));
        }
        assert_eq!(found("# Nothing promised\n").len(), 1);
    }
}
