//! Every fenced block of the documents is run by a test, or is listed here with the reason why not.

use super::{links, workspace::Workspace};

/// A language, where its blocks are run, and the test that runs them. Rust is run where an `include_str!` makes the page a doctest.
const RUN: [(&str, &str, &str); 4] = [
    ("python", "engine/docs/MIGRATION.md", "bindings/python/tests/test_migration.py"),
    ("console", "engine/docs/MIGRATION.md", "bindings/python/tests/test_migration.py"),
    ("python", "engine/docs/", "bindings/python/tests/test_pages.py"),
    ("c", "engine/docs/C.md", "bindings/c/tests/programs.rs"),
];
/// A page, how the first lines of some of its blocks begin, and why no test runs these.
const NOT_RUN: [(&str, &[&str], &str); 19] = [
    ("README.md", &["$ ./scripts/demo", "$ cargo install"], "compiles for minutes, as `cargo x prove` does"),
    ("bindings/tch/README.md", &["eval ", "cargo update", "export LD_"], "compiles for minutes, or trains on a GPU"),
    ("engine/docs/ARCHITECTURE.md", &["                     one shard"], "a drawing"),
    ("engine/docs/C.md", &["$ ./scripts/clib"], "compiles for minutes; `cargo x prove c` does the same"),
    ("engine/docs/CONTAINERS.md", &["jq "], "edits a file of the reader's"),
    ("engine/docs/CONTAINERS.md", &["docker run", "services:", "ctr run", "apiVersion"], "needs Docker or a cluster"),
    ("engine/docs/KUBERNETES.md", &["cargo build", "apiVersion: fuelrail", "metadata:", "env:"], "needs a cluster"),
    ("engine/docs/PLAN.md", &["fuelrail plan spot"], "reads a trace of the reader's"),
    ("engine/docs/PLAN.md", &["on_demand"], "one line of a file; a test reads all of bindings/cli/examples/k80.toml"),
    ("engine/docs/PYTHON.md", &["$ ./scripts/wheel"], "compiles for minutes; `cargo x prove python` does the same"),
    ("engine/docs/PYTHON.md", &["def volumes"], "reads NPZ files, which the test's bucket lacks"),
    ("engine/docs/PYTHON.md", &["dataset = fuelrail.torch.IterableDataset("], "needs a GPU"),
    ("engine/docs/PYTHON.md", &["$ torchrun"], "needs two machines; test_nodes.py has network namespaces"),
    ("engine/docs/PYTHON.md", &["reader:", "$ fuelrail serve"], "needs DLIO and MPI; test_dlio.py runs smaller ones"),
    ("engine/docs/RECORDS.md", &["$ fuelrail records"], "reads data sets of the reader's"),
    ("engine/docs/RECORDS.md", &["key,offset"], "the content of a file"),
    ("engine/docs/USAGE.md", &["$ fuelrail pack", "$ fuelrail share", "FUELRAIL_ANON"], "reads the reader's buckets"),
    ("engine/docs/USAGE.md", &["$ eval"], "compiles for minutes, then trains on eight GPUs"),
    ("engine/docs/USAGE.md", &["$ ./scripts/gpu"], "needs a machine with a GPU; `cargo x prove gpu` rehearses it"),
];

pub(super) fn check(workspace: &Workspace) -> Vec<String> {
    let text = |page: &str| workspace.files.get(page).map(String::as_str).unwrap_or_default();
    let is_listed = |page: &str, code: &str| {
        NOT_RUN.iter().any(|(path, starts, _)| *path == page && starts.iter().any(|start| code.starts_with(start)))
    };
    let mut problems = Vec::new();
    for page in workspace.files.keys().filter(|path| is_page(path)) {
        let is_run = |language: &str| {
            let mut runs = RUN.iter().filter(|(name, place, _)| *name == language && page.starts_with(place));
            let is_rust = matches!(language, "rust" | "rust,no_run");
            runs.any(|(_, _, test)| workspace.files.contains_key(*test)) || is_rust && is_doctest(workspace, page)
        };
        let unknown = blocks(text(page)).filter(|(language, code)| !is_run(language) && !is_listed(page, code));
        let firsts = unknown.filter_map(|(_, code)| code.lines().next());
        problems.extend(firsts.map(|first| format!("{page}: no test runs '{first}': say why in {}", file!())));
    }
    for (page, starts, _) in NOT_RUN {
        let gone = starts.iter().filter(|start| !blocks(text(page)).any(|(_, code)| code.starts_with(**start)));
        problems.extend(gone.map(|start| format!("{page}: no block begins with '{start}', which {} lists", file!())));
    }
    problems
}

fn is_page(path: &str) -> bool {
    let is_guide = |name: &str| name.ends_with(".md") && !name.contains('/') && name != "CHANGELOG.md";
    matches!(path, "README.md" | "bindings/tch/README.md") || path.strip_prefix("engine/docs/").is_some_and(is_guide)
}

/// The fenced blocks of a page: language and text.
fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'))
}

fn is_doctest(workspace: &Workspace, page: &str) -> bool {
    workspace.files.iter().filter(|(path, _)| path.ends_with(".rs")).any(|(path, text)| {
        let included = text.split("\n#[doc = include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next());
        included.map(|link| links::from(path, link)).any(|included| included == page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_no_test_runs_is_found() {
        let found = |block: &str, source: &str| {
            let page = format!("# A\n\n```{block}\n```\n");
            let files = [("engine/docs/C.md", &*page), ("engine/src/lib.rs", source), (RUN[3].2, "programs")];
            let problems = check(&Workspace::of(&files));
            problems.into_iter().filter(|problem| problem.contains("no test runs")).count()
        };
        let source = "\n#[doc = include_str!(\"../docs/C.md\")]\n";
        let blocks = ["c\nmain", "console\n$ ./scripts/clib", "sh\nls", "rust\nf()", "rust,ignore\nf()", "python\n1"];
        assert_eq!(blocks.map(|block| found(block, "")), [0, 0, 1, 1, 1, 1]);
        assert_eq!(blocks.map(|block| found(block, source)), [0, 0, 1, 0, 1, 1]);
    }
}
