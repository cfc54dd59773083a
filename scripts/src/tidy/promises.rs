//! Every promise of `engine/docs/SEMANTICS.md` names a test, and the test exists and runs on every machine.
//!
//! A promise is a section under a third-level heading. It names its tests on lines of their own:
//! ``test: `fuelrail_plan::order::tests::is_a_bijection` `` or ``test: `engine/tests/faults.rs::survives_truncation` ``.

use crate::house::{House, Problem};
use crate::rooms::Krate;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "engine/docs/SEMANTICS.md";

pub(super) fn check(house: &House) -> Vec<Problem> {
    let Some(text) = house.tree.text(PAGE) else {
        return vec![Problem::new(PAGE, 0, "promises", "the page of promises is missing")];
    };
    let tests = tests(house);
    let mut problems = Vec::new();
    let mut open: Option<Promise> = None;
    let mut promises = 0;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            close(open.take(), &mut problems);
            if let Some(title) = line.strip_prefix("### ") {
                open = Some(Promise { line: index + 1, title, tests: 0, skippable: 0 });
                promises += 1;
            }
        } else if let Some(name) = named_test(line) {
            let found = tests.get(name);
            if let Some(promise) = &mut open {
                promise.tests += 1;
                promise.skippable += usize::from(found == Some(&Runs::UnlessSkipped));
            }
            let text = match found {
                None => format!("no test is called '{name}': write it, or withdraw the promise"),
                Some(Runs::Never) => format!("the test '{name}' is ignored: a promise needs one that runs"),
                Some(Runs::Always | Runs::UnlessSkipped) => continue,
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

/// A promise and how many tests it names so far.
struct Promise<'a> {
    line: usize,
    title: &'a str,
    tests: usize,
    skippable: usize,
}

/// When a test runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Runs {
    Always,
    /// It calls [`SKIP`], itself or through what it calls.
    UnlessSkipped,
    /// It carries `#[ignore]`.
    Never,
}

/// The function by which tests are skipped.
const SKIP: &str = "skip_or_fail";

fn close(open: Option<Promise>, problems: &mut Vec<Problem>) {
    let Some(Promise { line, title, tests, skippable }) = open else { return };
    let text = match tests {
        0 => format!("the promise '{title}' names no test: add a line \"test: `path::name`\""),
        all if all == skippable => {
            format!(
                "every test of the promise '{title}' may be skipped: add one that needs no other program or privilege"
            )
        }
        _ => return,
    };
    problems.push(Problem::new(PAGE, line, "promises", text));
}

fn named_test(line: &str) -> Option<&str> {
    let rest = line.trim().trim_start_matches("- ").strip_prefix("test: `")?;
    Some(rest.split_once('`')?.0)
}

/// All tests by both of their names, and when each runs.
fn tests(house: &House) -> BTreeMap<String, Runs> {
    let mut all = BTreeMap::new();
    for krate in &house.crates {
        let skippable = skippable(house, krate);
        for (path, source) in house.sources_of(krate) {
            let module = module_of(&krate.library(), &krate.path("src/"), path);
            for test in &source.tests {
                let inside = if test.module.is_empty() { String::new() } else { format!("{}::", test.module) };
                let runs = match test.ignored {
                    true => Runs::Never,
                    false if skippable.contains(&(path, test.name.as_str())) => Runs::UnlessSkipped,
                    false => Runs::Always,
                };
                all.insert(format!("{path}::{inside}{}", test.name), runs);
                if let Some(module) = &module {
                    all.insert(format!("{module}::{inside}{}", test.name), runs);
                }
            }
        }
    }
    all
}

/// The functions of a crate that call [`SKIP`], or a function that does: file and name. A method is known by `Type::name` in all
/// files, a plain function by its name in its own file.
fn skippable<'a>(house: &'a House, krate: &'a Krate) -> BTreeSet<(&'a str, &'a str)> {
    let mut found = BTreeSet::new();
    loop {
        let before = found.len();
        for (path, source) in house.sources_of(krate) {
            let lines: Vec<&str> = house.tree.text(path).unwrap_or_default().lines().collect();
            for function in source.functions.iter().filter(|f| f.name != SKIP) {
                let end = (function.line + function.lines - 1).min(lines.len());
                let calls = |name: &str| {
                    let call = format!("{name}(");
                    lines[function.line.min(end)..end].iter().any(|line| line.contains(&call))
                };
                let within = |(file, name): &(&str, &str)| (name.contains("::") || *file == path) && calls(name);
                if calls(SKIP) || found.iter().any(within) {
                    found.insert((path, function.name.as_str()));
                }
            }
        }
        if found.len() == before {
            return found;
        }
    }
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
            ("engine/tests/other.rs", "impl Nginx {\nfn start() {\nskip_or_fail(1);\n}\n}\n"),
            ("engine/tests/nginx.rs", "#[test]\nfn serves() {\nhelped();\n}\nfn helped() {\nNginx::start();\n}\n"),
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
    fn a_promise_kept_only_where_a_program_is_installed_is_found() {
        let only = "### One\ntest: `engine/tests/nginx.rs::serves`\n";
        let found_only = found(only);
        assert!(found_only.len() == 1 && found_only[0].contains("may be skipped"), "{found_only:?}");
        assert_eq!(found(&format!("{only}test: `engine/tests/faults.rs::survives`\n")), Vec::<String>::new());
    }

    #[test]
    fn a_missing_or_empty_page_is_found() {
        assert_eq!(check(&house(&[CRATE])).len(), 1);
        assert_eq!(found("# Nothing promised\n").len(), 1);
    }
}
